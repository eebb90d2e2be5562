# Whatever dies, and wherever in its cycle the drainer is at that moment: all events arrive, nobody is charged, and
# nobody has to help. Runs some of the cells of phases and faults, with OUTBOX_TEST_LONG all of them three times.
# OUTBOX_TEST_SEED chooses the same cells again, OUTBOX_TEST_CELL=D5:kill... runs those whose name matches.

use strict;
use warnings;

use List::Util qw(shuffle);
use OutboxDrainer::CrashMatrix;
use Test::More;

my @phases = @OutboxDrainer::CrashMatrix::phases;
my @faults = @OutboxDrainer::CrashMatrix::faults;
my @all    = map { my $phase = $_; map { [ $phase, $_ ] } @faults } @phases;

# Each phase twice, each fault at least twice; those that take longest not more often.
my %times = (
	'drainer killed'     => 4,
	'drainer terminated' => 3,
	'statement canceled' => 3,
	'immediate stop'     => 3,
	'fast stop'          => 3);

sub choose
{
	while (1)
	{
		my @chosen = shuffle(map { ($_) x ($times{$_} // 2) } @faults);
		my %cells  = map { ("$phases[$_ % @phases] $chosen[$_]" => [ $phases[ $_ % @phases ], $chosen[$_] ]) } 0 .. $#chosen;
		return map { $cells{$_} } sort keys %cells if keys %cells == 2 * @phases;
	}
}

my $seed = $ENV{OUTBOX_TEST_SEED} // int rand 1_000_000;
srand $seed;
note "seed $seed";
my @cells = $ENV{OUTBOX_TEST_LONG} ? (@all) x 3 : choose();
@cells = grep { "@$_" =~ /$ENV{OUTBOX_TEST_CELL}/ } @all if defined $ENV{OUTBOX_TEST_CELL};

my $matrix = OutboxDrainer::CrashMatrix->new;
$matrix->cell(@$_) for @cells;
diag $matrix->summary . ", seed $seed";

done_testing();
