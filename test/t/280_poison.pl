# The broker cannot take one thousand of the events: some close the channel under their neighbours, in several
# ways, others are refused by themselves. Each of them ends as it should; the twenty thousand between them arrive,
# uncharged, and few of them twice.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $kinds     = 8;
my $each      = 125;
my $good      = 20_000;
my $allowed   = 500;      # of the good ones: to the exchange that refuses others for their routing key
my $depth     = 500;
my $max_bytes = 20_000;

my $broker = OutboxDrainer::Cluster->new_broker(config => "max_message_size = $max_bytes");
$broker->start;
$broker->declare(exchange => 'events', queue => 'q');
$broker->declare(exchange => 'picky',  queue => 'q');
$broker->declare(exchange => 'narrow', queue => 'full', arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });
$broker->declare(exchange => 'inner',  internal => 1);
$broker->declare(exchange => $_) for qw(secret deserted);

# A user who may not write everywhere.
$broker->add_user('drainer', 'drainer');
$broker->ctl('set_permissions', 'drainer', '^$', '^(?!secret)', '^$');
$broker->ctl('set_topic_permissions', 'drainer', 'picky', '^allowed\.', '^$');

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	settings => {
		'drainer.broker_uri'               => $broker->uri('drainer', 'drainer'),
		'drainer.pipeline_depth'           => $depth,
		'drainer.mandatory'                => 'on',
		'drainer.max_attempts'             => 3,
		'drainer.retry_backoff_initial'    => '100ms',
		'drainer.retry_backoff_multiplier' => 1,
		'drainer.enabled'                  => 'off',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');

# Each kind: how its events differ from good ones.
my %kind = (
	missing   => q{destination => 'missing'},
	internal  => q{destination => 'inner'},
	forbidden => q{destination => 'secret'},
	topic     => q{destination => 'picky', routing_key => 'denied.' || i},
	large     => qq{payload => convert_to(repeat('x', $max_bytes + 1), 'UTF8')},
	# It is answered by a close that says nothing of whose fault it is.
	reply_to => q{reply_to => 'amq.rabbitmq.reply-to'},
	full     => q{destination => 'narrow'},
	deserted => q{destination => 'deserted'},
);
is(keys %kind, $kinds, "there are $kinds kinds");

# Poison comes every so many events, each time another kind, and shares the keys of the good ones.
my $every  = $good / ($kinds * $each);
my @names  = sort keys %kind;
my $insert = join "\n", map {
	my $payload = $kind{ $names[$_] } =~ /payload/ ? '' : q{payload => 'x'::bytea,};
	qq{WHEN $_ THEN PERFORM outbox.enqueue(event_type => '$names[$_]', source => 'poison', key => 'key ' || i / $every * 13 % 400, $payload $kind{$names[$_]});}
} 0 .. $#names;
$node->safe_psql('postgres', <<"SQL");
DO \$\$
BEGIN
	FOR i IN 1 .. $good LOOP
		IF i % ($good / $allowed) = 0 THEN
			PERFORM outbox.enqueue(event_type => 'allowed.' || i, payload => 'y'::bytea, source => 'allowed', key => 'key ' || i % 400,
				destination => 'picky');
		ELSE
			PERFORM emit('key ' || i % 400);
		END IF;
		IF i % $every = 0 THEN
			CASE i / $every % $kinds $insert END CASE;
		END IF;
	END LOOP;
END \$\$;
SQL
is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT event_type) FROM outbox.event WHERE source = 'poison'}),
	$kinds * $each . "|$kinds", $kinds * $each . ' events cannot be taken');

my $begun = time;
my $ends  = sub {
	return $node->safe_psql('postgres', <<'SQL');
SELECT event_type, coalesce(outcome, 'pending'), min(attempts), max(attempts), count(*) FROM outbox.event
WHERE source = 'poison' GROUP BY 1, 2 ORDER BY 1, 2
SQL
};
my %expected = map { $_ => "$_|dead|3|3|$each" } keys %kind;
$expected{large}   = "large|rejected|0|0|$each";
$expected{missing} = "missing|pending|0|0|$each";

# Whatever is not behind an event whose exchange is missing comes to its end.
$node->configure('drainer.enabled' => undef);
eval {
	$node->wait_query('postgres', <<'SQL', 'all that does not wait for the missing exchange has ended');
SELECT NOT EXISTS (SELECT FROM outbox.event WHERE dead_at IS NULL AND published_at IS NULL AND event_type <> 'missing'
	AND key NOT IN (SELECT key FROM outbox.event WHERE event_type = 'missing'))
SQL
	1;
} or do { diag($ends->()); die $@; };
note sprintf 'took %.1f s', time - $begun;
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.event WHERE source <> 'poison' AND published_at IS NULL
	AND key NOT IN (SELECT key FROM outbox.event WHERE event_type = 'missing')}), '0', 'the good ones are published');
is($node->safe_psql('postgres', q{SELECT DISTINCT last_error FROM outbox.event WHERE event_type = 'missing' AND last_error IS NOT NULL}),
	'held: exchange "missing" does not exist', 'those whose exchange is missing are held, and say so');
is($node->safe_psql('postgres', q{SELECT sum(attempts) FROM outbox.event WHERE event_type = 'missing'}), '0', 'uncharged');

# Somebody makes the exchange.
$broker->declare(exchange => 'missing', queue => 'elsewhere');
$node->wait_drained('postgres');
note sprintf 'took %.1f s in all', time - $begun;
$expected{missing} = "missing|pending|0|0|$each";
is($ends->(), join("\n", map { $expected{$_} } @names), 'each event that the broker cannot take has its end');
is($node->safe_psql('postgres', q{SELECT count(published_at) FROM outbox.event WHERE event_type = 'missing'}),
	$each, 'what was held went by itself when its exchange appeared');

my %error = (
	internal  => "poison: 403 ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'",
	forbidden => "poison: 403 ACCESS_REFUSED - access to exchange 'secret' in vhost '/' refused for user 'drainer'",
	topic     => "poison: 403 ACCESS_REFUSED - access to topic 'denied.N' in exchange 'picky' in vhost '/' refused for user 'drainer'",
	reply_to  => 'poison: 406 PRECONDITION_FAILED - fast reply consumer does not exist',
);
for my $name (sort keys %error)
{
	is( $node->safe_psql('postgres', "SELECT DISTINCT regexp_replace(last_error, 'denied.[0-9]+', 'denied.N') FROM outbox.event WHERE event_type = '$name'"),
		$error{$name}, "$name: in the broker's words");
}
like($node->safe_psql('postgres', q{SELECT DISTINCT last_error FROM outbox.event WHERE event_type = 'large'}),
	qr/^rejected: .*$max_bytes/, 'large: with the limit that the broker named');
like($node->safe_psql('postgres', q{SELECT DISTINCT last_error FROM outbox.event WHERE event_type = 'full'}), qr/^nack/, 'full: nack');
like($node->safe_psql('postgres', q{SELECT DISTINCT last_error FROM outbox.event WHERE event_type = 'deserted'}),
	qr/^unroutable: .*NO_ROUTE/, 'deserted: unroutable');
is($node->safe_psql('postgres', q{SELECT sum(attempts) FROM outbox.event WHERE source <> 'poison'}), '0', 'no good one is charged');

# What arrived.
my $messages = $broker->consume('q', count => $good);
my %of       = (ledger => [], allowed => [], poison => []);
push @{ $of{ $_->{properties}{app_id} eq 'postgres' ? 'ledger' : $_->{properties}{app_id} } }, $_ for @$messages;
my $found = $node->compare_ledger('postgres', $of{ledger});
$node->ledger_ok('postgres', $of{ledger}, 'every good event arrives',
	duplicates => 5 * $depth);
my %seen;
my $twice = grep { $seen{ $_->{properties}{message_id} }++ } @{ $of{allowed} };
is(keys %seen, $allowed, 'those to the exchange that refuses others too');
is(@{ $of{poison} }, 0, 'and nothing that the broker could not take');
is(@{ $broker->consume('elsewhere', count => $each) }, $each, 'what was held has arrived as well');
$twice += @{ $found->{duplicates} };
cmp_ok($twice, '<', 10 * $depth, "the good ones' duplicates stay under ten windows");
note "$twice duplicates of good events";

my $log = PostgreSQL::Test::Utils::slurp_file($broker->log_file);
my %closes;
$closes{$1}++ while $log =~ /caused a channel exception (\w+): (?!no exchange 'missing')/g;
note join ', ', map { "$closes{$_} closes by $_" } sort keys %closes;
my $by_size =()= $log =~ /message size \d+ is larger/g;
cmp_ok($by_size, '>=', 1, 'the size limit is the broker\'s');
my $reconnects = $node->stat('postgres', 'reconnects');
cmp_ok($by_size, '<=', 2 + $reconnects, 'and learnt from the first refusal on a connection');
# What is nacked again may go better on another one.
my @lost = PostgreSQL::Test::Utils::slurp_file($node->logfile) =~ /(?:lost connection|could not connect).*/g;
is((grep { !/refused again/ } @lost), 0, 'the connection was never lost over it') or diag(join "\n", @lost);

done_testing();
