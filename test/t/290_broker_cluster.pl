# broker_uri names all nodes of a RabbitMQ cluster, and the node that the drainer is connected to is killed (in the
# long variant again and again) and shut down: another one takes its place, and no event is lost. Then brokers of
# the list that are no brokers are passed over, without haste.

use strict;
use warnings;

use IO::Socket::INET;
use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $depth   = 200;
my $events  = 3000;
my $kills   = $ENV{OUTBOX_TEST_LONG} ? 10 : 1;
my $brokers = OutboxDrainer::Cluster->new_broker_cluster(nodes => 3);
$brokers->start;
$brokers->declare(exchange => 'events', queue => 'q');

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	settings => {
		'drainer.broker_uri'     => $brokers->uri,
		'drainer.pipeline_depth' => $depth,
		# So that it is at work when its broker goes.
		'drainer.publish_rate' => 2000,
		'drainer.max_attempts' => 0,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

# The node that the drainer is connected to.
sub connected_node
{
	$node->wait_stat('postgres', 'connected_since IS NOT NULL');
	my ($port) = $node->stat('postgres', 'broker') =~ /:(\d+)/;
	return $brokers->node_at($port);
}

# A queue loses its leader when the first messages for it come. RabbitMQ's channel then keeps to the dead one and
# refuses all that is for that queue, as long as it lives (seen with 3.10).
my ($leader) = grep { $_ != connected_node() } $brokers->nodes;
$brokers->declare(at => $leader, exchange => 'fresh', queue => 'fresh');
$leader->kill9;
$node->safe_psql('postgres',
	q{INSERT INTO outbox.event (event_type, payload, source, destination) SELECT 'x', 'x', 'fresh', 'fresh' FROM generate_series(1, 200)});
$node->wait_drained('postgres');
is($node->safe_psql('postgres', 'SELECT count(published_at), count(dead_at) FROM outbox.event'),
	'200|0', 'a queue whose leader dies gets its first events all the same');
note $node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), ' refusals';
is(@{ connected_node()->consume('fresh', count => 200) }, 200, 'and has them');
$leader->start;
$brokers->wait_whole('q', 'fresh');

my $lost = 0;
for my $fault (('kill9') x $kills, 'stop')
{
	my $gone      = connected_node();
	my $published = $node->stat('postgres', 'published');
	$node->safe_psql('postgres', "SELECT emit_many($events, 1000)");
	$node->wait_stat('postgres', "published > $published + 500");
	$gone->$fault;
	ok($node->unpublished('postgres') > 0, "$fault: the drainer was at work");
	$node->wait_drained('postgres');
	isnt(connected_node()->port, $gone->port, "$fault: it goes on with another node");
	$lost++;
	next if $fault eq 'stop';
	$gone->start;
	$brokers->wait_whole('q');
}
my ($alive) = grep { $_->pid } $brokers->nodes;
$node->ledger_ok(
	'postgres',
	$alive->consume('q', count => $lost * $events),
	'every event arrives',
	duplicates => $lost * $depth);
is($node->safe_psql('postgres', q{SELECT sum(attempts) FROM outbox.event WHERE source <> 'fresh'}), '0', 'no attempt was charged');
is($node->stat('postgres', 'stale_marks'), '0', 'no claim was lost');

# Nobody listens on the first one's port, and the second one's name is none.
my ($refusing) = OutboxDrainer::RabbitMQ::free_ports(1);
$node->configure('drainer.broker_uri' =>
	  join(' , ', "amqp://guest:guest\@127.0.0.1:$refusing", 'amqp://guest:guest@no-such-host.invalid', $alive->uri));
$node->wait_stat('postgres', sprintf q{broker LIKE '127.0.0.1:%d/%%' AND connected_since IS NOT NULL}, $alive->port);
$node->safe_psql('postgres', q{SELECT emit('after all')});
$node->wait_drained('postgres');
is(@{ $alive->consume('q', count => 1) }, 1, 'a broker that refuses and one whose name does not resolve are passed over');

# Two that take a connection and close it at once: whoever tries them again and again is counted.
my $counter  = PostgreSQL::Test::Utils::tempdir() . '/attempts';
my @listener = map { IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $_, Listen => 10) or die $! }
  OutboxDrainer::RabbitMQ::free_ports(2);
my @children;
for my $socket (@listener)
{
	my $pid = fork // die "could not fork: $!";
	push @children, $pid;
	next if $pid;
	while (my $client = $socket->accept)
	{
		PostgreSQL::Test::Utils::append_to_file($counter, time . "\n");
		close $client;
	}
	POSIX::_exit(0);
}
$node->configure('drainer.broker_uri' => join ',', map { sprintf 'amqp://127.0.0.1:%d', $_->sockport } @listener);
my @times;
OutboxDrainer::Cluster::wait_until(
	'both have been tried',
	sub {
		@times = -e $counter ? split /\n/, PostgreSQL::Test::Utils::slurp_file($counter) : ();
		return @times >= 5;
	});
kill 'KILL', @children;
waitpid $_, 0 for @children;
# The first one may be written late on a busy machine.
cmp_ok($times[4] - $times[0], '>', 3, sprintf '5 attempts are not made in less than 4 seconds (%.1f)', $times[4] - $times[0]);
$node->wait_stat('postgres', q{state IN ('backoff', 'connecting') AND last_error IS NOT NULL});
note $node->stat('postgres', 'last_error');

$node->configure('drainer.broker_uri' => $alive->uri);
$node->wait_for_state('postgres', 'idle');
pass('a broker that works is used at once');

done_testing();
