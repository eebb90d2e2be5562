package OutboxDrainer::Tool;

=pod

=head1 NAME

OutboxDrainer::Tool - a helper process in Python that obeys one command a line

=head1 DESCRIPTION

What OutboxDrainer::FaultProxy and OutboxDrainer::FakeBroker have in common: the process is started, says on
which port it listens, and answers each command with "ok" or "error". It ends with the test.

=cut

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Select;
use OutboxDrainer::RabbitMQ;
use POSIX ();
use Time::HiRes qw(time);

my $tools = abs_path(dirname(__FILE__) . '/../../tools');

sub new
{
	my ($class, $script, @arguments) = @_;
	my ($port) = OutboxDrainer::RabbitMQ::free_ports(1);
	pipe(my $their_input,  my $commands)     or croak "could not make a pipe: $!";
	pipe(my $answers,      my $their_output) or croak "could not make a pipe: $!";
	my $pid = fork // croak "could not fork: $!";
	if (!$pid)
	{
		# Only exec or _exit from here on: the parent's END blocks are not ours.
		if (open(STDIN, '<&', $their_input) && open(STDOUT, '>&', $their_output))
		{
			close $commands;
			close $answers;
			no warnings 'exec';
			exec 'setpriv', '--pdeathsig', 'KILL', '--', $OutboxDrainer::RabbitMQ::python, "$tools/$script",
			  '--port', $port, @arguments;
		}
		POSIX::_exit(127);
	}
	$commands->autoflush(1);
	my $self =
	  bless { pid => $pid, commands => $commands, answers => $answers, script => $script, owner => $$, unread => '' },
	  $class;
	$self->{port} = $self->_read_line('its start');
	return $self;
}

sub port { return $_[0]->{port}; }

# Runs a command and returns what comes after "ok".
sub command
{
	my ($self, @words) = @_;
	my $line = join ' ', map { "'" . s/'/'"'"'/gr . "'" } @words;
	print { $self->{commands} } "$line\n" or croak "$self->{script} has ended";
	my $answer = $self->_read_line($line);
	croak "$self->{script}: $answer" unless $answer =~ s/^ok ?//;
	return $answer;
}

sub _read_line
{
	my ($self, $what) = @_;
	my $deadline = time + $OutboxDrainer::RabbitMQ::timeout;
	my $select   = IO::Select->new($self->{answers});
	while (1)
	{
		return $1 if $self->{unread} =~ s/^(.*)\n//;
		$select->can_read($deadline - time > 0 ? $deadline - time : 0)
		  or croak "$self->{script} did not answer: $what";
		sysread($self->{answers}, $self->{unread}, 65536, length $self->{unread})
		  or croak "$self->{script} has ended: $what";
	}
}

sub DESTROY
{
	my ($self) = @_;
	return unless $self->{pid} && $self->{owner} == $$;
	local ($?, $!, $@);
	kill 'KILL', $self->{pid};
	waitpid delete $self->{pid}, 0;
	return;
}

1;
