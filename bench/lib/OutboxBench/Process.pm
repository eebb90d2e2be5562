package OutboxBench::Process;

# What the kernel says of a process: its processor time, its own memory, how often it went to sleep.

use strict;
use warnings;

use Carp;
use Exporter qw(import);
use Path::Tiny qw(path);
our @EXPORT_OK = qw(cpu_seconds status);

# Processor time in seconds, to the nanosecond (/proc/PID/stat counts hundredths).
sub cpu_seconds
{
	my ($pid) = @_;
	return (split ' ', path("/proc/$pid/schedstat")->slurp)[0] / 1e9;
}

# A line of /proc/PID/status; sizes are in kB.
sub status
{
	my ($pid, $name) = @_;
	my ($value) = path("/proc/$pid/status")->slurp =~ /^\Q$name\E:\s*(\d+)/m;
	return $value // croak "process $pid has no $name";
}

1;
