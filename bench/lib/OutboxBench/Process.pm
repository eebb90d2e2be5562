package OutboxBench::Process;

# What the kernel says of a process: its processor time, its own memory, how often it went to sleep.

use strict;
use warnings;

use Carp;
use Exporter qw(import);
our @EXPORT_OK = qw(cpu_seconds status);

# Processor time in seconds, to the nanosecond (/proc/PID/stat counts hundredths).
sub cpu_seconds
{
	my ($pid) = @_;
	return (split ' ', _read("/proc/$pid/schedstat"))[0] / 1e9;
}

# A line of /proc/PID/status; sizes are in kB.
sub status
{
	my ($pid, $name) = @_;
	my ($value) = _read("/proc/$pid/status") =~ /^\Q$name\E:\s*(\d+)/m;
	return $value // croak "process $pid has no $name";
}

sub _read
{
	my ($path) = @_;
	open my $file, '<', $path or croak "could not read $path: $!";
	local $/ = undef;
	return scalar <$file>;
}

1;
