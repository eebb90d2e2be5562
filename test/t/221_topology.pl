# What is asked of the broker, and declared there, from SQL: by way of the drainer, with the broker's words where it
# refuses, and an error in time where it is not there, does not answer, or the drainer is gone.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $broker = OutboxDrainer::Cluster->new_broker;
$broker->start;
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	settings => {
		'drainer.shutdown_timeout' => '1s',
		'drainer.poll_interval'    => '10min',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->wait_for_state('postgres', 'idle');

# A function's error as SQLSTATE, message, detail and hint, one in a line.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION failure(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE 'SELECT count(*) FROM outbox.' || command;
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE, SQLERRM, detail, hint);
END
$$;
SQL

subtest 'nobody is connected' => sub {
	fails('check_topology()', qr/^55000\nno drainer of this database is connected to a broker\nAt present no broker is configured: .*is not set\.\n/,
		'no broker is configured: at once');
	my $nowhere = OutboxDrainer::Cluster->new_broker;
	$node->configure('drainer.broker_uri' => 'amqp://127.0.0.1:' . $nowhere->port);
	$node->wait_stat('postgres', q{last_error LIKE '%refused%'});
	fails(q{declare_exchange('x', timeout => '100 ms')}, qr/^55000\nno drainer .*\nAt present the broker "[^"]*" is disconnected since .*: .*refused/,
		'a broker that is not there: with the reason');
	$node->configure('drainer.broker_uri' => $broker->uri, 'drainer.enabled' => 'off');
	$node->wait_for_state('postgres', 'disabled');
	fails(q{declare_queue('x')}, qr/^55000\nno drainer .*\nAt present drainers are disabled since /, 'disabled: at once');
	$node->configure('drainer.enabled' => undef);
	is(sql(q{SELECT outbox.declare_exchange('first')}), '', 'who asks while a drainer connects waits for it');
};

subtest 'declare' => sub {
	is(sql(q{SELECT outbox.declare_exchange('events')}), '', 'an exchange');
	is(sql(q{SELECT outbox.declare_exchange('events')}), '', 'twice');
	is(sql(q{SELECT outbox.declare_exchange('fan "out" ä', 'fanout', durable => false, auto_delete => true, internal => true, arguments => '{"alternate-exchange": "events"}')}), '', 'with all that there is');
	is(sql(q{SELECT outbox.declare_queue('q', exchange => 'events', routing_key => 'order.*')}), '', 'a queue that is bound');
	is(sql(q{SELECT outbox.declare_queue('quorum', arguments => '{"x-queue-type": "quorum", "x-max-length": 1000, "x-dead-letter-exchange": "events"}')}), '', 'a queue with arguments');
	is(sql(q{SELECT outbox.declare_exchange('by headers', 'headers')}), '', 'an exchange of type headers');
	is(sql(q{SELECT outbox.declare_queue('some', exchange => 'by headers', routing_key => '', binding_arguments => '{"x-match": "all", "kind": "some"}')}), '', 'and a binding with arguments');
	my $exchanges = $broker->ctl('list_exchanges', '--no-table-headers', 'name', 'type', 'durable', 'auto_delete', 'internal', 'arguments');
	like($exchanges, qr/^events\ttopic\ttrue\tfalse\tfalse\t\[\]$/m, 'the broker has the exchange');
	like($exchanges, qr/^fan "out" \S+\tfanout\tfalse\ttrue\ttrue\t.*alternate-exchange.*events/m, 'and the other one');
	my $queues = $broker->ctl('list_queues', '--no-table-headers', 'name', 'type', 'arguments');
	like($queues, qr/^quorum\tquorum\t.*x-max-length.*1000/m, 'and the queue');
	my $bindings = $broker->ctl('list_bindings', '--no-table-headers', 'source_name', 'destination_name', 'routing_key', 'arguments');
	like($bindings, qr/^events\tq\torder\.\*\t/m, 'and the binding');
	like($bindings, qr/^by headers\tsome\t.*kind.*some/m, 'and the one with arguments');
	sql(q{SELECT outbox.enqueue('order.placed', '{}')});
	is(scalar @{ $broker->consume('q', count => 1) }, 1, 'an event gets there');
	is(sql(q{SELECT action, detail FROM outbox.operation WHERE detail ->> 'queue' = 'q'}),
		'declare_queue|{"queue": "q", "durable": true, "exchange": "events", "routing_key": "order.*"}', 'it is recorded');
};

subtest 'check_topology' => sub {
	$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload, destination, routing_key)
		SELECT 'test', '', v.* FROM (VALUES ('missing', 'x'), ('', 'q'), ('', 'no such queue'), ('first', 'x'), ('missing', 'y')) v});
	$node->wait_query('postgres', q{SELECT count(*) = 2 FROM outbox.event WHERE last_error LIKE 'held: %' AND claimed_by IS NULL});
	is( sql(q{SELECT destination, routing_key, waiting, exists, bound FROM outbox.check_topology()}),
		join("\n", '|no such queue|0|t|f', '|q|0|t|t', 'events||0|t|', 'first||0|t|', 'missing||2|f|f'),
		'each destination with what the broker tells');
	like(sql(q{SELECT detail FROM outbox.check_topology() WHERE routing_key = 'q'}), qr/^messages in the queue: 1, consumers: 0$/, 'with details');
	sql(q{SELECT outbox.declare_exchange('missing')});
	$node->wait_drained('postgres');
	is(sql(q{SELECT exists, bound FROM outbox.check_topology() WHERE destination = 'missing'}), 't|', 'an exchange that has come');
	is(sql('SELECT outbox.pause()'), 't', 'while the relay is paused');
	is(sql('SELECT count(*) FROM outbox.check_topology()'), '5', 'it can be asked, too');
	sql('SELECT outbox.resume()');
	$node->safe_psql('postgres', 'CREATE ROLE watcher LOGIN; GRANT EXECUTE ON FUNCTION outbox.check_topology TO watcher');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.check_topology()', extra_params => [ '-U', 'watcher' ]), '5',
		'by a role that may do nothing else');
};

subtest 'the broker refuses' => sub {
	$node->wait_for_state('postgres', 'idle');
	my $reconnects = sql('SELECT reconnects FROM outbox.stat_relay');
	fails(q{declare_exchange('events', 'fanout')}, qr/^42710\nthe broker refused to declare exchange "events": PRECONDITION_FAILED - inequivalent arg 'type' .*\nIts reply code is 406\.\n/,
		'an exchange that is otherwise');
	fails(q{declare_queue('q', arguments => '{"x-max-length": 5}')}, qr/^42710\n.*inequivalent arg 'x-max-length'/, 'a queue that is otherwise');
	fails(q{declare_queue('new', arguments => '{"x-max-length": "many"}')}, qr/^22023\n.*PRECONDITION_FAILED/, 'arguments that it does not take');
	fails(q{declare_exchange('amq.mine')}, qr/^42501\n.*ACCESS_REFUSED/, 'a name that is its own');
	fails(q{declare_queue('unbound', exchange => 'not there')}, qr/^42704\nthe broker refused to bind queue "unbound", which is declared, to exchange "not there": NOT_FOUND/,
		'a binding to what is missing');
	like($broker->ctl('list_queues', 'name'), qr/^unbound$/m, 'where the queue is declared');
	is(sql('SELECT reconnects FROM outbox.stat_relay'), $reconnects, 'no connection is lost over it');
	$broker->ctl('add_user', 'publisher', 'secret');
	$broker->ctl('set_permissions', 'publisher', '', '.*', '.*');
	$node->configure('drainer.broker_uri' => $broker->uri('publisher', 'secret'));
	$node->wait_query('postgres', "SELECT reconnects > $reconnects OR connected_since > now() - interval '1 s' FROM outbox.stat_drainer WHERE database = 'postgres'");
	OutboxDrainer::Cluster::wait_until('the user may not', sub { sql(q{SELECT failure('declare_exchange(''forbidden'')')}) =~ /^42501/ });
	fails(q{declare_exchange('forbidden')}, qr/^42501\nthe broker refused to declare exchange "forbidden": ACCESS_REFUSED - .*'publisher'/, 'a user without the right');
	is(sql(q{SELECT exists FROM outbox.check_topology() WHERE destination = 'events'}), 't', 'who may ask nonetheless');
	$node->configure('drainer.broker_uri' => $broker->uri);
	OutboxDrainer::Cluster::wait_until('the other user may', sub { sql(q{SELECT failure('declare_exchange(''allowed'')')}) eq 'none' });
	pass('another user may');
	is(sql(q{SELECT count(*) FROM outbox.operation WHERE detail ->> 'exchange' IN ('amq.mine', 'forbidden')}), '0', 'what was refused is not recorded');
};

subtest 'the broker closes the connection over it' => sub {
	fails(q{declare_exchange('odd', 'x-no-such-plugin')}, qr/^22023\nthe broker refused to declare exchange "odd": COMMAND_INVALID - unknown exchange type 'x-no-such-plugin'\nIts reply code is 503\.\nThe broker has closed the drainer's connection over it\./, 'with its words');
	is(sql(q{SELECT outbox.declare_exchange('even')}), '', 'the next one is asked when the connection is there again');
};

subtest 'many sessions ask at once' => sub {
	my $run = $node->start_pgbench('postgres', <<'SQL', 24, 10);
\set n random(1, 1000000)
SELECT outbox.declare_queue('c' || :client_id, exchange => 'events', timeout => '2 min');
SELECT 1 / count(*) FROM outbox.check_topology(timeout => '2 min');
SQL
	$node->finish_pgbench($run);
	is(scalar(() = $broker->ctl('list_queues', 'name') =~ /^c\d+$/mg), 24, 'each is answered');
	is(sql(q{SELECT count(*) FROM outbox.operation WHERE detail ->> 'queue' ~ '^c\d'}), '240', 'each time');
};

# A session that asks, once it waits for the answer.
sub asking
{
	my ($command) = @_;
	my $session = { out => '', err => '' };
	$session->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', "SELECT outbox.$command" ],
		'>', \$session->{out}, '2>', \$session->{err}, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$node->wait_query('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'SELECT outbox.%' AND wait_event = 'Extension'});
	return $session;
}

sub end_of
{
	my ($session) = @_;
	$session->{run}->finish;
	return $session->{err};
}

subtest 'the broker does not answer' => sub {
	$broker->freeze;
	fails(q{declare_exchange('slow', timeout => '200 ms')}, qr/^38000\nthe broker has not answered within .*\n.*\nIt may have been done all the same; it can be repeated\.$/, 'the time is over');
	my $err = '';
	# More often than sessions can ask at once.
	my $canceled = 0;
	for (1 .. 20)
	{
		$node->psql('postgres', q{SET statement_timeout = '50ms'; SELECT outbox.check_topology(timeout => '1 min')}, stderr => \$err);
		$canceled++ if $err =~ /canceling statement due to statement timeout/;
	}
	is($canceled, 20, 'whoever asks can be cancelled');
	my $session = asking(q{declare_queue('killed', timeout => '1 h')});
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT outbox.declare_queue%' AND pid <> pg_backend_pid()});
	like(end_of($session), qr/terminating connection due to administrator command/, 'and killed');
	$broker->thaw;
	OutboxDrainer::Cluster::wait_until('it answers', sub { sql(q{SELECT failure('check_topology(timeout => ''5 s'')')}) eq 'none' });
	pass('when it goes on, it can be asked again');
	is(sql(q{SELECT count(outbox.declare_queue('again ' || i)) FROM generate_series(1, 20) i}), '20', 'as often as before');
};

subtest 'the drainer ends' => sub {
	$broker->freeze;
	my $session = asking(q{declare_exchange('unlucky', timeout => '1 h')});
	my $pid     = $node->drainer_pid('postgres');
	kill 'TERM', $pid;
	like(end_of($session), qr/ERROR:  the (drainer|connection to the broker) ended before the answer/, 'who waits is told');
	$broker->thaw;
	is(sql(q{SELECT outbox.declare_exchange('lucky', timeout => '2 min')}), '', 'the next one waits for the next drainer');
	isnt($node->drainer_pid('postgres'), $pid, 'which is another one');
};

subtest 'the broker blocks, or goes' => sub {
	$broker->memory_alarm(1);
	sql(q{SELECT outbox.enqueue('order.placed', '{}')});
	$node->wait_for_state('postgres', 'blocked');
	my $answer = sql(q{SELECT failure('check_topology(timeout => ''200 ms'')')});
	like($answer, qr/^none$|^38000\nthe broker has not answered within .*\nAt present the broker "[^"]*" blocks publishing since .*: .*memory/, 'it answers, or it is said why not');
	$broker->memory_alarm(0);
	$node->wait_drained('postgres');
	$broker->freeze;
	my $session = asking(q{check_topology(timeout => '1 h')});
	$broker->kill9;
	like(end_of($session), qr/ERROR:  the connection to the broker ended before the answer came\n/, 'a connection that is lost');
	fails(q{declare_exchange('x', timeout => '100 ms')}, qr/^55000\nno drainer .*\nAt present the broker .* is disconnected since /, 'and is not there');
	$broker->start;
	is(sql(q{SELECT outbox.declare_exchange('x', timeout => '2 min')}), '', 'it is waited for');
};

done_testing();

sub sql
{
	my ($query) = @_;
	return $node->safe_psql('postgres', $query);
}

# Tests how a call of a function fails.
sub fails
{
	my ($call, $pattern, $name) = @_;
	$call =~ s/'/''/g;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like(sql("SELECT failure('$call')"), $pattern, $name);
	return;
}
