package OutboxBench::Scenario::payload;

# Backlogs of events of one size each, from empty ones to a megabyte, go into a durable classic queue. Each size moves
# about as many bytes where they are large, so that it takes a few seconds: a drainer begins with a connection. The
# bodies are JSON, of which PostgreSQL compresses what is larger than a quarter of a page: that is a part of a drainer's
# work and none of the ceiling's, whose bodies the broker does not look at either.

use strict;
use warnings;

use List::Util qw(max);

sub title { return 'Draining events from 0 bytes to 1 MB into a classic queue'; }

my @sizes = (
	{ name => '0 bytes',   bytes => 0,                count => 60_000 },
	{ name => '512 bytes', bytes => 512,              count => 60_000 },
	{ name => '8 kB',      bytes => 8 * 1024,         count => 24_000 },
	{ name => '64 kB',     bytes => 64 * 1024,        count => 12_000 },
	{ name => '1 MB',      bytes => 1024 * 1024,      count => 600 },
);

# A body for each size: orders of a shop, cut where they are long enough. The last character keeps its quotes closed. They are
# kept as they are, so that the table they are inserted into compresses them in its own way.
my $bodies = <<'SQL';
CREATE TABLE bench_body (size int, body bytea);
ALTER TABLE bench_body ALTER body SET STORAGE EXTERNAL;
INSERT INTO bench_body SELECT size, CASE WHEN size = 0 THEN ''::bytea ELSE
    convert_to(rpad('{"orders": "' || left(lines, greatest(size - 14, 0)), size - 2, ' ') || '"}', 'UTF8') END AS body
FROM (SELECT string_agg(format('{order: %s, customer: %s, sku: %s-%s, quantity: %s, price: %s.%s, paid: true} ',
            100000 + i, md5(i::text), substr(md5('sku' || i), 1, 4), i % 9000, i % 7 + 1, i * 37 % 500, i * 61 % 100), '')
        AS lines FROM generate_series(1, 12000) i) o,
    unnest(ARRAY[SIZES]) AS size
SQL

sub run
{
	my ($bench) = @_;
	my (%ours, %ceiling);
	for my $round (1 .. $bench->repeats)
	{
		my $broker = $bench->broker;
		my $server = $bench->server(broker => $broker);
		make_bodies($server);
		for my $size (@sizes)
		{
			my ($ours, $ceiling) = measure($bench, $server, $broker, $size, $round % 2);
			push @{ $ours{ $size->{name} } },    $ours;
			push @{ $ceiling{ $size->{name} } }, $ceiling;
		}
		$server->discard;
		$broker->stop;
	}
	for my $size (@sizes)
	{
		$bench->compare($size->{name}, figure => $ours{ $size->{name} }, unit => $size->{bytes} ? 'MB/s' : 'events/s',
			baseline => $ceiling{ $size->{name} }, against => 'ceiling', bar => '>= 0.8');
	}
	return;
}

sub make_bodies
{
	my ($server) = @_;
	my $sizes = join ', ', map { $_->{bytes} } @sizes;
	$server->execute($bodies =~ s/SIZES/$sizes/r);
	return;
}

# What a drainer and the ceiling make of one size, in MB/s or, where there are no bytes, in events a second.
sub measure
{
	my ($bench, $server, $broker, $size, $ceiling_first) = @_;
	my $count  = $bench->scaled($size->{count}, 100);
	my $amount = $size->{bytes} ? $size->{bytes} / 1e6 : 1;
	my $window = $server->query('SHOW outbox_drainer.pipeline_depth');
	my ($ours, @ceiling);
	my $measure_ceiling = sub {
		for my $depth ($window == 500 ? (500) : ($window, 500))
		{
			empty($broker);
			push @ceiling, $amount
			  * $bench->program('ceiling', port => $broker->port, count => $count, size => $size->{bytes}, window => $depth)->{rate};
		}
	};
	my $measure_ours = sub {
		$server->publishing(0);
		$server->insert($count, payload => "(SELECT body FROM bench_body WHERE size = $size->{bytes})");
		$server->execute('CHECKPOINT');
		empty($broker);
		$ours = $amount * $count / $server->drain($count);
		my $queued = $broker->queue_length('q');
		die "of $count events of $size->{name} $queued are in the queue\n" unless $queued == $count;
	};
	$_->() for $ceiling_first ? ($measure_ceiling, $measure_ours) : ($measure_ours, $measure_ceiling);
	$bench->say(sprintf '%s: %.4g, ceiling %.4g', $size->{name}, $ours, max(@ceiling));
	return ($ours, max(@ceiling));
}

sub empty
{
	my ($broker) = @_;
	$broker->delete(queue => 'q');
	$broker->declare(exchange => 'events', queue => 'q', binding => '#');
	return;
}

1;
