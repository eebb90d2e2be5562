package OutboxBench::Scenario::steady;

# Events are inserted for a minute at 0.8 of the rate at which a backlog is drained, into a classic queue whose consumer
# keeps up. The drain rate is taken just before, on the same server and with the consumer connected, since that one has
# its share of the cores too. The producers are to cost little: pgbench -R with two clients, 100 rows in each transaction.
#
# The lag at a moment is the age of the oldest event that was not marked as published then. It is computed afterwards from
# enqueued_at and published_at of every event, so that nothing looks into the table while it is measured. Where the lag
# grows at 0.8, smaller shares are tried for a shorter time, and the greatest that can be sustained is reported.

use strict;
use warnings;

use File::Temp ();

use OutboxBench::Stats qw(median);

sub title { return 'Steady state: inserts at 0.8 of the drain rate for a minute'; }

my $share            = 0.8;
my @smaller_shares   = (0.7, 0.6, 0.5, 0.4);
my $rows_in_a_commit = 100;

sub run
{
	my ($bench) = @_;
	my $seconds = $bench->is_quick ? 15 : 60;
	my (@growth, @drained, @sustained, $shown);
	for my $round (1 .. $bench->repeats)
	{
		my $broker = $bench->broker;
		my $server = $bench->server(broker => $broker);
		$broker->declare(exchange => 'events', queue => 'q', binding => '#');
		push @drained, drain_rate($bench, $broker, $server);
		my $found = hold($bench, $broker, $server, $drained[-1] * $share, $seconds);
		push @growth, $found->{growth};
		$shown ||= $found;
		$bench->say(sprintf 'drains %.0f events/s, inserts %.0f: lag after 10 s %.3f s, at the end %.3f s', $drained[-1],
			$found->{inserted} / $seconds, @$found{qw(early late)});
		push @sustained, $found->{growth} <= 1 ? $share : sustained($bench, $broker, $server, $drained[-1]);
		$server->discard;
		$broker->stop;
	}
	$bench->figure('lag at the end beyond that after 10 s', figure => \@growth, unit => 's', bar => '<= 1');
	$bench->figure('share of the drain rate that is sustained', figure => \@sustained, unit => 'of the drain rate');
	$bench->figure('drain rate with a consumer', figure => \@drained, unit => 'events/s');
	$bench->series('steady_lag', title => "Inserts at $share of the drain rate: the oldest unpublished event",
		x => 'seconds', y => 'its age in seconds', lines => { lag => $shown->{lag} });
	$bench->series('steady_rate', title => "Inserts at $share of the drain rate",
		x => 'seconds', y => 'events/s', lines => { inserted => $shown->{inserts}, published => $shown->{publishes} });
	return;
}

# Events a second at which a backlog goes to a queue that is consumed.
sub drain_rate
{
	my ($bench, $broker, $server) = @_;
	my $count = $bench->scaled(200_000);
	$server->publishing(0);
	$server->insert($count);
	$server->execute('CHECKPOINT');
	my $consumer = consumer($bench, $broker);
	my $rate     = $count / $server->drain($count);
	received($bench, $consumer, $count);
	return $rate;
}

# The greatest of the smaller shares whose lag does not grow in 20 seconds; 0 if there is none.
sub sustained
{
	my ($bench, $broker, $server, $rate) = @_;
	for my $smaller (@smaller_shares)
	{
		my $found = hold($bench, $broker, $server, $rate * $smaller, 20);
		$bench->say(sprintf 'at %s of the drain rate: lag after 10 s %.3f s, at the end %.3f s', $smaller,
			@$found{qw(early late)});
		return $smaller if $found->{growth} <= 1;
	}
	return 0;
}

# Inserts at a rate for some seconds; what became of it.
sub hold
{
	my ($bench, $broker, $server, $rate, $seconds) = @_;
	my ($last)  = $server->query('SELECT coalesce(max(seq), 0) FROM outbox.event');
	my ($begun) = $server->query('SELECT sum(published) FROM outbox.stat_drainer');
	my $consumer = consumer($bench, $broker);
	insert_at($server, $rate, $seconds);
	my ($inserted) = $server->query("SELECT count(*) FROM outbox.event WHERE seq > $last");
	$server->wait_for("published >= $begun + $inserted");
	received($bench, $consumer, $inserted);
	my %lag  = by_second($server, $last, lag_query());
	my %found = (
		inserted  => $inserted,
		lag       => [ map { [ $_, $lag{$_} // 0 ] } 1 .. $seconds ],
		inserts   => series(by_second($server, $last, rate_query('enqueued_at')),  $seconds),
		publishes => series(by_second($server, $last, rate_query('published_at')), $seconds),
	);
	# The middle of a few seconds, since a single one may fall just before or after a batch's marks.
	$found{early}  = median(map { $lag{$_} // 0 } 9 .. 11);
	$found{late}   = median(map { $lag{$_} // 0 } $seconds - 2 .. $seconds);
	$found{growth} = $found{late} - $found{early};
	return \%found;
}

sub insert_at
{
	my ($server, $rate, $seconds) = @_;
	my $script = File::Temp->new(SUFFIX => '.sql');
	print $script "INSERT INTO outbox.event (event_type, payload) SELECT 'order.placed', "
	  . "convert_to(rpad('', 512, 'x'), 'UTF8') FROM generate_series(1, $rows_in_a_commit);\n";
	close $script or die "could not write the script: $!\n";
	local %ENV = (%ENV, $server->environment);
	my $log = `pgbench -n -M prepared -c 2 -j 1 -T $seconds -R @{[ $rate / $rows_in_a_commit ]} -f $script 2>&1`;
	die "pgbench failed:\n$log" if $? != 0 || $log !~ /number of failed transactions: 0 /;
	return;
}

# The moments are the full seconds after the first insert.
sub by_second
{
	my ($server, $last, $query) = @_;
	my $events = "events AS (SELECT extract(epoch FROM enqueued_at - min(enqueued_at) OVER ()) AS enqueued_at,"
	  . " extract(epoch FROM published_at - min(enqueued_at) OVER ()) AS published_at FROM outbox.event WHERE seq > $last)";
	return map { split /\|/ } $server->query("WITH $events $query");
}

sub lag_query
{
	return 'SELECT moment, max(moment - enqueued_at)'
	  . ' FROM events, generate_series(ceil(enqueued_at)::integer, ceil(published_at)::integer - 1) AS moment GROUP BY moment';
}

sub rate_query
{
	my ($column) = @_;
	return "SELECT floor($column)::integer + 1 AS moment, count(*) FROM events GROUP BY moment";
}

sub series
{
	my ($seconds, %of) = (pop, @_);
	return [ map { [ $_, $of{$_} // 0 ] } 1 .. $seconds ];
}

# A consumer that ends when nothing has come for a few seconds.
sub consumer
{
	my ($bench, $broker) = @_;
	return $bench->start_consumer($broker, 'idle-s' => 5);
}

sub received
{
	my ($bench, $consumer, $count) = @_;
	my $got = $bench->finish_program($consumer);
	die "of $count events $got->{received} were received\n" unless $got->{received} == $count;
	return;
}

1;
