package OutboxDrainer::RabbitMQ;

=pod

=head1 NAME

OutboxDrainer::RabbitMQ - a throwaway RabbitMQ node for tests and the demo

=head1 SYNOPSIS

  my $broker = OutboxDrainer::RabbitMQ->new;
  $broker->start;
  $broker->declare(exchange => 'events', queue => 'q', binding => '#');
  my $messages = $broker->consume('q', count => 10);
  $broker->kill9;
  $broker->start;    # same data, same port
  $broker->stop;

=head1 DESCRIPTION

The node lives in a directory of its own, listens on 127.0.0.1 alone and has its own epmd, cookie and
home: a RabbitMQ service of the machine is neither used nor seen. It runs as the user that runs the
script. Everything that it started ends with the script, and nothing else does: processes are ended by
their process ids only.

=cut

use strict;
use warnings;

use Carp;
use File::Path qw(remove_tree);
use File::Temp ();
use IO::Select;
use IO::Socket::INET;
use JSON::PP ();
use MIME::Base64 ();
use POSIX qw(:sys_wait_h);
use Scalar::Util qw(weaken);
use Time::HiRes qw(sleep time);
use File::Basename qw(dirname);
use Cwd qw(abs_path);

our $script_dir = '/usr/lib/rabbitmq/bin';
our $python     = '/usr/bin/python3';
my $tool = abs_path(dirname(__FILE__) . '/../../tools') . '/amqp_tool.py';

# Seconds that a step of the broker may take before the test is given up.
our $timeout = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

my @nodes;
my $counter = 0;

=pod

=head1 METHODS

=over

=item OutboxDrainer::RabbitMQ->new(log_dir => directory, config => lines, peer => broker)

Makes the directories and chooses the ports. Logs go to log_dir, by default into the node's own
directory, which is removed at the end. config is added to rabbitmq.conf. A node with a peer can form a
cluster with it: it has the same cookie and the same port mapper, and joins it at its first start.

=cut

sub new
{
	my ($class, %params) = @_;
	my $dir  = File::Temp::tempdir(TMPDIR => 1);
	my $name = sprintf('obd_%d_%d', $$, ++$counter);
	my $peer = $params{peer};
	my ($port, $dist_port, $epmd_port) = free_ports(3);
	my $self = bless {
		dir       => $dir,
		log_dir   => $params{log_dir} || "$dir/log",
		name      => $name,
		node      => "$name\@localhost",
		port      => $port,
		dist_port => $dist_port,
		epmd_port => $peer ? $peer->{epmd_port} : $epmd_port,
		peer      => $peer,
		cookie    => $peer ? $peer->{cookie} : join('', map { chr(65 + int rand 26) } 1 .. 20),
		owner     => $$,
	}, $class;

	chmod 0700, $dir or croak "could not change mode of $dir: $!";
	for my $sub ($self->{log_dir}, "$dir/home", "$dir/mnesia", "$dir/config")
	{
		-d $sub or mkdir $sub or croak "could not create directory $sub: $!";
	}
	$self->_write_file('home/.erlang.cookie', $self->{cookie});
	chmod 0400, "$dir/home/.erlang.cookie" or croak "could not change mode of the cookie: $!";
	$self->_write_file('env.conf',        '');
	$self->_write_file('enabled_plugins', '[' . join(',', @{ $params{plugins} || [] }) . "].\n");
	$self->_write_file('advanced.config', "[].\n");
	$self->_write_file('rabbitmq.conf', <<"CONF");
listeners.tcp.1 = 127.0.0.1:$port
disk_free_limit.absolute = 1MB
log.file.level = info
CONF
	$self->add_config($params{config}) if defined $params{config};
	$self->add_config(<<"CONF") if $peer;
cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config
cluster_formation.classic_config.nodes.1 = $peer->{node}
cluster_formation.classic_config.nodes.2 = $self->{node}
CONF
	push @nodes, $self;
	weaken($nodes[-1]);
	return $self;
}

=pod

=item $broker->add_config(lines)

Adds lines to rabbitmq.conf, which the node reads when it starts.

=item $broker->set_advanced_config(terms)

What advanced.config is to hold: a list of Erlang terms, for what rabbitmq.conf has no words for.

=item $broker->port, $broker->pid, $broker->log_file, $broker->uri(user, password, vhost)

Where the node listens, the process id of its virtual machine (undef when it is down), its log, and the
URI to reach it; by default as guest with the vhost "/".

=cut

sub add_config
{
	my ($self, $lines) = @_;
	my $path = "$self->{dir}/rabbitmq.conf";
	open my $file, '>>', $path or croak "could not open $path: $!";
	print $file "$lines\n";
	close $file or croak "could not write $path: $!";
	return;
}

sub set_advanced_config
{
	my ($self, $terms) = @_;
	$self->_write_file('advanced.config', "$terms\n");
	return;
}

sub port { return $_[0]->{port}; }
sub pid  { return $_[0]->{pid}; }

sub log_file
{
	my ($self) = @_;
	return "$self->{log_dir}/$self->{name}.log";
}

sub uri
{
	my ($self, $user, $password, $vhost) = @_;
	$user     //= 'guest';
	$password //= 'guest';
	my $path = defined $vhost ? '/' . _percent_encode($vhost) : '';
	return sprintf 'amqp://%s:%s@127.0.0.1:%d%s', _percent_encode($user), _percent_encode($password),
	  $self->{port}, $path;
}

=pod

=item $broker->start

Starts the node, also after stop or kill9, on its old data and port. Returns when it answers an AMQP
client; dies with the end of its log when it does not.

=item $broker->launch, $broker->wait_up

The two halves of it, so that several nodes can start at once.

=cut

sub start
{
	my ($self) = @_;
	$self->launch;
	$self->wait_up;
	return;
}

sub launch
{
	my ($self) = @_;
	croak 'the broker is running' if $self->{pid};
	my $owner_of_epmd = $self->{peer} // $self;
	$owner_of_epmd->_start_epmd unless $owner_of_epmd->{epmd_pid};

	# "Under systemd" the script becomes the virtual machine instead of waiting for it, so that the process
	# id is the node's own and SIGTERM a shutdown in order.
	$self->{pid} = $self->_spawn(
		"$self->{log_dir}/$self->{name}.out",
		{
			$self->_environment,
			RABBITMQ_NODE_PORT                  => $self->{port},
			RABBITMQ_NODE_IP_ADDRESS            => '127.0.0.1',
			RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS => '-kernel inet_dist_use_interface {127,0,0,1}',
			RUNNING_UNDER_SYSTEMD               => 'true',
			NOTIFY_SOCKET                       => undef,
		},
		"$script_dir/rabbitmq-server");
	return;
}

sub wait_up
{
	my ($self) = @_;
	my $deadline = time + $timeout;
	until ($self->_answers_amqp)
	{
		if (!_is_running($self->{pid}))
		{
			$self->{pid} = undef;
			croak "the broker ended while starting:\n" . $self->_log_tail;
		}
		if (time > $deadline)
		{
			$self->kill9;
			croak "the broker did not start in $timeout seconds:\n" . $self->_log_tail;
		}
		sleep 0.2;
	}
	return;
}

=pod

=item $broker->stop

Asks the node to shut down in order and waits until it has.

=item $broker->kill9

Ends the node as a crash would.

=item $broker->freeze, $broker->thaw

Stops the node's process with SIGSTOP, as a hung machine would look to a client, and lets it go on.

=cut

sub stop
{
	my ($self) = @_;
	return unless $self->{pid};
	kill 'CONT', $self->{pid};
	kill 'TERM', $self->{pid};
	if (!_wait_end($self->{pid}, 60))
	{
		kill 'KILL', $self->{pid};
		_wait_end($self->{pid}, 10);
	}
	$self->{pid} = undef;
	return;
}

sub kill9
{
	my ($self) = @_;
	croak 'the broker is not running' unless $self->{pid};
	kill 'KILL', $self->{pid};
	_wait_end($self->{pid}, 30) or croak 'the broker survived SIGKILL';
	$self->{pid} = undef;
	return;
}

sub freeze
{
	my ($self) = @_;
	kill 'STOP', $self->{pid} or croak "could not stop the broker's process: $!";
	return;
}

sub thaw
{
	my ($self) = @_;
	kill 'CONT', $self->{pid} or croak "could not continue the broker's process: $!";
	return;
}

=pod

=item $broker->ctl(arguments)

Runs rabbitmqctl and returns what it printed; dies when it fails.

=cut

sub ctl
{
	my ($self, @arguments) = @_;
	my $out = "$self->{dir}/ctl.out";
	my $pid = $self->_spawn($out, { $self->_environment },
		"$script_dir/rabbitmqctl", '-q', '-n', $self->{node}, @arguments);
	my $ended  = _wait_end($pid, $timeout);
	my $status = $?;
	if (!$ended)
	{
		kill 'KILL', $pid;
		_wait_end($pid, 10);
		croak "rabbitmqctl @arguments took longer than $timeout seconds";
	}
	my $text = _read_file($out);
	croak "rabbitmqctl @arguments failed:\n$text" if $status != 0;
	return $text;
}

=pod

=item $broker->memory_alarm(on)

Raises the memory alarm, so that the broker blocks publishers, or clears it.

=item $broker->add_user(name, password), $broker->change_password(name, password), $broker->add_vhost(name)

A user of all rights on the vhost "/"; a vhost on which guest has all rights.

=item $broker->queue_length(queue)

Messages in the queue, ready and unacknowledged.

=item $broker->flush_metadata

Has the node write what it knows of exchanges and queues to its disk, which it does only now and then: after
a kill it may have forgotten what was declared a moment ago.

=item $broker->close_connections(reason)

The broker closes all client connections, as an operator would from its management page.

=cut

sub memory_alarm
{
	my ($self, $on) = @_;
	$self->ctl('set_vm_memory_high_watermark', $on ? '0' : '0.4');
	return;
}

sub add_user
{
	my ($self, $name, $password) = @_;
	$self->ctl('add_user', $name, $password);
	$self->ctl('set_permissions', $name, '.*', '.*', '.*');
	return;
}

sub change_password
{
	my ($self, $name, $password) = @_;
	$self->ctl('change_password', $name, $password);
	return;
}

sub add_vhost
{
	my ($self, $name) = @_;
	$self->ctl('add_vhost', $name);
	$self->ctl('set_permissions', '-p', $name, 'guest', '.*', '.*', '.*');
	return;
}

sub queue_length
{
	my ($self, $queue) = @_;
	for my $line (split /\n/, $self->ctl('list_queues', '--no-table-headers', 'name', 'messages'))
	{
		my ($name, $messages) = split /\t/, $line;
		return $messages if $name eq $queue;
	}
	croak "there is no queue \"$queue\"";
}

sub flush_metadata
{
	my ($self) = @_;
	$self->ctl('eval', 'mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()], ok.');
	return;
}

sub close_connections
{
	my ($self, $reason) = @_;
	$self->ctl('close_all_connections', $reason);
	return;
}

=pod

=item $broker->declare(exchange =>, type =>, queue =>, binding =>, internal =>, quorum =>,
arguments => {}, vhost =>)

Declares what is named: a durable exchange (topic unless a type is given), a durable queue and a binding
between them. May be repeated.

=item $broker->delete(exchange =>, queue =>, vhost =>)

=item $broker->consume(queue, count => n, idle => seconds, vhost =>)

Takes messages from the queue until there are count of them (by default: no limit) and then until none
has come for idle seconds (by default 1.0), so that messages beyond the expected ones are seen. Returns a
reference to an array of messages as amqp_tool.py describes them, with the body decoded. Fewer messages
than count are returned after the time limit of the test suite.

=cut

sub declare
{
	my ($self, %what) = @_;
	my @arguments = map { ("--$_", $what{$_}) } grep { defined $what{$_} } qw(exchange type queue binding);
	push @arguments, map { "--$_" } grep { $what{$_} } qw(internal quorum);
	push @arguments, '--arguments', JSON::PP->new->encode($what{arguments}) if $what{arguments};
	$self->_tool($what{vhost}, 'declare', @arguments);
	return;
}

sub delete    ## no critic (the broker's own word)
{
	my ($self, %what) = @_;
	$self->_tool($what{vhost}, 'delete', map { ("--$_", $what{$_}) } grep { defined $what{$_} } qw(exchange queue));
	return;
}

sub consume
{
	my ($self, $queue, %how) = @_;
	my @arguments = ('--queue', $queue, '--idle', $how{idle} // 1, '--timeout', $timeout);
	push @arguments, '--count', $how{count} if defined $how{count};
	return _decode($self->_tool($how{vhost}, 'consume', @arguments));
}

sub follow
{
	my ($self, $queue) = @_;
	croak 'a consumer is running' if $self->{follower};
	$self->{follower} = $self->_spawn(
		"$self->{dir}/follow.out",
		{},
		$self->_tool_command(undef, 'consume', '--queue', $queue, '--follow', '--timeout', 86400),
		{ stderr => "$self->{dir}/follow.err" });
	my $deadline = time + $timeout;
	until (_read_file("$self->{dir}/follow.err") =~ /^consuming$/m)
	{
		croak "the consumer did not start:\n" . _read_file("$self->{dir}/follow.err")
		  if time > $deadline || !_is_running($self->{follower});
		sleep 0.05;
	}
	return;
}

sub stop_following
{
	my ($self) = @_;
	my $pid = delete $self->{follower} // croak 'no consumer is running';
	kill 'TERM', $pid;
	my $ended  = _wait_end($pid, $timeout);
	my $status = $?;
	if (!$ended)
	{
		kill 'KILL', $pid;
		_wait_end($pid, 10);
	}
	croak "the consumer failed:\n" . _read_file("$self->{dir}/follow.err") if !$ended || $status != 0;
	return _decode(_read_file("$self->{dir}/follow.out"));
}

=pod

=item $broker->follow(queue)

Starts a consumer that takes messages as they come, beside the test; returns when it is ready for them.

=item $broker->stop_following

Waits until the consumer has nothing more to take, ends it and returns its messages like consume.

=back

=cut

# Lines of amqp_tool.py's output as hashes with the body among the rest.
sub _decode
{
	my ($text) = @_;
	my $json = JSON::PP->new->utf8;
	my @messages;
	for my $line (split /\n/, $text)
	{
		my ($object, $body) = split /\t/, $line;
		my $message = $json->decode($object);
		$message->{body} = MIME::Base64::decode_base64($body // '');
		push @messages, $message;
	}
	return \@messages;
}

# The command line that runs amqp_tool.py against this node.
sub _tool_command
{
	my ($self, $vhost, $subcommand, @arguments) = @_;
	return ($python, $tool, '--port', $self->{port}, '--vhost', $vhost // '/', $subcommand, @arguments);
}

# Runs amqp_tool.py and returns its output.
sub _tool
{
	my ($self, @command) = @_;
	my @command_line = $self->_tool_command(@command);
	my $out = "$self->{dir}/tool.out";
	my $err = "$self->{dir}/tool.err";
	my $pid = $self->_spawn($out, {}, @command_line, { stderr => $err });
	my $ended  = _wait_end($pid, 2 * $timeout);
	my $status = $?;
	if (!$ended)
	{
		kill 'KILL', $pid;
		_wait_end($pid, 10);
		croak "@command_line did not end";
	}
	croak "@command_line failed:\n" . _read_file($err) if $status != 0;
	return _read_file($out);
}

# The environment of the node's own programs: nothing of /etc/rabbitmq, nothing of the machine's node.
sub _environment
{
	my ($self) = @_;
	my $dir = $self->{dir};
	return (
		HOME                          => "$dir/home",
		ERL_EPMD_PORT                 => $self->{epmd_port},
		ERL_EPMD_ADDRESS              => '127.0.0.1',
		RABBITMQ_NODENAME             => $self->{node},
		RABBITMQ_DIST_PORT            => $self->{dist_port},
		RABBITMQ_CONF_ENV_FILE        => "$dir/env.conf",
		RABBITMQ_CONFIG_FILE          => "$dir/rabbitmq.conf",
		RABBITMQ_ADVANCED_CONFIG_FILE => "$dir/advanced.config",
		RABBITMQ_GENERATED_CONFIG_DIR => "$dir/config",
		RABBITMQ_ENABLED_PLUGINS_FILE => "$dir/enabled_plugins",
		RABBITMQ_MNESIA_BASE          => "$dir/mnesia",
		RABBITMQ_LOG_BASE             => $self->{log_dir},
		RABBITMQ_LOGS                 => $self->log_file,
		RABBITMQ_PID_FILE             => "$dir/pid",
		RABBITMQ_CTL_ERL_ARGS         => '-kernel inet_dist_use_interface {127,0,0,1}',
		LANG                          => 'C.UTF-8');
}

# epmd in the foreground, as our child: started by the node it would be a daemon that outlives us.
sub _start_epmd
{
	my ($self) = @_;
	$self->{epmd_pid} = $self->_spawn(
		"$self->{log_dir}/$self->{name}.epmd.out",
		{ $self->_environment },
		'epmd', '-port', $self->{epmd_port}, '-address', '127.0.0.1');
	my $deadline = time + $timeout;
	until (_connects($self->{epmd_port}))
	{
		croak "epmd did not start:\n" . _read_file("$self->{log_dir}/$self->{name}.epmd.out")
		  if time > $deadline || !_is_running($self->{epmd_pid});
		sleep 0.05;
	}
	return;
}

# Starts a program with output to a file. It gets SIGKILL when this process ends in whatever way.
sub _spawn
{
	my ($self, $output, $environment, @command) = @_;
	my $more = ref $command[-1] ? pop @command : {};
	my $pid = fork // croak "could not fork: $!";
	return $pid if $pid;

	# Only exec or _exit from here on: the parent's END blocks are not ours.
	if (   open(STDIN, '<', '/dev/null')
		&& open(STDOUT, '>', $output)
		&& ($more->{stderr} ? open(STDERR, '>', $more->{stderr}) : open(STDERR, '>&', \*STDOUT))
		&& chdir $self->{dir})
	{
		delete @ENV{ grep { /^RABBITMQ_/ } keys %ENV };
		while (my ($name, $value) = each %$environment)
		{
			defined $value ? ($ENV{$name} = $value) : delete $ENV{$name};
		}
		POSIX::setsid();
		no warnings 'exec';
		exec 'setpriv', '--pdeathsig', 'KILL', '--', @command;
	}
	POSIX::_exit(127);
}

# The broker is up when it greets an AMQP client with connection.start: a method frame on channel 0.
sub _answers_amqp
{
	my ($self) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}, Timeout => 2)
	  or return 0;
	$socket->syswrite("AMQP\x00\x00\x09\x01");
	my $greeting = '';
	IO::Select->new($socket)->can_read(2) && $socket->sysread($greeting, 3);
	close $socket;
	return $greeting eq "\x01\x00\x00";
}

sub _connects
{
	my ($port) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 2);
	return 0 unless $socket;
	close $socket;
	return 1;
}

# Ports nobody listens on, below the range from which the kernel takes ports of outgoing connections: a
# client that tries a port of that range again and again while the broker is down may connect to itself.
sub free_ports
{
	my ($wanted) = @_;
	my @sockets;
	for (1 .. 1000)
	{
		my $port   = 10200 + int(rand(32767 - 10200));
		my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1);
		push @sockets, $socket if $socket;
		last if @sockets == $wanted;
	}
	croak 'could not find free ports' if @sockets < $wanted;
	my @ports = map { $_->sockport } @sockets;
	close $_ for @sockets;
	return @ports;
}

sub _is_running
{
	my ($pid) = @_;
	return waitpid($pid, WNOHANG) == 0;
}

# True once the child has ended, with its status in $?.
sub _wait_end
{
	my ($pid, $seconds) = @_;
	my $deadline = time + $seconds;
	while (1)
	{
		return 1 if waitpid($pid, WNOHANG) != 0;
		return 0 if time > $deadline;
		sleep 0.02;
	}
}

sub _percent_encode
{
	my ($text) = @_;
	$text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ge;
	return $text;
}

sub _write_file
{
	my ($self, $name, $content) = @_;
	open my $file, '>', "$self->{dir}/$name" or croak "could not write $self->{dir}/$name: $!";
	print $file $content;
	close $file or croak "could not write $self->{dir}/$name: $!";
	return;
}

sub _read_file
{
	my ($path) = @_;
	open my $file, '<', $path or return "($path: $!)";
	local $/ = undef;
	return scalar <$file>;
}

sub _log_tail
{
	my ($self) = @_;
	my @lines = split /\n/, _read_file($self->log_file) . _read_file("$self->{log_dir}/$self->{name}.out");
	splice @lines, 0, @lines - 40 if @lines > 40;
	return join "\n", @lines;
}

# Ends what this object started and removes its directory; in the process that made it, not in a fork.
sub _clean_up
{
	my ($self) = @_;
	return if $self->{cleaned} || $self->{owner} != $$;
	$self->{cleaned} = 1;
	for my $pid (grep { defined } @$self{qw(follower pid epmd_pid)})
	{
		kill 'KILL', $pid;
		_wait_end($pid, 10);
	}
	remove_tree($self->{dir}, { error => \my $ignored });
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	$self->_clean_up;
	return;
}

END
{
	# The exit status of the script must survive the waiting.
	my $status = $?;
	defined && $_->_clean_up for @nodes;
	$? = $status;
}

1;
