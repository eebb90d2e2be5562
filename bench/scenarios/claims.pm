package OutboxBench::Scenario::claims;

# What the drainer pays for an event with ten thousand, one million and five million pending, all behind five million
# published ones: with the statistics of the empty table first, while the backlog grows, then with those of the full
# one, while it shrinks. Measured is the drainer's processor time for an event from claim to mark (the broker's pace
# plays no part) and the pages of the table and its indexes that its walks look at: claims and marks go to the places that
# those found, and what a drainer that is stopped gives back depends on where it stood. After that restarts: from the
# drainer's start to its first mark.
#
# The exchange has no queue, and payloads are small: with them five million events take 2 GB. full_page_writes is off,
# or events that a checkpoint separates from their insert would cost a page's image each, whatever their number; so is
# autovacuum, which would renew the statistics.

use strict;
use warnings;
use utf8;

use List::Util qw(max min);
use Time::HiRes qw(sleep time);

use OutboxBench::Sampler;
use OutboxBench::Session;
use OutboxBench::Stats qw(median);

sub title { return 'Claims before a growing backlog and behind a long history'; }

my $history = 5_000_000;
my @pending = (10_000, 1_000_000, 5_000_000);
my %names   = (10_000 => '10 thousand', 1_000_000 => '1 million', 5_000_000 => '5 million');

# So many events are drained for one figure; of a smaller backlog all, over and over.
my $drained = 100_000;

sub run
{
	my ($bench) = @_;
	my $self = bless { bench => $bench, broker => $bench->broker }, __PACKAGE__;
	$self->{server} = $bench->server(
		broker   => $self->{broker},
		settings => {
			autovacuum               => 'off',
			full_page_writes         => 'off',
			max_wal_size             => '4GB',
			shared_preload_libraries => 'outbox_drainer, pg_stat_statements',
		});
	$self->{server}->execute('CREATE EXTENSION pg_stat_statements');
	$self->connect;
	$self->{session}->query('ANALYZE outbox.event');
	$self->write_history;
	my (%cpu, %pages, %first);
	for my $statistics ('empty', 'full')
	{
		$self->{session}->query('ANALYZE outbox.event') if $statistics eq 'full';
		$self->restart;    # Plans are made for these statistics,
		$self->bring_to($statistics eq 'empty' ? 10_000 : $bench->scaled($pending[-1]));
		drain($self->{server}, 5000);    # and what a start costs is measured below.
		for my $size ($statistics eq 'empty' ? @pending : reverse @pending)
		{
			my $case = "$names{$size} pending, statistics of the $statistics table";
			my $rows = $bench->scaled($size, 10_000);
			for my $round (1 .. $bench->repeats)
			{
				my $once = $self->measure($rows);
				push @{ $cpu{$case} },   1e6 * $once->{cpu};
				push @{ $pages{$case} }, $once->{pages};
			}
			$bench->figure("$case, processor time", figure => $cpu{$case},   unit => 'µs per event');
			$bench->figure("$case, pages",          figure => $pages{$case}, unit => 'per event');
			next if $statistics eq 'empty';
			$first{$size} = [ map { $self->first_after_restart($rows) } 1 .. max(3, $bench->repeats) ];
			$bench->figure("$names{$size} pending, first mark after a restart", figure => $first{$size},
				unit => 'ms after the start of the drainer');
		}
	}
	my %found = ('processor time' => \%cpu, 'pages' => \%pages, 'first mark after a restart' => \%first);
	$bench->figure("$_, most to least", figure => [ extremes(%{ $found{$_} }) ], unit => 'times', bar => '<= 1.3')
	  for sort keys %found;
	$self->{session}->close;
	$self->{server}->discard;
	$self->{broker}->stop;
	return;
}

sub connect
{
	my ($self) = @_;
	$self->{session} = OutboxBench::Session->new($self->{server});
	return;
}

sub restart
{
	my ($self) = @_;
	$self->{session}->close;
	$self->{server}->restart;
	$self->connect;
	$self->{server}->wait_for('pid IS NOT NULL');
	return;
}

sub extremes
{
	my (%figures) = @_;
	my @medians = map { median(@$_) } values %figures;
	return max(@medians) / min(@medians);
}

# Published long ago, with numbers below those to come, and passed by the drainer: the floor lies above them.
sub write_history
{
	my ($self) = @_;
	my ($server, $session) = @$self{qw(server session)};
	my $count = $self->{bench}->scaled($history);
	$server->publishing(0);
	in_parts($server, $count, sub {
		my ($from, $to) = @_;
		return 'INSERT INTO outbox.event (seq, id, event_type, payload, published_at)'
		  . q{ SELECT i, ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'order.placed', '\x7b7d', now()}
		  . " FROM generate_series($from, $to) i";
	});
	$session->query("SELECT setval('outbox.event_seq', $count)");
	$server->set('outbox_drainer.enabled' => 'on');
	my $deadline = time + 300;
	until ($session->query('SELECT coalesce(max(floor), 0) FROM outbox.relay_state') >= $count)
	{
		die "the drainer does not pass the history\n" if time > $deadline;
		sleep 0.5;
	}
	$server->publishing(0);
	$session->query('CHECKPOINT');
	return;
}

# Two sessions at once, as there are processors.
sub in_parts
{
	my ($server, $count, $statement) = @_;
	my $half  = int $count / 2;
	my @parts = ([ 1, $half ], [ $half + 1, $count ]);
	my @sessions = map { OutboxBench::Session->new($server) } @parts;
	$sessions[$_]->send($statement->(@{ $parts[$_] })) for 0 .. $#parts;
	$_->receive for @sessions;
	$_->close for @sessions;
	return;
}

# The drainer does not work meanwhile. One session inserts: rows of two would lie among each other, sometimes more and sometimes
# less, and a walk in their order would go from page to page.
sub bring_to
{
	my ($self, $size) = @_;
	my ($server, $session) = @$self{qw(server session)};
	my $there = pending($session);
	if ($there > $size)
	{
		drain($server, $there - $size);
		$there = pending($session);
	}
	if ($there < $size)
	{
		my $missing = $size - $there;
		$session->query(q{INSERT INTO outbox.event (event_type, payload) SELECT 'order.placed', '\x7b7d'}
			  . " FROM generate_series(1, $missing)");
	}
	$session->query('CHECKPOINT');
	return;
}

sub pending
{
	my ($session) = @_;
	return $session->query('SELECT count(*) FROM outbox.event e WHERE e.published_at IS NULL'
		  . ' AND e.seq > (SELECT coalesce(max(floor), 0) FROM outbox.relay_state)');
}

# Publishes so many events and some more, and stops; gives all samples.
sub drain
{
	my ($server, $count) = @_;
	my $sampler = OutboxBench::Sampler->new($server);
	$server->set('outbox_drainer.enabled' => 'on');
	my @samples = $sampler->follow($count);
	$server->publishing(0);
	return (@samples, $sampler->sample);
}

# Processor time and pages for one event, from the moment at which the drainer is told to begin to its rest: the
# connection to the broker, which it makes anew, is a part of each alike.
sub measure
{
	my ($self, $size) = @_;
	my ($server, $session) = @$self{qw(server session)};
	my $count = $self->{bench}->scaled($drained, 50_000);
	my ($cpu, $events, $pages) = (0, 0, 0);
	while ($events < $count)
	{
		$self->bring_to($size);
		$session->query('SELECT pg_stat_statements_reset()');
		my @samples = drain($server, min($count, $size));
		$pages  += pages($session);
		$events += $samples[-1]{published} - $samples[0]{published};
		$cpu    += $samples[-1]{cpu} - $samples[0]{cpu};
	}
	return { cpu => $cpu / $events, pages => $pages / $events };
}

# Of all that reads the table, in memory or not, as pg_stat_statements counts them: the statistics of tables come
# from a process only when it next works. The scenario's own statements read none meanwhile.
sub pages
{
	my ($session) = @_;
	my $pages = $session->query('SELECT sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements'
		  . q{ WHERE query LIKE 'SELECT%outbox.event %'});
	die "the drainer's statements are not in pg_stat_statements\n" unless $pages;
	return $pages;
}

# Milliseconds from the start of the drainer to the first mark.
sub first_after_restart
{
	my ($self, $size) = @_;
	my $server = $self->{server};
	$self->bring_to($size);
	my $floor = $self->{session}->query('SELECT max(floor) FROM outbox.relay_state');
	# Only written down, so that it holds from the restart on.
	$server->execute(q{ALTER SYSTEM SET outbox_drainer.enabled = 'on'});
	$self->restart;
	$server->wait_for('published > 0');
	$server->publishing(0);
	return $self->{session}->query('SELECT 1000 * extract(epoch FROM min(e.published_at) - min(a.backend_start))'
		  . ' FROM pg_stat_activity a JOIN outbox.event e ON e.published_at > a.backend_start'
		  . " WHERE e.seq > $floor AND a.pid = " . $server->drainer_pid);
}

1;
