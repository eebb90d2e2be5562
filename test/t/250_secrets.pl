# The broker's password is found nowhere: not in the server's log at its most talkative, not in settings, views,
# errors, dumps or the broker's log, whoever looks. And it can be changed without a restart.
#
# What somebody types into a statement is shown where PostgreSQL shows statements: in pg_stat_activity while that
# session is there, and in the log if the server was told to log statements (log_statement), which is therefore off
# for those with a secret here. All else is looked through, the statements that the server repeats beside errors and its
# line about a setting that a reload has changed included.

use strict;
use warnings;

use OutboxDrainer::Certificates;
use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %secret = (
	uri     => 'uri-Secret-1a',
	file    => 'file-Secret-2b',
	rotated => 'rotated-Secret-3c',
	wrong   => 'wrong-Secret-4d',
	other   => 'other-Secret-5e',
	typed   => 'typed-Secret-6f');

my $authority = OutboxDrainer::Certificates->new(PostgreSQL::Test::Utils::tempdir() . '/authority');
my $server    = $authority->issue('server', names => 'DNS:localhost');
my $client    = $authority->issue('by_key', common_name => 'by_key');
# Any line of the private key, as it is in its file.
my @key_lines = grep { !/-----/ && length > 20 } split /\n/, slurp_file($client->{key});
my $any_secret = join '|', map { quotemeta } values %secret, @key_lines;

my ($tls_port) = OutboxDrainer::RabbitMQ::free_ports(1);
my $broker = OutboxDrainer::Cluster->new_broker($authority->broker_options($server, $tls_port));
$broker->start;
$broker->declare(exchange => 'events', queue => 'q');
$broker->add_user('by_uri',  $secret{uri});
$broker->add_user('by_file', $secret{file});
$broker->add_user('by_key',  'not used');
my $place = '127.0.0.1:' . $broker->port;

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	settings => {
		log_min_messages        => 'debug5',
		log_error_verbosity     => 'verbose',
		log_min_error_statement => 'error',
		# The one thing that shows statements is a server told to do so; these hold no secrets here.
		log_statement        => 'all',
		'drainer.broker_uri' => $broker->uri('by_uri', $secret{uri}) });
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->safe_psql('postgres', 'CREATE ROLE somebody; CREATE ROLE watcher IN ROLE pg_monitor');

sub send_one
{
	my ($name) = @_;
	$node->safe_psql('postgres', q{SELECT emit('key')});
	$node->wait_drained('postgres');
	is(scalar @{ $broker->consume('q', count => 1) }, 1, $name);
	return;
}

# What a client sees, as an ordinary role, as one that watches, as superuser.
my @everything_shown = (
	'SHOW outbox_drainer.broker_uri',
	q{SELECT current_setting('outbox_drainer.broker_uri'), current_setting('outbox_drainer.password_file')},
	'SELECT * FROM pg_settings',
	'SELECT * FROM pg_file_settings',
	'SELECT * FROM pg_stat_activity',
	'SELECT * FROM outbox.settings_check()',
	q{SELECT * FROM outbox.check_topology(timeout => '1 s')},
	q{SELECT outbox.get(id) FROM outbox.event},
	q{SELECT outbox.why(id) FROM outbox.event},
	q{SELECT outbox.preview(id) FROM outbox.event});
push @everything_shown, split /\n/,
  $node->safe_psql('postgres',
	q{SELECT format('SELECT * FROM %s', oid::regclass) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v')});

sub nothing_is_shown
{
	my ($when) = @_;
	for my $role (qw(somebody watcher postgres))
	{
		my $seen = '';
		for my $query (@everything_shown)
		{
			# The configuration file is for superusers, who may read it on disk as well; it is the secret's home.
			next if $query =~ /pg_file_settings/ && $role eq 'postgres';
			my ($out, $err) = ('', '');
			my $become = $role eq 'postgres' ? '' : "SET ROLE $role;";
			$node->psql('postgres', "$become $query", stdout => \$out, stderr => \$err);
			$seen .= "$query\n$out\n$err\n";
		}
		is_deeply([ grep { /$any_secret/ } split /\n/, $seen ], [], "$role is shown no secret $when");
		ok($seen =~ m{amqps?://\S*(?:$place|localhost)}, 'a superuser sees the URI, so the right place was looked at')
		  if $role eq 'postgres';
	}
	return;
}

send_one('a password in the URI of the configuration file is used');
nothing_is_shown('with a password in the URI');
like($node->safe_psql('postgres', 'SHOW outbox_drainer.broker_uri'), qr/by_uri:\*{4}@/, 'the URI is shown redacted');

# Errors to whoever tries to put one elsewhere: refused, mistyped, without the right to, or no SQL at all.
my $set = 'SET outbox_drainer.broker_uri =';
my $uri = "amqp://u:$secret{typed}\@h";
for my $sql (
	"$set '$uri'",
	"$set 'amqp://a,$uri'",
	"$set 'amqp://u:$secret{typed}/\@h'",
	"$set 'amqp://u:1?x=2,$secret{typed}\@h'",
	"$set $uri",
	"SELECT set_config('outbox_drainer.broker_uri', '$uri', false)",
	"DO \$\$ BEGIN EXECUTE '$set ''$uri'''; END \$\$",
	"SELECT pg_temp.set_broker('$uri')",
	"ALTER DATABASE postgres $set '$uri'",
	"ALTER ROLE somebody $set '$uri'",
	"ALTER SYSTEM $set '$uri'",
	"ALTER SYSTEM $set 'amqp://u:$secret{typed}/\@h'",
	"ALTER SYSTEM $set 'amqps://u\@h?sslpassword=$secret{typed}'",
	"ALTER SYSTEM $set 'amqp://u:$secret{typed},x\@h'",
	"SET ROLE somebody; $set '$uri'",
	"SET ROLE somebody; ALTER SYSTEM $set '$uri'")
{
	(my $shown = $sql) =~ s/$secret{typed}/SECRET/;
	my $err    = '';
	my $status = $node->psql('postgres', <<"SQL", stderr => \$err);
SET log_statement = 'none';
CREATE FUNCTION pg_temp.set_broker(uri text) RETURNS void LANGUAGE plpgsql AS
	\$\$ BEGIN EXECUTE format('SET outbox_drainer.broker_uri = %L', uri); END \$\$;
$sql
SQL
	isnt($status, 0, "refused: $shown");
	# A client is told the place of an error in what it has sent itself.
	$err =~ s/^(psql:.*?LINE.*|LINE.*|CONTEXT:.*|STATEMENT:.*)$//mg;
	unlike($err, qr/$secret{typed}/, 'and not repeated');
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_db_role_setting}), '0', 'nothing was kept of these');

# In the configuration file of a running server: taken at a reload, refused there, taken again.
for my $changed (
	"amqp://by_uri:$secret{other}\@$place/nowhere",
	"amqp://by_uri:$secret{wrong}/\@$place",
	$broker->uri('by_uri', $secret{uri}))
{
	my $position = $node->log_position;
	$node->configure('drainer.broker_uri' => $changed);
	$node->wait_for_log(qr/parameter "outbox_drainer\.broker_uri"/, $position);
}
like($node->log_since(0), qr{parameter "outbox_drainer\.broker_uri" changed to "amqp://by_uri:\*{4}\@$place/nowhere"},
	'a reload that changes the URI is logged, without the password');
$node->wait_stat('postgres', q{connected_since IS NOT NULL});
send_one('and the drainer goes on with the last one');

# The password in a file.
my $password_file = PostgreSQL::Test::Utils::tempdir() . '/password';

sub write_password
{
	my ($text) = @_;
	unlink $password_file;
	append_to_file($password_file, $text);
	chmod 0600, $password_file or die "$password_file: $!";
	return;
}

write_password("$secret{wrong}\n");
$node->configure('drainer.broker_uri' => "amqp://by_file\@$place", 'drainer.password_file' => $password_file);
$node->wait_stat('postgres', q{last_error LIKE '%ACCESS_REFUSED%'});
nothing_is_shown('while the broker refuses a password');
write_password("# brokers\n*:" . $broker->port . ":/:by_file:$secret{file}\n*:*:*:*:$secret{wrong}\n");
send_one('the right password, in a line of its own, is used at the next attempt, without a reload');
nothing_is_shown('with a password file');

# Rotation.
$broker->change_password('by_file', $secret{rotated});
write_password("$secret{rotated}\n");
my $pid = $node->drainer_pid('postgres');
$broker->close_connections('rotation');
$node->wait_stat('postgres', 'reconnects > 0 AND connected_since IS NOT NULL');
send_one('after a reconnect the changed password is used');
is($node->drainer_pid('postgres'), $pid, 'by the same drainer');

# A file that others can read, or that has nothing for this broker, is not used, and says so without its contents.
chmod 0644, $password_file or die $!;
$broker->close_connections('rotation');
$node->wait_stat('postgres', q{last_error LIKE '%may be accessed by group or others%'});
like($node->safe_psql('postgres', 'SELECT * FROM outbox.settings_check()'),
	qr/password_file[^\n]*may be accessed by group or others/, 'settings_check() knows it beforehand');
write_password("elsewhere:*:*:*:$secret{typed}\n");
$node->wait_stat('postgres', q{last_error LIKE '%has no line for host "127.0.0.1"%user "by_file"%'});
nothing_is_shown('with a file that is of no use');
write_password("$secret{rotated}\n");
send_one('and all goes on when it is right again');

# By certificate and key, and with files that are in each other's place.
my $mutual = "amqps://localhost:$tls_port?sslrootcert=" . $authority->certificate . '&auth_mechanism=external';
$node->configure('drainer.broker_uri' => "$mutual&sslcert=$client->{cert}&sslkey=$client->{key}");
$node->wait_stat('postgres', qq{broker LIKE '%:$tls_port/%' AND connected_since IS NOT NULL});
send_one('a private key is used');
nothing_is_shown('with a private key');
for my $mistake (
	"$mutual&sslcert=$client->{cert}&sslkey=$password_file",
	"$mutual&sslcert=$client->{key}&sslkey=$client->{key}",
	"amqps://localhost:$tls_port?sslrootcert=$client->{key}")
{
	$node->configure('drainer.broker_uri' => $mistake, 'drainer.password_file' => $password_file);
	$node->wait_stat('postgres', q{last_error LIKE '%file "%" contains no %'});
	nothing_is_shown('with files that were mixed up');
}
$node->configure('drainer.broker_uri' => "amqp://by_file\@$place", 'drainer.password_file' => $client->{key});
$node->wait_stat('postgres', q{last_error LIKE '%has no line for host%'});
nothing_is_shown('with a key in the place of the password file');

# What is written to disk and sent elsewhere.
for my $command ([ 'pg_dump', 'postgres' ], ['pg_dumpall'])
{
	my ($out, $err) = run_command([ @$command[0], '-h', $node->host, '-p', $node->port, @$command[ 1 .. $#$command ] ]);
	like($out, qr/PostgreSQL database/, "$command->[0] has written a dump");
	unlike("$out$err", qr/$any_secret/, 'without a secret');
}
$node->stop;
my $log = $node->log_since(0);
like($log, qr/DEBUG:/,                  'the log is talkative');
like($log, qr/outbox_drainer: connected/, 'and tells of the drainer');
is_deeply([ grep { /$any_secret/ } split /\n/, $log ], [], 'it has no secret');
is_deeply([ grep { /$any_secret/ } split /\n/, slurp_file($broker->log_file) ], [], "nor has the broker's");

done_testing();
