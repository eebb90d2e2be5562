package OutboxBench::Session;

=pod

=head1 NAME

OutboxBench::Session - a session that stays

=head1 SYNOPSIS

  my $session = OutboxBench::Session->new($server);
  my ($count) = $session->query('SELECT count(*) FROM outbox.event');
  $session->send('INSERT ...');     # others work meanwhile
  $session->receive;
  $session->close;

=head1 DESCRIPTION

For samples that must cost little, for transactions that stay open, and for several statements at once.
An error ends the session, and the scenario with it.

=cut

use strict;
use warnings;

use Carp;
use IPC::Open2 qw(open2);

my $end = 'end of the answer';

sub new
{
	my ($class, $server) = @_;
	local %ENV = (%ENV, $server->environment);
	my $pid = open2(my $from, my $to, 'psql', '-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1');
	return bless { pid => $pid, from => $from, to => $to }, $class;
}

sub send
{
	my ($self, $sql) = @_;
	local $SIG{PIPE} = 'IGNORE';
	print { $self->{to} } "$sql;\n\\echo $end\n";
	$self->{to}->flush;
	return;
}

sub receive
{
	my ($self) = @_;
	my $from = $self->{from};
	my @rows;
	while (defined(my $row = <$from>))
	{
		chomp $row;
		return wantarray ? @rows : $rows[0] if $row eq $end;
		push @rows, $row;
	}
	croak 'a session ended';
}

sub query { my ($self, $sql) = @_; $self->send($sql); return $self->receive; }

sub close
{
	my ($self) = @_;
	return unless $self->{pid};
	close $self->{to};
	close $self->{from};
	waitpid delete $self->{pid}, 0;
	return;
}

sub DESTROY { my ($self) = @_; local $?; $self->close; return; }

1;
