package OutboxBench::Scenario::long_producer;

# One producer has written an event and keeps its transaction open for a minute, while others write 500 events a second,
# in order per key: how long do the others' events take, beside a time without such a producer? Its numbers lie in the
# middle of a gap that drainers have to watch, and its keys are those of the others.
#
# The time of an event is taken inside the database, from its insert (enqueued_at) to when the broker's confirm was
# recorded (published_at). Both ends are alike in both cases: the producer's commit, and up to 10 ms that a drainer waits
# for more confirms to record.
#
# A consumer is connected, since a queue that only grows has stalls of its own. At most two rounds, as each takes two minutes.

use strict;
use warnings;

use Carp;
use List::Util qw(min);

use OutboxBench::Session;
use OutboxBench::Stats qw(percentile);

sub title { return 'A producer that keeps its transaction open' }

my $rate = 500;
my $keys = 20;

sub run
{
	my ($bench) = @_;
	my $seconds = $bench->scaled(60);
	my $broker  = $bench->broker;
	my $server  = $bench->server(broker => $broker);
	$broker->declare(exchange => 'events', queue => 'q', binding => '#');
	$server->publishing(1);
	my $consumer = $bench->start_consumer($broker, 'idle-s' => 20);
	others($server, 2);
	my (%p50, %p99, %by_second);
	for my $round (1 .. min($bench->repeats, 2))
	{
		for my $case ($round % 2 ? ('without', 'with') : ('with', 'without'))
		{
			my @times = $case eq 'with' ? beside_long_producer($server, $seconds) : others($server, $seconds);
			push @{ $p50{$case} }, percentile(0.5,  map { $_->[1] } @times);
			push @{ $p99{$case} }, percentile(0.99, map { $_->[1] } @times);
			$bench->say(sprintf '%s: p50 %.1f ms, p99 %.1f ms, most %.1f ms', $case, $p50{$case}[-1], $p99{$case}[-1],
				percentile(1, map { $_->[1] } @times));
			$by_second{"$case it"} = each_second(@times);
		}
	}
	my $received  = $bench->finish_program($consumer)->{received};
	my $published = $server->query('SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL');
	croak "$published were published, $received received" if $received != $published;
	$bench->compare('p99 of the others', figure => $p99{with}, unit => 'ms', baseline => $p99{without}, against => 'without it', bar => '<= 1.5');
	$bench->compare('p50 of the others', figure => $p50{with}, unit => 'ms', baseline => $p50{without}, against => 'without it');
	$bench->series('long_producer', title => 'Insert to published, 99th percentile of each second', x => 'seconds', y => 'ms', lines => \%by_second);
	return;
}

# The others' events: ([second of the window, milliseconds], ...). All of them must have been published.
sub others
{
	my ($server, $seconds) = @_;
	my $first = $server->query('SELECT last_value FROM outbox.event_seq') + 1;
	$server->pgbench(
		"\\set key random(1, $keys)\nINSERT INTO outbox.event (event_type, key, payload) VALUES ('other', 'key :key', repeat('x', 512)::bytea);\n",
		args => [ '-c', 8, '-j', 1, '-R', $rate, '-T', $seconds ]);
	wait_until_published($server, "event_type = 'other'");
	my @times = map { [ split /\|/ ] } $server->query(
		qq{SELECT extract(epoch FROM enqueued_at - min(enqueued_at) OVER ()), 1000 * extract(epoch FROM published_at - enqueued_at)
			FROM outbox.event WHERE event_type = 'other' AND seq >= $first ORDER BY 1});
	croak 'too few events: ' . @times if @times < 0.9 * $rate * $seconds;
	return @times;
}

sub beside_long_producer
{
	my ($server, $seconds) = @_;
	my $producer = OutboxBench::Session->new($server);
	$producer->query('BEGIN');
	my $before = $server->query(q{SELECT count(*) FROM outbox.event WHERE event_type = 'long'});
	$producer->query("INSERT INTO outbox.event (event_type, key, payload) SELECT 'long', 'key ' || i, '' FROM generate_series(1, $keys) i");
	my @times = others($server, $seconds);
	$producer->query('COMMIT');
	$producer->close;
	wait_until_published($server, "event_type = 'long'");
	croak 'its events are missing' unless $server->query(q{SELECT count(*) FROM outbox.event WHERE event_type = 'long'}) == $before + $keys;
	return @times;
}

sub wait_until_published
{
	my ($server, $which) = @_;
	for (1 .. 300)
	{
		return if $server->query("SELECT count(*) FROM outbox.event WHERE published_at IS NULL AND $which") == 0;
		select undef, undef, undef, 0.1;
	}
	croak "not published: $which";
}

sub each_second
{
	my @times = @_;
	my %of;
	push @{ $of{ int $_->[0] } }, $_->[1] for @times;
	return [ map { [ $_, percentile(0.99, @{ $of{$_} }) ] } sort { $a <=> $b } keys %of ];
}

1;
