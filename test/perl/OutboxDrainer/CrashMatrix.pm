package OutboxDrainer::CrashMatrix;

=pod

=head1 NAME

OutboxDrainer::CrashMatrix - a fault at a phase of the drain cycle, and what becomes of the events

=head1 SYNOPSIS

  my $matrix = OutboxDrainer::CrashMatrix->new;
  $matrix->cell('D5', 'broker killed');
  print $matrix->summary;

=head1 DESCRIPTION

One PostgreSQL server (a test build: make INJECT=1), one RabbitMQ node and a proxy between them serve all cells. A
cell writes events, lets the drainer run into the phase, brings the fault, mends what an operator has to mend (the
server or the broker is started again), and then waits until all is published without anybody's help.

Beside the backlog of a cell there are two producers: one goes on writing and may be interrupted, so that it does
not know of its last COMMIT whether it happened; the ledger says. The other keeps a transaction open that never
commits, and a third was rolled back: nobody may ever see their events.

=cut

use strict;
use warnings;

use Carp;
use IPC::Run ();
use OutboxDrainer::Cluster;
use OutboxDrainer::FaultProxy;
use Test::More;

our $depth = 10;
# After one fault at most what is unconfirmed, and what is confirmed and not yet written, is sent again.
my $window  = 2 * $depth;
my $backlog = 60;
my $keys    = 30;
my $busy    = 40;

=pod

=over

=item @phases, @faults

All there are.

=item new

Starts the servers.

=item cell(phase, fault)

One test: passes if nothing was lost, nothing came that was not committed, nothing came out of order, no more than
a window came twice, nobody was charged, and nothing is left claimed.

=item summary

The figures of all cells so far, in a line.

=back

=cut

our @phases = map { "D$_" } 0 .. 11;

# What a drainer does to itself at the phase needs only to be mended; for the others it stands still there.
my %fault = (
	'drainer killed'     => { self => 'kill' },
	'drainer terminated' => { self => 'terminate' },
	'statement canceled' => { self => 'cancel' },
	'immediate stop'     => { bring => \&_immediate_stop },
	'fast stop'          => { bring => \&_fast_stop },
	'broker killed'      => { bring => \&_kill_broker },
	'broker stopped'     => { bring => \&_stop_broker },
	'connection reset'   => { bring => \&_reset_connection },
	'acks vanish'        => { bring => \&_lose_acks },
);
our @faults = (
	'drainer killed', 'drainer terminated', 'statement canceled', 'immediate stop', 'fast stop', 'broker killed',
	'broker stopped', 'connection reset', 'acks vanish');

sub new
{
	my ($class) = @_;
	my $broker  = OutboxDrainer::Cluster->start_broker;
	my $proxy   = OutboxDrainer::FaultProxy->new($broker);
	# A queue of one message refuses the others: that makes the phase of failed marks.
	$broker->declare(
		exchange  => 'limited',
		queue     => 'limited',
		arguments => { 'x-max-length' => 1, 'x-overflow' => 'reject-publish' });
	my $node = OutboxDrainer::Cluster->new_node(
		'main',
		broker   => $proxy,
		settings => {
			'drainer.enabled'         => 'off',
			'drainer.pipeline_depth'  => $depth,
			'drainer.batch_size'      => 30,
			'drainer.confirm_timeout' => '2s',
			'drainer.connect_timeout' => '2s',
			'drainer.poll_interval'   => '100ms',
			# Longer than the test: what is left behind must not have to wait for its lease.
			'drainer.lease_ttl'             => '10h',
			'drainer.retry_backoff_initial' => '100ms',
			'drainer.retry_backoff_max'     => '300ms',
		});
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
	$node->create_ledger('postgres');
	croak 'the library was not built with INJECT=1'
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_settings WHERE name = 'outbox_drainer.inject_fault'}) ne '1';
	my %sums = map { $_ => 0 } qw(cells faults events lost phantoms duplicates interrupted);
	return bless { broker => $broker, proxy => $proxy, node => $node, sums => \%sums, injections => 0 }, $class;
}

sub cell
{
	my ($self, $phase, $name) = @_;
	my $how = $fault{$name} // croak "no fault \"$name\"";
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note "$phase: $name";
	$self->{faults} = 0;
	my $node = $self->{node};
	$self->_produce($phase);
	$self->_open_transactions;
	$self->_run_into($phase, $how);
	$self->{faults}++;
	$node->safe_psql('postgres', "SELECT emit_many($backlog, $keys)") if $phase eq 'D0' && !$how->{self};
	$how->{bring}->($self) if $how->{bring};
	$node->wait_for_log(qr/was terminated by signal 9/, $self->{position}) if $name eq 'drainer killed';
	$self->_drain($phase);
	my @wrong = $self->_check($phase);
	ok(!@wrong, "$phase: $name") or diag(join "\n", @wrong);
	return;
}

# What is there before the fault.
sub _produce
{
	my ($self, $phase) = @_;
	my $node = $self->{node};
	$node->safe_psql('postgres', <<'SQL');
TRUNCATE ledger, aggregate;
BEGIN;
SELECT emit_many(5, 5);
ROLLBACK;
SQL
	$node->safe_psql('postgres',
		q{INSERT INTO outbox.event (event_type, payload, source, destination)
			SELECT 'refused', 'x', 'refused', 'limited' FROM generate_series(1, 4)}
	) if $phase eq 'D10';
	$node->safe_psql('postgres', "SELECT emit_many($backlog, $keys)") if $phase ne 'D0';
	return;
}

# The producers that run while the fault happens.
sub _open_transactions
{
	my ($self) = @_;
	my $node = $self->{node};
	$self->{open}  = $self->_psql('-c', q{SELECT emit('open ' || i) FROM generate_series(1, 5) i; SELECT pg_sleep(3600)});
	my $statements = join '', map { qq{SELECT 'acknowledged' FROM emit('busy $_');\nSELECT pg_sleep(0.02);\n} } 1 .. $busy;
	$self->{busy}  = $self->_psql('-f', $self->_file('busy.sql', $statements));
	$node->wait_query('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%3600%'});
	return;
}

# Arms the phase and lets the drainer run until it is there.
sub _run_into
{
	my ($self, $phase, $how) = @_;
	my $node  = $self->{node};
	my $value = join ':', $phase, $how->{self} // 'hold', ++$self->{injections};
	$self->{position} = $node->log_position;
	$self->_hold unless $how->{self};
	$node->configure(
		'drainer.inject_fault' => $value,
		# Connections that last no longer than those here count as one series of failures, with growing delays
		# between the attempts; a new list of brokers begins anew.
		'drainer.broker_uri' => $self->{proxy}->uri . '?heartbeat=' . (20 + $self->{injections} % 2),
		'drainer.enabled'      => 'on',
		# Slow enough that there is something in hand to be given back.
		'drainer.publish_rate' => $phase eq 'D11' ? 30 : undef);
	my $rounds = 0;
	OutboxDrainer::Cluster::wait_until(
		"the drainer has reached $phase",
		sub {
			return 1 if $node->log_since($self->{position}) =~ /reached $phase, inject_fault is "$value"/;
			$self->_tempt($phase) if ++$rounds % 20 == 0;
			return 0;
		});
	$self->{reached} = $node->log_position;
	return;
}

# What brings a drainer to a phase that it did not reach by itself.
sub _tempt
{
	my ($self, $phase) = @_;
	if ($phase eq 'D11')
	{
		$self->{proxy}->reset;
		$self->{faults}++;
	}
	# The server may be restarting by now.
	$self->{node}->psql('postgres', 'SELECT emit_many(30, 30)') if $phase ne 'D0' && $phase ne 'D10';
	return;
}

# Waits until all is published and the producers have ended.
sub _drain
{
	my ($self, $phase) = @_;
	my $node = $self->{node};
	$self->_release;
	$node->wait_query('postgres', 'SELECT true');
	$node->configure('drainer.publish_rate' => undef) if $phase eq 'D11';
	# The empty queue has room for the refused ones, one after the other.
	my @refused = $phase eq 'D10' ? @{ $self->{broker}->consume('limited', count => 4, idle => 0.3) } : ();
	$self->{busy}{harness}->finish;
	$node->safe_psql('postgres',
		q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%3600%' AND pid <> pg_backend_pid()});
	$self->{open}{harness}->finish;
	$node->safe_psql('postgres', "SELECT emit_many($backlog, $keys)")
	  if $phase eq 'D0' && $node->safe_psql('postgres', 'SELECT count(*) < 40 FROM ledger') eq 't';
	$node->wait_drained('postgres');
	# Connections that were cut off may still have messages on their way.
	OutboxDrainer::Cluster::wait_until('the proxy has delivered all', sub { $self->{proxy}->status->{connections} <= 1 });
	$node->configure('drainer.enabled' => 'off');
	$node->wait_for_state('postgres', 'disabled');
	$self->{refused} = \@refused;
	return;
}

# What went wrong, in words.
sub _check
{
	my ($self, $phase) = @_;
	my $node     = $self->{node};
	my $events   = $node->safe_psql('postgres', 'SELECT count(*) FROM ledger');
	my $messages = $self->{broker}->consume('q', count => $events, idle => 0.5);
	my $result   = $node->compare_ledger('postgres', $messages);
	my @wrong;
	for my $what (qw(missing unexpected disorder wrong))
	{
		my @found = @{ $result->{$what} };
		push @wrong, sprintf '%d %s: %s', scalar @found, $what, join ', ', grep { defined } @found[ 0 .. 4 ] if @found;
	}
	my $twice = @{ $result->{duplicates} };
	push @wrong, "$twice came twice" if $twice > $window * $self->{faults};
	push @wrong, $self->_check_refused if $phase eq 'D10';
	push @wrong, 'somebody was charged'
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE attempts > 0 AND source <> 'refused'}) ne '0';
	push @wrong, 'a row is left claimed'
	  if $node->safe_psql('postgres', 'SELECT count(*) FROM outbox.event WHERE claimed_by IS NOT NULL') ne '0';
	my $acknowledged = () = $self->{busy}{output} =~ /^acknowledged/mg;
	my $kept         = $node->safe_psql('postgres', q{SELECT count(*) FROM ledger WHERE key LIKE 'busy %'});
	push @wrong, "$acknowledged transactions were acknowledged, $kept are there" if $acknowledged > $kept;

	my $sums = $self->{sums};
	$sums->{cells}++;
	$sums->{faults}      += $self->{faults};
	$sums->{events}      += $events + ($phase eq 'D10' ? 4 : 0);
	$sums->{lost}        += @{ $result->{missing} };
	$sums->{phantoms}    += @{ $result->{unexpected} };
	$sums->{duplicates}  += $twice;
	$sums->{interrupted} += $busy - $acknowledged;
	note "$events events, $twice twice, $self->{faults} faults";
	return @wrong;
}

# Of the refused ones it is the broker's fault alone that they were charged.
sub _check_refused
{
	my ($self) = @_;
	my %seen;
	my @messages = (@{ $self->{refused} }, @{ $self->{broker}->consume('limited', idle => 0.3) });
	$seen{ $_->{properties}{message_id} }++ for @messages;
	my @ids = split /\n/, $self->{node}->safe_psql('postgres', q{SELECT message_id FROM outbox.events WHERE source = 'refused'});
	my @lost = grep { !$seen{$_} } @ids;
	my $twice = grep { $_ > 1 } values %seen;
	$self->{sums}{lost}       += @lost;
	$self->{sums}{duplicates} += $twice;
	my $other = $self->{node}->safe_psql('postgres',
		q{SELECT count(*) FROM outbox.event WHERE source = 'refused' AND attempts > 0 AND last_error NOT LIKE 'nack%'});
	$self->{node}->safe_psql('postgres', q{DELETE FROM outbox.event WHERE source = 'refused'});
	my @wrong = map { "refused event $_ is missing" } @lost;
	push @wrong, "$other refused events were charged for something else" if $other ne '0';
	return @wrong;
}

sub summary
{
	my ($self) = @_;
	my $sums = $self->{sums};
	return sprintf 'crash matrix: %d cells, %d faults, %d events, %d commits interrupted, %d lost, %d phantoms, %d duplicates',
	  @$sums{qw(cells faults events interrupted lost phantoms duplicates)};
}

# The faults. The drainer stands at the phase.

sub _immediate_stop
{
	my ($self) = @_;
	$self->{node}->stop('immediate');
	$self->_release;
	$self->{node}->start;
	return;
}

sub _fast_stop
{
	my ($self) = @_;
	my $node = $self->{node};
	my ($pid) = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	kill 'INT', $pid or croak "could not signal the server: $!";
	$node->wait_for_log(qr/received fast shutdown request/, $self->{reached});
	$self->_release;
	# It waits for the end, which may have come already.
	$node->stop('fast', fail_ok => 1);
	$node->start;
	return;
}

sub _kill_broker
{
	my ($self) = @_;
	$self->{broker}->kill9;
	$self->_release;
	$self->_wait_for_loss;
	$self->{broker}->start;
	return;
}

sub _stop_broker
{
	my ($self) = @_;
	kill 'TERM', $self->{broker}->pid or croak "could not signal the broker: $!";
	$self->_release;
	$self->_wait_for_loss;
	$self->{broker}->stop;
	$self->{broker}->start;
	return;
}

sub _reset_connection
{
	my ($self) = @_;
	$self->{proxy}->reset;
	$self->_release;
	return;
}

sub _lose_acks
{
	my ($self) = @_;
	$self->{proxy}->blackhole('to_client');
	$self->_release;
	$self->_wait_for_loss;
	$self->{proxy}->pass;
	return;
}

sub _wait_for_loss
{
	my ($self) = @_;
	$self->{node}->wait_for_log(qr/(?:lost connection|could not connect) to broker/, $self->{reached});
	return;
}

# A drainer stays where it is while this file exists.
sub _hold_file { return $_[0]->{node}->data_dir . '/outbox_drainer.hold'; }

sub _hold
{
	my ($self) = @_;
	open my $file, '>', $self->_hold_file or croak "could not create the hold file: $!";
	close $file;
	return;
}

sub _release
{
	my ($self) = @_;
	unlink $self->_hold_file;
	return;
}

sub _file
{
	my ($self, $name, $content) = @_;
	my $path = $self->{node}->basedir . "/$name";
	open my $file, '>', $path or croak "could not write $path: $!";
	print $file $content;
	close $file or croak "could not write $path: $!";
	return $path;
}

sub _psql
{
	my ($self, @arguments) = @_;
	my $run = { output => '' };
	$run->{harness} = IPC::Run::start([ 'psql', '-XAtq', @arguments, $self->{node}->connstr('postgres') ],
		'<', '/dev/null', '>&', \$run->{output},
		IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
	return $run;
}

1;
