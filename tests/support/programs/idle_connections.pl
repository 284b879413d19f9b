# Opens connections that send three bytes of a handshake and wait; opens another one for each that is closed.
# Arguments: HOST NUMBER PORT... To a loopback address, each connection has a loopback address of its own as its source.
# Prints a line when all are open.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

$SIG{PIPE} = 'IGNORE';
$| = 1;
my ($host, $number, @ports) = @ARGV;
my ($source, $target) = (0, 0);
my $open = IO::Select->new;

sub connect_next {
    $source++;
    my @from = $host =~ /^127\./
        ? (LocalAddr => sprintf('127.%d.%d.%d', $source / 62500 + 1, $source / 250 % 250, $source % 250 + 1))
        : ();
    my $port = $ports[$target++ % @ports];
    my $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5, @from)
        or return select undef, undef, undef, 0.01;
    syswrite $socket, "\x16\x03\x01";
    $open->add($socket);
}

connect_next() while $open->count < $number;
print "open\n";
while (1) {
    for my $closed ($open->can_read(1)) {
        $open->remove($closed);
        close $closed;
    }
    connect_next() while $open->count < $number;
}
