package OutboxBench::Scenario::wal;

# What an event costs in WAL: its insert, beside the same insert into a plain table, and its claim and mark together.
# A page's first change after a checkpoint writes the whole page, so a checkpoint is taken first and only pages that
# are begun after it are in the window. autovacuum is off: what it writes depends on when it comes.

use strict;
use warnings;

use OutboxBench::Session;

sub title { return 'WAL per event of 400 bytes, and the share of updates that touch no index'; }

# An envelope as services have it.
my %envelope = (
	payload        => q{convert_to(rpad('', 400, md5(i::text)), 'UTF8')},
	event_type     => q{'order.placed'},
	key            => q{'customer ' || i % 1000},
	correlation_id => q{md5(i::text)::uuid::text},
	traceparent    => q{'00-' || md5(i::text) || '-' || left(md5(i::text), 16) || '-01'},
);

sub run
{
	my ($bench) = @_;
	my $count = $bench->scaled(100_000);
	my %found;
	for my $round (1 .. $bench->repeats)
	{
		my $once = measure($bench, $count, $round);
		push @{ $found{$_} }, $once->{$_} for keys %$once;
	}
	$bench->figure('plain insert', figure => $found{plain}, unit => 'bytes of WAL per event');
	$bench->figure('insert', figure => $found{insert}, unit => 'bytes of WAL per event');
	$bench->figure('insert, above the plain one', figure => $found{above}, unit => 'bytes of WAL per event', bar => '<= 160');
	$bench->figure('claim and mark', figure => $found{drain}, unit => 'bytes of WAL per event', bar => '<= 280');
	$bench->figure('updates that touch no index', figure => $found{hot}, unit => 'per cent', bar => '>= 95');
	return;
}

sub measure
{
	my ($bench, $count, $round) = @_;
	my $broker = $bench->broker;
	my $server = $bench->server(broker => $broker, settings => { autovacuum => 'off', wal_level => 'replica' });
	$server->publishing(0);
	$server->execute([
		'CREATE SEQUENCE public.plain_seq',
		# Also the same constraints, and ids from the same generator.
		'CREATE TABLE public.plain (LIKE outbox.event INCLUDING ALL) WITH (fillfactor = 33)',
		q{ALTER TABLE public.plain ALTER seq SET DEFAULT nextval('public.plain_seq'),}
		  . ' ALTER id SET DEFAULT outbox.uuid_v7()',
	]);
	my %insert;
	for my $table ($round % 2 ? qw(public.plain outbox.event) : qw(outbox.event public.plain))
	{
		$server->execute('CHECKPOINT');
		insert($server, $table, 1000);
		$insert{$table} = wal($server, sub { insert($server, $table, $count) }) / $count;
	}
	my $drain = wal($server, sub { $server->drain($count + 1000); $server->wait_for(q{state = 'idle'}) }, $bench);
	my ($updates, $hot) = updates($server, 2 * ($count + 1000));
	$server->discard;
	$broker->stop;
	return {
		plain  => $insert{'public.plain'},
		insert => $insert{'outbox.event'},
		above  => $insert{'outbox.event'} - $insert{'public.plain'},
		drain  => $drain / ($count + 1000),
		hot    => 100 * $hot / $updates,
	};
}

sub insert
{
	my ($server, $table, $count) = @_;
	my @names = sort keys %envelope;
	$server->execute(sprintf 'INSERT INTO %s (%s) SELECT %s FROM generate_series(1, %d) i', $table,
		join(', ', @names), join(', ', @envelope{@names}), $count);
	return;
}

# Bytes of WAL that the work writes; with a bench, also says which records they are.
sub wal
{
	my ($server, $work, $bench) = @_;
	my ($before) = $server->query('SELECT pg_current_wal_insert_lsn()');
	$work->();
	my ($after) = $server->query('SELECT pg_current_wal_insert_lsn()');
	my ($bytes) = $server->query("SELECT pg_wal_lsn_diff('$after', '$before')");
	if ($bench)
	{
		my $directory = $server->query('SHOW data_directory') . '/pg_wal';
		$bench->say("  $_") for grep { !/\b0 \(\s*0\.00\).*\b0 \(\s*0\.00\)/ } `pg_waldump --stats=record -p $directory -s $before -e $after 2>&1` =~ /^(\S+\/\S+ .*)/mg;
	}
	return $bytes;
}

# Of the drainer's updates, once it has reported them all.
sub updates
{
	my ($server, $least) = @_;
	for (1 .. 100)
	{
		my ($all, $hot) = split /\|/,
		  $server->query(q{SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox.event'::regclass});
		return ($all, $hot) if $all >= $least;
		sleep 1;
	}
	die "the drainer has not reported $least updates\n";
}

1;
