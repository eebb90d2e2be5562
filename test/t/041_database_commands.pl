# Commands that need a database for themselves are not held up by its drainer: it steps aside and comes back.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $node   = OutboxDrainer::Cluster->new_node('main', broker => $broker);
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop',     'CREATE EXTENSION outbox_drainer');
$node->create_ledger('shop');
$node->drainer_pid('shop');

$node->safe_psql('postgres', 'ALTER DATABASE shop RENAME TO store');
pass('a drained database can be renamed');
$node->drainer_pid('store');
$node->safe_psql('store', q{SELECT emit('renamed')});
$node->wait_drained('store');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'and is drained under its new name');

$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE store');
pass('a drained database can be a template');
$node->safe_psql('copy', q{SELECT emit('copied')});
$node->wait_drained('copy');
is(scalar @{ $broker->consume('q', count => 1) }, 1, 'and the copy is drained too, its new event only');
$node->drainer_pid('store');

my ($status, undef, $stderr) = $node->psql('postgres', q{CREATE ROLE stranger; SET ROLE stranger; DROP DATABASE store});
isnt($status, 0, 'a stranger cannot drop the database');
like($stderr, qr/must be owner of database/, 'for the usual reason');
ok($node->stat('store', 'pid') > 0, 'and the drainer went on meanwhile');

# Unconfirmed messages on a connection that does not answer; the exchange is known to it.
$node->safe_psql('store', q{SELECT emit('answered')});
$node->wait_drained('store');
$node->wait_for_state('store', 'idle');
$broker->freeze;
$node->safe_psql('store', q{SELECT emit('unanswered')});
$node->wait_stat('store', 'in_flight = 1');
$node->safe_psql('postgres', 'DROP DATABASE store');
pass('a drained database can be dropped while the broker is frozen');
$broker->thaw;

done_testing();
