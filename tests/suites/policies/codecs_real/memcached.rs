//! memcached.

use std::net::UdpSocket;

use anyhow::{Context as _, Result, bail, ensure};
use gate_common::units::Nanos;
use gate_tests::store::{Connection, Store};
use gate_tests::wait::PATIENCE;
use gate_userspace::protocol::memcached::udp::{self, Frame, Reassembly, Received};
use gate_userspace::protocol::memcached::{
    Answers, Command, Decoder, Expect, Limits, Part, Quiet, Request, Status, Step,
};
use gate_userspace::sim::rng::Rng;

/// A client whose bytes go to one server as they are, and to another through the codec.
struct Pair {
    direct: Connection,
    decoded: Connection,
    answers: Answers,
    /// The bytes of the second server that belong to no answer yet.
    input: Vec<u8>,
}

impl Pair {
    fn open(servers: &[Store; 2]) -> Result<Self> {
        let [direct, decoded] = servers;
        let answers = Answers::new(4 << 10);
        Ok(Self { direct: direct.connect()?, decoded: decoded.connect()?, answers, input: Vec::new() })
    }

    /// Decodes `stream` step by step; both servers get each step's bytes, and must answer the same.
    fn exchange(&mut self, stream: &[u8], limits: Limits) -> Result<()> {
        let mut decoder = Decoder::new(limits);
        let mut at = 0;
        let mut waiting: Option<Request> = None;
        while at < stream.len() {
            let step = decoder.next(&stream[at..]);
            let bytes = &stream[at..at + step.consumed()];
            at += bytes.len();
            let mut expected = Vec::new();
            match step {
                Step::More { .. } => bail!("half a request: {:?}", text(&stream[at..])),
                Step::Request { request, .. } if request.body > 0 => {
                    self.decoded.send(bytes)?;
                    waiting = Some(request);
                }
                Step::Request { request, .. } => {
                    self.decoded.send(bytes)?;
                    expected = self.answer(&request)?;
                }
                Step::Body { last, .. } => {
                    self.decoded.send(bytes)?;
                    if let Some(request) = waiting.take_if(|_| last) {
                        expected = self.answer(&request)?;
                    }
                }
                Step::Skip { .. } => {}
                Step::Fault { fault, .. } => {
                    ensure!(!fault.closes(), "{:?} ends the connection", text(bytes));
                    fault.answer(&mut expected);
                }
            }
            self.direct.send(bytes)?;
            let said = self.direct.receive_exactly(expected.len()).with_context(|| {
                format!("{:?} should have been answered {:?}", text(bytes), text(&expected))
            })?;
            ensure!(said == expected, "{:?}: {:?} and not {:?}", text(bytes), text(&said), text(&expected));
        }
        self.nothing_is_left()
    }

    /// The second server's answer to `request`.
    fn answer(&mut self, request: &Request) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        match request.quiet {
            Quiet::NoReply => {}
            Quiet::Answered => {
                self.one(request.expect(), &mut answer)?;
            }
            // It shows in the answer to what follows whether there is one.
            Quiet::Unusual => {
                self.decoded.send(b"mn\r\n")?;
                loop {
                    let before = answer.len();
                    if self.one(Expect::Meta, &mut answer)? == Status::MetaNoop {
                        answer.truncate(before);
                        break;
                    }
                }
            }
        }
        Ok(answer)
    }

    /// Appends one answer to `to`; how its last line begins.
    fn one(&mut self, expect: Expect, to: &mut Vec<u8>) -> Result<Status> {
        let mut status = Status::Other;
        loop {
            let part = self.answers.next(expect, &self.input)?;
            to.extend(self.input.drain(..part.consumed()));
            let last = match part {
                Part::More { .. } => {
                    ensure!(self.decoded.receive(&mut self.input)?, "the server ended the connection");
                    false
                }
                Part::Line { line, last, .. } => {
                    status = line.status;
                    last
                }
                Part::Body { last, .. } => last,
            };
            if last {
                return Ok(status);
            }
        }
    }

    /// Neither server has said anything that was not an answer.
    fn nothing_is_left(&mut self) -> Result<()> {
        self.direct.send(b"mn\r\n")?;
        self.decoded.send(b"mn\r\n")?;
        let mut answer = Vec::new();
        self.one(Expect::Line, &mut answer)?;
        ensure!(answer == b"MN\r\n" && self.input.is_empty(), "left over: {:?}", text(&answer));
        let said = self.direct.receive_exactly(4)?;
        ensure!(said == b"MN\r\n", "left over: {:?}", text(&said));
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}

fn servers() -> [Store; 2] {
    [Store::memcached().unwrap(), Store::memcached().unwrap()]
}

/// Requests large and small are gathered and streamed.
const LIMITS: Limits = Limits { gather: 2 << 10, ..DEFAULT };
const DEFAULT: Limits = Limits { line: 256 << 10, value: 1 << 30, gather: 16 << 10 };

#[test]
fn what_can_be_said_is_answered_the_same() {
    let servers = servers();
    let mut pair = Pair::open(&servers).unwrap();
    let long = "k".repeat(251);
    let keys = (0..100).map(|n| format!(" key{n}")).collect::<String>();
    let odd = [
        "set a 5 0 5\r\nhello\r\nget a\r\ngets a b a\r\nget a\n",
        "add a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\nappend a 0 0 1\r\n!\r\nprepend a 0 0 1\r\n<\r\nget a\r\n",
        "cas a 0 0 1 1\r\nx\r\ncas nokey 0 0 1 1\r\nx\r\n",
        "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 100\r\nincr n x\r\nincr nokey 1\r\nincr a 1\r\nget n\r\n",
        "set a 0 0 1 noreply\r\nx\r\nadd a 0 0 1 noreply\r\nx\r\ndelete b noreply\r\nincr n 1 noreply\r\nget a\r\n",
        "set a 0 0 1 other\r\nx\r\ndelete a 0\r\ndelete a 5\r\ndelete a 0 noreply\r\ndelete a x noreply\r\n",
        "touch a 0\r\ntouch nokey 0\r\ntouch a x\r\ntouch n 100 noreply\r\ngat 0 n a\r\ngats 0 n\r\ngat x n\r\ngat 0\r\n",
        "set e 0 0 0\r\n\r\nget e\r\nset e 0 0 4\r\n\r\n\r\n\r\nget e\r\n",
        "set a 0 0 3\r\nabcde\r\nset a 0 0 3 noreply\r\nabcde\r\n",
        "\r\n\n  \r\nget\r\nnonsense\r\nGET a\r\ngat\r\n",
        "incr a\r\nincr a 1 2 3\r\ntouch a\r\ndelete\r\ndelete a 0 noreply more\r\nverbosity\r\nflush_all 1 2 3 4\r\n",
        "mg a\r\nmg nokey\r\nmg a v t f c s k O12\r\nmg nokey k O12\r\nmg a q v\r\nmg nokey q v\r\nmn\r\n",
        "ms m 2\r\nhi\r\nms m 2 T0 F3 c k O1\r\nho\r\nms m 2 q\r\nhe\r\nms m 2 ME q\r\nha\r\nmn\r\nmg m v\r\n",
        "ms m 2 I C1\r\nhi\r\nms m 2 MX\r\nhi\r\nms m 2 z\r\nhi\r\nms m 2 q q\r\nhi\r\n",
        "ms m 2\r\nhello\r\nms m 2 q\r\nhello\r\n",
        "md m\r\nmd m\r\nmd m q\r\nms m 2\r\nhi\r\nmd m q I T30\r\nmg m v\r\nmd m q\r\nmd m z\r\nmn\r\n",
        "ma n\r\nma n v D5\r\nma n MD q\r\nma nokey q\r\nma nokey N0 J7 v\r\nma a\r\nma n z\r\nmn\r\n",
        "ms YWJj 2 b\r\nhi\r\nmg YWJj b v k\r\nmg abc v k\r\nmg !!! b v\r\nmd YWJj b\r\n",
        "mg a v a a\r\nmg a 1 2 3 4 5 6 7 8 9 0 a b c d e f g h i\r\nmg\r\nmx\r\nm\r\nme nokey\r\nme\r\nmn x\r\n",
        "verbosity 0\r\nverbosity x\r\nverbosity 0 noreply\r\ncache_memlimit 64\r\ncache_memlimit x\r\n",
        "lru_crawler enable\r\nlru_crawler x\r\nlru mode flat\r\nlru\r\nslabs reassign 1 2\r\nslabs x\r\n",
        "stats reset\r\nstats nonsense\r\nstats detail\r\nstats detail dump\r\nversion\r\nversion x\r\n",
        "set a 0 0 1048577\r\n",
        "flush_all\r\nget a\r\nflush_all noreply\r\nflush_all 0 noreply\r\nflush_all x\r\nflush_all -1\r\n",
    ];
    let too_large =
        format!("set a 0 0 1048577\r\n{}\r\nget a\r\nset a 0 0 2000000 noreply\r\n", "v".repeat(1_048_577))
            + &"v".repeat(2_000_000)
            + "\r\nget a\r\n";
    let longs = format!(
        "get {long}\r\nget a {long} b\r\ndelete {long}\r\nincr {long} 1\r\n\
         touch {long} 0\r\nmg {long} v\r\nmd {long}\r\nma {long}\r\nme {long}\r\nget{keys}\r\n"
    );
    let every_byte: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let binary = [b"set a 0 0 10000\r\n", &every_byte[..], b"\r\nget a b a\r\nmg a v\r\n"].concat();
    let mut streams: Vec<&[u8]> =
        odd.iter().filter(|odd| !odd.contains("1048577")).map(|odd| odd.as_bytes()).collect();
    streams.extend([too_large.as_bytes(), longs.as_bytes(), &binary]);
    for stream in streams {
        if let Err(error) = pair.exchange(stream, LIMITS) {
            panic!("{error:?}\nin {:?}", text(stream));
        }
    }
}

#[test]
fn what_lists_lines_ends_where_it_says() {
    let store = Store::memcached().unwrap();
    let mut connection = store.connect().unwrap();
    connection.send(b"set p:a 0 0 1\r\nx\r\nstats detail on\r\nget p:a\r\n").unwrap();
    connection.receive_exactly("STORED\r\nOK\r\nVALUE p:a 0 1\r\nx\r\nEND\r\n".len()).unwrap();
    for request in [
        "stats\r\n",
        "stats items\r\n",
        "stats slabs\r\n",
        "stats sizes\r\n",
        "stats settings\r\n",
        "stats conns\r\n",
        "stats cachedump 1 0\r\n",
        "stats detail dump\r\n",
        "me p:a\r\n",
    ] {
        connection.send(request.as_bytes()).unwrap();
        connection.send(b"mn\r\n").unwrap();
        let Step::Request { request: read, .. } = Decoder::new(DEFAULT).next(request.as_bytes()) else {
            panic!("{request} is no request")
        };
        let expect = if read.command == Command::Stats { Expect::Stats } else { Expect::Line };
        assert_eq!(read.expect(), expect);
        let mut answers = Answers::new(4 << 10);
        let mut input = Vec::new();
        let mut at = 0;
        let mut lines = 0;
        loop {
            let part = answers.next(expect, &input[at..]).unwrap();
            at += part.consumed();
            match part {
                Part::More { .. } => assert!(connection.receive(&mut input).unwrap()),
                Part::Line { line, last, .. } => {
                    assert!(!line.status.is_error(), "{request}");
                    lines += 1;
                    if last {
                        break;
                    }
                }
                Part::Body { .. } => panic!("{request} has no body"),
            }
        }
        // Items get where `cachedump` looks when memory runs low.
        let short = ["me p:a\r\n", "stats cachedump 1 0\r\n"].contains(&request);
        assert!(lines > 1 || short, "{request} gave {lines} lines");
        while input.len() < at + 4 {
            assert!(connection.receive(&mut input).unwrap());
        }
        assert_eq!(&input[at..], b"MN\r\n", "{request}");
    }
}

#[test]
fn an_answer_in_several_datagrams_is_assembled() {
    let store = Store::memcached().unwrap();
    let value = "v".repeat(5_000);
    let mut connection = store.connect().unwrap();
    connection.send(format!("set a 0 0 5000\r\n{value}\r\n").as_bytes()).unwrap();
    connection.receive_exactly("STORED\r\n".len()).unwrap();

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(store.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let frame = Frame { id: 0x1234, index: 0, total: 1 };
    socket.send(&[&frame.to_bytes()[..], b"get a\r\n"].concat()).unwrap();

    let expected = format!("VALUE a 0 5000\r\n{value}\r\nEND\r\n");
    let frames: Vec<_> = udp::answer(frame.id, expected.len()).unwrap().collect();
    let mut reassembly = Reassembly::new(udp::Limits::default());
    let mut datagram = [0; 2_048];
    for (place, (frame, range)) in frames.iter().enumerate() {
        let len = socket.recv(&mut datagram).unwrap();
        assert_eq!(
            datagram[..len],
            [&frame[..], &expected.as_bytes()[range.clone()]].concat(),
            "as gate's own"
        );
        match reassembly.receive((), &datagram[..len], Nanos::ZERO) {
            Received::Whole { id: 0x1234, bytes } => assert_eq!(bytes, expected.as_bytes()),
            received => assert_eq!((received, place + 1 < frames.len()), (Received::Part, true)),
        }
    }
}

/// A random request, mostly a sound one.
fn request(rng: &mut Rng) -> Vec<u8> {
    let mut pick = |count: usize| (rng.bits() % count as u64) as usize;
    const FLAGS: [&str; 16] =
        ["v", "k", "q", "t", "f", "c", "s", "O7", "T0", "N0", "R30", "I", "b", "z", "h", "u"];
    const MODES: [&str; 6] = ["ME", "MA", "MP", "MR", "MS", "MX"];
    let key = |n: usize| format!("key{n}");
    let quiet = ["", "", " noreply"][pick(3)];
    let one = key(pick(20));
    let other = key(pick(20));
    let flags: String = (0..pick(4)).map(|_| format!(" {}", FLAGS[pick(FLAGS.len())])).collect();
    let length = [0, 1, 5, 30, 700, 5_000][pick(6)];
    // No NUL: where memcached takes a value for commands, gate would end the connection.
    let fill = [b'7', b'\n', b'\r', b' ', 255][pick(5)];
    let value = [&vec![fill; length][..], if pick(50) == 0 { b"!!" } else { b"\r\n" }].concat();
    let store = ["set", "set", "set", "add", "replace", "append", "prepend"][pick(7)];
    match pick(21) {
        0..=3 => format!("get {one}\r\n").into(),
        4 => format!("gets {one} {other}\r\n").into(),
        5 => format!("gat 0 {one} {other}\r\n").into(),
        6..=9 => [format!("{store} {one} 3 0 {length}{quiet}\r\n").as_bytes(), &value].concat(),
        10 => [format!("cas {one} 0 0 {length} {}{quiet}\r\n", pick(40)).as_bytes(), &value].concat(),
        11 => format!("delete {one}{quiet}\r\n").into(),
        12 => format!("incr {one} {}{quiet}\r\n", pick(9)).into(),
        13 => format!("decr {one} {}{quiet}\r\n", pick(9)).into(),
        14 => format!("touch {one} 0{quiet}\r\n").into(),
        15..=16 => format!("mg {one}{flags}\r\n").into(),
        17..=18 => {
            let mode = if pick(2) == 0 { MODES[pick(6)] } else { "" };
            [format!("ms {one} {length} {mode}{flags}\r\n").as_bytes(), &value].concat()
        }
        19 => format!("md {one}{flags}\r\n").into(),
        _ => format!("ma {one}{flags}\r\n").into(),
    }
}

#[test]
fn random_requests_are_answered_the_same() {
    let servers = servers();
    let mut pair = Pair::open(&servers).unwrap();
    let rounds = if std::env::var_os("GATE_LONG").is_some() { 10_000 } else { 100 };
    let mut rng = Rng::new(11, 0);
    for round in 0..rounds {
        let stream: Vec<u8> = (0..100).flat_map(|_| request(&mut rng)).collect();
        if let Err(error) = pair.exchange(&stream, LIMITS) {
            panic!("round {round}: {error:?}");
        }
    }
}

/// A random storage line, mostly with something wrong; behind it comes a value that reads like a command.
fn storage_line(rng: &mut Rng) -> String {
    let mut pick = |words: &[&str]| words[(rng.bits() % words.len() as u64) as usize].to_owned();
    let blank = pick(&[" ", " ", " ", "  ", "\t", ""]);
    let front = pick(&["", "", "", " ", "  ", "\t", "\r"]);
    let end = pick(&["", "", "", " ", " noreply", " x", " noreply x", "\t", "\r", "\0", " \0"]);
    let key = pick(&["k", "k", "k", "k\u{1}", "é", &"k".repeat(250), &"k".repeat(251)]);
    let exact = VALUE.len().to_string();
    let long = format!("0000000{exact}");
    let longest = format!("00000000000{exact}");
    let signed = format!("+{exact}");
    let lengths = [&exact[..], &exact, &exact, &long, &longest, &signed, "x", "-1", "4294967312", "0x10", ""];
    let length = pick(&lengths);
    if pick(&["ms", "set"]) == "ms" {
        let coded = ["eA0KeQ==", "YTpi", "Y-Tpi", "****", "YSBi"];
        let flags = pick(&[
            "",
            "",
            " b",
            " T",
            " s s",
            " Mz",
            " MAS",
            " =",
            " 1",
            " C",
            " q",
            " O123",
            " F4294967296",
            " é",
        ]);
        let key = if flags == " b" { pick(&coded) } else { key };
        return format!("{front}ms{blank}{key} {length}{flags}{end}");
    }
    let verb = pick(&["set", "add", "replace", "append", "prepend", "cas", "SET"]);
    let numbers = [
        "0",
        "0",
        "0",
        "7",
        "-1",
        "+5",
        "x",
        "4294967295",
        "4294967296",
        "00",
        "99999999999999999999",
        "1\r",
        "\u{b}5",
    ];
    let flags = pick(&numbers);
    let time = pick(&numbers);
    let cas = if verb == "cas" { pick(&["", " 1", " x", " -1", " noreply"]) } else { String::new() };
    format!("{front}{verb}{blank}{key} {flags} {time}{} {length}{cas}{end}", pick(&["", "", "", " "]))
}

/// A value that reads like a command.
const VALUE: &str = "set inj 0 0 1\r\nY";

#[test]
fn no_value_is_read_as_a_command_whatever_its_line_says() {
    let servers = servers();
    let mut pair = Pair::open(&servers).unwrap();
    let rounds = if std::env::var_os("GATE_LONG").is_some() { 1_000_000 } else { 20_000 };
    let mut rng = Rng::new(29, 0);
    let mut forwarded = 0;
    for _ in 0..rounds {
        let line = storage_line(&mut rng);
        let stream = format!("{line}\r\n{VALUE}\r\nmg inj\r\n");
        let verb = line.trim_start_matches(' ').split(' ').next().unwrap_or_default();
        let announces = ["set", "add", "replace", "append", "prepend", "cas", "ms"].contains(&verb);
        let mut decoder = Decoder::new(LIMITS);
        let mut at = 0;
        while at < stream.len() {
            let step = decoder.next(&stream.as_bytes()[at..]);
            let bytes = &stream.as_bytes()[at..at + step.consumed()];
            at += bytes.len();
            match step {
                Step::More { .. } => break,
                Step::Request { request, .. } => {
                    pair.decoded.send(bytes).unwrap();
                    let said = pair.answer(&request).unwrap();
                    forwarded += usize::from(request.command != Command::MetaGet);
                    let has_run = request.command == Command::MetaGet && said != b"EN\r\n";
                    // Behind a verb that no memcached knows it is not a value.
                    assert!(!has_run || !announces, "{line:?}");
                }
                Step::Fault { fault, .. } if fault.closes() => break,
                Step::Fault { .. } | Step::Skip { .. } | Step::Body { .. } => {}
            }
        }
        pair.decoded.send(b"delete inj noreply\r\n").unwrap();
        pair.nothing_is_left().unwrap_or_else(|error| panic!("{line:?}: {error:?}"));
    }
    assert!(forwarded > rounds / 50, "{forwarded} of {rounds} storage lines were sound");
}
