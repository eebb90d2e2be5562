package OutboxBench::Scenario::memory;

# Large events and the largest batch_size: batch_bytes alone bounds what a drainer has in hand. What counts is its own
# resident memory (RssAnon), sampled while it works; pages of shared_buffers that it has touched are the server's. The
# payloads compress well, so that 20 GB of them take little room in the table; on their way they are whole.

use strict;
use warnings;

use List::Util qw(max);
use Time::HiRes qw(sleep time);

use OutboxBench::Process qw(status);
use OutboxBench::Session;

sub title { return "The drainer's memory with payloads of 100 kB and the largest batch_size"; }

my $payload = 100_000;

sub run
{
	my ($bench) = @_;
	my $count = $bench->scaled(200_000);
	my (@peaks, @above, $limit, $line);
	for my $round (1 .. $bench->repeats)
	{
		my $broker = $bench->broker;
		my $server = $bench->server(broker => $broker);
		$server->publishing(0);
		my ($largest) = $server->query(q{SELECT max_val FROM pg_settings WHERE name = 'outbox_drainer.batch_size'});
		my ($batch)   = $server->query(q{SELECT pg_size_bytes(current_setting('outbox_drainer.batch_bytes'))});
		$server->set('outbox_drainer.batch_size' => $largest);
		$server->insert($count, payload => "convert_to(rpad('', $payload, 'x'), 'UTF8')");
		$limit = 64 * 1024 * 1024 + $batch + $payload;
		my $samples = follow($server, $count);
		push @peaks, max(map { $_->[1] } @$samples);
		$line //= $samples;
		my ($done) = $server->query('SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL');
		die "$done of $count events are published\n" if $done != $count;
		$server->discard;
		$broker->stop;
	}
	$bench->figure("drainer's own memory at most", figure => \@peaks, unit => 'MB',
		bar => sprintf('<= %.1f', $limit / 1e6));
	$bench->series('memory', title => "The drainer's own memory while $count events of 100 kB are drained",
		x => 'seconds', y => 'MB', lines => { 'RssAnon' => thinned(200, @$line) }, style => 'lines');
	return;
}

# [seconds, MB] while so many events are published.
sub follow
{
	my ($server, $count) = @_;
	my $session = OutboxBench::Session->new($server);
	my $pid     = $server->drainer_pid;
	my $start   = time;
	my @samples;
	$server->set('outbox_drainer.enabled' => 'on');
	for (my $turn = 0;; $turn++)
	{
		push @samples, [ time - $start, status($pid, 'RssAnon') * 1024 / 1e6 ];
		last if $turn % 10 == 0 && $session->query('SELECT sum(published) FROM outbox.stat_drainer') >= $count;
		die "not drained after ten minutes\n" if time > $start + 600;
		sleep 0.05;
	}
	$session->close;
	return \@samples;
}

# So many points, each the greatest of its stretch.
sub thinned
{
	my ($points, @samples) = @_;
	my $stretch = int(@samples / $points) + 1;
	my @thin;
	while (my @some = splice @samples, 0, $stretch)
	{
		push @thin, [ $some[0][0], max(map { $_->[1] } @some) ];
	}
	return \@thin;
}

1;
