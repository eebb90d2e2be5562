# With mandatory on, the broker gives back what no queue takes, and acknowledges it all the same. Each returned
# message is charged to its own event: bodies are all the same, and messages between them are nacked or close
# their channel, so that only the ids can tell.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $rounds = 100;
my $broker = OutboxDrainer::Cluster->start_broker(binding => 'bound.#');
# It has room for none, and says so by nack.
$broker->declare(exchange => 'events', queue => 'full', binding => 'full.#',
	arguments => { 'x-max-length' => 0, 'x-overflow' => 'reject-publish' });
my $node = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.enabled'                  => 'off',
		'drainer.mandatory'                => 'on',
		'drainer.max_attempts'             => 0,
		'drainer.retry_backoff_initial'    => '500ms',
		'drainer.retry_backoff_multiplier' => 1,
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');

# Two sources use the same ids: what is returned is told apart by both.
$node->safe_psql('postgres', <<"SQL");
INSERT INTO outbox.event (source, event_type, message_id, reply_to, payload)
SELECT source, kind || '.event', CASE WHEN source LIKE 'named%' THEN kind || ' ' || i END,
	CASE kind WHEN 'closing' THEN 'amq.rabbitmq.reply-to' END, 'the same body'
FROM generate_series(1, $rounds) i,
	unnest('{bound,nowhere,full,bound,closing}'::text[]) WITH ORDINALITY AS k(kind, n),
	unnest('{unnamed,named 1,named 2}'::text[]) WITH ORDINALITY AS s(source, m)
WHERE (kind <> 'closing' OR i % 25 = 0 AND m = 1) AND (n < 4 OR kind = 'closing' OR m = 1)
ORDER BY i, m, n;
-- Of one id, one event can be routed and the other cannot.
INSERT INTO outbox.event (source, event_type, message_id, payload)
SELECT 'twin ' || m, (CASE WHEN (i + m) % 2 = 0 THEN 'bound' ELSE 'nowhere' END) || '.event', 'twin ' || i, 'the same body'
FROM generate_series(1, $rounds) i, generate_series(1, 2) m ORDER BY i, m;
SQL
my $count = sub { return $node->safe_psql('postgres', "SELECT count(*) FROM outbox.event WHERE $_[0]"); };
my %number = map { $_ => $count->("event_type = '$_.event'") } qw(bound nowhere full closing);

$node->configure('drainer.enabled' => undef);
$node->wait_query('postgres', q{SELECT bool_and(attempts >= 2) FROM outbox.event WHERE event_type <> 'bound.event'},
	'all that cannot be delivered has been tried twice');
$node->wait_query('postgres', q{SELECT bool_and(published_at IS NOT NULL) FROM outbox.event WHERE event_type = 'bound.event'},
	'all that can be is published');
is($count->(q{event_type = 'bound.event' AND attempts > 0}), '0', 'what could be delivered is not charged');
is($count->(q{event_type <> 'bound.event' AND published_at IS NOT NULL}), '0', 'what could not be is not published');

# An attempt may be under way, but what the last one came to stays.
my %error = (nowhere => 'unroutable: %NO_ROUTE%', full => 'nack%', closing => 'poison: 406 %');
for my $kind (sort keys %error)
{
	is($count->("event_type = '$kind.event' AND last_error LIKE '$error{$kind}'"), $number{$kind}, "$kind: each is charged for what became of itself");
}
$node->wait_stat('postgres', 'published = ' . $number{bound});

my $messages = $broker->consume('q', count => $number{bound});
my %seen;
$seen{"$_->{properties}{app_id} $_->{properties}{message_id}"}++ for @$messages;
is(keys %seen, $number{bound}, 'each event that a queue takes arrives');
is((grep { $_->{routing_key} ne 'bound.event' } @$messages), 0, 'and nothing else');

# Somebody wants the others now.
$broker->declare(exchange => 'events', queue => 'late', binding => 'nowhere.#');
$node->wait_query('postgres', q{SELECT bool_and(published_at IS NOT NULL) FROM outbox.event WHERE event_type = 'nowhere.event'},
	'what was returned is published when a queue takes it');
%seen = ();
$seen{"$_->{properties}{app_id} $_->{properties}{message_id}"}++ for @{ $broker->consume('late', count => $number{nowhere}) };
is(keys %seen, $number{nowhere}, 'and arrives');

done_testing();
