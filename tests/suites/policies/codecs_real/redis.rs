//! Redis: requests, replies, errors.

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::store::{Connection, Store};
use gate_userspace::protocol::resp::{Decoder, Fault, Limits, Part, Replies, Step};
use gate_userspace::sim::rng::Rng;

/// `words` as an array of bulk strings.
pub(super) fn array(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}

/// One end of a connection that is read with the codec.
pub(super) struct Reader {
    connection: Connection,
    replies: Replies,
    input: Vec<u8>,
}

impl Reader {
    pub(super) fn open(store: &Store) -> Result<Self> {
        Ok(Self { connection: store.connect()?, replies: Replies::new(4 << 10), input: Vec::new() })
    }

    /// The next reply.
    fn one(&mut self) -> Result<Vec<u8>> {
        let mut reply = Vec::new();
        loop {
            let part = self.replies.next(&self.input)?;
            reply.extend(self.input.drain(..part.consumed()));
            match part {
                Part::More { .. } => {
                    let more = self.connection.receive(&mut self.input);
                    ensure!(
                        more.with_context(|| format!("after {:?}", text(&reply)))?,
                        "the server ended it"
                    );
                }
                Part::Reply { last, .. } | Part::Body { last, .. } if last => return Ok(reply),
                Part::Reply { .. } | Part::Body { .. } => {}
            }
        }
    }

    pub(super) fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> Result<Vec<u8>> {
        self.connection.send(&array(words))?;
        self.one()
    }
}

/// A client whose bytes go to one server as they are, and to another through the codec.
struct Pair {
    direct: Connection,
    decoded: Reader,
}

impl Pair {
    fn open(servers: &[Store; 2]) -> Result<Self> {
        Ok(Self { direct: servers[0].connect()?, decoded: Reader::open(&servers[1])? })
    }

    /// Decodes `stream` step by step; both servers get each step's bytes, and must answer the same.
    fn exchange(&mut self, stream: &[u8], limits: Limits) -> Result<()> {
        let mut decoder = Decoder::new(limits);
        let mut at = 0;
        while at < stream.len() {
            let step = decoder.next(&stream[at..]);
            let taken = &stream[at..at + step.consumed()];
            at += taken.len();
            let ends = match step {
                Step::More { .. } => bail!("half a request: {:?}", text(&stream[at..])),
                Step::Request { request, .. } => {
                    self.decoded.connection.send(decoder.bytes(&request, taken))?;
                    !request.streamed
                }
                Step::Body { last, .. } => {
                    self.decoded.connection.send(taken)?;
                    last
                }
                Step::Skip { .. } => false,
                Step::Fault { fault, .. } => bail!("{:?}: {fault:?}", text(taken)),
            };
            self.direct.send(taken)?;
            if ends {
                let expected = self.decoded.one()?;
                let said = self.direct.receive_exactly(expected.len()).with_context(|| text(taken))?;
                ensure!(
                    said == expected,
                    "{:?}: {:?} and not {:?}",
                    text(taken),
                    text(&said),
                    text(&expected)
                );
            }
        }
        Ok(())
    }

    /// Neither server has said anything that was not a reply.
    fn nothing_is_left(&mut self) -> Result<()> {
        let end = array(&["ECHO", "end"]);
        self.direct.send(&end)?;
        for said in [self.decoded.ask(&["ECHO", "end"])?, self.direct.receive_exactly(9)?] {
            ensure!(
                said == b"$3\r\nend\r\n" && self.decoded.input.is_empty(),
                "left over: {:?}",
                text(&said)
            );
        }
        Ok(())
    }
}

fn servers() -> [Store; 2] {
    [Store::redis().unwrap(), Store::redis().unwrap()]
}

#[test]
fn what_is_no_request_is_refused_in_the_words_of_redis() {
    let store = Store::redis().unwrap();
    for stream in [
        "*x\r\n",
        "*1x\r\n",
        "*\r\n",
        "*+1\r\n",
        "*01\r\n",
        "*99999999999999999999\r\n",
        "*3000000000\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n$\r\n",
        "*1\r\n$600000000\r\n",
        "*1\r\n*1\r\n$4\r\nPING\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n\r\n",
        "*1\r\n\n\r\n",
        "*2\r\n$3\r\nGET\r\nb\r\n",
        "get \"a\r\n",
        "get 'a'b\r\n",
        "POST / HTTP/1.1\r\n",
        "Host: example.org\r\n",
    ] {
        let mut decoder = Decoder::new(Limits::default());
        let Step::Fault { fault, .. } = decoder.next(stream.as_bytes()) else {
            panic!("{stream:?} is no fault")
        };
        check_fault(&store, stream.as_bytes(), fault);
    }
    let endless = "a".repeat((64 << 10) + 1);
    let Step::Fault { fault, .. } = Decoder::new(Limits::default()).next(endless.as_bytes()) else {
        panic!("an endless line is no fault")
    };
    check_fault(&store, endless.as_bytes(), fault);
}

fn check_fault(store: &Store, stream: &[u8], fault: Fault) {
    let mut connection = store.connect().unwrap();
    connection.send(stream).unwrap();
    let said = connection.rest().unwrap();
    let mut answer = Vec::new();
    fault.answer(&mut answer);
    assert_eq!(text(&said), text(&answer), "{:?}", text(stream));
}

/// Commands with replies of every type, whose replies are the same from any two servers.
const LINES: &str = r#"PING|PING hello|ECHO ""|SET a 1|GET a|GET nokey|GETRANGE a 0 -1|SET a|INCR a|INCR b|APPEND b xyz|INCR b
MGET a b nokey|MSET a 1 b 2 c 3|DEL a b nokey|EXISTS c c|TYPE c|TYPE nokey|EXPIRE c 100|PERSIST c|TTL c|RANDOMKEY
RPUSH l a b c|LRANGE l 0 -1|LRANGE l 5 9|LPOP l|LPOP l 2|LPOP nokey 2|LPOS l x|BLPOP nokey 0.01|LINSERT l BEFORE a b
HSET h f 1 g 2|HGETALL h|HGETALL nokey|HGET h f|HMGET h f x|HRANDFIELD nokey|HSCAN h 0|HINCRBYFLOAT h f 1.5|HLEN h
SADD s 1 2 3|SMEMBERS s|SISMEMBER s 1|SMISMEMBER s 1 9|SINTER s nokey|SPOP nokey|SSCAN s 0
ZADD z 1 a 2.5 b|ZRANGE z 0 -1 WITHSCORES|ZSCORE z b|ZSCORE z x|ZADD z INCR 1 a|ZPOPMIN z|ZRANDMEMBER nokey|ZMPOP 1 z MIN
XADD x 1-1 f v|XRANGE x - +|XREAD STREAMS x 0|XREAD BLOCK 10 STREAMS x 9|XGROUP CREATE x g 0|XINFO STREAM x|XINFO GROUPS x
XREADGROUP GROUP g c STREAMS x >|XPENDING x g|GEOADD p 13 38 m|GEOPOS p m n|GEODIST p m m|GEOSEARCH p FROMMEMBER m BYRADIUS 1 m
EVAL "return {1,2,{3,'x',{}},redis.status_reply('OK')}" 0|EVAL "return redis.error_reply('MY no')" 0|EVAL "return 1.5" 0
EVAL "redis.setresp(3) return {double=3.5}" 0|EVAL "redis.setresp(3) return {map={a=1}}" 0|EVAL "return false" 0
EVAL "redis.setresp(3) return {set={a=true}}" 0|EVAL "redis.setresp(3) return {big_number='123456789012345678901'}" 0
EVAL "redis.setresp(3) return {verbatim_string={format='txt',string='hi'}}" 0|EVAL "return string.rep('x', 100000)" 0
EVAL "local t = {} for i = 1, 20 do t = {t} end return t" 0|EVAL "return redis.error_reply('a' .. string.rep('b', 9000))" 0
DEBUG PROTOCOL map|COMMAND COUNT|COMMAND GETKEYS GET a|COMMAND INFO get nonsense|OBJECT HELP|CONFIG GET maxmemory|NONSENSE a|CLIENT NONSENSE
MULTI|SET a 1|GET a|EXEC|MULTI|NONSENSE|EXEC|MULTI|DISCARD|EXEC|WATCH a|UNWATCH|SELECT 1|GET a|SELECT 0|SELECT 99
CLIENT SETNAME me|CLIENT GETNAME|CLIENT NO-EVICT ON|CLIENT TRACKINGINFO|WAIT 0 0|ACL WHOAMI|PUBLISH c m|PUBSUB NUMSUB c
FUNCTION LIST|SCRIPT EXISTS abc|MEMORY USAGE nokey|LCS a c|SORT l|OBJECT ENCODING c|DUMP nokey|LOLWUT VERSION 1|SWAPDB 0 1|FLUSHALL"#;

fn lines() -> impl Iterator<Item = &'static str> {
    LINES.split(['|', '\n'])
}

#[test]
fn replies_of_every_type_are_the_same_directly_and_decoded() {
    let servers = servers();
    for version in ["2", "3"] {
        let mut pair = Pair::open(&servers).unwrap();
        let hello = array(&["HELLO", version]);
        // It tells the connection's number, which may be as long as it likes.
        pair.direct.send(&hello).unwrap();
        pair.direct.receive(&mut Vec::new()).unwrap();
        pair.decoded.ask(&["HELLO", version]).unwrap();
        for line in lines() {
            let stream = format!("{line}\r\n");
            pair.exchange(stream.as_bytes(), Limits::default())
                .with_context(|| format!("{line}, RESP{version}"))
                .unwrap();
        }
        let pipelined: String = lines().map(|line| format!("{line}\r\n\r\n")).collect();
        pair.exchange(pipelined.as_bytes(), Limits::default()).unwrap();
        pair.nothing_is_left().unwrap();
    }
}

#[test]
fn large_values_stream_both_ways() {
    let servers = servers();
    let mut pair = Pair::open(&servers).unwrap();
    let value: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let words: [&[u8]; 9] = [b"MSET", b"a", &value, b"b", b"small", b"c", &value, b"d", b""];
    let mut stream = array(&words);
    for line in ["MGET a b c d", "GET a", "GETRANGE c 5 100000", "APPEND a x", "STRLEN a"] {
        stream.extend(array(&line.split(' ').collect::<Vec<_>>()));
    }
    let many: Vec<String> = (0..5_000).map(|number| format!("member-{number}")).collect();
    let mut sadd = vec!["RPUSH".to_owned(), "l".to_owned()];
    sadd.extend(many);
    stream.extend(array(&sadd));
    stream.extend(array(&["LRANGE", "l", "0", "-1"]));
    pair.exchange(&stream, Limits::default()).unwrap();
    pair.nothing_is_left().unwrap();
}

#[test]
fn pushes_and_partial_answers_are_distinguished_from_replies() {
    use gate_userspace::protocol::resp::Kind;
    let store = Store::redis().unwrap();
    let mut reader = Reader::open(&store).unwrap();
    let mut other = Reader::open(&store).unwrap();
    reader.ask(&["HELLO", "3"]).unwrap();
    let first = |reply: &[u8]| match Replies::new(1 << 20).next(reply) {
        Ok(Part::Reply { kind, last: true, len }) if len == reply.len() => kind,
        part => panic!("{part:?}"),
    };
    reader.connection.send(&array(&["SUBSCRIBE", "c", "d"])).unwrap();
    assert_eq!(first(&reader.one().unwrap()), Kind::Push);
    assert_eq!(first(&reader.one().unwrap()), Kind::Push);
    assert_eq!(first(&reader.ask(&["PING"]).unwrap()), Kind::Simple);
    other.ask(&["PUBLISH", "c", "hello"]).unwrap();
    assert_eq!(first(&reader.one().unwrap()), Kind::Push);
    reader.ask(&["CLIENT", "TRACKING", "ON"]).unwrap();
    reader.ask(&["GET", "a"]).unwrap();
    other.ask(&["SET", "a", "1"]).unwrap();
    let invalidated = reader.one().unwrap();
    assert_eq!((first(&invalidated), text(&invalidated).contains("invalidate")), (Kind::Push, true));
    for kind in [
        "string", "integer", "double", "null", "array", "set", "map", "attrib", "push", "verbatim", "true",
        "bignum",
    ] {
        let mut reply = reader.ask(&["DEBUG", "PROTOCOL", kind]).unwrap();
        if kind == "push" {
            assert_eq!(first(&reply), Kind::Push, "it comes before the reply");
            reply = reader.one().unwrap();
        }
        assert!(!text(&reply).contains("ERR"), "{kind}: {}", text(&reply));
    }
    assert_eq!(text(&reader.ask(&["ECHO", "end"]).unwrap()), "$3\r\nend\r\n");
}

/// A random command whose reply is the same from any two servers.
fn command(rng: &mut Rng) -> Vec<u8> {
    let mut pick = |count: usize| (rng.bits() % count as u64) as usize;
    let a = format!("key{}", pick(10));
    let b = format!("key{}", pick(10));
    let number = ["0", "1", "-1", "5", "x"][pick(5)];
    let value = vec![[b'7', b'\r', 0, 255][pick(4)]; [0, 1, 3, 60, 5_000, 40_000][pick(6)]];
    let line = match pick(40) {
        0 => return array(&[b"SET".as_slice(), a.as_bytes(), &value]),
        1 => return array(&[b"MSET".as_slice(), a.as_bytes(), &value, b.as_bytes(), &value]),
        2 => return array(&[b"RPUSH".as_slice(), a.as_bytes(), &value, &value]),
        // With longer values the order of fields would be a server's own.
        3 => return array(&[b"HSET".as_slice(), a.as_bytes(), b"f", &value[..value.len().min(60)]]),
        4 => return array(&[b"APPEND".as_slice(), a.as_bytes(), &value]),
        5..=9 => format!("GET {a}"),
        10..=11 => format!("MGET {a} {b}"),
        12..=15 => format!("DEL {a}"),
        16 => format!("INCRBY {a} {number}"),
        17 => format!("LRANGE {a} 0 {number}"),
        18 => format!("LPOP {a} {number}"),
        19 => format!("LINDEX {a} {number}"),
        20 => format!("HGETALL {a}"),
        21 => format!("HINCRBY {a} n {number}"),
        22 => format!("HMGET {a} f n x"),
        23 => format!("ZADD {a} {number} m {number} n"),
        24 => format!("ZRANGE {a} 0 -1 WITHSCORES"),
        25 => format!("ZRANGEBYSCORE {a} {number} 3 LIMIT 0 {number}"),
        26 => format!("ZUNIONSTORE {a} 1 {b}"),
        27 => format!("SADD {a} 1 2 {number}"),
        28 => format!("SISMEMBER {a} {number}"),
        29 => format!("RENAME {a} {b}"),
        30 => format!("COPY {a} {b}"),
        31 => format!("STRLEN {a}"),
        32 => format!("GETRANGE {a} 0 {number}"),
        33 => format!("SETRANGE {a} 3 xyz"),
        34 => format!("BITCOUNT {a}"),
        35 => format!("TYPE {a}"),
        36 => format!("EXISTS {a} {b}"),
        37 => format!("EVAL \"return {{KEYS[1],{{1,false}}}}\" 1 {a}"),
        38 => format!("GETSET {a} '{number}'"),
        _ => format!("PF{number} \"{a}\""),
    };
    if pick(2) == 0 && !line.contains(['"', '\'']) {
        return array(&line.split(' ').collect::<Vec<_>>());
    }
    format!("{line}\r\n").into_bytes()
}

#[test]
fn random_commands_are_answered_the_same() {
    let servers = servers();
    let mut rng = Rng::new(12, 0);
    let rounds = if std::env::var_os("GATE_LONG").is_some() { 10_000 } else { 100 };
    for version in ["2", "3"] {
        let mut pair = Pair::open(&servers).unwrap();
        pair.direct.send(&array(&["HELLO", version])).unwrap();
        pair.direct.receive(&mut Vec::new()).unwrap();
        pair.decoded.ask(&["HELLO", version]).unwrap();
        for round in 0..rounds / 2 {
            let stream: Vec<u8> = (0..100).flat_map(|_| command(&mut rng)).collect();
            pair.exchange(&stream, Limits::default()).with_context(|| format!("round {round}")).unwrap();
        }
        pair.nothing_is_left().unwrap();
    }
}
