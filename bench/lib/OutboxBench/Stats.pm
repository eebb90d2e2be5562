package OutboxBench::Stats;

# Medians and spreads of a few repeated figures.

use strict;
use warnings;

use Exporter qw(import);
our @EXPORT_OK = qw(median spread ratios percentile);

sub percentile
{
	my ($share, @values) = @_;
	my @sorted = sort { $a <=> $b } @values;
	return @sorted ? $sorted[ int($share * $#sorted + 0.5) ] : undef;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return undef unless @sorted;
	my $half = int @sorted / 2;
	return @sorted % 2 ? $sorted[$half] : ($sorted[ $half - 1 ] + $sorted[$half]) / 2;
}

# { median, min, max, n }
sub spread
{
	my @sorted = sort { $a <=> $b } @_;
	return { median => median(@sorted), min => $sorted[0], max => $sorted[-1], n => scalar @sorted };
}

# Of figures that were taken in pairs: the ratio of each pair.
sub ratios
{
	my ($figures, $baseline) = @_;
	return map { $figures->[$_] / $baseline->[$_] } 0 .. $#$figures;
}

1;
