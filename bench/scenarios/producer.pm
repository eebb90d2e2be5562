package OutboxBench::Scenario::producer;

# What a producer pays for writing to the outbox instead of to a table of its own. The baseline, plain insert, is a table
# with the columns, types, defaults, CHECKs, indexes and fillfactor of outbox.event and no trigger of ours: what the
# trigger fills are defaults there (seq from a sequence, id by gen_random_uuid), so that rows of the same size result.
#
# Single rows come from pgbench with 8 clients and its defaults (a statement is parsed and planned each time), each with
# a commit of its own: half of the time of such a transaction is the disk's. What the trigger costs shows where commits
# do not wait (synchronous_commit = off), as processor time of all server processes per row. The drainer is disabled:
# its work is the other scenarios'.
#
# Runs are short and take turns, each on emptied tables, and a figure is the median of many.

use strict;
use warnings;
use utf8;

use Carp;

sub title { return 'What producers pay'; }

my $payload = '{"order": :n, "note": "' . ('x' x 490) . '"}';
my $columns = '(event_type, key, payload)';
my $values  = qq{('order.placed', 'order :n', '$payload')};

my %scripts = (
	plain   => "INSERT INTO bench.plain $columns VALUES $values",
	insert  => "INSERT INTO outbox.event $columns VALUES $values",
	text    => qq{SELECT outbox.enqueue('order.placed', '$payload', key => 'order :n')},
	jsonb   => qq{SELECT outbox.enqueue('order.placed', '$payload'::jsonb, key => 'order :n')},
	bytea   => qq{SELECT outbox.enqueue('order.placed', '$payload'::bytea, key => 'order :n')},
);

# How the cases are called, and what they must reach of plain insert.
my @cases = (
	[ insert => 'INSERT',                  '>= 0.95' ],
	[ text   => 'enqueue, payload text',  '>= 0.85' ],
	[ jsonb  => 'enqueue, payload jsonb', '>= 0.85' ],
	[ bytea  => 'enqueue, payload bytea', '>= 0.85' ],
);
my @names = ('plain', map { $_->[0] } @cases);

sub run
{
	my ($bench) = @_;
	my $server = $bench->server;
	$server->publishing(0);
	make_plain_table($server);
	single_rows($bench, $server);
	processor_time($bench, $server);
	copy($bench, $server);
	return;
}

# LIKE takes along all but the storage parameters.
sub make_plain_table
{
	my ($server) = @_;
	$server->execute([
		'CREATE SCHEMA bench',
		'CREATE TABLE bench.plain (LIKE outbox.event INCLUDING ALL)',
		'CREATE SEQUENCE bench.plain_seq AS bigint CACHE 1',
		q{ALTER TABLE bench.plain ALTER seq SET DEFAULT nextval('bench.plain_seq'), ALTER id SET DEFAULT gen_random_uuid()},
		q{DO $$ BEGIN
			EXECUTE (SELECT format('ALTER TABLE bench.plain SET (%s)', array_to_string(reloptions, ', '))
				FROM pg_class WHERE oid = 'outbox.event'::regclass);
		END $$},
	]);
	my $indexes = q{SELECT string_agg(regexp_replace(indexdef, '^.* USING', ''), '; ' ORDER BY indexdef ~ 'UNIQUE',
		regexp_replace(indexdef, '^.* USING', '')) FROM pg_indexes WHERE schemaname};
	croak 'the plain table is not like outbox.event'
	  unless $server->query("SELECT ($indexes = 'bench') = ($indexes = 'outbox' AND tablename = 'event')") eq 't';
	return;
}

sub single_rows
{
	my ($bench, $server) = @_;
	my %rate;
	in_turns($bench->repeats * 2 + 1, sub {
		my ($name) = @_;
		push @{ $rate{$name} }, write_rows($server, $name, $bench->is_quick ? 2 : 4, 'on')->{rate};
	});
	for my $case (@cases)
	{
		my ($name, $text, $bar) = @$case;
		$bench->compare($text, figure => $rate{$name}, unit => 'rows/s', baseline => $rate{plain}, against => 'plain insert', bar => $bar);
	}
	return;
}

sub processor_time
{
	my ($bench, $server) = @_;
	my %time;
	in_turns($bench->repeats, sub {
		my ($name) = @_;
		my $got = write_rows($server, $name, 2, 'off');
		push @{ $time{$name} }, 1e6 * $got->{cpu} / $got->{rows};
	});
	for my $case (@cases)
	{
		my ($name, $text) = @$case;
		$bench->compare("$text, no wait at commit", figure => $time{$name}, unit => 'µs of processor time per row',
			baseline => $time{plain}, against => 'plain insert');
	}
	return;
}

# Each does the work once a round, and everybody is first in some round.
sub in_turns
{
	my ($rounds, $work) = @_;
	my @order = @names;
	for my $round (1 .. $rounds)
	{
		$work->($_) for @order;
		push @order, shift @order;
	}
	return;
}

# Lets 8 clients write single rows: { rate, rows, cpu }.
sub write_rows
{
	my ($server, $name, $seconds, $synchronous_commit) = @_;
	empty($server);
	my $before = $server->processor_time;
	my $output = $server->pgbench("\\set n random(1, 1000000)\n$scripts{$name};\n", env => { PGOPTIONS => "-c synchronous_commit=$synchronous_commit" },
		args => [ '-c', 8, '-j', 2, '-T', $seconds ]);
	my $cpu = $server->processor_time - $before;
	my ($rate) = $output =~ /^tps = ([\d.]+)/m or croak "unexpected: $output";
	my $rows = $server->query('SELECT count(*) FROM ' . table_of($name));
	my ($transactions) = $output =~ /actually processed: (\d+)/;
	croak "$rows rows of $transactions transactions" unless $rows == $transactions;
	return { rate => $rate, rows => $rows, cpu => $cpu };
}

sub copy
{
	my ($bench, $server) = @_;
	my $count = 100_000;
	my $file  = $server->file('rows.copy');
	$server->execute(qq{COPY (SELECT 'order.placed', 'order ' || i, convert_to(format('{"order": %s, "note": "%s"}', i, repeat('x', 490)), 'UTF8')
		FROM generate_series(1, $count) i) TO '$file'});
	my %rate;
	for my $round (1 .. $bench->repeats * 2 + 1)
	{
		for my $name ($round % 2 ? ('plain', 'insert') : ('insert', 'plain'))
		{
			push @{ $rate{$name} }, copy_rows($server, $name, $file, $count);
		}
	}
	$bench->compare("COPY of $count rows", figure => $rate{insert}, unit => 'rows/s', baseline => $rate{plain}, against => 'plain insert', bar => '>= 0.7');
	return;
}

sub copy_rows
{
	my ($server, $name, $file, $count) = @_;
	empty($server);
	my $table  = table_of($name);
	my $output = $server->pgbench("COPY $table $columns FROM '$file';\n", args => [ '-t', 1 ]);
	my ($ms)   = $output =~ /^latency average = ([\d.]+) ms/m or croak "unexpected: $output";
	croak 'rows are missing' unless $server->query("SELECT count(*) FROM $table") == $count;
	return $count / $ms * 1000;
}

sub table_of { my ($name) = @_; return $name eq 'plain' ? 'bench.plain' : 'outbox.event'; }

sub empty
{
	my ($server) = @_;
	$server->execute([ 'TRUNCATE bench.plain, outbox.event', 'CHECKPOINT' ]);
	return;
}

1;
