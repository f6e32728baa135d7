#!/usr/bin/perl
# Stands in for memcached in memcached's own tests. It passes its arguments on; but if $GATE is set, memcached listens at the
# address $GATE_STORE instead, and gate where the test expects memcached, over TCP (-p) and UDP (-U).
use strict;
use warnings;
use IO::Socket::INET;

if (grep { $_ eq '-h' } @ARGV) {
    # Tests take Unix sockets otherwise, which gate does not speak.
    print grep { !/unix-socket/ } qx(memcached -h);
    exit 0;
}
# An option of debug builds alone.
my @arguments;
while (@ARGV) {
    my $argument = shift @ARGV;
    if ($argument eq '-o' && @ARGV && $ARGV[0] eq 'relaxed_privileges') {
        shift @ARGV;
    } else {
        push @arguments, $argument;
    }
}
@ARGV = @arguments;
my $gate = $ENV{GATE} or exec 'memcached', @ARGV;

my %given = (p => 11211, U => 0);
my @passed;
while (@ARGV) {
    my $argument = shift @ARGV;
    if ($argument =~ /^-([pUl])(.*)$/) {
        $given{$1} = length $2 ? $2 : shift @ARGV;
    } else {
        push @passed, $argument;
    }
}
my $store = "$ENV{GATE_STORE}:$given{p}";
my $memcached = start('memcached', @passed, '-l', $ENV{GATE_STORE}, '-p', $given{p}, '-U', 0);
until (IO::Socket::INET->new(PeerAddr => $store)) {
    # As memcached itself: it may refuse its arguments.
    exit($? >> 8 || 1) if waitpid($memcached, 1) != 0;
    select undef, undef, undef, 0.02;
}

my $files = "/tmp/gate-compat-$$";
my $services = service('tcp', $given{p});
$services .= service('udp', $given{U}) if $given{U};
open my $config, '>', "$files.toml" or die $!;
print $config <<"END";
[gate]
xdp = "off"
admin = "$files.sock"
$services
[[tenant]]
name = "all"
sources = ["127.0.0.0/8"]
quota = "unlimited"
END
close $config;
my $proxy = start($gate, 'run', '--config', "$files.toml");

# Whatever ends one of them, or this, ends all.
my $signal = 0;
$SIG{$_} = sub { $signal ||= 15 } for qw(INT TERM);
$SIG{USR1} = sub { kill 'USR1', $memcached };
my $status = 0;
my $test = getppid;
until ($signal || getppid != $test) {
    if ((my $ended = waitpid(-1, 1)) > 0) {
        $status = $? >> 8;
        last;
    }
    select undef, undef, undef, 0.02;
}
kill 'INT', $proxy;
kill 'TERM', $memcached;
1 while wait > 0;
unlink "$files.toml", "$files.sock";
exit $status;

sub start {
    my @command = @_;
    my $child = fork // die $!;
    return $child if $child;
    # Not what the test prints.
    open STDOUT, '>&', \*STDERR;
    exec @command or die "$command[0]: $!";
}

sub service {
    my ($transport, $port) = @_;
    return <<"END";
[[service]]
name = "$transport"
protocol = "memcached"
transports = ["$transport"]
listen = "127.0.0.1:$port"
backend = "$store"
END
}
