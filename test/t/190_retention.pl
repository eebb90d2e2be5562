# Published events go when their retention is over, dead ones when theirs is, and nobody waits for that.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $long   = $ENV{OUTBOX_TEST_LONG};
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		# Page accesses and sizes are looked at below.
		autovacuum          => 'off',
		max_wal_size        => '4GB',
		log_lock_waits      => 'on',
		deadlock_timeout    => '100ms',
		'drainer.retention' => '2s',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');

sub query { return $node->safe_psql('postgres', shift) }
sub wait_for { return $node->wait_query('postgres', @_) }

sub insert
{
	my ($type, $count, %columns) = @_;
	my $names  = join '', map { ", $_" } sort keys %columns;
	my $values = join '', map { ", $columns{$_}" } sort keys %columns;
	return query("INSERT INTO outbox.event (event_type, payload$names) SELECT '$type', 'x'$values FROM generate_series(1, $count)");
}

sub gone_query { return "SELECT NOT EXISTS (SELECT FROM outbox.event WHERE event_type = '$_[0]')" }

# What goes and what stays.
insert('dead', 10, dead_at => 'now()', outcome => "'dead'");
insert('published', 10);
is(scalar @{ $broker->consume('q', count => 10) }, 10, 'events are published');
wait_for(gone_query('published'));
is(query(q{SELECT count(*) FROM outbox.event WHERE event_type = 'dead'}), '10', 'they go after their retention; dead ones stay');

insert('kept', 1, published_at => "'infinity'");
insert('locked', 1, published_at => 'now()');
my $operator = $node->background_psql('postgres');
$operator->query_safe(q{BEGIN; SELECT FROM outbox.event WHERE event_type = 'locked' FOR SHARE});
insert('behind', 2000, published_at => 'now()');
wait_for(gone_query('behind'));
is(query(q{SELECT count(*) FROM outbox.event WHERE event_type = 'locked'}), '1', 'those behind one that an operator has locked go');
$operator->query_safe('COMMIT');
$operator->quit;
wait_for(gone_query('locked'));
is(query(q{SELECT count(*) FROM outbox.event WHERE event_type = 'kept'}), '1', 'and that one when it is free; one published at infinity stays');

# Longer deferred than its neighbours are kept.
insert('deferred', 1, available_at => q{now() + interval '1 day'});
insert('after', 10);
is(scalar @{ $broker->consume('q', count => 10) }, 10, 'events after a scheduled one are published');
wait_for(gone_query('after'));
query(q{UPDATE outbox.event SET next_attempt_at = now() WHERE event_type = 'deferred'});
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'the scheduled one is published in its time');
wait_for(gone_query('deferred'));
pass('and goes, though those after it had gone before');

# A user's foreign key.
insert('referenced', 3, published_at => 'now()');
my $position = $node->log_position;
query(q{
	CREATE TABLE receipt (event uuid REFERENCES outbox.event (id));
	INSERT INTO receipt SELECT id FROM outbox.event WHERE event_type = 'referenced' ORDER BY seq LIMIT 1});
insert('unreferenced', 2000, published_at => 'now()');
wait_for(gone_query('unreferenced'));
wait_for(q{SELECT count(*) = 1 FROM outbox.event WHERE event_type = 'referenced'});
my $refused = query(q{SELECT seq FROM outbox.event WHERE event_type = 'referenced'});
my @lines   = $node->log_since($position) =~ /(event with seq \d+ cannot be removed.*)/g;
like($lines[0], qr/seq $refused cannot be removed after its retention: .*violates foreign key/, 'a foreign key that keeps an event is logged');
is(scalar @lines, 1, 'once, and the other events go');
query(q{DROP TABLE receipt});

$node->configure('drainer.dead_retention' => '1s');
wait_for(gone_query('dead'));
pass('dead events go after dead_retention');
$node->configure('drainer.dead_retention' => undef);

# Dead rows that are kept are not in the way. Each change of the setting makes a pass begin at once.
query(q{DELETE FROM outbox.event});
$node->configure('drainer.retention' => '3s');
my $dead = 50_000;
insert('kept dead', $dead, dead_at => q{now() - interval '1 day'}, outcome => "'dead'");
wait_for(q{SELECT retention_from >= (SELECT max(seq) FROM outbox.event) FROM outbox.relay_state});
$node->configure('drainer.retention' => '3600s');
my $statistics = q{FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = 'event'};
my $read       = "SELECT idx_tup_fetch $statistics";
my $removed    = query("SELECT n_tup_del $statistics");
my $passes     = 0;
my $setting    = 3601;
my $before;
for my $turn (0 .. 10)
{
	insert('old', 1, published_at => q{now() - interval '1 day'});
	# More than once, since the event may not have been passed by the drainer when the pass begins.
	OutboxDrainer::Cluster::wait_until(
		'the old event is gone',
		sub {
			$passes++;
			$node->configure('drainer.retention' => $setting++ . 's');
			return query(gone_query('old')) eq 't';
		});
	# The drainer's statistics come with a delay. The first of these turns brings those of all before.
	if ($turn == 0 || $turn == 10)
	{
		wait_for("SELECT n_tup_del > $removed + $turn $statistics");
		($before, $passes) = (query($read), 0) if $turn == 0;
	}
}
my $fetched = query($read) - $before;
cmp_ok($fetched, '<', $passes * $dead / 10, "$passes passes over $dead dead events that are kept read $fetched rows");
query(q{DELETE FROM outbox.event});

# Very many, while producers go on.
my $many = $long ? 2_000_000 : 100_000;
$node->configure('drainer.retention' => '0');
my @sizes;
for my $round (1, 2)
{
	query('VACUUM outbox.event');
	insert('history', $many, published_at => q{now() - interval '8 days'});
	push @sizes, query(q{SELECT pg_table_size('outbox.event')});
	my ($clients, $transactions) = (5, $long ? 20_000 : 1500);
	my $pgbench = $node->start_pgbench('postgres',
		"INSERT INTO outbox.event (event_type, payload, key) VALUES ('round $round', 'x', :client_id);\n\\sleep 4 ms\n",
		$clients, $transactions);
	my $arrived = "SELECT count(*) FROM outbox.event WHERE event_type = 'round $round'";
	wait_for("SELECT ($arrived) > 100");
	my $drainer = $node->drainer_pid('postgres');
	$position = $node->log_position;
	my ($began, $before, $blocked) = (time, query($arrived), 0);
	$node->configure('drainer.retention' => '7d');
	OutboxDrainer::Cluster::wait_until(
		'the history is gone',
		sub {
			$blocked += query("SELECT count(*) FROM pg_stat_activity WHERE $drainer = ANY (pg_blocking_pids(pid))");
			return query(gone_query('history')) eq 't';
		});
	my $took = time - $began;
	note sprintf '%d events removed in %.1f s (%.0f/s), %.0f inserts/s meanwhile', $many, $took, $many / $took,
	  (query($arrived) - $before) / $took;
	$node->finish_pgbench($pgbench);
	is($blocked, 0, "round $round: $many events go, no producer waits for the drainer");
	unlike($node->log_since($position), qr/still waiting for \w+Lock on (?!extension)/, "round $round: nor for any lock");
	$node->wait_drained('postgres');
	is(query($arrived), $clients * $transactions, "round $round: what producers wrote meanwhile is published and stays");
	$node->configure('drainer.retention' => '0');
}
cmp_ok($sizes[1], '<', $sizes[0] * 1.5, "the second history lies where the first one was ($sizes[0] bytes, then $sizes[1])");

done_testing();
