package OutboxDrainer::RabbitMQCluster;

=pod

=head1 NAME

OutboxDrainer::RabbitMQCluster - several RabbitMQ nodes that are one broker

=head1 SYNOPSIS

  my $cluster = OutboxDrainer::RabbitMQCluster->new(nodes => 3);
  $cluster->start;
  $cluster->declare(exchange => 'events', queue => 'q');
  my $node = $cluster->node_at($port);
  $node->kill9;
  $node->start;
  $cluster->wait_whole('q');

=head1 DESCRIPTION

Each node is an OutboxDrainer::RabbitMQ. They share a port mapper and a cookie. A node that hangs is taken
for dead by the others after some seconds.

=cut

use strict;
use warnings;

use Carp;
use JSON::PP ();
use OutboxDrainer::RabbitMQ;
use Time::HiRes qw(sleep time);

=pod

=head1 METHODS

=over

=item OutboxDrainer::RabbitMQCluster->new(nodes => n, log_dir => directory)

=item $cluster->start

Starts all nodes; the first one alone, since the others join it. Returns when each sees all others.

=item $cluster->nodes, $cluster->node_at(port)

The nodes, and the one that listens on the port.

=item $cluster->uri

The URIs of all nodes, as broker_uri takes them.

=cut

sub new
{
	my ($class, %params) = @_;
	my $config = <<'CONF';
cluster_partition_handling = pause_minority
CONF
	my @nodes;
	for (1 .. $params{nodes} // 3)
	{
		my $node = OutboxDrainer::RabbitMQ->new(
			log_dir => $params{log_dir},
			config  => $config,
			peer    => $nodes[0]);
		$node->set_advanced_config('[{kernel, [{net_ticktime, 8}]}].');
		push @nodes, $node;
	}
	return bless { nodes => \@nodes }, $class;
}

sub start
{
	my ($self) = @_;
	my ($first, @others) = $self->nodes;
	$first->start;
	$_->launch  for @others;
	$_->wait_up for @others;
	$self->wait_whole;
	return;
}

sub nodes
{
	my ($self) = @_;
	return @{ $self->{nodes} };
}

sub node_at
{
	my ($self, $port) = @_;
	my ($node) = grep { $_->port == $port } $self->nodes;
	return $node // croak "no node listens on port $port";
}

sub uri
{
	my ($self) = @_;
	return join ',', map { $_->uri } $self->nodes;
}

=pod

=item $cluster->declare(at => node, ...)

As OutboxDrainer::RabbitMQ::declare, with a quorum queue that is led by the node (by default, the first one). Returns when every node has the queue on its disk:
one that is killed before that would come back without it.

=item $cluster->wait_whole(queue, ...)

Waits until all nodes run and are one cluster, and every member of these quorum queues is there.

=back

=cut

sub declare
{
	my ($self, %what) = @_;
	my ($first) = grep { $_->pid } $self->nodes;
	my $node = delete $what{at} // $first;
	$node->declare(%what, quorum => 1);
	$self->wait_whole($what{queue}) if defined $what{queue};
	$_->flush_metadata for $self->nodes;
	return;
}

sub wait_whole
{
	my ($self, @queues) = @_;
	my $deadline = time + $OutboxDrainer::RabbitMQ::timeout;
	until ($self->_is_whole(@queues))
	{
		croak 'the cluster did not become whole' if time > $deadline;
		sleep 0.3;
	}
	return;
}

# One command, since each takes a second: a queue's member that is there says that its node is.
sub _is_whole
{
	my ($self, @queues) = @_;
	my ($node) = grep { $_->pid } $self->nodes;
	my $all    = $self->nodes;
	my $ask    = sub { return eval { JSON::PP->new->utf8->decode($node->ctl(@_, '--formatter', 'json')) }; };
	if (!@queues)
	{
		my $status = $ask->('cluster_status') // return 0;
		return @{ $status->{running_nodes} } == $all;
	}
	my $list   = $ask->(qw(list_queues name online)) // return 0;
	my %online = map { $_->{name} => ref $_->{online} ? scalar @{ $_->{online} } : 0 } @$list;
	return !grep { ($online{$_} // 0) != $all } @queues;
}

1;
