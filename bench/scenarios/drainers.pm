package OutboxBench::Scenario::drainers;

# One, two and four drainers on one relay drain the same backlog: a hundred thousand keys in order, and events without a
# key, into a classic queue and into an exchange without a queue. On two cores more drainers cannot be faster by much;
# they must not be slower. "Not slower" is a bar of 0.95 here: two runs of the same differ by that much.
#
# Of 50,000 events into the queue, as there are twelve cases; of twice as many where there is none, as shorter runs show
# starts and ends more than the rate. What a broker does first is slower, so something is drained before.

use strict;
use warnings;

use OutboxBench::Stats qw(median);

sub title { return 'Several drainers on one relay'; }

my @kinds = (
	{ name => '100,000 keys, classic queue', key => q{'key ' || i % 100000}, queue => 1, count => 50_000 },
	{ name => 'no key, classic queue',       key => 'NULL',                  queue => 1, count => 50_000 },
	{ name => '100,000 keys, no queue',      key => q{'key ' || i % 100000}, queue => 0, count => 100_000 },
	{ name => 'no key, no queue',            key => 'NULL',                  queue => 0, count => 100_000 },
);
my @drainers = (1, 2, 4);

sub run
{
	my ($bench) = @_;
	my (%rates, %plot);
	for my $round (1 .. $bench->repeats)
	{
		# A server and a broker for each number, as the number takes a restart.
		for my $drainers ($round % 2 ? @drainers : reverse @drainers)
		{
			my $broker = $bench->broker;
			my $server = $bench->server(
				broker   => $broker,
				settings => { 'outbox_drainer.workers_per_database' => $drainers });
			measure($broker, $server, 20_000, $kinds[0], $drainers);
			for my $kind (@kinds)
			{
				push @{ $rates{ $kind->{name} }{$drainers} }, measure($broker, $server, $bench->scaled($kind->{count}, 20_000), $kind, $drainers);
			}
			$bench->say("$drainers drainers: " . join ', ',
				map { sprintf '%s %.0f events/s', $_->{name}, $rates{ $_->{name} }{$drainers}[-1] } @kinds);
			$server->discard;
			$broker->stop;
		}
	}
	for my $kind (@kinds)
	{
		my $found = $rates{ $kind->{name} };
		$bench->compare("$_ drainers, $kind->{name}", figure => $found->{$_}, unit => 'events/s', baseline => $found->{1},
			against => 'one drainer', bar => '>= 0.95')
		  for grep { $_ > 1 } @drainers;
		$plot{ $kind->{name} } = [ map { [ $_, median(@{ $found->{$_} }) ] } @drainers ];
	}
	$bench->series('drainers', title => 'Drain rate by number of drainers', x => 'drainers', y => 'events/s', lines => \%plot);
	return;
}

sub measure
{
	my ($broker, $server, $count, $kind, $drainers) = @_;
	$broker->declare(exchange => 'events', queue => 'q', binding => '#') if $kind->{queue};
	$server->publishing(0);
	$server->execute('TRUNCATE outbox.event');
	$server->insert($count, key => $kind->{key});
	$server->execute('CHECKPOINT');
	my $rate = $count / $server->drain($count);
	my ($sent, $by) = split /\|/, $server->query('SELECT (SELECT count(*) FROM outbox.event WHERE published_at IS NOT NULL),'
		  . ' (SELECT count(*) FROM outbox.stat_drainer WHERE published > 0)');
	die "$sent of $count events are published\n" unless $sent == $count;
	die "$by of $drainers drainers took part\n" unless $by == $drainers;
	$broker->delete(queue => 'q') if $kind->{queue};
	return $rate;
}

1;
