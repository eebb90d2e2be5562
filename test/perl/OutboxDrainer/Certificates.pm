package OutboxDrainer::Certificates;

=pod

=head1 NAME

OutboxDrainer::Certificates - an authority for tests, its certificates, and TLS servers that show them

=head1 SYNOPSIS

  my $authority = OutboxDrainer::Certificates->new($directory);
  my $server = $authority->issue('server', names => 'DNS:localhost,IP:127.0.0.1');
  my $expired = $authority->issue('expired', names => 'DNS:localhost', expired => 1);
  my $broker = OutboxDrainer::Cluster->new_broker($authority->broker_options($server, $port));
  my $port = $authority->serve($expired);

=head1 DESCRIPTION

All is made by the openssl command when it is needed, with files in the directory that is given. The servers
are openssl's too and end with the script.

=cut

use strict;
use warnings;

use Carp;
use IO::Socket::INET;
use IPC::Run ();
use OutboxDrainer::RabbitMQ;
use Time::HiRes qw(sleep time);

our $timeout = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

=pod

=head1 METHODS

=over

=item OutboxDrainer::Certificates->new(directory, name => common name)

Makes an authority.

=item $authority->certificate

The path of its own certificate.

=cut

sub new
{
	my ($class, $directory, %params) = @_;
	my $self = bless { dir => $directory, servers => [] }, $class;
	-d $directory or mkdir $directory or croak "could not create directory $directory: $!";
	$self->_write('index.txt', '');
	$self->_write('serial',    "01\n");
	$self->_write('ca.conf',   <<"CONF");
[ca]
default_ca = authority
[authority]
database = $directory/index.txt
serial = $directory/serial
new_certs_dir = $directory
certificate = $directory/ca.pem
private_key = $directory/ca.key
default_md = sha256
default_days = 30
policy = policy
unique_subject = no
copy_extensions = copy
[policy]
commonName = supplied
[req]
distinguished_name = name
[name]
CONF
	$self->_openssl('req', '-x509', $self->_new_key('ca'), '-days', 30, '-out', "$directory/ca.pem",
		'-subj', '/CN=' . ($params{name} // 'Test Authority'), '-addext', 'basicConstraints=critical,CA:TRUE');
	return $self;
}

sub certificate
{
	my ($self) = @_;
	return "$self->{dir}/ca.pem";
}

=pod

=item $authority->issue(name, common_name =>, names => 'DNS:x,IP:y', expired => 1, self_signed => 1)

A certificate, with its files called after the name: a hash of the paths cert and key.

=cut

sub issue
{
	my ($self, $name, %how) = @_;
	my ($dir, $subject) = ($self->{dir}, '/CN=' . ($how{common_name} // $name));
	my @names = $how{names} ? ('-addext', "subjectAltName=$how{names}") : ();
	my %files = (cert => "$dir/$name.pem", key => "$dir/$name.key");
	if ($how{self_signed})
	{
		$self->_openssl('req', '-x509', $self->_new_key($name), '-days', 30, '-out', $files{cert}, '-subj', $subject, @names);
		return \%files;
	}
	$self->_openssl('req', '-new', $self->_new_key($name), '-out', "$dir/$name.csr", '-subj', $subject, @names);
	my @when = $how{expired} ? ('-startdate', '20200101000000Z', '-enddate', '20200201000000Z') : ();
	$self->_openssl('ca', '-config', "$dir/ca.conf", '-batch', '-notext', '-in', "$dir/$name.csr", '-out', $files{cert}, @when);
	return \%files;
}

=pod

=item $authority->broker_options(files, port)

What OutboxDrainer::RabbitMQ->new takes so that the node listens for TLS on the port too. Clients may show a
certificate of this authority, and log in as the user of its common name.

=cut

sub broker_options
{
	my ($self, $files, $port) = @_;
	return (
		plugins => ['rabbitmq_auth_mechanism_ssl'],
		config  => <<"CONF");
listeners.ssl.1 = 127.0.0.1:$port
ssl_options.cacertfile = @{[ $self->certificate ]}
ssl_options.certfile = $files->{cert}
ssl_options.keyfile = $files->{key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
CONF
}

=pod

=item $authority->serve(files, arguments of openssl s_server)

Starts a TLS server that is no broker, on a port of 127.0.0.1, and returns the port.

=item $authority->served(port)

What the server has said so far.

=back

=cut

sub serve
{
	my ($self, $files, @arguments) = @_;
	my ($port) = OutboxDrainer::RabbitMQ::free_ports(1);
	my $server = { port => $port, output => '' };
	$server->{harness} = IPC::Run::start(
		[
			'openssl', 's_server', '-accept', "127.0.0.1:$port", '-cert', $files->{cert}, '-key', $files->{key},
			'-rev', @arguments
		],
		'<', '/dev/null', '>&', \$server->{output});
	push @{ $self->{servers} }, $server;
	my $deadline = time + $timeout;
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 2))
	{
		croak "the TLS server did not start:\n$server->{output}" if time > $deadline || !$server->{harness}->pumpable;
		$server->{harness}->pump_nb;
		sleep 0.05;
	}
	return $port;
}

sub served
{
	my ($self, $port) = @_;
	my ($server) = grep { $_->{port} == $port } @{ $self->{servers} };
	$server->{harness}->pump_nb;
	return $server->{output};
}

sub DESTROY
{
	my ($self) = @_;
	local $?;
	$_->{harness}->kill_kill for @{ $self->{servers} };
	return;
}

sub _new_key
{
	my ($self, $name) = @_;
	return ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-config', "$self->{dir}/ca.conf",
		'-keyout', "$self->{dir}/$name.key");
}

sub _openssl
{
	my ($self, @arguments) = @_;
	my $output = '';
	IPC::Run::run([ 'openssl', @arguments ], '<', '/dev/null', '>&', \$output)
	  or croak "openssl @arguments failed:\n$output";
	return;
}

sub _write
{
	my ($self, $name, $text) = @_;
	open my $file, '>', "$self->{dir}/$name" or croak "could not open $self->{dir}/$name: $!";
	print $file $text;
	close $file or croak "could not write $self->{dir}/$name: $!";
	return;
}

1;
