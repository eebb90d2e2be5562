# The claim's rule under concurrent producers: a drainer that follows it takes every event once and in the order
# of its key; one that breaks the rule in a single step does not. What drains is test/late_commits, the product's
# lane, writers, statements and transactions with that one step exchangeable.

use strict;
use warnings;

use File::Basename qw(dirname);
use OutboxDrainer::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $dir = dirname(__FILE__) . '/../late_commits';

# A wrong variant gets so many rounds until it shows.
my $seconds  = 4;
my $rounds   = $ENV{OUTBOX_TEST_LONG} ? 10 : 1;
my $attempts = 5;
# The longest of the random pauses, in microseconds: shorter than the slow producers' transactions.
my $pause = 3000;

# Weights of the producers' scripts.
my %mixed = (
	slow => 10, fast => 8, savepoint => 4, abort => 2, two_phase => 4, two_events => 4, own_number => 4, burst => 1);
# One event in a transaction, so that an order that breaks is one between transactions.
my %single = (slow => 5, fast => 6, two_phase => 2);
my %quick  = (slow => 4, fast => 10, two_phase => 1);
my %own    = (slow => 4, fast => 4, own_number => 8);

my $node = OutboxDrainer::Cluster->new_node(
	'main',
	preload  => 0,
	settings => { max_prepared_transactions => 50, autovacuum => 'off', synchronous_commit => 'off' });
$node->safe_psql('postgres', PostgreSQL::Test::Utils::slurp_file("$dir/schema.sql"));

# Lets producers and a drainer of the variant run side by side; returns what became of the events.
sub play_round
{
	my ($variant, %how) = @_;
	my %mix = %{ $how{mix} // \%mixed };
	my $keys = $how{keys} // 10;
	$node->safe_psql('postgres', "CALL late_commits.reset($keys)");
	my $pauses = join ', ', map { $how{$_} // 0 } qw(before_snapshot after_snapshot before_writers);
	my $pid = $node->safe_psql('postgres', "SELECT late_commits.start('$variant', $pauses)");
	my $output = '';
	{
		local $ENV{PGOPTIONS} = '-c session_preload_libraries=late_commits';
		$ENV{PGOPTIONS} .= " -c late_commits.commit_delay=$how{commit_delay} -c late_commits.commit_delay_percent=30"
		  if $how{commit_delay};
		PostgreSQL::Test::Utils::run_log(
			[
				'pgbench', '-n', '-c', $how{clients} // 14, '-j', 1, '-T', $seconds, '-D', "keys=$keys",
				map({ ('-f', "$dir/producers/$_.sql\@$mix{$_}") } sort keys %mix), $node->connstr('postgres')
			],
			'>&', \$output) or die "pgbench failed:\n$output";
	}
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	$node->wait_query('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)",
		'the drainer has come to its end');
	my @names = qw(events lost twice disorder unwritten passes in_gaps cut_short most_ranges);
	my %result;
	@result{@names} = split /\|/, $node->safe_psql('postgres', 'SELECT v.*, r.* FROM late_commits.verdict v, late_commits.run r');
	die "the drainer ended early; its reason is in the server's log\n" unless defined $result{passes};
	note join ', ', $variant, map { "$_ $result{$_}" } @names;
	return \%result;
}

# The right variant: no fault of any kind.
sub holds
{
	my ($name, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($events, $in_gaps, $faults, $unwritten) = (0, 0, 0, 0);
	for (1 .. $rounds)
	{
		my $result = play_round('correct', %how);
		$events    += $result->{events};
		$in_gaps   += $result->{in_gaps};
		$faults    += $result->{lost} + $result->{twice} + $result->{disorder};
		$unwritten += abs $result->{unwritten};
	}
	is($faults, 0, $name);
	is($unwritten, 0, 'the ledger agrees with the events');
	cmp_ok($in_gaps, '>', 0, 'some committed late');
	note "$events events, $in_gaps of them late";
	return;
}

# A wrong variant: there are faults of the kind. The long variant says how sure that is.
sub breaks
{
	my ($variant, $kind, $name, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($events, $faults, $failed, $played) = (0, 0, 0, 0);
	while ($played < $rounds || ($failed == 0 && $played < $attempts))
	{
		my $result = play_round($variant, %how);
		$events += $result->{events};
		$faults += $result->{$kind};
		$failed++ if $result->{$kind};
		$played++;
	}
	cmp_ok($failed, '>', 0, $name);
	note "$failed of $played rounds failed; $kind: $faults of $events events";
	return;
}

holds('nothing is lost, taken twice or out of order');
holds(
	'nor with time to spare in every window',
	before_snapshot => $pause,
	after_snapshot  => $pause,
	before_writers  => $pause,
	commit_delay    => $pause);

breaks('fresh_before_gaps', disorder => 'fresh events before late ones: the order breaks', mix => \%single);
breaks(
	'check_before_snapshot_only',
	disorder        => 'who has ended is not asked again after the snapshot: the order breaks',
	mix             => \%single,
	before_snapshot => $pause);
breaks('table_lock', lost => 'the lock of the table instead of that of the sequence: events are lost', mix => \%own);
breaks('no_ranges', lost => 'numbers behind the cursor are forgotten: events are lost', mix => \%single);
breaks(
	'drop_all_ended',
	lost           => 'who ended after the snapshot is dropped: events are lost',
	mix            => \%single,
	after_snapshot => $pause);
breaks(
	'ended_means_lock_gone',
	disorder     => 'locks are taken for visibility: the order breaks',
	mix          => \%quick,
	keys         => 5,
	commit_delay => $pause);
breaks(
	'no_scan_of_newborn',
	disorder       => 'a range is not scanned once more after its birth: the order breaks',
	mix            => \%single,
	after_snapshot => $pause,
	before_writers => $pause);

done_testing();
