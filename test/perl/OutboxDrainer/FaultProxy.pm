package OutboxDrainer::FaultProxy;

=pod

=head1 NAME

OutboxDrainer::FaultProxy - a network between a drainer and its broker that fails to order

=head1 SYNOPSIS

  my $proxy = OutboxDrainer::FaultProxy->new($broker);
  my $node  = OutboxDrainer::Cluster->new_node('main', broker => $proxy);
  $proxy->blackhole('to_client');    # confirms vanish
  ...
  $proxy->pass;

=head1 DESCRIPTION

It listens on a port of its own and carries bytes to the broker and back. Faults concern all connections, present
and future, until pass() ends them. A direction is "to_broker", "to_client" or "both".

=cut

use strict;
use warnings;

use parent 'OutboxDrainer::Tool';

use JSON::PP ();

=pod

=head1 METHODS

=over

=item OutboxDrainer::FaultProxy->new(broker)

Starts a proxy for the broker, which is an OutboxDrainer::RabbitMQ or anything else that has a port.

=item $proxy->port, $proxy->uri(user, password, vhost)

Where it listens, and the URI of the broker by that way.

=cut

sub new
{
	my ($class, $broker) = @_;
	my $self = $class->SUPER::new('fault_proxy.py', '--broker-port', $broker->port);
	$self->{broker} = $broker;
	return $self;
}

sub uri
{
	my ($self, @parts) = @_;
	my ($uri, $theirs) = ($self->{broker}->uri(@parts), $self->{broker}->port);
	my $ours = $self->port;
	return $uri =~ s/:$theirs\b/:$ours/r;
}

=pod

=item $proxy->pass

Ends all faults. What a black hole held back is delivered.

=item $proxy->delay(milliseconds, direction), $proxy->throttle(bytes_per_second, direction)

A slow line; both directions unless one is named.

=item $proxy->blackhole(direction)

Nothing arrives any more, nor do FIN and RST; both directions unless one is named.

=item $proxy->reset

Ends the connections that there are with a RST to both sides.

=item $proxy->half_close(direction)

The connections that there are end in one direction only.

=item $proxy->cut(bytes, direction), $proxy->corrupt(bytes, direction)

After so many more bytes in the direction: the connection ends (with a FIN to both sides), or one byte is inverted.

=item $proxy->refuse

New connections are refused.

=item $proxy->silent

New connections are accepted, and that is all.

=item $proxy->status

A hash: connections (carried at the moment), silenced (accepted and left alone), accepted (since the start);
and by direction delivered (bytes since the start), held (bytes on their way) and trap (whether a cut or a
corruption is still to come).

=back

=cut

# The proxy's other methods are its commands, word by word.
for my $name (qw(pass delay throttle blackhole reset half_close cut corrupt refuse silent))
{
	no strict 'refs';    ## no critic
	*{$name} = sub { my ($self, @arguments) = @_; $self->command($name, @arguments); return; };
}

sub status
{
	my ($self) = @_;
	return JSON::PP->new->utf8->decode($self->command('status'));
}

1;
