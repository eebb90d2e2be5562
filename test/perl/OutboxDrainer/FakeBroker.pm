package OutboxDrainer::FakeBroker;

=pod

=head1 NAME

OutboxDrainer::FakeBroker - a server that says to a drainer what no broker in its senses would say

=head1 SYNOPSIS

  my $fake = OutboxDrainer::FakeBroker->new;
  my $node = OutboxDrainer::Cluster->new_node('main', broker => $fake);
  ...
  $fake->wait_published(10);
  $fake->send(1, 'basic.ack', { delivery_tag => 99 });

=head1 DESCRIPTION

Left alone it behaves: it lets everybody in, opens channels, says that each exchange exists, and takes messages, which
are lost, without ever confirming one. Commands concern the connection that was made last.

=cut

use strict;
use warnings;

use parent 'OutboxDrainer::Tool';

use JSON::PP ();
use OutboxDrainer::Cluster;

=pod

=head1 METHODS

=over

=item OutboxDrainer::FakeBroker->new, $fake->port, $fake->uri

=item $fake->status

A hash: connections (since the start, or since behave), said (the methods that the client has sent) and published (how
many messages).

=item $fake->wait_published(n)

Waits until the client has published n messages.

=item $fake->send(channel, method, { field => value })

Sends a method by its name and the names of its fields in the AMQP specification, with _ for blanks and hyphens in
fields: send(0, 'connection.close', { reply_code => 320, ... }).

=item $fake->send_bytes(bytes), $fake->close, $fake->reset

Sends bytes as they are; ends the connection.

=item $fake->reply(method, name => { fields }, ...)

From now on the method is answered with these, or with nothing.

=item $fake->tune(channel_max, frame_max, heartbeat)

What is offered to new connections.

=item $fake->deaf

New connections and old ones get no answer any more.

=item $fake->behave

Forgets all that it was told.

=back

=cut

sub new
{
	my ($class) = @_;
	return $class->SUPER::new('fake_broker.py');
}

sub uri
{
	my ($self) = @_;
	return 'amqp://guest:guest@127.0.0.1:' . $self->port;
}

sub status
{
	my ($self) = @_;
	return JSON::PP->new->utf8->decode($self->command('status'));
}

sub wait_published
{
	my ($self, $count) = @_;
	OutboxDrainer::Cluster::wait_until("$count messages are published",
		sub { $self->status->{published} >= $count });
	return;
}

sub send    ## no critic (the protocol's own word)
{
	my ($self, $channel, $method, $fields) = @_;
	$self->command('send', $channel, $method, _json($fields));
	return;
}

sub send_bytes
{
	my ($self, $bytes) = @_;
	$self->command('send_bytes', unpack 'H*', $bytes);
	return;
}

sub reply
{
	my ($self, $method, @replies) = @_;
	$self->command('reply', $method, map { ref $_ ? _json($_) : $_ } @replies);
	return;
}

# The others are commands, word by word.
for my $name (qw(tune deaf close reset behave))
{
	no strict 'refs';    ## no critic
	*{$name} = sub { my ($self, @arguments) = @_; $self->command($name, @arguments); return; };
}

sub _json
{
	my ($fields) = @_;
	return JSON::PP->new->utf8->encode($fields // {});
}

1;
