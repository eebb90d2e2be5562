# pg_dump and restore carry the events, what has become of them and the sequence, the relay's settings and what
# operators did; the restored server goes on where the dumped one was, also with rows that were claimed when the
# dump was made.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $broker   = OutboxDrainer::Cluster->start_broker;
my %settings = ('drainer.lease_ttl' => '2h', 'drainer.confirm_timeout' => '1h', 'drainer.heartbeat' => '30min');
my $node     = OutboxDrainer::Cluster->new_node('dumped', broker => $broker, settings => \%settings);
my $restored = OutboxDrainer::Cluster->new_node('restored', broker => $broker, settings => \%settings);
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop',     'CREATE EXTENSION outbox_drainer');
$node->create_ledger('shop');
$node->safe_psql('shop', 'SELECT emit_many(50, 5)');
$node->wait_drained('shop');
is(scalar @{ $broker->consume('q', count => 50) }, 50, '50 events are published');

$broker->freeze;
$node->safe_psql('shop', 'SELECT emit_many(20, 20)');
$node->wait_stat('shop', 'in_flight = 20');
$node->safe_psql('shop', q{CREATE FUNCTION on_dead(outbox.event) RETURNS void LANGUAGE sql AS ''});
$node->safe_psql('shop', q{SELECT outbox.alter_relay(retention => '3 days', max_attempts => 7, on_dead => 'on_dead(outbox.event)')});
$node->safe_psql('shop', q{SELECT outbox.pause(reason => 'moving')});
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('shop') ], 'pg_dump');
is($node->safe_psql('shop', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL'),
	'20', 'the dump is made while 20 rows are claimed');
my $content = q{SELECT count(*), count(published_at), max(seq), md5(string_agg(seq || id::text || payload::text, ' ' ORDER BY seq)) FROM outbox.event};
my $dumped  = $node->safe_psql('shop', $content);
my $relay   = q{SELECT to_jsonb(r) FROM outbox.relay r};
my $acts    = q{SELECT to_jsonb(o) FROM outbox.operation o ORDER BY at};
my ($dumped_relay, $dumped_acts) = map { $node->safe_psql('shop', $_) } $relay, $acts;
$node->stop('immediate');
$broker->thaw;
# Whether the broker still reads what was on its way is not said.
$broker->consume('q', idle => 3);

# Disabled at first, so that the rows can be compared.
$restored->configure('drainer.enabled' => 'off');
$restored->safe_psql('postgres', 'CREATE DATABASE shop');
$restored->command_ok([ 'pg_restore', '--exit-on-error', '-d', $restored->connstr('shop'), $dump ], 'pg_restore');
is($restored->safe_psql('shop', $content), $dumped,       'every event is as it was');
is($restored->safe_psql('shop', $relay),   $dumped_relay, 'the relay has its settings, and is paused');
is($restored->safe_psql('shop', $acts),    $dumped_acts,  'it is known who paused it');
is($restored->safe_psql('shop', q{SELECT string_agg(value, ', ' ORDER BY name) FROM outbox.relay_settings() WHERE name IN ('max_attempts', 'on_dead')}),
	'7, public.on_dead(outbox.event)', 'the settings are in force');
is($restored->safe_psql('shop', 'SELECT outbox.resume()'), 't', 'the relay is resumed');
$restored->safe_psql('shop', q{SELECT emit('key 0')});
is( $restored->safe_psql('shop', 'SELECT count(*), count(DISTINCT seq), count(DISTINCT id) FROM outbox.event'),
	'71|71|71',
	'the first event after the restore has a new number');
is( $restored->safe_psql('shop', q{SELECT seq = (SELECT max(seq) FROM outbox.event) FROM outbox.event ORDER BY enqueued_at DESC LIMIT 1}),
	't',
	'which is the highest');

$restored->configure('drainer.enabled' => 'on');
is($restored->safe_psql('shop', q{SELECT outbox.flush('3 min')}), '0', 'flush waits until all is published');
my $messages = $broker->consume('q', count => 21);
is(scalar @$messages, 21, 'what was not published is sent once, what was is not');
$restored->safe_psql('shop', 'DELETE FROM ledger WHERE n <= 50');
$restored->ledger_ok('shop', $messages, 'the events arrive as they were written');

done_testing();
