# outbox.why(): what it says of an event while drainers and brokers are in each of their states, and what
# outbox.stat_relay has counted.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $time   = qr/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+/;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker, settings => { 'drainer.pipeline_depth' => 10 });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');

# What why() says of the first event that has work left, or else of the last one.
sub why
{
	my ($server) = @_;
	return $server->safe_psql('postgres',
		'SELECT outbox.why(id) FROM outbox.event ORDER BY published_at IS NULL DESC, CASE WHEN published_at IS NULL THEN seq ELSE -seq END LIMIT 1');
}

sub wait_why
{
	my ($server, $pattern, $name) = @_;
	my $answer = '';
	my $fits = sub { $answer = why($server); return $answer =~ $pattern; };
	eval { OutboxDrainer::Cluster::wait_until($name, $fits); };
	like($answer, $pattern, $name);
	return;
}

$node->safe_psql('postgres', q{SELECT emit('key')});
$node->wait_drained('postgres');
like(why($node), qr/^published at $time$/, 'published');

# The broker blocks: what is in hand, by whom and until when, and what is not.
my $pid = $node->drainer_pid('postgres');
$broker->memory_alarm(1);
$node->safe_psql('postgres', 'SELECT emit_many(500, 10)');
$node->wait_for_state('postgres', 'blocked');
wait_why($node, qr{^held by drainer 0 \(pid $pid\) until $time; the broker "127.0.0.1:\d+//" blocks publishing since $time: .*memory}, 'the broker blocks');
$broker->memory_alarm(0);
$node->wait_drained('postgres');
like(why($node), qr/^published at/, 'and when it is over, nothing of it is left');

# Nobody listens where the broker should be.
my $nowhere = OutboxDrainer::Cluster->new_broker;
$node->configure('drainer.broker_uri' => 'amqp://127.0.0.1:' . $nowhere->port);
$node->safe_psql('postgres', q{SELECT emit('key')});
my $nobody = qr{the broker "127.0.0.1:${\$nowhere->port}//" is disconnected since ($time): .*refused};
wait_why($node, qr/^$nobody/, 'the broker is not there, with the reason');
my ($since) = why($node) =~ $nobody;
# Neither further attempts nor a new drainer make it a shorter time.
$node->wait_query('postgres', "SELECT last_error_at > disconnected_since + interval '1 s' FROM outbox.stat_drainer WHERE database = 'postgres'");
wait_why($node, qr/disconnected since \Q$since\E: /, 'since when, whatever was tried since then');
$pid = $node->drainer_pid('postgres');
kill 'TERM', $pid;
$node->wait_query('postgres', "SELECT pid > 0 AND pid <> $pid FROM outbox.stat_drainer WHERE database = 'postgres'");
wait_why($node, qr/disconnected since \Q$since\E: /, 'and whoever has tried');

# An event with a reason of its own has that one first.
$node->safe_psql('postgres', q{UPDATE outbox.event SET next_attempt_at = '2999-01-01', attempts = 3, last_error = 'nack: by the broker' WHERE published_at IS NULL});
wait_why($node, qr/^backing off until 2999-01-01 \S+ after failed attempt 3 of 20: nack: by the broker; $nobody/, 'its own reason and that of all');
$node->safe_psql('postgres', q{UPDATE outbox.event SET next_attempt_at = now() WHERE published_at IS NULL});

# Paused, disabled, misconfigured, without a broker.
$node->safe_psql('postgres', q{UPDATE outbox.relay SET paused_at = now(), paused_by = 'ops', pause_reason = 'repair'});
wait_why($node, qr/^the relay is paused since $time by ops: repair; the broker /, 'paused, and a broker that is not there');
$node->safe_psql('postgres', q{UPDATE outbox.relay SET paused_at = NULL, paused_by = NULL, pause_reason = NULL});
$node->configure('drainer.enabled' => 'off');
wait_why($node, qr/^drainers are disabled since $time by outbox_drainer.enabled$/, 'disabled');
$node->configure('drainer.enabled' => undef, 'drainer.lease_ttl' => '1s');
$node->restart;
wait_why($node, qr/^the drainer is misconfigured since $time: outbox_drainer.lease_ttl /, 'misconfigured, with the reason');
$node->configure('drainer.lease_ttl' => undef, 'drainer.broker_uri' => undef);
wait_why($node, qr/^no broker is configured: outbox_drainer.broker_uri is not set$/, 'no broker');

# No drainer.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->configure('drainer.databases' => 'other');
wait_why($node, qr/^no drainer runs: this database is not in outbox_drainer.databases$/, 'not to be drained');
$node->configure('drainer.databases' => undef, 'drainer.broker_uri' => $broker->uri);
$node->wait_drained('postgres');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event AS e WHERE outbox.why(e.id) !~ ' . q{'^published at'}), '0', 'in the end all are published');

# The counters.
my $counters = 'claimed >= published AND published = 1 AND retried = 0 AND dead = 0 AND drainers = 1 AND batches > 0 AND stats_reset IS NOT NULL';
is($node->safe_psql('postgres', "SELECT $counters FROM outbox.stat_relay"), 't', 'stat_relay has counted since the start of the server');
my $position = $node->safe_psql('postgres', 'SELECT stats_reset FROM outbox.stat_relay');
$node->safe_psql('postgres', 'SELECT outbox.stat_reset()');
is($node->safe_psql('postgres', "SELECT published = 0 AND claimed = 0 AND stats_reset > '$position' FROM outbox.stat_relay"), 't', 'stat_reset() begins anew');
$node->safe_psql('postgres', 'SELECT emit_many(30, 3)');
$node->wait_drained('postgres');
$node->wait_query('postgres', 'SELECT published = 30 AND stats_reset IS NOT NULL FROM outbox.stat_relay');
is($node->safe_psql('postgres', 'SELECT published FROM outbox.stat_relay'), '30', 'and counts on');

# The logical replication launcher takes a worker too.
for my $case (
	[ 2, qr/^no drainer runs: no background worker is free, raise max_worker_processes$/, 'no free worker' ],
	[ 1, qr/^no drainer runs: the launcher does not run; .*max_worker_processes/,          'not even for the launcher' ])
{
	my ($workers, $pattern, $name) = @$case;
	my $crowded = OutboxDrainer::Cluster->new_node("crowded$workers", broker => $broker, settings => { max_worker_processes => $workers });
	$crowded->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
	$crowded->safe_psql('postgres', q{SELECT outbox.enqueue('order.placed', '{}')});
	wait_why($crowded, $pattern, $name);
}

my $bare = OutboxDrainer::Cluster->new_node('bare', preload => 0);
$bare->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$bare->safe_psql('postgres', q{SELECT outbox.enqueue('order.placed', '{}')});
wait_why($bare, qr/^no drainer runs: outbox_drainer is not in shared_preload_libraries$/, 'not preloaded');
is($bare->safe_psql('postgres', q{SELECT count(*) FROM outbox.settings_check() WHERE problem LIKE 'outbox_drainer is not loaded%'}),
	'1', 'settings_check() says it too, in a session that has not loaded it either');

done_testing();
