package OutboxBench::Scenario::idle;

# A server with nothing to publish, connected to its broker, for a minute: how often drainer and launcher wake up, what
# WAL is written, and which statements run. The drainer has published something before, so that it is past its start.

use strict;
use warnings;

use List::Util qw(sum0);
use Time::HiRes qw(sleep time);

use OutboxBench::Process qw(cpu_seconds status);
use OutboxBench::Session;

sub title { return 'A minute with nothing to publish'; }

# Processes as they are titled.
my %processes = (drainer => 'outbox_drainer', launcher => 'outbox_drainer launcher');

sub run
{
	my ($bench) = @_;
	my $seconds = $bench->scaled(60, 20);
	my %found;
	for my $round (1 .. $bench->repeats)
	{
		my $once = measure($bench, $seconds);
		push @{ $found{$_} }, $once->{$_} for keys %$once;
	}
	$bench->figure('wake-ups, drainer and launcher', figure => $found{wakeups}, unit => 'per second', bar => '<= 2');
	$bench->figure('processor time, drainer and launcher', figure => $found{cpu}, unit => 'ms per second');
	$bench->figure('WAL, without the server\'s own running-xacts records', figure => $found{wal}, unit => 'bytes', bar => '<= 0');
	$bench->figure('executions in pg_stat_statements', figure => $found{calls}, unit => 'per second');
	$bench->figure('different statements in pg_stat_statements', figure => $found{statements}, unit => 'statements');
	$bench->figure('statements that are no poll', figure => $found{others}, unit => 'statements', bar => '<= 0');
	return;
}

sub measure
{
	my ($bench, $seconds) = @_;
	my $broker = $bench->broker;
	my $server = $bench->server(
		broker   => $broker,
		# What autovacuum makes of the events before is the server's own.
		settings => { autovacuum => 'off', shared_preload_libraries => 'outbox_drainer, pg_stat_statements' });
	$server->execute('CREATE EXTENSION pg_stat_statements');
	$server->insert(1000);
	$server->wait_for(q{published >= 1000 AND state = 'idle'});
	settle($server);
	my $session = OutboxBench::Session->new($server);
	my %pids = map { $_ => $session->query("SELECT pid FROM pg_stat_activity WHERE backend_type = '$processes{$_}'") }
	  keys %processes;
	$session->query('SELECT pg_stat_statements_reset()');
	my ($before, $start) = (counted(%pids), time);
	my ($wal_before) = $session->query('SELECT pg_current_wal_insert_lsn()');
	sleep $seconds;
	my ($wal_after) = $session->query('SELECT pg_current_wal_insert_lsn()');
	my ($after, $end) = (counted(%pids), time);
	my @statements = $session->query(
		q{SELECT calls || ' ' || regexp_replace(query, '\s+', ' ', 'g') FROM pg_stat_statements}
		  . q{ WHERE query !~ 'pg_stat_statements|pg_current_wal_insert_lsn|pg_stat_activity' ORDER BY calls DESC, query});
	my @records = records($server, $wal_before, $wal_after);
	my @others = grep { !is_poll($_) } @statements;
	$bench->say("  $_") for map { substr $_, 0, 160 } @statements;
	$bench->say("  WAL: $_->{text}") for @records;
	$bench->say(sprintf '  %s: %.2f wake-ups a second', $_, ($after->{$_}{sleeps} - $before->{$_}{sleeps}) / ($end - $start))
	  for sort keys %pids;
	$session->close;
	$server->discard;
	$broker->stop;
	my $calls = 0;
	$calls += (split ' ')[0] for @statements;
	return {
		wakeups    => total('sleeps', $before, $after) / ($end - $start),
		cpu        => 1000 * total('cpu', $before, $after) / ($end - $start),
		wal        => sum0(map { $_->{bytes} } grep { !$_->{servers} } @records),
		calls      => $calls / ($end - $start),
		statements => scalar @statements,
		others     => scalar @others,
	};
}

# The records of WAL between two places. The background writer adds one of its own, with the transactions that run,
# after whatever was written before the minute began.
sub records
{
	my ($server, $from, $to) = @_;
	return if $from eq $to;
	my $directory = $server->query('SHOW data_directory') . '/pg_wal';
	my @lines = split /\n/, `pg_waldump -p $directory -s $from -e $to`;
	die "pg_waldump shows nothing from $from to $to\n" unless @lines;
	return map {
		{ text => $_, bytes => /len \(rec\/tot\):\s*\d+\/\s*(\d+)/ ? $1 : 0, servers => /RUNNING_XACTS/ ? 1 : 0 }
	} @lines;
}

# Until what follows from the events is written down, which is the floor and, within a minute, that the backlog is empty: after that nothing
# comes for ten seconds.
sub settle
{
	my ($server) = @_;
	my $deadline = time + 120;
	until ($server->query('SELECT coalesce(bool_and(backlog = 0 AND backlog_at > (SELECT max(published_at) FROM outbox.event)), false) FROM outbox.stat_relay') eq 't')
	{
		die "the backlog is not looked at\n" if time > $deadline;
		sleep 1;
	}
	$server->execute('CHECKPOINT');
	my ($last, $since) = ('', time);
	while (time < $since + 10)
	{
		my ($lsn) = $server->query('SELECT pg_current_wal_insert_lsn()');
		($last, $since) = ($lsn, time) if $lsn ne $last;
		sleep 1;
	}
	return;
}

# A poll reads and changes nothing; of what is due it would lock the rows that it takes.
sub is_poll
{
	my ($statement) = @_;
	$statement =~ s/\bFOR NO KEY UPDATE\b//g;
	return $statement =~ /^\d+ (?:SELECT|WITH)\b/ && $statement !~ /\b(?:INSERT|UPDATE|DELETE)\b/;
}

sub counted
{
	my (%pids) = @_;
	return { map { $_ => { sleeps => status($pids{$_}, 'voluntary_ctxt_switches'), cpu => cpu_seconds($pids{$_}) } } keys %pids };
}

sub total
{
	my ($what, $before, $after) = @_;
	my $sum = 0;
	$sum += $after->{$_}{$what} - $before->{$_}{$what} for keys %$before;
	return $sum;
}

1;
