# The network between the drainer and its broker fails in all the ways that networks do. The status says what is the
# matter, no event is lost or charged, at most a window comes twice, and all goes on by itself.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use OutboxDrainer::FaultProxy;
use Test::More;

my $depth  = 20;
my $broker = OutboxDrainer::Cluster->start_broker;
my $proxy  = OutboxDrainer::FaultProxy->new($broker);
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $proxy,
	settings => {
		'drainer.pipeline_depth'  => $depth,
		'drainer.confirm_timeout' => '2s',
		'drainer.connect_timeout' => '2s',
		# Longer than the test: what is given back must not have to wait for its lease.
		'drainer.lease_ttl' => '10h',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');

# The exchange is known, so that the next thing to be sent is an event.
$node->safe_psql('postgres', 'SELECT emit_many(1, 1)');
$node->wait_drained('postgres');
$broker->consume('q', count => 1);

# All are published and have come, at most `twice` of them twice.
sub all_arrive
{
	my ($name, $twice) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_drained('postgres');
	# What a dead connection still carries is on its way too.
	OutboxDrainer::Cluster::wait_until('the proxy has delivered all', sub { $proxy->status->{connections} <= 1 });
	my $count = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
	$node->ledger_ok('postgres', $broker->consume('q', count => $count), "$name: every event arrives", duplicates => $twice);
	is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', "$name: nobody is charged");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL'),
		'0', "$name: no row is left claimed");
	return;
}

# Brings a fault before the next events or, with `during`, while their confirms are awaited.
sub survives
{
	my ($name, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note $name;
	$node->wait_for_state('postgres', 'idle');
	$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate');
	my $reconnects = $node->stat('postgres', 'reconnects');
	my $before     = $node->stat('postgres', q{coalesce(last_error_at, '-infinity')});
	$how{before}->() if $how{before};
	$node->safe_psql('postgres', 'SELECT emit_many(200, 100)');
	if ($how{during})
	{
		$node->wait_stat('postgres', 'in_flight > 0');
		$how{during}->();
	}
	$node->wait_stat('postgres', "last_error_at > '$before' AND last_error ~ '$how{error}'");
	pass("$name: the status says so");
	note $node->stat('postgres', 'last_error');
	$proxy->pass;
	all_arrive($name, 2 * $depth);
	cmp_ok($node->stat('postgres', 'reconnects'), '>', $reconnects, "$name: the connection was made anew");
	return;
}

my $no_acks = sub { $proxy->blackhole('to_client') };
my $gone    = 'connection (lost|closed)|closed the connection';
survives('confirms vanish', before => $no_acks, error => '^no confirm from the broker');
survives('events vanish', before => sub { $proxy->blackhole('to_broker') }, error => '^no confirm from the broker');
survives('reset', before => $no_acks, during => sub { $proxy->reset }, error => $gone);
survives('half closed by the broker', before => $no_acks, during => sub { $proxy->half_close('to_client') }, error => $gone);
survives(
	'half closed to the broker',
	before => sub { $proxy->delay(100, 'to_client') },
	during => sub { $proxy->half_close('to_broker') },
	error  => $gone);
survives('cut in the middle of an event', before => sub { $proxy->cut(1000, 'to_broker') }, error => $gone);
survives('cut in the middle of a confirm', before => sub { $proxy->cut(3, 'to_client') }, error => $gone);
survives('a broken confirm', before => sub { $proxy->corrupt(0, 'to_client') }, error => 'frame');
survives(
	'a broken event',
	before => sub { $proxy->corrupt(0, 'to_broker') },
	error  => "FRAME_ERROR|UNEXPECTED_FRAME|COMMAND_INVALID|$gone");

# A broker that cannot be reached, or does not greet.
for my $case ([ refuse => 'connection refused' ], [ silent => 'timed out after 2000 ms' ])
{
	my ($fault, $error) = @$case;
	$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate');
	$proxy->$fault;
	$proxy->reset;
	$node->wait_stat('postgres', "connected_since IS NULL AND lower(last_error) ~ '$error'");
	$node->safe_psql('postgres', 'SELECT emit_many(200, 100)');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL'),
		'0', "$fault: nothing is claimed while the broker is away");
	$proxy->pass;
	all_arrive($fault, 0);
}

# A slow line is no fault. Leases end before all is sent: what is unsent is given back and claimed again, and nothing
# is sent on a lease that is over.
$node->configure('drainer.lease_ttl' => '6s');
for my $case ([ throttle => 20_000, 'to_broker' ], [ delay => 200, 'both' ])
{
	my ($fault, @how) = @$case;
	$node->wait_for_state('postgres', 'idle');
	$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate');
	my $released = $node->stat('postgres', 'released');
	$proxy->$fault(@how);
	$node->safe_psql('postgres', 'SELECT emit_many(500, 500)');
	all_arrive($fault, 0);
	cmp_ok($node->stat('postgres', 'released'), '>', $released, "$fault: it took longer than half of a lease");
	is($node->stat('postgres', 'stale_marks'), '0', "$fault: no mark came too late");
	$proxy->pass;
}

done_testing();
