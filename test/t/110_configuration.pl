# What an operator sees while configuring: no broker, another broker, combinations that cannot work, a wrong
# password, no worker slot.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
$broker->add_vhost('second');
$broker->declare(vhost => 'second', exchange => 'events', queue => 'q');
$broker->add_user('drainer', 'se/cr@et');

# No broker is set.
my $node = OutboxDrainer::Cluster->new_node('main');
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', q{SELECT emit('key')});
$node->wait_stat('postgres', q{pid > 0 AND state IN ('idle', 'disabled', 'misconfigured') AND last_error LIKE '%broker_uri%'});
pass('without broker_uri the status says so');
is($node->unpublished('postgres'), '1', 'and events wait');

$node->configure('drainer.broker_uri' => $broker->uri);
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'with broker_uri set at a reload the event arrives');

# Another broker.
$node->configure('drainer.broker_uri' => $broker->uri(undef, undef, 'second'));
$node->wait_stat('postgres', q{broker LIKE '%/second' AND connected_since IS NOT NULL});
$node->safe_psql('postgres', q{SELECT emit('key')});
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1, vhost => 'second') }, 1, 'a changed broker_uri takes effect at a reload');
is(scalar @{ $broker->consume('q') }, 0, 'and nothing goes to the old one');

# Switched off and on.
$node->configure('drainer.enabled' => 'off');
$node->wait_for_state('postgres', 'disabled');
$node->safe_psql('postgres', q{SELECT emit('key')});
is( $node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE published_at IS NULL AND claimed_by IS NULL}),
	'1',
	'nothing is claimed while disabled');
$node->configure('drainer.enabled' => 'on');
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1, vhost => 'second') }, 1, 'and all is sent when enabled again');

# A combination that cannot work, at a reload: the last good one goes on.
my $position = $node->log_position;
$node->configure('drainer.lease_ttl' => '1s', 'drainer.pipeline_depth' => '1000');
$node->wait_for_log(qr/outbox_drainer.*lease_ttl/s, $position);
$node->safe_psql('postgres', q{SELECT emit('key')});
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1, vhost => 'second') }, 1, 'settings that cannot work do not stop a running drainer');
isnt($node->stat('postgres', 'state'), 'misconfigured', 'whose state shows that it runs');
like($node->safe_psql('postgres', 'SELECT * FROM outbox.settings_check()'), qr/lease_ttl[^\n]*must be at least/, 'settings_check() says what is wrong');

# The same at a start: the server starts, nothing is sent, a reload heals it.
$node->restart;
$node->wait_for_state('postgres', 'misconfigured');
like($node->stat('postgres', 'last_error'), qr/lease_ttl/, 'misconfigured from the start: the status has the reason');
$node->safe_psql('postgres', q{SELECT emit('key')});
is($node->unpublished('postgres'), '1', 'and nothing is sent');
$node->configure('drainer.lease_ttl' => undef, 'drainer.pipeline_depth' => undef);
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1, vhost => 'second') }, 1, 'a reload heals it');

# Values that are refused.
for my $bad ('http://localhost', 'amqp://host:99999')
{
	my $err;
	isnt($node->psql('postgres', "ALTER SYSTEM SET outbox_drainer.broker_uri = '$bad'", stderr => \$err), 0, "refused: $bad");
	like($err, qr/DETAIL:/, 'with the reason');
}

# The password in a file, where it is wrong at first.
my $password_file = PostgreSQL::Test::Utils::tempdir() . '/password';
PostgreSQL::Test::Utils::append_to_file($password_file, "wrong\n");
chmod 0600, $password_file;
$node->configure(
	'drainer.broker_uri'    => 'amqp://drainer@127.0.0.1:' . $broker->port,
	'drainer.password_file' => $password_file);
$node->wait_stat('postgres', q{state = 'backoff' AND last_error ILIKE '%refused%'});
pass('a wrong password is reported');
$node->safe_psql('postgres', q{SELECT emit('key')});
unlink $password_file;
PostgreSQL::Test::Utils::append_to_file($password_file, "se/cr\@et\n");
chmod 0600, $password_file;
$node->reload;
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'with the right one, events arrive after a reload');

# The password in the URI is shown to nobody.
$node->configure(
	'drainer.broker_uri'    => $broker->uri('drainer', 'se/cr@et'),
	'drainer.password_file' => undef);
$node->safe_psql('postgres', q{SELECT emit('key')});
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'a password may be in the URI');
for my $query (
	'SHOW outbox_drainer.broker_uri',
	'SELECT * FROM pg_settings',
	'SELECT * FROM outbox.settings_check()',
	'SELECT * FROM outbox.stat_drainer',
	'SELECT * FROM pg_stat_activity')
{
	unlike($node->safe_psql('postgres', $query), qr/cr(?:\@|%40)et/i, "not shown by: $query");
}
$node->safe_psql('postgres', 'CREATE ROLE somebody');
unlike(
	$node->safe_psql('postgres', 'SET ROLE somebody; SELECT * FROM pg_settings'),
	qr/cr(?:\@|%40)et/i, 'nor to a role without rights');

# No worker slot is free: one line says so, and the server goes on.
my $crowded = OutboxDrainer::Cluster->new_node(
	'crowded',
	broker   => $broker,
	settings => { max_worker_processes => 2 });
$crowded->safe_psql('postgres', 'CREATE DATABASE second');
$crowded->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$crowded->safe_psql('second',   'CREATE EXTENSION outbox_drainer');
$crowded->wait_query('postgres', 'SELECT sum(start_failures) >= 2 FROM outbox.stat_drainer');
my @lines = $crowded->log_since(0) =~ /(out of background worker slots)/g;
is(scalar @lines, 1, 'the lack of worker slots is logged once, however often a start is tried');
like($crowded->log_since(0), qr/max_worker_processes/, 'with a hint');

done_testing();
