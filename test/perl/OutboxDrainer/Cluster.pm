package OutboxDrainer::Cluster;

=pod

=head1 NAME

OutboxDrainer::Cluster - a PostgreSQL server with outbox_drainer, for TAP tests

=head1 SYNOPSIS

  my $broker = OutboxDrainer::Cluster->start_broker;
  my $node = OutboxDrainer::Cluster->new_node('main', broker => $broker);
  $node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
  $node->create_ledger('postgres');
  $node->safe_psql('postgres', q{SELECT emit('key')});
  $node->wait_drained('postgres');
  $node->ledger_ok('postgres', $broker->consume('q'), 'the event arrives');

=head1 DESCRIPTION

A PostgreSQL::Test::Cluster with helpers. Every wait is for a state and ends with the time limit of the
test suite (PG_TEST_TIMEOUT_DEFAULT, in seconds).

The ledger is a table that a transaction writes together with its event. What is in the ledger is what
was committed, and so what consumers must see: with which bytes, under which message id, and for events of
one key in which order.

=cut

use strict;
use warnings;

use parent 'PostgreSQL::Test::Cluster';

use Carp;
use Cwd ();
use IPC::Run ();
use JSON::PP ();
use OutboxDrainer::RabbitMQ;
use OutboxDrainer::RabbitMQCluster;
use POSIX ();
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(sleep time);

# An interrupted test ends as one that failed: its END blocks end the servers. A child that has not reached
# its exec yet must not run them.
my $test_pid = $$;
$SIG{INT} = $SIG{TERM} = sub { $$ == $test_pid ? exit 1 : POSIX::_exit(1) };

=pod

=head1 METHODS

=over

=item OutboxDrainer::Cluster->start_broker(queue => arguments, ...)

Starts a RabbitMQ node whose log is kept with those of the test, with a topic exchange "events" and a
durable queue "q" bound to all of it.

=cut

sub start_broker
{
	my ($class, %queue) = @_;
	my $broker = $class->new_broker;
	$broker->start;
	$broker->declare(exchange => 'events', queue => 'q', %queue);
	return $broker;
}

=pod

=item OutboxDrainer::Cluster->new_broker(config => lines, ...)

A RabbitMQ node that has yet to be started.

=item OutboxDrainer::Cluster->new_broker_cluster(nodes => n)

Several that are one broker.

=cut

sub new_broker
{
	my ($class, %params) = @_;
	return OutboxDrainer::RabbitMQ->new(log_dir => Cwd::abs_path($PostgreSQL::Test::Utils::log_path), %params);
}

sub new_broker_cluster
{
	my ($class, %params) = @_;
	return OutboxDrainer::RabbitMQCluster->new(log_dir => Cwd::abs_path($PostgreSQL::Test::Utils::log_path), %params);
}

=pod

=item OutboxDrainer::Cluster->new_node(name, broker =>, preload =>, start =>, settings => { ... })

Initializes a server that preloads the library and knows the broker, and starts it. With preload => 0 or
start => 0 it does not. Settings named without a dot are PostgreSQL's, "drainer.x" stands for
"outbox_drainer.x".

=cut

sub new_node
{
	my ($class, $name, %params) = @_;
	my $node = $class->new($name);
	# Tests count lines of the log; those of an earlier run are not theirs.
	unlink $node->logfile;
	$node->init(extra => ['--locale=C', '--encoding=UTF8']);
	my %settings = (
		restart_after_crash       => 'on',
		log_statement             => 'none',
		max_prepared_transactions => 10,
		max_worker_processes      => 16,
	);
	if ($params{preload} // 1)
	{
		$settings{shared_preload_libraries} = 'outbox_drainer';
		$settings{'drainer.poll_interval'}  = '200ms';
		$settings{'drainer.broker_uri'}     = $params{broker}->uri if $params{broker};
	}
	$node->write_settings(%settings, %{ $params{settings} || {} });
	$node->start if $params{start} // 1;
	return $node;
}

=pod

=item $node->configure(setting => value, ...)

Changes postgresql.conf and reloads. A value of undef removes the setting.

=item $node->write_settings(setting => value, ...)

Changes postgresql.conf only.

=cut

sub configure
{
	my ($self, %settings) = @_;
	$self->write_settings(%settings);
	$self->reload;
	return;
}

sub write_settings
{
	my ($self, %settings) = @_;
	for my $name (sort keys %settings)
	{
		my $value = $settings{$name};
		$value =~ s/'/''/g if defined $value;
		(my $full_name = $name) =~ s/^drainer\./outbox_drainer./;
		$self->adjust_conf('postgresql.conf', $full_name, undef);
		$self->append_conf('postgresql.conf', "$full_name = '$value'") if defined $value;
	}
	return;
}

=pod

=item $node->log_position, $node->log_since(position)

The present end of the server's log, and what was written to it since then.

=cut

sub log_position
{
	my ($self) = @_;
	return -s $self->logfile;
}

sub log_since
{
	my ($self, $position) = @_;
	return PostgreSQL::Test::Utils::slurp_file($self->logfile, $position);
}

=pod

=item wait_until(what, condition)

Calls the condition until it returns true; dies naming what was awaited when the time is over.

=item $node->wait_query(database, query, what)

Waits until the query returns t. A server that is just coming back from a crash is waited for.

=cut

sub wait_until
{
	my ($what, $condition) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	while (1)
	{
		my $result = $condition->();
		return $result if $result;
		croak "timed out waiting until $what" if time > $deadline;
		sleep 0.05;
	}
}

sub wait_query
{
	my ($self, $database, $query, $what) = @_;
	my ($out, $err);
	my $true = sub {
		($out, $err) = ('', '');
		return $self->psql($database, $query, stdout => \$out, stderr => \$err) == 0 && $out eq 't';
	};
	return if eval { wait_until($what // "\"$query\" is true", $true); };
	my $status = '';
	$self->psql($database, '\x on \\\\ SELECT * FROM outbox.stat_drainer', stdout => \$status, stderr => \$err);
	croak "$@last answer: $out\n$status\n$err";
}

=pod

=item $node->stat(database, column)

A column of the database's row in outbox.stat_drainer; undef when there is no such row.

=item $node->wait_stat(database, condition)

Waits until the condition, in SQL, holds for that row.

=item $node->wait_for_state(database, state)

Waits until the database's drainer is in the state.

=item $node->drainer_pid(database)

The process id of the database's drainer, once it runs.

=item $node->wait_drained(database)

Waits until no row has work left.

=cut

sub stat
{
	my ($self, $database, $column) = @_;
	my $value = $self->safe_psql($database,
		"SELECT coalesce(($column)::text, '') FROM outbox.stat_drainer WHERE database = '$database'");
	return $value;
}

sub wait_stat
{
	my ($self, $database, $condition) = @_;
	$self->wait_query($database,
		"SELECT coalesce(bool_or($condition), false) FROM outbox.stat_drainer WHERE database = '$database'",
		"the drainer of \"$database\" has $condition");
	return;
}

sub wait_for_state
{
	my ($self, $database, $state) = @_;
	$self->wait_stat($database, "state = '$state'");
	return;
}

sub drainer_pid
{
	my ($self, $database) = @_;
	$self->wait_stat($database, 'pid > 0');
	return $self->stat($database, 'pid');
}

sub wait_drained
{
	my ($self, $database) = @_;
	$self->wait_query($database,
		'SELECT NOT EXISTS (SELECT FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL)',
		"all events of \"$database\" are published");
	return;
}

=pod

=item $node->unpublished(database)

How many rows have work left.

=cut

sub unpublished
{
	my ($self, $database) = @_;
	return $self->safe_psql($database,
		'SELECT count(*) FROM outbox.event WHERE published_at IS NULL AND dead_at IS NULL');
}

=pod

=item $node->create_ledger(database)

Creates in the database, which has the extension:

  emit(key)             writes a row to the ledger and its event; the transaction holds the aggregate of
                        that key until it ends, so that the events of a key have an order
  emit_many(n, keys)    n events over so many keys in one transaction

Bodies are JSON text or, every third, bytes that are no text. Each event has the attributes n (number),
pos (number, counts the events of a key), ratio (number with a fraction), odd (boolean), label (string) and
nested (object), whose AMQP types ledger_ok checks.

=cut

sub create_ledger
{
	my ($self, $database) = @_;
	$self->safe_psql($database, <<'SQL');
CREATE TABLE aggregate (key text PRIMARY KEY, pos int NOT NULL);
CREATE TABLE ledger (
	n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	event uuid NOT NULL,
	key text NOT NULL,
	pos int NOT NULL,
	body bytea NOT NULL,
	content_type text NOT NULL);
CREATE FUNCTION emit(key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	position int;
	number bigint := nextval(pg_get_serial_sequence('ledger', 'n'));
	attributes jsonb;
	event uuid;
	body bytea;
	type text;
BEGIN
	INSERT INTO aggregate AS a VALUES (emit.key, 1)
		ON CONFLICT ON CONSTRAINT aggregate_pkey DO UPDATE SET pos = a.pos + 1 RETURNING pos INTO position;
	attributes := jsonb_build_object('n', number, 'pos', position, 'ratio', number + 0.5,
		'odd', number % 2 = 1, 'label', 'no. ' || number, 'nested', '{"list": [1, "two", null]}'::jsonb);
	IF number % 3 = 0 THEN
		body := decode(md5(number::text) || '00ff', 'hex');
		type := 'application/octet-stream';
		event := outbox.enqueue('ledger.binary', body, key => emit.key, attributes => attributes, content_type => type);
	ELSE
		body := convert_to(jsonb_build_object('n', number, 'text', 'Grüße')::text, 'UTF8');
		type := 'application/json';
		event := outbox.enqueue('ledger.json', convert_from(body, 'UTF8')::jsonb, key => emit.key, attributes => attributes);
	END IF;
	INSERT INTO ledger OVERRIDING SYSTEM VALUE VALUES (number, event, emit.key, position, body, type);
END $$;
CREATE FUNCTION emit_many(n bigint, keys int) RETURNS void LANGUAGE sql AS
	$$ SELECT emit('key ' || i % keys) FROM generate_series(1, n) i $$;
SQL
	return;
}

=pod

=item $node->compare_ledger(database, messages)

Compares what a consumer received with the ledger. Returns a hash: missing (committed and not received),
unexpected (received and not committed), duplicates, disorder (a first receipt before that of an earlier
event of its key) and wrong (not the bytes, properties or headers that were written), each a list of
descriptions, and received, the number of different events.

=item $node->ledger_ok(database, messages, name, duplicates => n)

Tests that nothing is missing, unexpected, out of order or wrong, and that at most so many messages (by
default none) came twice.

=cut

sub compare_ledger
{
	my ($self, $database, $messages) = @_;
	my $expected = $self->_read_ledger($database);
	my %result   = map { $_ => [] } qw(missing unexpected duplicates disorder wrong);
	my (%seen, %last);
	for my $message (@$messages)
	{
		my $id  = $message->{properties}{message_id} // '(none)';
		my $row = $expected->{$id};
		if (!$row)
		{
			push @{ $result{unexpected} }, "message $id";
			next;
		}
		if ($seen{$id}++)
		{
			push @{ $result{duplicates} }, "event $row->{n}";
			next;
		}
		my $previous = $last{ $row->{key} };
		push @{ $result{disorder} }, "event $row->{pos} of $row->{key} after $previous"
		  if defined $previous && $previous > $row->{pos};
		$last{ $row->{key} } = $row->{pos};
		push @{ $result{wrong} }, "event $row->{n}: $_" for _differences($database, $row, $message);
	}
	$result{missing}  = [ map { "event $expected->{$_}{n}" } grep { !$seen{$_} } keys %$expected ];
	$result{received} = keys %seen;
	return \%result;
}

sub ledger_ok
{
	my ($self, $database, $messages, $name, %allowed) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $result = $self->compare_ledger($database, $messages);
	my $limit  = $allowed{duplicates} // 0;
	my @faults;
	for my $fault (qw(missing unexpected disorder wrong duplicates))
	{
		my @found = @{ $result->{$fault} };
		next if @found <= ($fault eq 'duplicates' ? $limit : 0);
		push @faults, sprintf '%d %s: %s%s', scalar @found, $fault, join(', ', grep { defined } @found[ 0 .. 9 ]),
		  @found > 10 ? ' ...' : '';
	}
	ok(!@faults, $name) or diag(join "\n", @faults);
	note sprintf '%d different events received, %d twice', $result->{received}, scalar @{ $result->{duplicates} };
	return;
}

# The ledger as a hash by message id.
sub _read_ledger
{
	my ($self, $database) = @_;
	my $lines = $self->safe_psql($database, <<'SQL');
SELECT json_build_object('message_id', e.message_id, 'n', l.n, 'key', l.key, 'pos', l.pos,
	'body', encode(l.body, 'hex'), 'content_type', l.content_type)
FROM ledger l LEFT JOIN outbox.events e ON e.id = l.event
SQL
	my $json = JSON::PP->new->utf8;
	my %rows;
	for my $line (split /\n/, $lines)
	{
		my $row = $json->decode($line);
		croak "the ledger has an event that the outbox lacks: $line" unless defined $row->{message_id};
		$rows{ $row->{message_id} } = $row;
	}
	return \%rows;
}

# What is wrong with a message, in words.
sub _differences
{
	my ($database, $row, $message) = @_;
	my $binary   = $row->{n} % 3 == 0;
	my $n        = $row->{n};
	my %expected = (
		body => [ unpack('H*', $message->{body}), $row->{body} ],
		map({ ($_ => [ $message->{properties}{$_}, { _expected_properties($database, $row, $binary) }->{$_} ]) }
			qw(type app_id content_type delivery_mode)),
		exchange    => [ $message->{exchange},    'events' ],
		routing_key => [ $message->{routing_key}, $binary ? 'ledger.binary' : 'ledger.json' ],
		headers     => [
			_canonical($message->{headers}),
			_canonical({
				n            => $n + 0,
				pos          => $row->{pos} + 0,
				ratio        => $n + 0.5,
				odd          => $n % 2 ? JSON::PP::true : JSON::PP::false,
				label        => "no. $n",
				nested       => { list => [ 1, 'two', undef ] },
				'outbox-key' => $row->{key},
			})
		],
		types => [
			_canonical($message->{types}),
			_canonical({
				n            => 'l',
				pos          => 'l',
				ratio        => 'd',
				odd          => 't',
				label        => 'S',
				nested       => { list => [ 'l', 'S', 'V' ] },
				'outbox-key' => 'S',
			})
		],
	);
	return map { sprintf '%s is %s, not %s', $_, map { $_ // '(not set)' } @{ $expected{$_} } }
	  grep { ($expected{$_}[0] // '') ne ($expected{$_}[1] // '') } sort keys %expected;
}

sub _expected_properties
{
	my ($database, $row, $binary) = @_;
	return (
		type          => $binary ? 'ledger.binary' : 'ledger.json',
		app_id        => $database,
		content_type  => $row->{content_type},
		delivery_mode => 2);
}

sub _canonical
{
	my ($value) = @_;
	return JSON::PP->new->canonical->allow_nonref->encode($value);
}

=pod

=item $node->start_pgbench(database, script, clients, transactions)

Starts pgbench with a script of the test and returns an IPC::Run harness; finish it with
finish_pgbench. An error of a transaction fails the test.

=back

=cut

sub start_pgbench
{
	my ($self, $database, $script, $clients, $transactions) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script';
	PostgreSQL::Test::Utils::append_to_file($file, $script);
	my $run = { output => '' };
	$run->{harness} = IPC::Run::start(
		[
			'pgbench', '-n', '-f', $file, '-c', $clients, '-j', 2, '-t', $transactions,
			$self->connstr($database)
		],
		'>&',
		\$run->{output},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $run;
}

sub finish_pgbench
{
	my ($self, $run) = @_;
	$run->{harness}->finish or croak "pgbench failed:\n$run->{output}";
	return;
}

1;
