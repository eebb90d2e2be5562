package OutboxBench::Scenario::drain;

# A queued backlog goes into a durable classic queue, a quorum queue, and an exchange without a queue, where the broker
# costs next to nothing. The ceiling is taken with the drainer's own window and with 500, whichever is better.

use strict;
use warnings;

use List::Util qw(max);

sub title { return 'Draining a backlog of 512-byte events'; }

my %kinds = (
	'classic queue' => { declare => [ queue => 'q', binding => '#' ],              bar => '>= 0.85' },
	'quorum queue'  => { declare => [ queue => 'q', binding => '#', quorum => 1 ], bar => '>= 0.85' },
	'no queue'      => { declare => undef,                                         bar => '>= 0.5' },
);

sub run
{
	my ($bench) = @_;
	my $count = $bench->scaled(200_000);
	for my $kind ('classic queue', 'quorum queue', 'no queue')
	{
		my (@ours, @ceiling);
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
			# Who goes first takes turns: the node's first minute is not like its second.
			$_->() for $round % 2 ? ($measure_ceiling, $measure_ours) : ($measure_ours, $measure_ceiling);
			push @ceiling, max(@rates);
			$bench->say(sprintf '%s: %.0f events/s, ceiling %.0f', $kind, $ours[-1], $ceiling[-1]);
			$server->discard;
			$broker->stop;
		}
		$bench->compare($kind, figure => \@ours, unit => 'events/s', baseline => \@ceiling, against => 'ceiling',
			bar => $kinds{$kind}{bar});
	}
	return;
}

1;
