# TLS to the broker: what can be trusted is used, what cannot be is refused with the reason, and nothing is ever
# sent in plain text instead.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use OutboxDrainer::Certificates;
use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $authority = OutboxDrainer::Certificates->new(PostgreSQL::Test::Utils::tempdir() . '/authority');
my $other     = OutboxDrainer::Certificates->new(PostgreSQL::Test::Utils::tempdir() . '/other', name => 'Other Authority');
my %here      = (names => 'DNS:localhost,IP:127.0.0.1');
my $ca        = 'sslrootcert=' . $authority->certificate;

my ($tls_port) = OutboxDrainer::RabbitMQ::free_ports(1);
my $broker =
  OutboxDrainer::Cluster->new_broker($authority->broker_options($authority->issue('server', %here), $tls_port));
$broker->start;
$broker->declare(exchange => 'events', queue => 'q');
my $good = "amqps://localhost:$tls_port?$ca";

my $depth = 200;
my $node = OutboxDrainer::Cluster->new_node('main',
	settings => { 'drainer.broker_uri' => $good, 'drainer.pipeline_depth' => $depth });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');

# verify-full is what is done without a word.
$node->safe_psql('postgres', 'SELECT emit_many(2000, 50)');
$node->wait_drained('postgres');
my @received = @{ $broker->consume('q', count => 2000) };
$node->ledger_ok('postgres', \@received, 'events arrive by TLS');
like(
	$broker->ctl('list_connections', '--no-table-headers', 'ssl', 'ssl_protocol', 'auth_mechanism'),
	qr/^true\ttlsv1\.[23]\tPLAIN$/m, 'as the broker sees it too');
is($node->stat('postgres', 'last_error'), '', 'without an error');

$node->safe_psql('postgres',
	q{INSERT INTO outbox.event (event_type, payload) VALUES ('large', convert_to(repeat('x', 10000000), 'UTF8'))});
$node->wait_drained('postgres');
my ($large) = @{ $broker->consume('q', count => 1) };
ok($large->{body} eq 'x' x 10_000_000, 'an event of many TLS records arrives whole');

# A broker that dies says no goodbye.
$broker->freeze;
$node->safe_psql('postgres', 'SELECT emit_many(1000, 1000)');
$node->wait_stat('postgres', "in_flight = $depth");
$broker->kill9;
$broker->start;
$node->wait_drained('postgres');
push @received, @{ $broker->consume('q', count => 1000) };
$node->ledger_ok('postgres', \@received, 'all arrive when a broker dies and comes back', duplicates => 2 * $depth);

my $waiting = 0;

# A broker that must not be talked to: the reason is in the status and in the log, and the event waits.
sub refused
{
	my ($uri, $reason, $what) = @_;
	my $position = $node->log_position;
	$node->configure('drainer.broker_uri' => $uri);
	$node->safe_psql('postgres', q{SELECT emit('key')});
	$waiting++;
	eval { $node->wait_stat('postgres', "state = 'backoff' AND last_error ~ '$reason'"); } or diag $@;
	like($node->stat('postgres', 'last_error'), qr/$reason/, "$what: the status has the reason");
	ok(eval { $node->wait_for_log(qr/$reason/, $position); }, "$what: so has the log");
	is($node->unpublished('postgres'), $waiting, "$what: nothing is published");
	return;
}

sub refused_server
{
	my ($files, $reason, $what, @arguments) = @_;
	my $port = $authority->serve($files, @arguments);
	refused("amqps://localhost:$port?$ca", $reason, $what);
	unlike($authority->served($port), qr/CONNECTION ESTABLISHED/, "$what: no session is made");
	return;
}

refused_server($authority->issue('elsewhere', names => 'DNS:broker.example'),
	'certificate is not for host "localhost": it is for "broker.example"', 'a certificate of another host');
refused_server($authority->issue('expired', %here, expired => 1),
	'certificate has expired on 2020-02-01', 'an expired certificate');
refused_server($authority->issue('own', %here, self_signed => 1), 'self-signed certificate', 'a self-signed certificate');
refused_server($other->issue('stranger', %here),
	'unable to get local issuer certificate .*Other Authority', 'a certificate of an unknown authority');
refused_server($authority->issue('old', %here),
	'no version of TLS that is allowed here .TLS 1.2 at least.',
	'a server that speaks TLS 1.1 at most', '-tls1_1', '-cipher', 'DEFAULT:@SECLEVEL=0');
refused_server($authority->issue('strict', %here),
	'asks for a client certificate .sslcert., and none is set',
	'a server that demands a certificate', '-Verify', 1, '-verify_return_error', '-CAfile', $authority->certificate);

refused('amqps://localhost:' . $broker->port . "?$ca", 'does not speak TLS on this port: it answered "AMQP"', 'a plain broker');
refused("amqp://localhost:$tls_port", 'expects TLS on this port', 'a plain client at a broker of TLS');
refused("amqps://localhost:$tls_port?sslrootcert=/nonexistent/ca.pem",
	'could not open root certificate file "/nonexistent/ca.pem": No such file', 'a file that is missing');

# What a server that says nothing gets to see.
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 5) or die "could not listen: $!";
$node->configure(
	'drainer.broker_uri'      => 'amqps://127.0.0.1:' . $listener->sockport . "?sslmode=require",
	'drainer.connect_timeout' => '1s');
my @heard;
while (@heard < 2)
{
	IO::Select->new($listener)->can_read($PostgreSQL::Test::Utils::timeout_default) or last;
	my $client = $listener->accept;
	my $bytes  = '';
	1 while sysread $client, $bytes, 65536, length $bytes;
	push @heard, $bytes;
}
is(scalar(grep { /^\x16\x03/ } @heard), 2, 'a server is greeted with TLS, again and again');
is(scalar(grep { /AMQP/ } @heard),      0, 'and never with a word of AMQP');
$node->wait_stat('postgres', q{last_error ~ 'TLS handshake'});
pass('the status says what is waited for');
close $listener;

# All is well again with the right setting.
$node->configure('drainer.broker_uri' => $good, 'drainer.connect_timeout' => undef);
$node->wait_drained('postgres');
push @received, @{ $broker->consume('q', count => $waiting) };
$node->ledger_ok('postgres', \@received, 'every event arrives once the setting is right', duplicates => 2 * $depth);
is($node->safe_psql('postgres', 'SELECT sum(attempts) FROM outbox.event'), '0', 'and no attempt was charged');

# Mutual TLS: the certificate is the login.
$waiting = 0;
my $client = $authority->issue('drainer', common_name => 'drainer');
$broker->add_user('drainer', 'not used');
my $mutual = "amqps://127.0.0.1:$tls_port?$ca&sslcert=$client->{cert}&sslkey=$client->{key}&auth_mechanism=external";
chmod 0644, $client->{key} or die "could not change mode of $client->{key}: $!";
refused($mutual, 'private key file "[^"]*" has group or world access', 'a private key that others can read');
chmod 0600, $client->{key} or die "could not change mode of $client->{key}: $!";
$node->wait_drained('postgres');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'the event arrives once nobody else can read it, without a reload');
like(
	$broker->ctl('list_connections', '--no-table-headers', 'user', 'auth_mechanism', 'peer_cert_subject'),
	qr/^drainer\tEXTERNAL\tCN=drainer$/m, 'by the user whom the certificate names');

# A user whom the broker does not know.
my $nobody = $authority->issue('nobody', common_name => 'nobody');
$waiting = 0;
refused("amqps://127.0.0.1:$tls_port?$ca&sslcert=$nobody->{cert}&sslkey=$nobody->{key}&auth_mechanism=external",
	'ACCESS_REFUSED', 'a certificate of a user whom the broker does not know');
my $unknown = $other->issue('drainer', common_name => 'drainer');
refused("amqps://127.0.0.1:$tls_port?$ca&sslcert=$unknown->{cert}&sslkey=$unknown->{key}&auth_mechanism=external",
	'refused the client certificate "[^"]*": ', 'a client certificate of an unknown authority');

done_testing();
