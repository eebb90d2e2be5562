# A broker says what no broker should, or nothing at all. The connection ends with a reason that the status shows,
# nobody is charged, and when a good broker is configured all events go there.

use strict;
use warnings;

use OutboxDrainer::Cluster;
use OutboxDrainer::FakeBroker;
use Test::More;

my $broker = OutboxDrainer::Cluster->start_broker;
my $fake   = OutboxDrainer::FakeBroker->new;
my $node   = OutboxDrainer::Cluster->new_node(
	'main',
	broker   => $broker,
	settings => {
		'drainer.pipeline_depth'  => 20,
		'drainer.confirm_timeout' => '2s',
		'drainer.connect_timeout' => '2s',
		'drainer.lease_ttl'       => '10h',
	});
$node->safe_psql('postgres', 'CREATE EXTENSION outbox_drainer');
$node->create_ledger('postgres');
$node->wait_for_state('postgres', 'idle');

# Has the drainer speak with the strange broker and waits for the reason that it gives.
sub breaks_off
{
	my ($name, $error, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	note $name;
	$fake->behave;
	$how{before}->() if $how{before};
	$node->safe_psql('postgres', 'TRUNCATE ledger, aggregate; SELECT outbox.pause()');
	$node->safe_psql('postgres', 'SELECT emit_many(50, 50)');
	my $since = $node->stat('postgres', q{coalesce(last_error_at, '-infinity')});
	$node->configure('drainer.broker_uri' => $how{uri} // $fake->uri);
	$node->safe_psql('postgres', 'SELECT outbox.resume()');
	if ($how{during})
	{
		# A whole window, or less of it after a close that may have been the fault of a message.
		$fake->wait_published(1);
		$how{during}->();
	}
	$node->wait_stat('postgres', "last_error_at > '$since' AND last_error ~ '$error'");
	pass("$name: the status says so");
	note $node->stat('postgres', 'last_error');

	$node->configure('drainer.broker_uri' => $broker->uri);
	$node->wait_drained('postgres');
	$node->ledger_ok('postgres', $broker->consume('q', count => 50), "$name: every event goes to a good broker, once");
	is($node->safe_psql('postgres', 'SELECT sum(attempts), count(claimed_by) FROM outbox.event'),
		'0|0', "$name: nobody is charged, no row is left claimed");
	return;
}

sub says { my @what = @_; return sub { $fake->send(@what) } }
sub sends { my ($bytes) = @_; return sub { $fake->send_bytes($bytes) } }

my %by_publish = (class_id => 60, method_id => 40);
my %by_nobody  = (class_id => 0,  method_id => 0);
my $frame_end  = "\xCE";

breaks_off('the broker is shut down', 'CONNECTION_FORCED',
	during => says(0, 'connection.close', { reply_code => 320, reply_text => 'CONNECTION_FORCED - shutdown', %by_nobody }));
breaks_off('the broker has an internal error', 'INTERNAL_ERROR',
	during => says(0, 'connection.close', { reply_code => 541, reply_text => 'INTERNAL_ERROR', %by_publish }));
breaks_off('a channel is closed for no reason that AMQP knows', '999 BECAUSE',
	during => says(1, 'channel.close', { reply_code => 999, reply_text => 'BECAUSE', %by_nobody }));
breaks_off('a channel is closed with the code of a success', '200 OK',
	during => says(1, 'channel.close', { reply_code => 200, reply_text => 'OK', %by_publish }));
breaks_off('a confirm of what was not sent', 'delivery tag 99, which is not open',
	during => says(1, 'basic.ack', { delivery_tag => 99 }));
breaks_off('a refusal of what was not sent', 'delivery tag 99, which is not open',
	during => says(1, 'basic.nack', { delivery_tag => 99, multiple => JSON::PP::true }));
breaks_off('a confirm on a channel that nobody opened', 'channel 77',
	during => says(77, 'basic.ack', { delivery_tag => 1 }));
breaks_off('an answer that nobody asked for', 'queue',
	during => says(1, 'queue.declare-ok', { queue => 'x', message_count => 0, consumer_count => 0 }));
breaks_off('the end without a word', 'broker closed the connection', during => sub { $fake->close });
breaks_off('a reset', 'connection lost', during => sub { $fake->reset });

breaks_off('garbage', 'frame', during => sends("HTTP/1.1 400 Bad Request\r\n\r\n"));
breaks_off('a frame that is too large', 'frame', during => sends(pack 'CnN', 1, 1, 0x7fffffff));
breaks_off('a frame that does not end where it says', 'frame', during => sends(pack('CnN', 8, 0, 0) . "\x00"));
breaks_off('a frame of a type that there is not', 'frame', during => sends(pack('CnN', 5, 1, 0) . $frame_end));
breaks_off('a method that there is not', 'unexpected method 60.999', during => sends(pack('CnNnn', 1, 1, 4, 60, 999) . $frame_end));
breaks_off('half a frame', 'middle of a frame',
	during => sub { $fake->send_bytes(pack 'CnN', 1, 1, 13); $fake->close });

breaks_off('no greeting', q{waiting for the broker''s greeting}, before => sub { $fake->deaf });
breaks_off('no answer to the login', 'logging in', before => sub { $fake->reply('connection.start-ok') });
breaks_off('no answer to the opening', 'opening virtual host', before => sub { $fake->reply('connection.open') });
breaks_off('no answer to channels', 'opening channels',
	before => sub { $fake->reply($_) for qw(channel.open confirm.select) });
breaks_off('answers are left out', 'unexpected confirm.select-ok', before => sub { $fake->reply('channel.open') });
breaks_off('no answer to confirm.select', 'opening channels', before => sub { $fake->reply('confirm.select') });
breaks_off('a channel that is closed when it is opened', 'RESOURCE_ERROR',
	before => sub {
		$fake->reply('channel.open', 'channel.close', { reply_code => 506, reply_text => 'RESOURCE_ERROR', %by_nobody });
	});
breaks_off('too few channels', 'channel_max', before => sub { $fake->tune(2, 131072, 60) });
breaks_off('frames that are too small', 'frames of 100 bytes', before => sub { $fake->tune(2047, 100, 60) });
breaks_off('no answer about the exchange', '^no answer from the broker', before => sub { $fake->reply('exchange.declare') });
breaks_off('silence in the TLS handshake', 'in the TLS handshake',
	before => sub { $fake->deaf },
	uri    => $fake->uri =~ s/^amqp/amqps/r . '?sslmode=require');

done_testing();
