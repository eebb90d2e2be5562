# The broker refuses single messages, and some rows cannot be sent at all: those rows alone are charged, with
# the reason; their neighbours arrive.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker(
	arguments => { 'x-max-length' => 5, 'x-overflow' => 'reject-publish' });
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.retry_backoff_initial' => '200ms', 'drainer.retry_backoff_max' => '1s' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

# The queue takes five; the broker answers nack to the others.
$node->safe_psql('postgres', q{SELECT emit('key ' || i) FROM generate_series(1, 20) i});
$node->wait_query('postgres', 'SELECT count(*) = 15 FROM outbox.event WHERE attempts > 0 AND published_at IS NULL');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL AND attempts = 0'),
	'5', 'what the queue took is published');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM outbox.event WHERE published_at IS NULL AND last_error LIKE 'nack%' AND next_attempt_at IS NOT NULL}),
	'15',
	'what it refused is to be tried again, and says why');
$node->wait_stat('postgres', 'failed >= 15');

# Somebody consumes, five at a time.
my @messages;
OutboxDrainer::Cluster::wait_until(
	'all 20 events have arrived',
	sub {
		push @messages, @{ $broker->consume('q', idle => 0.3) };
		@messages >= 20;
	});
$node->wait_drained('postgres');
$node->ledger_ok('postgres', \@messages, 'every event arrives once there is room');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE next_attempt_at IS NOT NULL'),
	'0', 'nothing is left to be tried again');

# A row that cannot be sent, between two that can. No producer can write one: somebody has changed it since.
$node->configure('drainer.enabled' => 'off');
$node->wait_for_state('postgres', 'disabled');
$node->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.event (source, event_type, payload) VALUES ('test', 'good', 'x'), ('test', 'bad', 'x'), ('test', 'good', 'y');
UPDATE outbox.event SET routing_key = repeat('k', 256) WHERE event_type = 'bad';
SQL
$node->configure('drainer.enabled' => undef);
$node->wait_query('postgres', q{SELECT count(*) = 2 FROM outbox.event WHERE event_type = 'good' AND published_at IS NOT NULL});
$node->wait_query('postgres', q{SELECT last_error LIKE 'rejected: %' FROM outbox.event WHERE event_type = 'bad'});
is( $node->safe_psql('postgres', q{SELECT attempts, published_at IS NULL, claimed_by IS NULL, outcome, error_code FROM outbox.event WHERE event_type = 'bad'}),
	'0|t|t|rejected|routing_key_too_long',
	'a row that cannot be sent has its end at once, without being sent');
like($node->safe_psql('postgres', q{SELECT last_error FROM outbox.event WHERE event_type = 'bad'}),
	qr/routing.key.*255/, 'with the reason');
is($node->safe_psql('postgres', q{SELECT sum(attempts) FROM outbox.event WHERE event_type = 'good'}),
	'0', 'its neighbours are not charged');
my @bodies = map { $_->{body} } @{ $broker->consume('q', count => 2) };
is_deeply(\@bodies, [ 'x', 'y' ], 'and arrive, in their order');

done_testing();
