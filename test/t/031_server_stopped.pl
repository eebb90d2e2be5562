# The server is stopped in mid-batch. A fast stop settles what was sent, so nothing comes twice; after an
# immediate one a window may. Either way nothing is lost and nothing has to wait for a lease.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $depth  = 10;
my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.enabled'          => 'off',
		'drainer.pipeline_depth'   => $depth,
		'drainer.batch_size'       => 200,
		'drainer.lease_ttl'        => '2h',
		'drainer.shutdown_timeout' => '60s',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');

for my $mode (qw(fast immediate))
{
	$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate; SELECT emit_many(8000, 100)');
	my $published = $node->stat('postgres', 'published');
	$node->configure('drainer.enabled' => 'on');
	$node->wait_stat('postgres', "published >= $published + 500");
	$node->stop($mode);

	# Looked at without the library: a drainer would tidy up what its predecessor left.
	$node->write_settings(shared_preload_libraries => '');
	$node->start;
	isnt($node->unpublished('postgres'), '0', "$mode: the backlog was not drained yet");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL'),
		'0', "$mode: no row is left claimed")
	  if $mode eq 'fast';

	$node->write_settings(shared_preload_libraries => 'outbox_drainer');
	$node->restart;
	$node->wait_drained('postgres');
	my $messages = $broker->consume('q', count => 8000);
	$node->ledger_ok(
		'postgres', $messages,
		"$mode: every event arrives",
		duplicates => $mode eq 'fast' ? 0 : 2 * $depth);
	is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', "$mode: no attempt was charged");
	$node->configure('drainer.enabled' => 'off');
	$node->wait_for_state('postgres', 'disabled');
}

done_testing();
