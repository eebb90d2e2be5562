package OutboxBench::Scenario::latency;

# One event every 20 ms on a system that has nothing else to do, into a classic queue with a consumer. A drainer's latency
# is that from the moment at which the producer has its COMMIT acknowledged until the consumer has read the message; the
# ceiling's is that from the publish to the consumer, without any database. What the producer sees, from sending the
# INSERT on, includes the commit's flush, which is PostgreSQL's own; it is shown without a bar.

use strict;
use warnings;

use File::Temp ();

use OutboxBench::Stats qw(percentile);

sub title { return 'Latency of one event every 20 ms on an idle system'; }

my %pace = ('interval-us' => 20_000, size => 512);

sub run
{
	my ($bench) = @_;
	my $broker = $bench->broker;
	my $server = $bench->server(broker => $broker);
	$broker->declare(exchange => 'events', queue => 'q', binding => '#');
	my $count = $bench->scaled(1_000, 200);
	# What a first run pays once, caches and connections, is not for one of the two alone.
	published($bench, $broker, 50);
	committed($bench, $broker, $server, 50);
	my (@ours, @whole, @ceiling);
	for my $round (1 .. $bench->repeats)
	{
		my $measure_ceiling = sub { push @ceiling, published($bench, $broker, $count) };
		my $measure_ours    = sub {
			my ($acknowledged, $sent) = committed($bench, $broker, $server, $count);
			push @ours,  $acknowledged;
			push @whole, $sent;
		};
		$_->() for $round % 2 ? ($measure_ceiling, $measure_ours) : ($measure_ours, $measure_ceiling);
	}
	my $of = sub { my ($share, $rounds) = @_; return [ map { percentile($share, @$_) } @$rounds ]; };
	my %bars = (50 => '<= 2', 99 => '<= 4');
	for my $percent (50, 99)
	{
		$bench->compare("p$percent, commit to consumer", figure => $of->($percent / 100, \@ours), unit => 'ms',
			baseline => $of->($percent / 100, \@ceiling), against => 'ceiling', bar => $bars{$percent});
	}
	for my $percent (50, 99)
	{
		$bench->compare("p$percent, INSERT sent to consumer", figure => $of->($percent / 100, \@whole), unit => 'ms',
			baseline => $of->($percent / 100, \@ceiling), against => 'ceiling');
	}
	$bench->series('latency',
		title => 'Latency of one event every 20 ms', x => 'percentile', y => 'ms',
		lines => {
			'commit acknowledged to consumer'  => percentiles(\@ours),
			'INSERT sent to consumer'          => percentiles(\@whole),
			'ceiling: published to consumer'   => percentiles(\@ceiling),
		});
	return;
}

# Points to plot, of all rounds together.
sub percentiles
{
	my ($rounds) = @_;
	my @all = map { @$_ } @$rounds;
	return [ map { [ $_, percentile($_ / 100, @all) ] } 1 .. 99 ];
}

# Milliseconds from publish to consumer, of the ceiling program's messages.
sub published
{
	my ($bench, $broker, $count) = @_;
	my $arrived = consumed($bench, $broker, $count,
		sub { $bench->program('ceiling', port => $broker->port, count => $count, %pace) });
	return [ map { ($arrived->{$_} - $_) * 1000 } keys %$arrived ];
}

# Milliseconds from the acknowledged commit to the consumer, and from the INSERT.
sub committed
{
	my ($bench, $broker, $server, $count) = @_;
	my $file = File::Temp->new;
	my $arrived = consumed($bench, $broker, $count,
		sub { $bench->program('producer', count => $count, %pace, out => $file->filename, env => { $server->environment }) });
	my %acknowledged = pairs($file->filename);
	return (
		[ map { ($arrived->{$_} - ($acknowledged{$_} // die "an unknown event: $_\n")) * 1000 } keys %$arrived ],
		[ map { ($arrived->{$_} - $_) * 1000 } keys %$arrived ]);
}

# When each message that the code sends had arrived, by the time in its body.
sub consumed
{
	my ($bench, $broker, $count, $send) = @_;
	my $directory = File::Temp->newdir;
	my $consumer  = $bench->start_consumer($broker, count => $count, out => "$directory/arrived");
	$send->();
	$bench->finish_program($consumer);
	my %arrived = pairs("$directory/arrived");
	die sprintf "%d of %d events have arrived\n", scalar keys %arrived, $count unless keys %arrived == $count;
	return \%arrived;
}

# A file of lines with two words.
sub pairs
{
	my ($path) = @_;
	open my $file, '<', $path or die "could not open $path: $!\n";
	return map { split } <$file>;
}

1;
