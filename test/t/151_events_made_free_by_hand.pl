# Rows that somebody makes pending again by hand, behind everything the drainer remembers, are found.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.lease_ttl' => '20s', 'drainer.pipeline_depth' => 50, 'drainer.confirm_timeout' => '10s' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) SELECT 'first time', convert_to(n::text, 'UTF8') FROM generate_series(1, 500) n});
$node->wait_drained('postgres');
$broker->consume('q', count => 500);
$node->restart;
is($node->safe_psql('postgres', 'SELECT floor FROM outbox.relay_state'), '500', 'the floor is above all of them');

$node->safe_psql('postgres', q{UPDATE outbox.event SET published_at = NULL, event_type = 'again' WHERE seq <= 3});
$node->wait_drained('postgres');
my $messages = $broker->consume('q', count => 3);
is(join(' ', sort map { $_->{properties}{type} } @$messages), 'again again again', 'events made pending by hand are sent');

# The sequence set back while nobody looks, and numbers used again up to beyond where the drainer stood.
$node->stop;
$node->append_conf('postgresql.conf', 'outbox_drainer.enabled = off');
$node->start;
$node->safe_psql('postgres', q{DELETE FROM outbox.event; SELECT setval('outbox.event_seq', 1, false);
	INSERT INTO outbox.event (event_type, payload) SELECT 'renumbered', convert_to(n::text, 'UTF8') FROM generate_series(1, 700) n});
$node->configure('drainer.enabled' => 'on');
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 700) }, 700, 'events below the floor are found, each once');

done_testing();
