package OutboxBench::Report;

# What scenarios found, kept as one JSON file for each, and the table and plots made from all of them: a run of one
# scenario renews its own part.

use strict;
use warnings;
use utf8;

use Carp;
use JSON::PP ();
use Path::Tiny qw(path);
use POSIX qw(strftime);

sub new
{
	my ($class, %params) = @_;
	return bless {%params}, $class;
}

sub take
{
	my ($self, $bench, $seconds) = @_;
	my $found = {
		scenario => $bench->{scenario},
		title    => $bench->{title},
		rows     => $bench->{rows},
		series   => $bench->{series},
		repeats  => $bench->repeats,
		seconds  => $seconds,
		date     => strftime('%Y-%m-%d', gmtime),
		machine  => machine(),
		settings => { %OutboxBench::Server::common },
		quick    => $self->{quick} ? 1 : 0,
	};
	my $data = path("$self->{directory}/data");
	$data->mkpath;
	$data->child("$bench->{scenario}.json")->spew_utf8(JSON::PP->new->canonical->pretty->encode($found));
	return;
}

# Makes README.md and the plots of what is found in data/, older results beside those of this run.
sub write
{
	my ($self) = @_;
	return if $self->{quick};
	my $data = path("$self->{directory}/data");
	for my $old (path("$self->{earlier}/data")->children(qr/\.json$/))
	{
		my $kept = $data->child($old->basename);
		$old->copy($kept) unless $kept->exists;
	}
	my @found = map { JSON::PP->new->decode($_->slurp_utf8) } sort $data->children(qr/\.json$/);
	path("$self->{directory}/README.md")->spew_utf8(table(@found));
	for my $found (@found)
	{
		plot($self->{directory}, $_) for @{ $found->{series} };
	}
	return;
}

sub table
{
	my @found = @_;
	my $text = <<'MD';
# Results

Written by `make bench`; what the scenarios are and how they measure is in [../README.md](../README.md). A figure is the
median of its repetitions, with the least and the greatest in brackets; a ratio is the median of the ratios of pairs
that were taken one after the other in the same run. The bar is for the ratio where there is one, else for the figure.

| scenario | case | figure | baseline | ratio | bar | |
|---|---|---|---|---|---|---|
MD
	for my $found (@found)
	{
		for my $row (@{ $found->{rows} })
		{
			$text .= sprintf "| [%s](#%s) | %s | %s %s | %s | %s | %s | %s |\n", $found->{scenario}, $found->{scenario},
			  $row->{case}, _spread($row->{figure}), $row->{unit},
			  $row->{baseline} ? "$row->{against}: " . _spread($row->{baseline}) : '',
			  $row->{ratio} ? _spread($row->{ratio}) : '',
			  defined $row->{bar} ? _sign($row->{bar}) : '',
			  !defined $row->{bar} ? '' : $row->{met} ? 'met' : '**missed**';
		}
	}
	for my $found (@found)
	{
		$text .= "\n## $found->{scenario}\n\n$found->{title}. $found->{repeats} repetitions, $found->{seconds} s, "
		  . "$found->{date}, $found->{machine}.\n";
		$text .= "\n![$_->{title}]($_->{name}.svg)\n" for @{ $found->{series} };
	}
	my %settings = map { %{ $_->{settings} } } @found;
	$text .= "\n## The servers' settings\n\nBeside PostgreSQL's defaults (fsync and synchronous_commit on) and those of a "
	  . "scenario's own: " . join(', ', map { "`$_ = $settings{$_}`" } sort keys %settings)
	  . ". The extension's settings are its defaults.\n";
	return $text;
}

sub plot
{
	my ($directory, $series) = @_;
	my $style = $series->{style} || 'linespoints';
	my (@blocks, @plots);
	for my $line (sort keys %{ $series->{lines} })
	{
		push @blocks, "\$data" . @blocks . " << EOD\n" . join('', map { "$_->[0] $_->[1]\n" } @{ $series->{lines}{$line} }) . "EOD\n";
		push @plots, sprintf '$data%d using 1:2 with %s title "%s"', $#blocks, $style, $line;
	}
	my $log = $series->{log} ? "set logscale $series->{log}\n" : '';
	my $script = <<"GP" . join('', @blocks) . 'plot ' . join(', ', @plots) . "\n";
set terminal svg size 800,400 background 'white'
set output '$directory/$series->{name}.svg'
set title "$series->{title}"
set xlabel "$series->{x}"
set ylabel "$series->{y}"
set yrange [0:*]
set key bottom right
set grid
$log
GP
	open my $gnuplot, '|-', 'gnuplot' or croak "could not run gnuplot: $!";
	print $gnuplot $script;
	close $gnuplot or croak "gnuplot failed for $series->{name}";
	return;
}

# What it ran on, without names.
sub machine
{
	my ($cpu)    = path('/proc/cpuinfo')->slurp =~ /^model name\s*:\s*(.*)$/m;
	my $cores    = () = path('/proc/cpuinfo')->slurp =~ /^processor\s*:/mg;
	my ($memory) = path('/proc/meminfo')->slurp =~ /^MemTotal:\s*(\d+)/m;
	my ($server) = `postgres --version` =~ /([\d.]+)/;
	my ($broker) = `dpkg-query -W -f '\${Version}' rabbitmq-server` =~ /^([\d.]+)/;
	my ($erlang) = `dpkg-query -W -f '\${Version}' erlang-base` =~ /([\d.]+)\+dfsg/;
	my ($client) = `dpkg-query -W -f '\${Version}' librabbitmq4` =~ /^([\d.]+)/;
	return sprintf '%d cores (%s), %d GiB, Linux %s, PostgreSQL %s, RabbitMQ %s on Erlang %s, rabbitmq-c %s', $cores,
	  $cpu // 'unknown', $memory / 1024 / 1024 + 0.5, (POSIX::uname())[2] =~ /^([\d.]+)/, $server, $broker, $erlang, $client;
}

sub _sign { my ($bar) = @_; $bar =~ s/>=/≥/; $bar =~ s/<=/≤/; return $bar; }

sub _number
{
	my ($value) = @_;
	return sprintf '%.0f', $value if abs $value >= 100;
	return sprintf '%.3g', $value;
}

sub _spread
{
	my ($spread) = @_;
	return _number($spread->{median}) if $spread->{n} == 1;
	return sprintf '%s (%s to %s)', map { _number($spread->{$_}) } qw(median min max);
}

1;
