//! The store through real sockets, on loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use super::*;

fn start(settings: impl FnOnce(&mut Settings)) -> Store {
    let mut chosen = Settings::new("127.0.0.1:0".parse().unwrap());
    settings(&mut chosen);
    Store::start(&chosen).unwrap()
}

fn connect(store: &Store) -> TcpStream {
    let stream = TcpStream::connect(store.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn converse(stream: &mut TcpStream, request: &[u8], answer: &str) {
    stream.write_all(request).unwrap();
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), answer);
}

fn datagram_socket(store: &Store) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(store.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2_048];
    let bytes = socket.recv(&mut buffer).unwrap();
    buffer[..bytes].to_vec()
}

#[test]
fn tcp_and_udp_see_the_same_items() {
    let store = start(|_| ());
    let mut stream = connect(&store);
    // A command that comes in two pieces, and two that come in one.
    stream.write_all(b"set a 0 0 2\r\nh").unwrap();
    converse(&mut stream, b"i\r\nget a\r\nget b\r\n", "STORED\r\nVALUE a 0 2\r\nhi\r\nEND\r\nEND\r\n");
    let socket = datagram_socket(&store);
    socket.send(b"\x12\x34\0\0\0\x01\0\0get a\r\nget b\r\n").unwrap();
    assert_eq!(receive(&socket), b"\x12\x34\0\0\0\x01\0\0VALUE a 0 2\r\nhi\r\nEND\r\nEND\r\n");
    assert_eq!(store.stats(), Stats { commands: 5, dropped: 0, connections: 1 });
}

#[test]
fn a_long_answer_takes_several_datagrams() {
    let store = start(|_| ());
    let value = vec![b'v'; 3_000];
    let request = [b"set a 0 0 3000\r\n", &value[..], b"\r\n"].concat();
    converse(&mut connect(&store), &request, "STORED\r\n");
    let socket = datagram_socket(&store);
    socket.send(b"\0\x07\0\0\0\x01\0\0get a\r\n").unwrap();
    let mut body = Vec::new();
    for number in 0..3 {
        let datagram = receive(&socket);
        assert_eq!(datagram[..8], [0, 7, 0, number, 0, 3, 0, 0]);
        body.extend_from_slice(&datagram[8..]);
    }
    assert_eq!(body, [b"VALUE a 0 3000\r\n", &value[..], b"\r\nEND\r\n"].concat());
}

#[test]
fn a_malformed_datagram_is_dropped_and_counted() {
    let store = start(|_| ());
    let socket = datagram_socket(&store);
    socket.send(b"short").unwrap();
    socket.send(b"\0\x01\0\0\0\x02\0\0get a\r\n").unwrap();
    socket.send(b"\0\x02\0\0\0\x01\0\0version\r\n").unwrap();
    assert_eq!(receive(&socket)[..2], [0, 2]);
    assert_eq!(store.stats(), Stats { commands: 1, dropped: 2, connections: 0 });
}

#[test]
fn answers_take_their_service_time_and_keep_their_order() {
    let store = start(|settings| settings.service_time = Nanos::from_millis(20));
    let mut stream = connect(&store);
    let began = gate_system::clock::monotonic();
    converse(
        &mut stream,
        b"set a 0 0 1\r\nx\r\nget a\r\ndelete a\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nDELETED\r\n",
    );
    // Four servers, but one connection's commands follow each other.
    let took = gate_system::clock::monotonic().saturating_sub(began);
    assert!(took >= Nanos::from_millis(60), "{took}");
    store.set_service_time(Nanos::ZERO);
    converse(&mut stream, b"get a\r\n", "END\r\n");
}

#[test]
fn each_further_key_adds_its_time() {
    let store = start(|settings| settings.row_time = Nanos::from_millis(20));
    let mut stream = connect(&store);
    for (request, rows) in [(&b"get a\r\n"[..], 0), (b"get a b c\r\n", 2)] {
        let began = gate_system::clock::monotonic();
        converse(&mut stream, request, "END\r\n");
        let took = gate_system::clock::monotonic().saturating_sub(began);
        assert!(took >= Nanos::from_millis(20 * rows), "{took}");
    }
    let began = gate_system::clock::monotonic();
    converse(&mut stream, b"get a\r\nget b\r\nget c\r\n", "END\r\nEND\r\nEND\r\n");
    assert!(gate_system::clock::monotonic().saturating_sub(began) < Nanos::from_secs(1));
    converse(&mut stream, b"stats\r\n", "STAT cmd_get 7\r\nSTAT curr_items 0\r\nSTAT bytes 0\r\nEND\r\n");
}

#[test]
fn a_client_that_quits_or_cannot_be_understood_is_closed() {
    let store = start(|_| ());
    for (request, answered) in [
        (&b"get a\r\nquit\r\n"[..], "END\r\n"),
        (b"set a 0 0 x\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ] {
        let mut stream = connect(&store);
        converse(&mut stream, request, answered);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_client_that_never_reads_takes_bounded_memory() {
    let store = start(|_| ());
    let mut other = connect(&store);
    let request = [b"set a 0 0 100000\r\n", &vec![b'v'; 100_000][..], b"\r\n"].concat();
    converse(&mut other, &request, "STORED\r\n");
    let mut greedy = connect(&store);
    greedy.set_nonblocking(true).unwrap();
    // 20 GB of answers, if they were made.
    let request = b"get a\r\n".repeat(200_000);
    let _ = greedy.write(&request).unwrap();
    converse(&mut other, b"version\r\n", concat!("VERSION gate-", env!("CARGO_PKG_VERSION"), "\r\n"));
    // Ten for the limit, and what the kernel's buffers took.
    assert!(store.stats().commands < 500, "{:?}", store.stats());
}

#[test]
fn resp_is_spoken_over_tcp_and_nothing_else() {
    let store = start(|settings| {
        (settings.protocol, settings.service_time) = (Protocol::Resp, Nanos::from_millis(5));
    });
    let mut stream = connect(&store);
    // A command that comes in two pieces, and two that come in one.
    stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nh").unwrap();
    converse(&mut stream, b"i\r\nGET a\r\n\r\nGET b\r\n", "+OK\r\n$2\r\nhi\r\n$-1\r\n");
    // One connection has sent HELLO, the other has not.
    let mut other = connect(&store);
    stream.write_all(b"HELLO 3\r\n").unwrap();
    let mut hello = Vec::new();
    while !hello.ends_with(b":3\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        hello.push(byte[0]);
    }
    converse(&mut stream, b"GET b\r\n", "_\r\n");
    converse(&mut other, b"GET b\r\nQUIT\r\n", "$-1\r\n+OK\r\n");
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    // An empty line is no command.
    assert_eq!(store.stats(), Stats { commands: 7, dropped: 0, connections: 2 });
    let socket = datagram_socket(&store);
    socket.send(b"\0\x01\0\0\0\x01\0\0GET a\r\n").unwrap();
    let refused = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn commands_with_a_time_of_their_own_take_it() {
    for (protocol, requests, slow) in [
        (Protocol::Memcached, "get a\r\ndelete a\r\n", "END\r\nNOT_FOUND\r\n"),
        (Protocol::Resp, "LLEN a\r\nHGETALL a\r\n", "+OK\r\n+OK\r\n"),
    ] {
        let times = [("delete", 50), ("hgetall", 50), ("llen", 0)];
        let times = times.map(|(name, ms)| (name.to_owned(), Nanos::from_millis(ms)));
        let store = start(|settings| {
            settings.protocol = protocol;
            settings.times = times.into_iter().collect();
        });
        let mut stream = connect(&store);
        let (quick, _) = requests.split_once("\r\n").unwrap();
        let (answer, _) = slow.split_once("\r\n").unwrap();
        converse(&mut stream, format!("{quick}\r\n").as_bytes(), &format!("{answer}\r\n"));
        let began = gate_system::clock::monotonic();
        converse(&mut stream, requests.as_bytes(), slow);
        assert!(
            gate_system::clock::monotonic().saturating_sub(began) >= Nanos::from_millis(50),
            "{protocol:?}"
        );
    }
}

#[test]
fn commands_take_longer_for_each_that_is_there() {
    let store = start(|settings| {
        settings.service_time = Nanos::from_millis(10);
        settings.contention = 1.0;
    });
    // 10, 20, 30 and 40 ms: one after the other on one connection.
    let began = gate_system::clock::monotonic();
    converse(&mut connect(&store), "get a\r\n".repeat(4).as_bytes(), &"END\r\n".repeat(4));
    assert!(gate_system::clock::monotonic().saturating_sub(began) >= Nanos::from_millis(100));
}
