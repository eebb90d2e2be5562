# A role that may insert into the table, and nothing else, can write events in every way.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION outbox_drainer;
CREATE ROLE producer LOGIN;
CREATE ROLE stranger LOGIN;
GRANT INSERT ON outbox.event TO producer;
SQL

my @as_producer = (extra_params => [ '-U', 'producer' ]);
$node->safe_psql('postgres', q{INSERT INTO outbox.event (event_type, payload) VALUES ('inserted', 'x')}, @as_producer);
$node->safe_psql('postgres', q{SELECT outbox.enqueue('enqueued', '{}'::jsonb, message_id => 'once')}, @as_producer);
my ($first, $second) = map {
	$node->safe_psql('postgres', q{SELECT outbox.enqueue('enqueued', '{}'::jsonb, message_id => 'twice')}, @as_producer)
} 1 .. 2;
is($first, $second, 'enqueue of the same message id returns the first id');
my $columns = $node->safe_psql('postgres', q{SELECT string_agg(attname, ', ') FROM pg_attribute
	WHERE attrelid = 'outbox.event'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'claimed_by'});
$node->safe_psql('postgres', "CREATE ROLE modest LOGIN; GRANT INSERT ($columns) ON outbox.event TO modest");
is($node->safe_psql('postgres', q{SELECT outbox.enqueue('enqueued', '{}'::jsonb, message_id => 'twice')}, extra_params => [ '-U', 'modest' ]),
	$first, 'and for a role that may insert some columns only');
$node->safe_psql('postgres', q{COPY outbox.event (event_type, payload) FROM STDIN;
copied	x
\.
}, @as_producer);
$node->wait_drained('postgres');
my @types = sort map { $_->{properties}{type} } @{ $broker->consume('q', count => 4) };
is_deeply(\@types, [qw(copied enqueued enqueued inserted)], 'all arrive');

for my $refused (
	'SELECT * FROM outbox.event',
	'SELECT * FROM outbox.events',
	'UPDATE outbox.event SET published_at = NULL',
	'DELETE FROM outbox.event',
	'TRUNCATE outbox.event')
{
	my $err;
	isnt($node->psql('postgres', $refused, @as_producer, stderr => \$err), 0, "refused: $refused");
	like($err, qr/permission denied/, 'for want of permission');
}
for my $refused (q{INSERT INTO outbox.event (event_type, payload) VALUES ('x', 'x')}, q{SELECT outbox.enqueue('x', '{}'::jsonb)})
{
	my $err;
	isnt($node->psql('postgres', $refused, extra_params => [ '-U', 'stranger' ], stderr => \$err),
		0, "refused to somebody without a grant: $refused");
	like($err, qr/permission denied/, 'for want of permission');
}

# The drainer acts as the owner of the table, whoever that is, and runs nobody's code with more rights.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE app;
CREATE TABLE seen (who text, superuser boolean);
GRANT INSERT ON seen TO app;
ALTER TABLE outbox.event OWNER TO app;
ALTER TABLE outbox.relay_state OWNER TO app;
ALTER SEQUENCE outbox.event_seq OWNER TO app;
CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.seen SELECT current_user, usesuper FROM pg_user WHERE usename = current_user;
	INSERT INTO public.seen SELECT current_user, false WHERE NOT EXISTS (SELECT FROM pg_user WHERE usename = current_user);
	RETURN NEW;
END $$;
CREATE TRIGGER spy BEFORE UPDATE ON outbox.event FOR EACH ROW EXECUTE FUNCTION spy();
ALTER TABLE outbox.event ENABLE ALWAYS TRIGGER spy;
INSERT INTO outbox.event (event_type, payload) VALUES ('spied', 'x');
SQL
$node->wait_drained('postgres');
is($node->safe_psql('postgres', 'SELECT DISTINCT who, superuser FROM seen'),
	'app|f', q{a trigger on the table runs with its owner's rights when the drainer writes});

done_testing();
