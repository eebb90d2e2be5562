# The broker raises its memory alarm and blocks publishers: the status says so with the broker's reason, claims do
# not lapse, whatever is asked of the drainer meanwhile is done, nothing is charged, and all goes on by itself when
# the alarm is over.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $depth  = 30;
my $lease  = 9;
my $broker = OutboxDrainer::Cluster->start_broker;
$broker->add_vhost('elsewhere');
$broker->declare(exchange => 'events', queue => 'q', vhost => 'elsewhere');
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.pipeline_depth'   => $depth,
		'drainer.lease_ttl'        => "${lease}s",
		'drainer.shutdown_timeout' => '500ms',
		# Blocked is not silent.
		'drainer.confirm_timeout' => '1s',
		'drainer.heartbeat'       => '1s',
	});
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(dropped forced);
$node->safe_psql($_, 'CREATE EXTENSION outbox_drainer') for qw(postgres dropped forced);
$node->create_ledger('postgres');
$node->wait_for_state($_, 'idle') for qw(postgres dropped forced);

$broker->memory_alarm(1);
# Each has a key of its own, since they may go to two places.
$node->safe_psql('postgres', 'SELECT emit_many(500, 500)');
$node->wait_for_state('postgres', 'blocked');
pass('the state is blocked');
like($node->stat('postgres', 'last_error'), qr/blocked.*low on memory/, 'with the reason in the words of the broker');
my $published = $node->stat('postgres', 'published');
my $sent      = $node->stat('postgres', 'in_flight') + $published;
cmp_ok($sent, '<=', $depth, 'no more than a window was sent');

# Longer than a lease, so that every claim must have been renewed or given back by the end.
my $lapsed = "claimed_by IS NOT NULL AND claimed_at < clock_timestamp() - interval '$lease s'";
my $since  = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
my @lapsed;
OutboxDrainer::Cluster::wait_until(
	'every claim is younger than the alarm by a lease, or given back',
	sub {
		push @lapsed, $node->safe_psql('postgres', "SELECT count(*) FROM outbox.event WHERE $lapsed");
		return $node->safe_psql('postgres', <<"SQL") eq 't';
SELECT clock_timestamp() > '$since'::timestamptz + interval '$lease s'
	AND NOT EXISTS (SELECT FROM outbox.event WHERE claimed_by IS NOT NULL AND claimed_at < '$since'::timestamptz)
SQL
	});
is((grep { $_ > 0 } @lapsed), 0, 'no claim lapses meanwhile');
is($node->stat('postgres', 'state'),     'blocked',  'the state is blocked as long as the broker says so');
is($node->stat('postgres', 'published'), $published, 'nothing is published');
is($node->stat('postgres', 'reconnects'), '0', 'the connection is kept');

$node->configure('drainer.enabled' => 'off');
$node->wait_for_state('postgres', 'disabled');
pass('a reload takes effect: the drainer is disabled');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL AND attempts > 0'), '0', 'uncharged');
$node->configure('drainer.enabled' => undef);
$node->wait_for_state('postgres', 'blocked');
pass('and enabled again, and blocked again');

$node->configure('drainer.broker_uri' => $broker->uri('guest', 'guest', 'elsewhere'));
$node->wait_stat('postgres', q{broker LIKE '%/elsewhere' AND state = 'blocked'});
pass('a reload with another broker_uri leads it there, where it is blocked too');
$node->configure('drainer.broker_uri' => $broker->uri);
$node->wait_stat('postgres', q{broker NOT LIKE '%/elsewhere' AND state = 'blocked'});
pass('and back');

my $pid = $node->drainer_pid('postgres');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$node->wait_stat('postgres', "pid <> $pid AND state = 'blocked'");
pass('a drainer that is terminated ends, and its successor is blocked as well');

for my $database (qw(dropped forced))
{
	$node->safe_psql($database, q{INSERT INTO outbox.event (event_type, payload, source) VALUES ('dropped', 'x', 'dropped')});
	$node->wait_for_state($database, 'blocked');
}
$node->safe_psql('postgres', 'DROP DATABASE dropped');
$node->safe_psql('postgres', 'DROP DATABASE forced WITH (FORCE)');
pass('a database can be dropped under its blocked drainer');

$node->restart;
$node->wait_for_state('postgres', 'blocked');
pass('the server restarts, and the drainer is blocked again');
isnt($node->unpublished('postgres'), '0', 'events wait');

$broker->memory_alarm(0);
$node->wait_drained('postgres');
my @messages = (@{ $broker->consume('q') }, @{ $broker->consume('q', vhost => 'elsewhere') });
# One window is repeated at most by each of: disabling, two other brokers, termination and restart.
$node->ledger_ok(
	'postgres',
	[ grep { $_->{properties}{app_id} eq 'postgres' } @messages ],
	'every event arrives when the alarm is over',
	duplicates => 5 * $depth);
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no attempt was charged');
is($node->stat('postgres', 'stale_marks'), '0', 'no claim was lost');
$node->wait_for_state('postgres', 'idle');

done_testing();
