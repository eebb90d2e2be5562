package OutboxBench::Report;

# What scenarios found, kept as one JSON file for each, and the table and plots made from all of them: a run of one
# scenario renews its own part.

use strict;
use warnings;

use Carp;
use File::Path qw(make_path);
use JSON::PP ();
use POSIX qw(strftime);

sub new
{
	my ($class, %params) = @_;
	return bless {%params}, $class;
}

sub take
{
	my ($self, $bench, $seconds) = @_;
	make_path("$self->{directory}/data");
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
	_write("$self->{directory}/data/$bench->{scenario}.json", JSON::PP->new->canonical->pretty->encode($found));
	return;
}

# Makes README.md and the plots of what is found in data/, older results beside those of this run.
sub write
{
	my ($self) = @_;
	return if $self->{quick};
	for my $old (glob "$self->{earlier}/data/*.json")
	{
		my ($name) = $old =~ m{([^/]+)$};
		_write("$self->{directory}/data/$name", _read($old)) unless -e "$self->{directory}/data/$name";
	}
	my @found = map { JSON::PP->new->decode(_read($_)) } sort glob "$self->{directory}/data/*.json";
	_write("$self->{directory}/README.md", table(@found));
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
	my ($cpu)    = _read('/proc/cpuinfo') =~ /^model name\s*:\s*(.*)$/m;
	my $cores    = () = _read('/proc/cpuinfo') =~ /^processor\s*:/mg;
	my ($memory) = _read('/proc/meminfo') =~ /^MemTotal:\s*(\d+)/m;
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

sub _read
{
	my ($path) = @_;
	open my $file, '<', $path or return '';
	local $/ = undef;
	return scalar <$file>;
}

sub _write
{
	my ($path, $text) = @_;
	utf8::encode($text) if utf8::is_utf8($text);
	open my $file, '>', $path or croak "could not write $path: $!";
	print $file $text;
	close $file or croak "could not write $path: $!";
	return;
}

1;
