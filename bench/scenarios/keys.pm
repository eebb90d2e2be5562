package OutboxBench::Scenario::keys;

# A queued backlog in per_key order, the default, with one key, a hundred and a hundred thousand. Events of a key go one
# at a time, each after the confirm of the one before, so with few keys the honest ceiling is rabbitmq-c with a window of
# as many messages as there are keys; with very many, order is to cost next to nothing against best_effort.

use strict;
use warnings;

sub title { return 'Draining a backlog in order per key'; }

# One key goes at the pace of single confirms, so fewer of its events are enough.
my @cases = (
	{ keys => 1,       count => 20_000,  against => 'ceiling, window 1',   bar => '>= 0.8' },
	{ keys => 100,     count => 100_000, against => 'ceiling, window 100', bar => '>= 0.8' },
	{ keys => 100_000, count => 100_000, against => 'best_effort',         bar => '>= 0.9' },
);

sub run
{
	my ($bench) = @_;
	for my $case (@cases)
	{
		my $count = $bench->scaled($case->{count}, 4000);
		my $keys  = $case->{keys};
		my (@ours, @baseline);
		for my $round (1 .. $bench->repeats)
		{
			my $broker = $bench->broker;
			my $server = $bench->server(broker => $broker);
			my $empty  = sub {
				$broker->delete(queue => 'q');
				$broker->declare(exchange => 'events', queue => 'q', binding => '#');
			};
			my $drain = sub {
				my ($ordering) = @_;
				$server->query("SELECT outbox.alter_relay(ordering => '$ordering')");
				$server->publishing(0);
				$server->execute('TRUNCATE outbox.event');
				$server->insert($count, key => "'key ' || i % $keys");
				$server->execute('CHECKPOINT');
				$empty->();
				my $rate = $count / $server->drain($count);
				my $sent = $server->query('SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL');
				die "$sent of $count events are published\n" unless $sent == $count;
				return $rate;
			};
			my $measure_ours     = sub { push @ours, $drain->('per_key') };
			my $measure_baseline = sub {
				if ($case->{against} eq 'best_effort')
				{
					push @baseline, $drain->('best_effort');
					return;
				}
				$empty->();
				push @baseline, $bench->program('ceiling', port => $broker->port, count => $count, window => $keys)->{rate};
			};
			$broker->declare(exchange => 'events', queue => 'q', binding => '#');
			$_->() for $round % 2 ? ($measure_baseline, $measure_ours) : ($measure_ours, $measure_baseline);
			$bench->say(sprintf '%d keys: %.0f events/s, %s %.0f', $keys, $ours[-1], $case->{against}, $baseline[-1]);
			$server->discard;
			$broker->stop;
		}
		$bench->compare($keys == 1 ? 'one key' : "$keys keys", figure => \@ours, unit => 'events/s', baseline => \@baseline,
			against => $case->{against}, bar => $case->{bar});
	}
	return;
}

1;
