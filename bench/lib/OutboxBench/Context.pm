package OutboxBench::Context;

=pod

=head1 NAME

OutboxBench::Context - what a scenario measures with and reports to

=head1 SYNOPSIS

  my $server = $bench->server(broker => $bench->broker);
  my $got = $bench->program('ceiling', port => $broker->port, count => 1000);   # { rate => ... }
  $bench->compare('classic queue', figure => \@ours, unit => 'events/s', baseline => \@theirs,
      against => 'ceiling', bar => '>= 0.85');
  $bench->figure('claim + mark', figure => \@bytes, unit => 'bytes of WAL per event', bar => '<= 280');

=cut

use strict;
use warnings;

use Carp;
use File::Temp ();
use POSIX ();
use Time::HiRes qw(sleep time);

use OutboxBench::Server;
use OutboxBench::Stats qw(spread ratios);
use OutboxDrainer::RabbitMQ;

sub new
{
	my ($class, %params) = @_;
	return bless { rows => [], series => [], %params }, $class;
}

=pod

=over

=item $bench->repeats, $bench->scaled(count, least)

How often a measurement is repeated; a number of events, smaller in a quick run (BENCH_QUICK=1).

=cut

sub repeats { my ($self) = @_; return $self->{repeats}; }
sub is_quick { my ($self) = @_; return $self->{quick}; }

sub scaled
{
	my ($self, $count, $least) = @_;
	my $scaled = $self->{quick} ? int $count / 10 : $count;
	return defined $least && $scaled < $least ? $least : $scaled;
}

=pod

=item $bench->server(...), $bench->broker(config => lines)

A throwaway server (OutboxBench::Server) and a throwaway broker (OutboxDrainer::RabbitMQ) with the exchange "events"
of type topic; gone at the end of the scenario.

=cut

sub server { my ($self, @params) = @_; return OutboxBench::Server->new(@params); }

sub broker
{
	my ($self, %params) = @_;
	my $broker = OutboxDrainer::RabbitMQ->new(%params);
	$broker->start;
	$broker->declare(exchange => 'events');
	return $broker;
}

=pod

=item $bench->program(name, option => value, ...)

Runs a program of bench/programs and gives what it prints: name=value pairs. C<env> is a hash of environment
variables for it.

=item $bench->start_program(name, ...), $bench->finish_program(handle)

The same beside other work.

=item $bench->start_consumer(broker, option => value, ...)

Starts the program consumer on the queue "q" and returns its handle once it consumes.

=cut

sub program
{
	my ($self, $name, %options) = @_;
	return $self->finish_program($self->start_program($name, %options));
}

sub start_program
{
	my ($self, $name, %options) = @_;
	my %env = %{ delete $options{env} || {} };
	local %ENV = (%ENV, %env);
	my @command = ('setpriv', '--pdeathsig', 'KILL', '--', "$self->{programs}/$name", map { ("--$_", $options{$_}) } sort keys %options);
	my $pid = open my $output, '-|', @command or croak "could not run $name: $!";
	return { name => $name, pid => $pid, output => $output };
}

sub start_consumer
{
	my ($self, $broker, %options) = @_;
	my $directory = File::Temp->newdir;
	my $consumer  = $self->start_program('consumer', port => $broker->port, queue => 'q', ready => "$directory/ready", %options);
	my $deadline  = time + 30;
	until (-e "$directory/ready")
	{
		croak 'the consumer does not begin' if time > $deadline;
		sleep 0.05;
	}
	return $consumer;
}

sub finish_program
{
	my ($self, $handle) = @_;
	my $output = $handle->{output};
	my %values;
	while (my $line = <$output>)
	{
		$values{$1} = $2 while $line =~ /(\w+)=(\S+)/g;
	}
	close $output or croak "$handle->{name} failed";
	return \%values;
}

=pod

=item $bench->say(text)

=item $bench->compare(case, figure => [...], unit =>, baseline => [...], against =>, bar => '>= 0.85', by => 'ratio')

Reports a figure beside a baseline of the same run, pair by pair. The bar is for the median of the ratios.

=item $bench->figure(case, figure => [...], unit =>, bar => '<= 280')

Reports a figure whose bar is an amount.

=item $bench->series(name, title =>, x => label, y => label, lines => { name => [[x, y], ...] }, style => 'linespoints')

Something to plot.

=back

=cut

sub say { my ($self, $text) = @_; print "  $text\n"; return; }

sub compare
{
	my ($self, $case, %params) = @_;
	my $ratio = spread(ratios($params{figure}, $params{baseline}));
	my $row = {
		scenario => $self->{scenario},
		case     => $case,
		unit     => $params{unit},
		figure   => spread(@{ $params{figure} }),
		baseline => spread(@{ $params{baseline} }),
		against  => $params{against},
		ratio    => $ratio,
		bar      => $params{bar},
		met      => _meets($ratio->{median}, $params{bar}),
	};
	return $self->_add($row);
}

sub figure
{
	my ($self, $case, %params) = @_;
	my $figure = spread(@{ $params{figure} });
	return $self->_add({
		scenario => $self->{scenario},
		case     => $case,
		unit     => $params{unit},
		figure   => $figure,
		bar      => $params{bar},
		met      => _meets($figure->{median}, $params{bar}),
	});
}

sub _add
{
	my ($self, $row) = @_;
	push @{ $self->{rows} }, $row;
	my $text = sprintf '%s: %.4g %s', $row->{case}, $row->{figure}{median}, $row->{unit};
	$text .= sprintf '; %.3f (%.3f to %.3f) of %s, %.4g', $row->{ratio}{median}, $row->{ratio}{min}, $row->{ratio}{max},
	  $row->{against}, $row->{baseline}{median}
	  if $row->{ratio};
	$text .= "; wanted $row->{bar}: " . ($row->{met} ? 'met' : 'NOT MET') if defined $row->{bar};
	$self->say($text);
	return;
}

sub _meets
{
	my ($value, $bar) = @_;
	return undef unless defined $bar;
	my ($sign, $limit) = $bar =~ /^(<=|>=) ([\d.]+)/ or croak "not a bar: $bar";
	return ($sign eq '<=' ? $value <= $limit : $value >= $limit) ? 1 : 0;
}

sub series
{
	my ($self, $name, %params) = @_;
	push @{ $self->{series} }, { name => $name, %params };
	return;
}

1;
