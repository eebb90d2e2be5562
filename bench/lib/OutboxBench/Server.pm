package OutboxBench::Server;

=pod

=head1 NAME

OutboxBench::Server - a throwaway PostgreSQL server as a user has one

=head1 DESCRIPTION

initdb's defaults, fsync on, a private directory, a socket in it and no TCP. Whatever else it is started
with is in C<settings> and is written into the report. PostgreSQL's own test module switches fsync off and
logs every statement, so it is no ground for measurements.

=cut

use strict;
use warnings;

use Carp;
use File::Path qw(remove_tree);
use File::Temp ();
use Path::Tiny qw(path);
use POSIX ();
use Time::HiRes qw(sleep time);

use OutboxDrainer::RabbitMQ;

# What every server of the benchmark has beside initdb's defaults: room in shared memory and in the WAL, so that
# no checkpoint begins by itself in a measured window.
our %common = (
	shared_buffers           => '2GB',
	max_wal_size             => '16GB',
	checkpoint_timeout       => '1h',
	shared_preload_libraries => 'outbox_drainer',
);

my @servers;

=pod

=over

=item OutboxBench::Server->new(settings => { name => value }, broker => $broker)

Makes and starts a server with the extension in database postgres; with a broker, the drainer's broker_uri
names it.

=cut

sub new
{
	my ($class, %params) = @_;
	my $dir  = File::Temp::tempdir('obd-bench-XXXXXX', TMPDIR => 1);
	my ($port) = OutboxDrainer::RabbitMQ::free_ports(1);
	my $self = bless { dir => $dir, port => $port, owner => $$ }, $class;
	push @servers, $self;
	$self->_run('initdb', '-D', "$dir/data", '-A', 'trust', '-U', 'postgres', '--locale=C', '--encoding=UTF8');
	my %settings = (%common, %{ $params{settings} || {} });
	$settings{'outbox_drainer.broker_uri'} = $params{broker}->uri if $params{broker};
	open my $conf, '>>', "$dir/data/postgresql.conf" or croak "could not write the configuration: $!";
	print $conf "listen_addresses = ''\nunix_socket_directories = '$dir'\nport = $port\n";
	print $conf "$_ = '$settings{$_}'\n" for sort keys %settings;
	close $conf or croak "could not write the configuration: $!";
	$self->start;
	$self->execute('CREATE EXTENSION outbox_drainer') unless $params{bare};
	return $self;
}

=pod

=item $server->start, $server->stop(mode), $server->restart

=cut

sub start
{
	my ($self) = @_;
	$self->_run('pg_ctl', '-w', '-t', 120, '-D', "$self->{dir}/data", '-l', "$self->{dir}/server.log", 'start');
	$self->{runs} = 1;
	return;
}

sub stop
{
	my ($self, $mode) = @_;
	return unless $self->{runs};
	$self->{runs} = 0;
	$self->_run('pg_ctl', '-w', '-t', 120, '-D', "$self->{dir}/data", '-m', $mode || 'fast', 'stop');
	return;
}

sub restart { my ($self) = @_; $self->stop; $self->start; return; }

=pod

=item $server->environment

PGHOST and the like, for programs that connect to the server.

=item $server->query(sql), $server->execute(sql)

The rows of a query, columns separated by |; the first one alone in scalar context. Each call is a session of
its own.

=item $server->set(name => value, ...)

ALTER SYSTEM and a reload. A value undef resets.

=item $server->publishing(on)

Whether the drainer works, by outbox_drainer.enabled.

=cut

sub environment
{
	my ($self) = @_;
	return (PGHOST => $self->{dir}, PGPORT => $self->{port}, PGUSER => 'postgres', PGDATABASE => 'postgres');
}

sub query
{
	my ($self, $sql) = @_;
	local %ENV = (%ENV, $self->environment);
	open my $psql, '-|', 'psql', '-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1', '-c', $sql
	  or croak "could not run psql: $!";
	my @rows = <$psql>;
	close $psql or croak "query failed: $sql";
	chomp @rows;
	return wantarray ? @rows : $rows[0];
}

sub execute { my ($self, $sql) = @_; $self->query($_) for ref $sql ? @$sql : $sql; return; }

sub set
{
	my ($self, %settings) = @_;
	for my $name (sort keys %settings)
	{
		my $value = $settings{$name};
		$self->query(defined $value ? "ALTER SYSTEM SET $name = '$value'" : "ALTER SYSTEM RESET $name");
	}
	$self->query('SELECT pg_reload_conf()');
	return;
}

sub publishing
{
	my ($self, $on) = @_;
	$self->set('outbox_drainer.enabled' => $on ? 'on' : 'off');
	$self->wait_for($on ? q{state IN ('idle', 'publishing')} : q{state = 'disabled' AND in_flight = 0});
	# The last confirms are written in a transaction that follows.
	sleep 0.5 unless $on;
	return;
}

=pod

=item $server->wait_for(condition, timeout)

Waits until the condition on outbox.stat_drainer of this database holds; dies when it does not within so many
seconds (600).

=cut

sub wait_for
{
	my ($self, $condition, $timeout) = @_;
	my $deadline = time + ($timeout || 600);
	until ($self->query("SELECT coalesce(bool_and($condition), false) FROM outbox.stat_drainer"
			  . ' WHERE database = current_database()') eq 't')
	{
		croak "not reached: $condition\n" . join("\n", $self->query('SELECT * FROM outbox.stat_drainer'))
		  if time > $deadline;
		sleep 0.1;
	}
	return;
}

=pod

=item $server->insert(count, payload => expression, key => expression, ...)

Inserts so many events in one statement; the expressions may use i, the number of the event.

=item $server->drain(count)

Lets the drainer publish the events that are queued (publishing was off) and gives the seconds that it took: from
the moment that the server was told to the last mark.

=cut

sub insert
{
	my ($self, $count, %columns) = @_;
	$columns{payload} //= q{convert_to(rpad('', 512, 'x'), 'UTF8')};
	$columns{event_type} //= q{'order.placed'};
	my @names = sort keys %columns;
	$self->query(sprintf 'INSERT INTO outbox.event (%s) SELECT %s FROM generate_series(1, %d) i',
		join(', ', @names), join(', ', @columns{@names}), $count);
	return;
}

sub drain
{
	my ($self, $count) = @_;
	my ($published) = $self->query('SELECT sum(published) FROM outbox.stat_drainer');
	$self->query(q{ALTER SYSTEM SET outbox_drainer.enabled = 'on'});
	my $start = $self->query('SELECT extract(epoch FROM clock_timestamp()) FROM pg_reload_conf()');
	$self->wait_for("(SELECT sum(published) FROM outbox.stat_drainer) >= $published + $count");
	my $end = $self->query(
		'SELECT extract(epoch FROM max(published_at)) FROM (SELECT published_at FROM outbox.event'
		  . ' ORDER BY seq DESC LIMIT 20000) e');
	return $end - $start;
}

=pod

=item $server->pgbench(script, args => [...], env => { ... })

Runs pgbench with that script and gives what it prints.

=item $server->processor_time

The seconds of processor time that the server's processes have used, those that have ended among them, taken when
nothing runs.

=item $server->file(name)

The path of a file that the server and the scenario can write to.

=item $server->drainer_pid

=item $server->log

The server's log, for a look at what went wrong.

=back

=cut

sub pgbench
{
	my ($self, $script, %params) = @_;
	my $file = $self->file('pgbench.sql');
	open my $out, '>', $file or croak "could not write $file: $!";
	print $out $script;
	close $out or croak "could not write $file: $!";
	local %ENV = (%ENV, $self->environment, %{ $params{env} || {} });
	open my $pgbench, '-|', 'pgbench', '-n', '-f', $file, @{ $params{args} } or croak "could not run pgbench: $!";
	local $/ = undef;
	my $output = <$pgbench>;
	close $pgbench or croak "pgbench failed\n" . $self->log;
	return $output;
}

sub processor_time
{
	my ($self) = @_;
	my ($postmaster) = path("$self->{dir}/data/postmaster.pid")->slurp =~ /^(\d+)/ or croak 'the server does not run';
	# A process that ends is in between for a moment: no longer itself, not yet among the children that have ended.
	my ($earlier, $now) = (-1, _ticks($postmaster));
	while ($now != $earlier)
	{
		sleep 0.05;
		($earlier, $now) = ($now, _ticks($postmaster));
	}
	return $now / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

sub _ticks
{
	my ($postmaster) = @_;
	my $ticks = 0;
	# A process may be gone before its file is read.
	for my $stat (map { eval { path($_)->slurp } } glob '/proc/[0-9]*/stat')
	{
		my ($pid, $rest) = $stat =~ /^(\d+) \(.*\) (.*)/s or next;
		my (undef, $parent, @fields) = split ' ', $rest;
		# utime, stime, and of children that have ended cutime, cstime
		$ticks += $fields[$_] for $pid == $postmaster ? (9 .. 12) : $parent == $postmaster ? (9, 10) : ();
	}
	return $ticks;
}

sub file { my ($self, $name) = @_; return "$self->{dir}/$name"; }

sub drainer_pid
{
	my ($self) = @_;
	return scalar $self->query(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox_drainer' AND datname = current_database()});
}

sub log { my ($self) = @_; return path("$self->{dir}/server.log")->slurp_utf8; }

sub _run
{
	my ($self, @command) = @_;
	my $log = "$self->{dir}/command.log";
	my $pid = fork // croak "could not fork: $!";
	if (!$pid)
	{
		open STDOUT, '>', $log;
		open STDERR, '>&', \*STDOUT;
		exec @command or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	croak "@command failed:\n" . path($log)->slurp . $self->log if $? != 0;
	return;
}

sub discard
{
	my ($self) = @_;
	return if $self->{owner} != $$ || $self->{gone};
	$self->{gone} = 1;
	eval { $self->stop('immediate') };
	remove_tree($self->{dir}, { error => \my $ignored });
	return;
}

END
{
	my $status = $?;
	$_->discard for @servers;
	$? = $status;
}

1;
