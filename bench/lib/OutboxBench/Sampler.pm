package OutboxBench::Sampler;

=pod

=head1 NAME

OutboxBench::Sampler - the drainer's processor time beside what it has published

=head1 SYNOPSIS

  my $sampler = OutboxBench::Sampler->new($server);
  my @samples = $sampler->follow(200_000);   # ({ published => , cpu => seconds, time => }, ...)
  my $seconds = OutboxBench::Sampler::cost(@samples[3 .. 7]);

=head1 DESCRIPTION

Processor time says what an event costs the drainer whoever else uses the machine, and however fast the
broker confirms.

=cut

use strict;
use warnings;

use Carp;
use Time::HiRes qw(sleep time);

use OutboxBench::Process qw(cpu_seconds);
use OutboxBench::Session;

sub new
{
	my ($class, $server) = @_;
	return bless {
		session => OutboxBench::Session->new($server),
		pid     => $server->drainer_pid,
	}, $class;
}

sub sample
{
	my ($self) = @_;
	my $published = $self->{session}->query(
		'SELECT sum(published) FROM outbox.stat_drainer WHERE database = current_database()');
	return { published => $published, cpu => cpu_seconds($self->{pid}), time => time };
}

# Samples until so many more have been published; gives up when nothing moves for half a minute.
sub follow
{
	my ($self, $count, $interval) = @_;
	my @samples = ($self->sample);
	my $moved   = time;
	while ($samples[-1]{published} < $samples[0]{published} + $count)
	{
		sleep($interval // 0.02);
		push @samples, $self->sample;
		$moved = time if $samples[-1]{published} > $samples[-2]{published};
		croak "the drainer stays at $samples[-1]{published}" if time > $moved + 30;
	}
	return @samples;
}

# Seconds of processor time for an event, from the first of the samples to the last.
sub cost
{
	my @samples = @_;
	return ($samples[-1]{cpu} - $samples[0]{cpu}) / ($samples[-1]{published} - $samples[0]{published});
}

1;
