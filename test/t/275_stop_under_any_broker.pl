# "pg_ctl stop -m fast" ends soon, whatever the broker or the way to it is doing.
#
# The promise is shutdown_timeout plus a second. That a test machine is busy is no fault of it, so some seconds more
# are allowed here; what was measured is said.

use strict;
use warnings;

use IO::Socket::INET;
use OutboxDrainer::Cluster;
use OutboxDrainer::FaultProxy;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $shutdown_timeout = 2;
my $busy_machine     = 6;

my $broker = OutboxDrainer::Cluster->start_broker;
my $proxy  = OutboxDrainer::FaultProxy->new($broker);

# One takes connections and says nothing, the other takes questions and does not answer.
my $mute   = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "could not listen: $@";
my $silent = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1') or die "could not bind: $@";
local $ENV{OUTBOX_DRAINER_NAME_SERVERS} = '127.0.0.1:' . $silent->sockport;

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.shutdown_timeout' => "${shutdown_timeout}s",
		# Long, so that what hangs goes on hanging.
		'drainer.confirm_timeout' => '2min',
		'drainer.connect_timeout' => '2min',
		'drainer.heartbeat'       => '10min',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
my $events = 0;

sub emit
{
	my ($count) = @_;
	$node->safe_psql('postgres',
		"INSERT INTO outbox.event (event_type, payload) SELECT 'x', repeat('x', 1000)::bytea FROM generate_series(1, $count)");
	$events += $count;
	return;
}

# Goes on as if nothing had been, with the exchange known to the connection.
sub be_connected
{
	my ($uri) = @_;
	$node->configure('drainer.broker_uri' => $uri);
	emit(1);
	$node->wait_drained('postgres');
	$node->wait_for_state('postgres', 'idle');
	return;
}

sub stops
{
	my ($what) = @_;
	my $position = $node->log_position;
	my $started  = time;
	$node->stop('fast');
	my $took = time - $started;
	cmp_ok($took, '<', $shutdown_timeout + 1 + $busy_machine, sprintf '%s: the server stops (%.1f s)', $what, $took);
	unlike($node->log_since($position), qr/terminated by signal|SIGKILL|PANIC/, 'and nobody was killed for it');
	return;
}

be_connected($broker->uri);
$broker->freeze;
emit(2000);
$node->wait_stat('postgres', 'in_flight > 100');
stops('the broker is frozen');
$broker->thaw;

$node->start;
be_connected($proxy->uri);
$proxy->blackhole;
emit(2000);
$node->wait_stat('postgres', 'in_flight > 100');
stops('nothing arrives either way');
$proxy->pass;

$node->start;
be_connected($broker->uri);
$broker->memory_alarm(1);
emit(2000);
$node->wait_for_state('postgres', 'blocked');
stops('the broker blocks publishers');
$broker->memory_alarm(0);

for my $case (
	[ 'in the TLS handshake',   'amqps://127.0.0.1:' . $mute->sockport . '?sslmode=require', 1 ],
	[ 'waiting for a greeting', 'amqp://127.0.0.1:' . $mute->sockport, 1 ],
	[ 'resolving a name', 'amqp://broker.example:1', scalar is_test_build() ])
{
	my ($what, $uri, $possible) = @$case;
  SKIP:
	{
		skip "$what: only in a test build", 2 unless $possible;
		$node->write_settings('drainer.broker_uri' => $uri);
		$node->start;
		$node->wait_for_state('postgres', 'connecting');
		stops($what);
	}
}

# Nothing was lost or charged by all of it.
$node->start;
be_connected($broker->uri);
my %arrived = map { $_->{properties}{message_id} => 1 } @{ $broker->consume('q', idle => 2) };
is(scalar keys %arrived, $events, 'every event has arrived in the end');
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'none was charged');

done_testing();

# Whether the library takes name servers from the environment.
sub is_test_build
{
	my $library = `$ENV{PG_CONFIG} --pkglibdir`;
	chomp $library;
	return slurp_file("$library/outbox_drainer.so") =~ /OUTBOX_DRAINER_NAME_SERVERS/;
}
