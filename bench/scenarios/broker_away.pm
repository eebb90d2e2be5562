package OutboxBench::Scenario::broker_away;

# The broker is away for two minutes while producers go on at 0.3 of the drain rate. From the moment that the drainer is
# connected again, the backlog is to be gone in the time that it needs at the drain rate, less what is inserted
# meanwhile: backlog / (drain rate - insert rate).
#
# The drain rate is measured in the same run and with the same producers beside, before the outage and after it: the relay is
# paused until a backlog is there, then resumed, and what is published until the backlog is gone is counted. A broker
# that was restarted with some hundred thousand messages in its queue takes more of them slower than before, whoever brings
# them; so a reconnected drainer is compared with one that stayed connected to the same broker. How long the drainer takes to notice the broker's return is reported by itself:
# its attempts are up to 30 s apart by then, and a broker with a long backlog is not helped by being hurried.
#
# One repetition, as it takes six minutes.

use strict;
use warnings;

use File::Temp ();
use List::Util qw(max);
use Time::HiRes qw(sleep time);

sub title { return 'The broker is away while producers go on'; }

# An event is inserted ten at a time: the producers are to load the machine as little as they can.
my $events_at_once = 10;
# Steady again when no more is queued than half a second of inserts.
my $steady_seconds = 0.5;

sub run
{
	my ($bench) = @_;
	my $away   = $bench->is_quick ? 15 : 120;
	my $paused = $bench->is_quick ? 10 : 40;
	my $broker = $bench->broker;
	$broker->declare(exchange => 'events', queue => 'q', binding => '#');
	my $server = $bench->server(broker => $broker);
	my $watch  = OutboxBench::Scenario::broker_away::Watch->new($server);

	# Alone first, for the rate of the producers; twice, as what a broker does first is slower.
	my $count = $bench->scaled(100_000, 20_000);
	my $alone;
	for my $turn (1, 2)
	{
		$server->publishing(0);
		$server->insert($count, key => "'key ' || i % 100000");
		$server->execute('CHECKPOINT');
		$alone = $count / $server->drain($count);
	}
	$server->publishing(1);
	my $wanted = int 0.3 * $alone;
	$bench->say(sprintf 'the drainer alone: %.0f events/s; the producers insert %d', $alone, $wanted);

	my $producers = start_producers($server, $wanted / $events_at_once, 4 * $paused + 2 * $away + 120);
	my $before = after_a_pause($bench, $server, $watch, $wanted, $paused);

	sleep 2;
	$watch->{samples} = [];
	$watch->{zero}    = time;
	$watch->look;
	$broker->stop;
	my $until = time + $away;
	while (time < $until) { $watch->look; sleep 0.5; }
	my $back;
	my $outage = catch_up($watch, $wanted, sub { $broker->start; $back = time; });
	$bench->say(sprintf 'after the outage: connected %.1f s after the broker was back, backlog %d, gone in %.1f s',
		$outage->{began} - $back, @$outage{qw(backlog seconds)});
	for (1 .. 5) { $watch->look; sleep 1; }
	my @samples = @{ $watch->{samples} };
	my $after = after_a_pause($bench, $server, $watch, $wanted, $paused);
	finish_producers($producers);

	$server->wait_for(q{state = 'idle'});
	my ($rows, $sent) = split /\|/, $server->query(
		'SELECT count(*), count(*) FILTER (WHERE published_at IS NOT NULL) FROM outbox.event');
	my $queued = $broker->queue_length('q');
	die "of $rows events $sent are published and $queued queued\n" unless $sent == $rows && $queued >= $rows;

	my $expected = $outage->{backlog} / ($after->{drain} - $outage->{insert});
	$bench->compare('back to steady', figure => [ $outage->{seconds} ], unit => 's', baseline => [$expected],
		against => 'backlog / (drain rate - insert rate)', bar => '<= 1.2');
	$bench->figure('the broker is noticed', figure => [ max(0, $outage->{began} - $back) ], unit => 's after its return',
		bar => '<= 31');
	$bench->figure('drain rate', figure => [ $_->[0]{drain} ], unit => "events/s $_->[1] the outage")
	  for [ $before, 'before' ], [ $after, 'after' ];
	$bench->series('broker_away', title => "Backlog while the broker is away for $away s", x => 'seconds', y => 'events',
		style => 'lines', lines => { backlog => \@samples });
	$server->discard;
	$broker->stop;
	return;
}

sub after_a_pause
{
	my ($bench, $server, $watch, $rate, $seconds) = @_;
	$server->query('SELECT outbox.pause()');
	sleep $seconds;
	my $reference = catch_up($watch, $rate, sub { $server->query('SELECT outbox.resume()') });
	$bench->say(sprintf 'after a pause: backlog %d, gone in %.1f s; drain rate %.0f events/s beside %.0f inserted',
		@$reference{qw(backlog seconds drain insert)});
	return $reference;
}

# Lets the drainer go, and watches from its first publish until the backlog is no more than the producers make in a moment.
sub catch_up
{
	my ($watch, $rate, $go) = @_;
	my $published = $watch->look->{published};
	$go->();
	my $begin = $watch->look;
	while ($begin->{published} <= $published)
	{
		sleep 0.1;
		$begin = $watch->look;
	}
	my $end = $begin;
	while ($end->{inserted} - $end->{published} > $rate * $steady_seconds)
	{
		die "the backlog does not go: $end->{inserted} inserted, $end->{published} published\n"
		  if $end->{at} > $begin->{at} + 600;
		sleep 0.1;
		$end = $watch->look;
	}
	my $seconds = $end->{at} - $begin->{at};
	return {
		began   => $begin->{at},
		backlog => $begin->{inserted} - $begin->{published},
		seconds => $seconds,
		drain   => ($end->{published} - $begin->{published}) / $seconds,
		insert  => ($end->{inserted} - $begin->{inserted}) / $seconds,
	};
}

sub start_producers
{
	my ($server, $transactions, $seconds) = @_;
	my $script = File::Temp->new(SUFFIX => '.sql');
	print $script q{INSERT INTO outbox.event (event_type, key, payload) SELECT 'order.placed', 'key ' || (random() * 100000)::int,}
	  . " convert_to(rpad('', 512, 'x'), 'UTF8') FROM generate_series(1, $events_at_once);\n";
	close $script or die "could not write the script: $!\n";
	my $pid = fork // die "could not fork: $!\n";
	if (!$pid)
	{
		%ENV = (%ENV, $server->environment);
		open STDOUT, '>', "$script.log";
		open STDERR, '>&', \*STDOUT;
		exec 'setpriv', '--pdeathsig', 'KILL', '--', 'pgbench', '-n', '-f', "$script", '-c', 4, '-j', 1, '-R', $transactions, '-T',
		  int $seconds
		  or POSIX::_exit(127);
	}
	return { pid => $pid, script => $script };
}

sub finish_producers
{
	my ($producers) = @_;
	kill 'TERM', $producers->{pid};
	waitpid $producers->{pid}, 0;
	unlink "$producers->{script}.log";
	return;
}

# How many events were drawn and published: by the sequence and the drainer's counters, which cost nothing to read.
package OutboxBench::Scenario::broker_away::Watch;

use Time::HiRes qw(time);

sub new
{
	my ($class, $server) = @_;
	return bless { server => $server, zero => time, samples => [] }, $class;
}

sub look
{
	my ($self) = @_;
	my ($inserted, $published) = split /\|/, $self->{server}->query(
		'SELECT (SELECT last_value FROM outbox.event_seq), (SELECT sum(published) FROM outbox.stat_drainer)');
	my $at = time;
	push @{ $self->{samples} }, [ sprintf('%.2f', $at - $self->{zero}), $inserted - $published ];
	return { at => $at, inserted => $inserted, published => $published };
}

1;
