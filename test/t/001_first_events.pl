# A user creates the extension in a running server, writes events in ordinary transactions and sees them in
# RabbitMQ; then drops the extension. And what somebody sees who has not preloaded the library.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);

my $drainers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox_drainer' AND datname = 'postgres'";
$node->wait_query('postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'outbox_drainer launcher' AND datname IS NULL");
is($node->safe_psql('postgres', $drainers), '0', 'a database without the extension has no drainer');

$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_query('postgres', "SELECT ($drainers) = 1");
pass('CREATE EXTENSION starts a drainer');
$node->wait_for_state('postgres', 'idle');
is($node->stat('postgres', 'broker'), '127.0.0.1:' . $broker->port . '//', 'the view names the broker');
is($node->stat('postgres', 'connected_since IS NOT NULL'), 'true', 'the view says since when it is connected');
$node->wait_query('postgres', q{SELECT application_name = 'outbox_drainer' AND state = 'idle' AND query = 'outbox_drainer: idle'
	FROM pg_stat_activity WHERE backend_type = 'outbox_drainer' AND datname = 'postgres'});
pass('pg_stat_activity says who it is and what it does');
like(
	$broker->ctl('list_connections', 'client_properties'),
	qr/outbox_drainer postgres\@\S+ \d+/,
	'the broker knows the connection by product, database, host and pid');

# The least that an event needs, everything that it can have, and what was never committed.
$node->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.event (event_type, payload) VALUES ('least', '{"a": 1}');
INSERT INTO outbox.event (source, message_id, destination, event_type, routing_key, key, payload, content_type,
	content_encoding, schema_version, schema_reference, attributes, source_event_id, source_position,
	occurred_at, causation_id, correlation_id, reply_to, traceparent, tracestate, priority, expiration)
VALUES ('shop', 'order-7', 'events', 'order.placed', 'eu.order.placed', 'order 7', '\x00ff01', 'application/x-test',
	'identity', 3, '{"id": "order"}',
	'{"int": 9007199254740993, "float": 0.5, "text": "Grüße", "yes": true, "nothing": null,
	  "table": {"list": [1, "two", {"three": 3}]}}',
	'source-7', 77, '2024-05-06 07:08:09+00', 'cause-7', 'correlation-7', 'answers',
	'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'vendor=1', 5, '1 hour');
BEGIN;
INSERT INTO outbox.event (event_type, payload) VALUES ('rolled back', 'x');
ROLLBACK;
SQL
my $event_id = $node->safe_psql('postgres', q{SELECT outbox.enqueue('enqueued', '{"b": 2}'::jsonb, key => 'k')});
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 3);
is(scalar @$messages, 3, 'committed events arrive and the rolled back one does not');
my %by_type = map { $_->{properties}{type} // '' => $_ } @$messages;

my $least = $by_type{least};
is($least->{body},        '{"a": 1}', 'the body is what was written');
is($least->{exchange},    'events',   'the exchange is the setting');
is($least->{routing_key}, 'least',    'the routing key is the event type');
like($least->{properties}{message_id}, qr/^msg_[0-7][0-9a-hjkmnp-tv-z]{25}$/, 'the message id is a TypeID');
is($least->{properties}{app_id},        'postgres',         'the source is the database');
is($least->{properties}{content_type},  'application/json', 'the content type is the default');
is($least->{properties}{delivery_mode}, 2,                  'the message is persistent');
is( $least->{properties}{message_id},
	$node->safe_psql('postgres', q{SELECT message_id FROM outbox.events WHERE event_type = 'least'}),
	'the message id is the one that the view shows');

my $full       = $by_type{'order.placed'};
my %properties = (
	app_id           => 'shop',
	content_encoding => 'identity',
	content_type     => 'application/x-test',
	correlation_id   => 'correlation-7',
	delivery_mode    => 2,
	expiration       => '3600000',
	message_id       => 'order-7',
	priority         => 5,
	reply_to         => 'answers',
	timestamp        => 1714979289,
	type             => 'order.placed');
is_deeply($full->{properties}, \%properties, 'every column has its property');
is($full->{body},        "\x00\xff\x01",    'a body may be any bytes');
is($full->{routing_key}, 'eu.order.placed', 'the routing key is the given one');
my $full_id = $node->safe_psql('postgres', q{SELECT id FROM outbox.event WHERE message_id = 'order-7'});
my %headers = (
	int                       => [ 'l', 9007199254740993 ],
	float                     => [ 'd', 0.5 ],
	text                      => [ 'S', "Gr\x{fc}\x{df}e" ],
	yes                       => [ 't', JSON::PP::true ],
	nothing                   => [ 'V', undef ],
	table                     => [ { list => [ 'l', 'S', { three => 'l' } ] }, { list => [ 1, 'two', { three => 3 } ] } ],
	traceparent               => [ 'S', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' ],
	tracestate                => [ 'S', 'vendor=1' ],
	'outbox-id'               => [ 'S', $full_id ],
	'outbox-key'              => [ 'S', 'order 7' ],
	'outbox-source-event-id'  => [ 'S', 'source-7' ],
	'outbox-source-position'  => [ 'l', 77 ],
	'outbox-causation-id'     => [ 'S', 'cause-7' ],
	'outbox-schema-version'   => [ 'l', 3 ],
	'outbox-schema-reference' => [ { id => 'S' }, { id => 'order' } ]);
is_deeply($full->{types}, { map { $_ => $headers{$_}[0] } keys %headers }, 'header values keep their types');
is_deeply($full->{headers}, { map { $_ => $headers{$_}[1] } keys %headers }, 'header values are those written');

is( $by_type{enqueued}{properties}{message_id},
	$node->safe_psql('postgres', "SELECT message_id FROM outbox.events WHERE id = '$event_id'"),
	'enqueue returns the id of the event that arrives');
is($by_type{enqueued}{headers}{'outbox-key'}, 'k', 'the key of an enqueued event is in its headers');

is( $node->safe_psql('postgres',
		'SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL AND claimed_by IS NULL AND claimed_at IS NULL AND attempts = 0'),
	'3',
	'published rows are marked, unclaimed and uncharged');
$node->wait_stat('postgres', 'published = 3 AND claimed = 3 AND in_flight = 0');
is($node->stat('postgres', 'failed + released + stale_marks'), '0', 'the counters show no fault');

$node->safe_psql('postgres', 'DROP EXTENSION outbox_drainer');
$node->wait_query('postgres', "SELECT ($drainers) = 0");
pass('DROP EXTENSION ends the drainer');
$node->safe_psql('postgres',
	q{CREATE EXTENSION outbox_drainer; INSERT INTO outbox.event (event_type, payload) VALUES ('again', 'y')});
$node->wait_drained('postgres');
is($broker->consume('q', count => 1)->[0]{properties}{type}, 'again', 'the extension can be created again');

# CREATE EXTENSION that is rolled back leaves nothing behind.
$node->safe_psql('postgres', 'DROP EXTENSION outbox_drainer; BEGIN; CREATE EXTENSION outbox_drainer; ROLLBACK');
$node->wait_query('postgres', "SELECT ($drainers) = 0");
$node->stop;
my $log = $node->log_since(0);
unlike($log, qr/PANIC|terminated by signal|guest:guest/, 'the log shows no crash and no password');

# Without preloading the extension can be created and used, and says what is missing.
my $bare = OutboxDrainer::Cluster->new_node('bare', preload => 0);
my ($out, $err);
is($bare->psql('postgres', 'CREATE EXTENSION outbox_drainer', stderr => \$err), 0, 'not preloaded: CREATE EXTENSION works');
like($err, qr/WARNING:.*shared_preload_libraries/s, 'and warns');
like($err, qr/HINT:/,                               'with a hint');
$bare->safe_psql('postgres', q{SELECT outbox.enqueue('waits', '{}'::jsonb)});
is($bare->unpublished('postgres'), '1', 'events can be written and wait');
$bare->psql('postgres', 'SELECT * FROM outbox.stat_drainer', stdout => \$out, stderr => \$err);
is($bare->safe_psql('postgres', 'SELECT 1'), '1', 'reading the status crashes nothing');

done_testing();
