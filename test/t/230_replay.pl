# A new subscriber gets the events of the past by outbox.replay: marked as such, in their order, at the rate that
# was asked for, while new events go on. The job can be stopped and resumed, and harms nobody when it fails.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => { 'drainer.retry_backoff_initial' => '200ms', 'drainer.retry_backoff_max' => '500ms' });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');

sub insert
{
	my ($type, $count, $keys) = @_;
	$node->safe_psql('postgres',
		"INSERT INTO outbox.event (source, event_type, key, payload) SELECT 'shop', '$type', 'k' || n % $keys, convert_to(n::text, 'UTF8') FROM generate_series(1, $count) n"
	);
	$node->wait_drained('postgres');
	return;
}

sub replay
{
	my ($arguments) = @_;
	return $node->safe_psql('postgres', "SELECT outbox.replay($arguments)");
}

sub wait_job
{
	my ($job, $condition) = @_;
	$node->wait_query('postgres', "SELECT $condition FROM outbox.replays WHERE job = $job");
	return;
}

sub job { return $node->safe_psql('postgres', "SELECT $_[1] FROM outbox.replays WHERE job = $_[0]"); }

# Whether the bodies of each key ascend.
sub in_order
{
	my ($messages) = @_;
	my %last;
	for my $message (@$messages)
	{
		my $key = $message->{headers}{'outbox-key'};
		return 0 if ($last{$key} // 0) >= $message->{body};
		$last{$key} = $message->{body};
	}
	return 1;
}

insert('order.placed', 3000, 50);
insert('order.paid',   200,  50);
my %first = map { $_->{properties}{message_id} => 1 } @{ $broker->consume('q', count => 3200) };
$node->safe_psql('postgres', 'CREATE TABLE before AS SELECT * FROM outbox.event');

# A new subscriber.
$broker->declare(exchange => 'backfill', queue => 'new');
my $job = replay(q{event_type => 'order.pl%', exchange => 'backfill', rate => 100000});
my $messages = $broker->consume('new', count => 3000);
is(scalar(@$messages), 3000, 'the new subscriber gets what it asked for');
ok(in_order($messages), 'in the order of each key');
is(scalar(grep { !$first{ $_->{properties}{message_id} } } @$messages),
	0, 'with the message ids of the first time');
is(scalar(grep { ($_->{headers}{'outbox-replay'} // '') ne $job } @$messages),
	0, 'and a header that names the replay');
is($messages->[0]{types}{'outbox-replay'}, 'l', 'which is a number');
wait_job($job, q{state = 'finished'});
is(job($job, 'sent || \' \' || remaining || \' \' || (position = last_seq)::text || \' \' || skipped'),
	'3000 0 true 0', 'the job says that it is done');
is($broker->queue_length('q'), 0, 'nobody else got anything');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM (TABLE before EXCEPT TABLE outbox.event) x'),
	'0', 'no event has changed by it');

# By time: from the middle on.
my $middle = $node->safe_psql('postgres', q{SELECT min(enqueued_at) FROM outbox.event WHERE event_type = 'order.paid'});
$job = replay(qq{"from" => '$middle', exchange => 'backfill', rate => 100000});
wait_job($job, q{state = 'finished'});
is(scalar(@{ $broker->consume('new') }), 200, 'from a time on');
$job = replay(qq{"to" => '$middle', event_type => 'order.paid', exchange => 'backfill'});
wait_job($job, q{state = 'finished'});
is(scalar(@{ $broker->consume('new') }), 0, 'and before it');

# Slowly, with new events beside, a stop, and a restart of the server.
$job = replay(q{event_type => 'order.placed', exchange => 'backfill', rate => 100});
my $started = time;
wait_job($job, 'sent >= 150');
cmp_ok(time - $started, '>=', 1.3, 'it takes the time that its rate says');
my $inserted = time;
insert('order.new', 500, 50);
note sprintf 'new events took %.2f s', time - $inserted;
is($broker->queue_length('q'), 500, 'new events go on meanwhile');
$node->safe_psql('postgres', "SELECT outbox.stop_replay($job)");
wait_job($job, q{state = 'stopped'});
$node->wait_stat('postgres', 'in_flight = 0');
$node->restart;
$node->wait_for_state('postgres', 'idle');
my $at_rest = job($job, 'position');
my $arrived = $broker->queue_length('new');
cmp_ok($arrived, '<', 3000, 'a stopped replay stands still');
$node->safe_psql('postgres', "SELECT outbox.resume_replay($job)");
wait_job($job, "position > $at_rest");
$node->stop;
$node->start;
$node->safe_psql('postgres', "UPDATE outbox.replay_job SET rate = 100000 WHERE id = $job");
wait_job($job, q{state = 'finished'});
$messages = $broker->consume('new');
my %got;
$got{ $_->{body} }++ for @$messages;
is(scalar(keys %got), 3000, 'resumed, and going on after a restart, it misses nothing');
note scalar(@$messages) - 3000, ' messages came twice';
cmp_ok(scalar(@$messages), '<=', 3000 + 400, 'and repeats little');
$broker->consume('q', count => 500);

# An exchange that is not there.
$job = replay(q{exchange => 'nowhere', rate => 1000});
wait_job($job, q{state = 'failed'});
like(job($job, 'last_error'), qr/exchange "nowhere" does not exist/, 'a replay to an exchange that is missing fails, and says why');
$node->wait_for_state('postgres', 'idle');
insert('order.late', 10, 5);
is(scalar(@{ $broker->consume('q', count => 10) }), 10, 'new events go on');
$broker->declare(exchange => 'nowhere', queue => 'there');
$node->safe_psql('postgres', "SELECT outbox.resume_replay($job)");
wait_job($job, q{state = 'finished'});
is(scalar(@{ $broker->consume('there') }),
	3700, 'it can go on when the exchange is there, and leaves out what came after its beginning');

# A queue that is full: the replay waits, nobody is charged.
$broker->declare(
	exchange  => 'small',
	queue     => 'few',
	arguments => { 'x-max-length' => 5, 'x-overflow' => 'reject-publish' });
$job = replay(q{event_type => 'order.late', exchange => 'small', rate => 1000});
wait_job($job, q{last_error LIKE 'nack%' AND state = 'running'});
insert('order.later', 10, 5);
is(scalar(@{ $broker->consume('q', count => 10) }), 10, 'new events go on');
my @few;
OutboxDrainer::Cluster::wait_until(
	'the replay has got through',
	sub {
		push @few, @{ $broker->consume('few', idle => 0.3) };
		@few >= 10;
	});
wait_job($job, q{state = 'finished'});
ok(in_order(\@few), 'it gets through in the end, in the order of each key');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'no event was charged');

# The broker killed in the middle.
$job = replay(q{event_type => 'order.placed', exchange => 'backfill', rate => 2000});
wait_job($job, 'sent > 0');
$broker->kill9;
$broker->start;
wait_job($job, q{state = 'finished'});
%got = ();
$got{ $_->{body} }++ for @{ $broker->consume('new') };
is(scalar(keys %got), 3000, 'a broker that is killed in the middle misses nothing');

done_testing();
