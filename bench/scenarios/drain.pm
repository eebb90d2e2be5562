package OutboxBench::Scenario::drain;

# A queued backlog goes into a durable classic queue, a quorum queue, and an exchange without a queue, where the broker
# costs next to nothing. The ceiling is taken with the drainer's own window and with 500, whichever is better.
#
# Into the classic queue go also the relays outside the server (programs/external_relay.cpp). The claim of the one that
# leases sorts whatever is pending, so its cost grows with the backlog: of our 200,000 events half are pending on the
# average, so it is measured from there on, with 100,000 pending of which it relays the first 10,000. What it makes of a
# tenth of the backlog, in its favour, is shown beside. The relay that commits each row has 2,000, since its rate hardly
# depends on how many there are.

use strict;
use warnings;

use List::Util qw(max);

sub title { return 'Draining a backlog of 512-byte events'; }

my %kinds = (
	'classic queue' => { declare => [ queue => 'q', binding => '#' ],              bar => '>= 0.85', relays => 1 },
	'quorum queue'  => { declare => [ queue => 'q', binding => '#', quorum => 1 ], bar => '>= 0.85' },
	'no queue'      => { declare => undef,                                         bar => '>= 0.5' },
);

my @relays = (
	{ name => 'first seed', mode => 'batch', count => 100_000, limit => 10_000, bar => '>= 5' },
	{ name => 'first seed with a tenth of the backlog', mode => 'batch', count => 20_000, limit => 20_000 },
	{ name => 'per row', mode => 'row', count => 2_000, limit => 2_000 },
);

# Events a second of one of the relays outside the server. The backlog is not smaller in a quick run, since it decides.
sub relay_rate
{
	my ($bench, $server, $broker, $relay) = @_;
	my %env   = $server->environment;
	my $limit = $bench->scaled($relay->{limit});
	$bench->program('external_relay', mode => 'fill', count => $relay->{count}, env => {%env});
	$server->execute('CHECKPOINT');
	my $got = $bench->program('external_relay', mode => $relay->{mode}, port => $broker->port, limit => $limit, env => {%env});
	die "$relay->{name} relayed $got->{count} of $limit events\n" unless $got->{count} == $limit;
	return $got->{rate};
}

sub run
{
	my ($bench) = @_;
	my $count = $bench->scaled(200_000);
	for my $kind ('classic queue', 'quorum queue', 'no queue')
	{
		my (@ours, @ceiling, %relayed);
		for my $round (1 .. $bench->repeats)
		{
			my $broker = $bench->broker;
			my $server = $bench->server(broker => $broker);
			my @queue  = @{ $kinds{$kind}{declare} || [] };
			my $window = $server->query('SHOW outbox_drainer.pipeline_depth');
			my $empty  = sub {
				$broker->delete(queue => 'q') if @queue;
				$broker->declare(exchange => 'events', @queue) if @queue;
			};
			my @rates;
			my $measure_ceiling = sub {
				for my $depth ($window == 500 ? (500) : ($window, 500))
				{
					$empty->();
					push @rates, $bench->program('ceiling', port => $broker->port, count => $count, window => $depth)->{rate};
				}
			};
			my $measure_ours = sub {
				$server->publishing(0);
				$server->insert($count);
				$server->execute('CHECKPOINT');
				$empty->();
				push @ours, $count / $server->drain($count);
			};
			$broker->declare(exchange => 'events', @queue) if @queue;
			my $measure_relays = sub {
				for my $relay ($kinds{$kind}{relays} ? @relays : ())
				{
					$empty->();
					push @{ $relayed{ $relay->{name} } }, relay_rate($bench, $server, $broker, $relay);
				}
			};
			# Who goes first takes turns: the node's first minute is not like its second.
			my @turns = ($measure_ceiling, $measure_ours, $measure_relays);
			$_->() for $round % 2 ? @turns : reverse @turns;
			push @ceiling, max(@rates);
			$bench->say(sprintf '%s: %.0f events/s, ceiling %.0f', $kind, $ours[-1], $ceiling[-1]);
			$server->discard;
			$broker->stop;
		}
		$bench->compare($kind, figure => \@ours, unit => 'events/s', baseline => \@ceiling, against => 'ceiling',
			bar => $kinds{$kind}{bar});
		for my $relay (grep { $relayed{ $_->{name} } } @relays)
		{
			$bench->compare("$kind, relay outside", figure => \@ours, unit => 'events/s',
				baseline => $relayed{ $relay->{name} }, against => $relay->{name}, bar => $relay->{bar});
		}
	}
	return;
}

1;
