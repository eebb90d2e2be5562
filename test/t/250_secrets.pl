# The broker's password is found nowhere: not in the server's log at its most talkative, not in settings, views,
# errors, dumps or the broker's log, whoever looks. And it can be changed without a restart.
#
# PostgreSQL's own line about a setting that a reload has changed, and the statement beside the error that it has
# caused, are no exceptions.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %secret = (
	uri     => 'uri-Secret-1a',
	file    => 'file-Secret-2b',
	rotated => 'rotated-Secret-3c',
	wrong   => 'wrong-Secret-4d',
	typed   => 'typed-Secret-5e');
my $any_secret = join '|', map { quotemeta } values %secret;

my $broker = OutboxDrainer::Cluster->start_broker;
$broker->add_user('by_uri',  $secret{uri});
$broker->add_user('by_file', $secret{file});
my $place = '127.0.0.1:' . $broker->port;

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	settings => {
		log_min_messages    => 'debug5',
		log_error_verbosity => 'verbose',
		# A server that is told to log statements logs them as they are; these hold no secrets.
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
		unlike($seen, qr/$any_secret/, "$role is shown no secret $when");
		like($seen, qr/by_uri|by_file/, 'a superuser sees the user, so the right place was looked at')
		  if $role eq 'postgres';
	}
	return;
}

send_one('a password in the URI of the configuration file is used');
nothing_is_shown('with a password in the URI');
like($node->safe_psql('postgres', 'SHOW outbox_drainer.broker_uri'), qr/by_uri:\*{4}@/, 'the URI is shown redacted');

# A reload that changes it, which PostgreSQL tells the log.
my $position = $node->log_position;
$node->configure('drainer.broker_uri' => $broker->uri('by_uri', $secret{uri}) . '?heartbeat=9');
send_one('a URI that is changed at a reload is used');
like($node->log_since($position), qr/"outbox_drainer.broker_uri" changed to "amqp:\/\/by_uri:\*{4}@/,
	'and the log says so without its password');

# Errors to whoever tries to put one elsewhere. (ALTER SYSTEM writes a configuration file, so it may, where the URI is
# right.)
for my $sql (
	"SET outbox_drainer.broker_uri = 'amqp://u:$secret{typed}\@h'",
	"SET outbox_drainer.broker_uri = 'amqp://a,amqp://u:$secret{typed}\@h'",
	"ALTER DATABASE postgres SET outbox_drainer.broker_uri = 'amqp://u:$secret{typed}\@h'",
	"ALTER ROLE somebody SET outbox_drainer.broker_uri = 'amqp://u:$secret{typed}\@h'",
	"ALTER SYSTEM SET outbox_drainer.broker_uri = 'amqp://u:$secret{typed}/\@h'",
	"ALTER SYSTEM SET outbox_drainer.broker_uri = 'amqps://u\@h?sslpassword=$secret{typed}'",
	"ALTER SYSTEM SET outbox_drainer.broker_uri = 'amqp://u:$secret{typed},x\@h'")
{
	my $err = '';
	# The server is not told to log this statement, which holds what was typed; that it fails is logged.
	my $status = $node->psql('postgres', "SET log_statement = 'none';\n$sql", stderr => \$err);
	isnt($status, 0, 'a password outside of the configuration file is refused');
	# psql repeats the line of the error; what the server said is what counts.
	$err =~ s/^(psql:.*?LINE.*|STATEMENT:.*)$//mg;
	unlike($err, qr/$secret{typed}/, 'and not repeated');
}

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

# A URI that names nobody's password, and no line of PostgreSQL about the one that it replaces.
write_password("$secret{wrong}\n");
$node->stop;
$node->write_settings('drainer.broker_uri' => "amqp://by_file\@$place", 'drainer.password_file' => $password_file);
$node->start;
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
unlike($log, qr/$any_secret/,           'it has no secret');
unlike(slurp_file($broker->log_file), qr/$any_secret/, "nor has the broker's");

done_testing();
