#!/usr/bin/env perl
# Checks the rules of the layers and of C++ inside PostgreSQL that can be seen in the text (see
# CONTRIBUTING.md). Prints one line "file:line: rule" for each breach; exit code 1 if there is one.
#
#   check-layers.pl [source directory]      default: src beside this script's directory
use strict;
use warnings;

use File::Basename qw(dirname);
use File::Find;

my $src = $ARGV[0] // dirname(__FILE__) . '/../src';
my @layers = qw(core amqp postgres worker);

# Which of our own folders a layer may include.
my %may_include = (
	core     => qr{^core/},
	amqp     => qr{^(core|amqp)/},
	postgres => qr{^(core|postgres)/},
	worker   => qr{^(core|amqp|postgres|worker)/},
);

my $amqp_header   = qr{^(amqp\w*|rabbitmq-c/.*)\.h$};
my $server_header = qr{^(postgres|fmgr|miscadmin|c)\.h$|^(utils|storage|access|catalog|libpq)/};
my $system_header = qr{\.h$|/};

# Standard headers with static initialisers, threads or input and output.
my $banned_anywhere =
  qr{^(iostream|thread|jthread|stop_token|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier)$};
my $banned_in_core = qr{^(fstream|ostream|istream|sstream|iomanip|print|filesystem|cstdio|ctime|csignal)$};

my @breaches;

sub breach
{
	my ($file, $line, $rule) = @_;
	push @breaches, [ $file, $line, $rule ];
}

# Blanks out comments, and strings except those of #include lines; keeps every line break.
sub code_of
{
	my ($text) = @_;
	my $blank = sub { (my $s = shift) =~ s/[^\n]/ /g; $s };
	$text =~ s{
		( ^[ \t]*\#[ \t]*include[^\n]* )          # kept
		| ( //[^\n]* | /\*.*?\*/ )                # comments
		| ( R"(\w*)\(.*?\)\4" | "(?:\\.|[^"\\\n])*" | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+' )  # literals
	}{ defined $1 ? $1 : $blank->($2 // $3) }gxmse;
	return $text;
}

# Calls $report->(line) for each place where $pattern matches.
sub each_match
{
	my ($code, $pattern, $report) = @_;
	while ($code =~ /$pattern/g)
	{
		$report->(1 + (substr($code, 0, $-[0]) =~ tr/\n//));
	}
}

sub check_include
{
	my ($file, $line, $layer, $quoted, $name) = @_;

	breach($file, $line, "<$name> is banned: no input/output streams, no threads in the server")
	  if $name =~ $banned_anywhere;
	if ($quoted && $name =~ m{^(core|amqp|postgres|worker)/})
	{
		breach($file, $line, "$layer must not include \"$name\"") if $name !~ $may_include{$layer};
		return;
	}
	if ($layer eq 'core')
	{
		breach($file, $line, "core is pure C++: it must not include $name")
		  if $quoted || $name =~ $system_header || $name =~ $banned_in_core;
	}
	elsif ($layer eq 'amqp')
	{
		breach($file, $line, "amqp must not see PostgreSQL: it includes $name")
		  if $quoted || $name =~ $server_header;
	}
	elsif ($layer eq 'worker')
	{
		breach($file, $line, "worker sees the server only through postgres/: it includes $name")
		  if $quoted || $name =~ $server_header || $name =~ $amqp_header;
	}
	elsif ($layer eq 'postgres')
	{
		breach($file, $line, "postgres must not see the broker's client: it includes <$name>")
		  if $name =~ $amqp_header;
	}
	return;
}

sub check_includes
{
	my ($file, $layer, $code) = @_;
	my $line = 0;
	for my $text (split /\n/, $code)
	{
		$line++;
		if ($text =~ /^\s*#\s*include\s*(["<])([^">]+)[">]/)
		{
			check_include($file, $line, $layer, $1 eq '"', $2);
		}
	}
	return;
}

sub check_words
{
	my ($file, $layer, $code) = @_;
	my $guard = $file =~ m{/postgres/guard\.[hc]pp$};

	my $rule = sub {
		my ($text) = @_;
		return sub { breach($file, $_[0], $text) };
	};
	each_match($code, qr/\bthrow\b/, $rule->('no throw: results are values'));
	each_match($code, qr/\bcatch\s*\(/, $rule->('catch belongs into postgres/guard.hpp')) unless $guard;
	each_match($code, qr/\bPG_(?:RE_THROW|TRY|CATCH|FINALLY)\b/,
		$rule->('PG_TRY belongs into postgres/guard.hpp: use pg_try'))
	  unless $guard;
	each_match($code, qr/\b(?:ereport|elog|ereport_domain)\s*\(\s*(?:ERROR|FATAL|PANIC)\b/,
		$rule->('errors are raised only under postgres/'))
	  unless $layer eq 'postgres';
	each_match($code, qr/\bthread_local\b|\bstd::(?:j?thread|async|mutex|cout|cerr|clog)\b/,
		$rule->('no threads and no streams in the server'));
	if ($layer eq 'core')
	{
		each_match($code, qr/::now\s*\(|\b(?:gettimeofday|clock_gettime|GetCurrentTimestamp)\s*\(/,
			$rule->('core has no clock: time is an input'));
		each_match($code, qr/\bstd::random_device\b|\b(?:f?printf|fopen|getenv)\s*\(/,
			$rule->('core does no input or output'));
	}
	return;
}

my $files = 0;

sub check_file
{
	my ($path, $layer) = @_;
	open my $handle, '<', $path or die "$path: $!\n";
	my $code = code_of(do { local $/ = undef; <$handle> });
	close $handle;
	$files++;
	check_includes($path, $layer, $code);
	check_words($path, $layer, $code);
	return;
}

for my $layer (@layers)
{
	next unless -d "$src/$layer";
	my @paths;
	find({ no_chdir => 1, wanted => sub { push @paths, $_ if /\.(cpp|hpp|h|c)$/ } }, "$src/$layer");
	check_file($_, $layer) for sort @paths;
}
die "check-layers: no sources under $src\n" unless $files;

printf "%s:%d: %s\n", @$_ for @breaches;
printf "check-layers: %d files, %d breaches\n", $files, scalar @breaches;
exit(@breaches ? 1 : 0);
