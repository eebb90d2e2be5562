# Many messages, lost connections and closed channels later, a drainer has as many files open and as much memory
# as before. The long variant: a million messages, a thousand connections, ten thousand channels.

use strict;
use warnings;

use Cwd ();
use OutboxDrainer::Cluster;
use Test::More;

my $long        = $ENV{OUTBOX_TEST_LONG};
my $messages    = $long ? 1_000_000 : 30_000;
my $connections = $long ? 1000 : 10;
my $closes      = $long ? 10_000 : 400;

# The queue forgets all but the last ones, or the broker would be what runs out of memory.
my $broker = OutboxDrainer::Cluster->start_broker(arguments => { 'x-max-length' => 100 });
# Little is in hand at once: what the C library keeps of memory that was given back would else go up and down by as
# many megabytes as a leak takes.
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.max_attempts' => 1, 'drainer.batch_size' => 100, autovacuum_naptime => '5s' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');
my $pid = $node->drainer_pid('postgres');

my $data = Cwd::abs_path($node->data_dir);

sub wait_idle
{
	$node->wait_drained('postgres');
	$node->wait_stat('postgres', q{in_flight = 0 AND state = 'idle' AND connected_since IS NOT NULL});
	return;
}

sub publish
{
	my ($count) = @_;
	while ($count > 0)
	{
		my $some = $count > 50_000 ? 50_000 : $count;
		$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (event_type, payload, key, attributes)
SELECT 'x', convert_to(repeat('x', i % 2000), 'UTF8'), 'key ' || i % 5000, '{"a": {"b": [1, "two", null]}}' FROM generate_series(1, $some) i
SQL
		wait_idle();
		$count -= $some;
	}
	return;
}

# Every other connection is closed by the broker, the others by the drainer, since it is to go to another one: the
# same one by another text. Messages are on their way each time.
my @uris = ($broker->uri, $broker->uri . ',' . $broker->uri);

sub lose_connections
{
	my ($count) = @_;
	for my $round (1 .. $count)
	{
		my $position = $node->log_position;
		$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) SELECT 'x', 'x' FROM generate_series(1, 500)});
		$broker->close_connections('again') if $round % 2;
		$node->configure('drainer.broker_uri' => $uris[ $round % 2 ]);
		OutboxDrainer::Cluster::wait_until('the drainer has another connection',
			sub { return $node->log_since($position) =~ /connected to broker/; });
	}
	wait_idle();
	return;
}

# Each event closes the channel it comes on.
sub close_channels
{
	my ($count) = @_;
	$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (event_type, payload, reply_to)
SELECT 'x', 'x', CASE WHEN i % 2 = 0 THEN 'amq.rabbitmq.reply-to' END FROM generate_series(1, 2 * $count) i
SQL
	wait_idle();
	return;
}

# Files open, kilobytes of private memory, bytes in memory contexts.
sub measure
{
	my $position = $node->log_position;
	$node->safe_psql('postgres', "SELECT pg_log_backend_memory_contexts($pid)");
	my $contexts = OutboxDrainer::Cluster::wait_until(
		'the memory contexts are logged',
		sub { return $node->log_since($position) =~ /Grand total: (\d+) bytes/ ? $1 : undef; });
	my ($kilobytes) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
	# The server keeps as many files of the database open as it likes.
	my @files = grep { !m{^\Q$data\E/} } map { readlink($_) // () } glob "/proc/$pid/fd/*";
	return { files => scalar @files, memory => $kilobytes, contexts => $contexts };
}

# What is allocated once, or grows to a size, is to be so: the same work as is measured below.
publish(30_000);
lose_connections(4);
close_channels(400);
my $before = measure();
note join ', ', map { "$_ $before->{$_}" } sort keys %$before;

my @work = (
	[ "$messages messages"         => sub { publish($messages) } ],
	[ "$connections connections" => sub { lose_connections($connections) } ],
	[ "$closes channels"         => sub { close_channels($closes) } ]);
for my $step (@work)
{
	my ($name, $work) = @$step;
	$work->();
	my $after = measure();
	note join ', ', "after $name", map { "$_ $after->{$_}" } sort keys %$after;
	is($after->{files}, $before->{files}, "$name later, as many files are open");
	cmp_ok($after->{memory}, '<=', $before->{memory} + 4096, "$name later, memory is level");
	cmp_ok($after->{contexts}, '<=', $before->{contexts} + 512 * 1024, "$name later, the server's memory contexts are level");
}
is($node->drainer_pid('postgres'), $pid, 'it was the same process all the time');
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE attempts > 0 AND reply_to IS NULL}),
	'0', 'no event was charged for what happened to others');

done_testing();
