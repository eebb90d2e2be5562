package OutboxBench::Scenario::old_snapshot;

# A backlog is drained while somebody else's REPEATABLE READ transaction, begun before it was written, keeps every
# version of every row from being removed. The last claims must cost about what the first did. The exchange has no
# queue, so that nothing but the drainer sets the pace; payloads are small, since it is versions that count here.

use strict;
use warnings;
use utf8;

use OutboxBench::Sampler;
use OutboxBench::Session;

sub title { return 'Draining while an old snapshot is held open'; }

sub run
{
	my ($bench) = @_;
	my $count = $bench->scaled(1_000_000);
	my (@first, @last, %lines);
	for my $round (1 .. $bench->repeats)
	{
		my $broker  = $bench->broker;
		my @samples = drain($bench, $broker, $count, 1);
		push @first, per_event(between(0,            $count / 10, @samples));
		push @last,  per_event(between($count * 0.9, $count,      @samples));
		if ($round == 1)
		{
			$lines{'with an old snapshot'} = line($count, @samples);
			$lines{'without'} = line($count, drain($bench, $broker, $count, 0));
		}
		$broker->stop;
	}
	$bench->compare('last tenth', figure => \@last, unit => 'µs of processor time per event', baseline => \@first,
		against => 'first tenth', bar => '<= 1.5');
	$bench->series('old_snapshot', title => "The drainer's processor time while $count events are drained",
		x => 'events drained', y => 'microseconds per event', lines => \%lines);
	return;
}

# Samples that begin with nothing published.
sub drain
{
	my ($bench, $broker, $count, $hold) = @_;
	my $server = $bench->server(broker => $broker);
	$server->publishing(0);
	my $reader = OutboxBench::Session->new($server);
	my $xmin   = $hold && $reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ;'
		  . ' SELECT pg_snapshot_xmin(pg_current_snapshot()) FROM outbox.event HAVING true');
	$server->insert($count, payload => q{'\x7b7d'});
	my $sampler = OutboxBench::Sampler->new($server);
	$server->set('outbox_drainer.enabled' => 'on');
	my @samples = $sampler->follow($count, 0.05);
	die "the snapshot has moved\n"
	  if $hold && $reader->query('SELECT pg_snapshot_xmin(pg_current_snapshot())') != $xmin;
	my ($done) = $server->query('SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL');
	die "$done of $count events are published\n" if $done != $count;
	$reader->close;
	$server->discard;
	return @samples;
}

# The samples from one number of published events to another.
sub between
{
	my ($low, $high, @samples) = @_;
	return grep { my $done = $_->{published} - $samples[0]{published}; $done >= $low && $done <= $high } @samples;
}

sub per_event { return 1e6 * OutboxBench::Sampler::cost(@_); }

sub line
{
	my ($count, @samples) = @_;
	my ($steps, @points) = (25);
	for my $step (0 .. $steps - 1)
	{
		my @some = between($count * $step / $steps, $count * ($step + 1) / $steps, @samples);
		push @points, [ $count * ($step + 0.5) / $steps, per_event(@some) ]
		  if @some > 1 && $some[-1]{published} > $some[0]{published};
	}
	return \@points;
}

1;
