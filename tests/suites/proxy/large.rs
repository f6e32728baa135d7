//! Requests too long for gate to gather: passed on as they come, and memory stays where it was.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const MIB: usize = 1 << 20;

/// Every byte occurs, ends of lines among them.
fn value(len: usize, seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// A request of Redis.
fn resp(arguments: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    arguments.iter().for_each(|argument| request.extend(bulk(argument)));
    request
}

/// A string as Redis has it.
fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Sends from a thread of its own what may be longer than all buffers, and reads as much as is expected.
fn converse(gate: &Listening, request: &[u8], expected: &[u8]) -> Result<()> {
    let mut stream = gate.connect()?;
    let mut sender = stream.try_clone()?;
    let mut said = vec![0; expected.len()];
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || sender.write_all(request));
        stream.read_exact(&mut said)?;
        sent.join().expect("it does not panic")?;
        anyhow::Ok(())
    })?;
    let differs = said.iter().zip(expected).take_while(|(said, expected)| said == expected).count();
    ensure!(
        differs == expected.len(),
        "from byte {differs} on: {}",
        shown(&said[..said.len().min(differs + 99)])
    );
    Ok(())
}

/// One of Redis' own figures.
fn info(store: &Listening, section: &str, name: &str) -> Result<u64> {
    let said = store.ask(format!("INFO {section}\r\nECHO end\r\n").as_bytes(), b"$3\r\nend\r\n")?;
    let said = String::from_utf8(said)?;
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    Ok(line.with_context(|| format!("no {name} in {said}"))?.parse()?)
}

#[test]
fn long_and_short_values_pass_redis_unchanged() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "max_request = \"64MiB\"", EVERYONE)?;
    let mut asked = Vec::new();
    let mut expected = Vec::new();
    let mut ask = |arguments: &[&[u8]], answer: &[u8]| {
        asked.extend(resp(arguments));
        expected.extend_from_slice(answer);
    };
    ask(&[b"FLUSHALL"], b"+OK\r\n");
    let lengths = [65_000, 65_536, 70_000, MIB, 3, 16 * MIB];
    let values: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(&len, seed)| value(len, seed)).collect();
    for (number, value) in values.iter().enumerate() {
        let key = format!("k{number}").into_bytes();
        ask(&[b"SET", b"short", &key], b"+OK\r\n");
        ask(&[b"SET", &key, value], b"+OK\r\n");
        ask(&[b"GET", &key], &bulk(value));
        ask(&[b"GET", b"short"], &bulk(&key));
    }
    // Two in one request, one for another, one that is no string, and many short arguments.
    ask(&[b"MSET", b"a", &values[3], b"b", &values[2]], b"+OK\r\n");
    ask(&[b"GETSET", b"a", &values[2]], &bulk(&values[3]));
    ask(&[b"APPEND", b"b", &values[2]], b":140000\r\n");
    let members: Vec<Vec<u8>> = (0..20_000).map(|member| format!("{member:06}").into_bytes()).collect();
    let mut push: Vec<&[u8]> = vec![b"RPUSH", b"list"];
    push.extend(members.iter().map(Vec::as_slice));
    ask(&push, b":20000\r\n");
    ask(&[b"SET", b"short", &values[2], b"XX", b"GET"], &bulk(b"k5"));
    let wrong = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    ask(&[b"APPEND", b"list", &values[3]], wrong);
    ask(&[b"LINDEX", b"list", b"19999"], &bulk(&members[19_999]));
    converse(&gate, &asked, &expected)?;
    // Nobody was given a connection for good, and those that were lent are used again.
    let before = info(&store, "stats", "total_connections_received")?;
    converse(&gate, &asked, &expected)?;
    let after = info(&store, "stats", "total_connections_received")?;
    ensure!(after - before <= 2, "{before}, then {after}");
    Ok(())
}

#[test]
fn long_and_short_values_pass_memcached_unchanged() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "max_request = \"8MiB\"", EVERYONE)?;
    let mut asked = Vec::new();
    let mut expected = Vec::new();
    let mut ask = |request: &[&[u8]], answer: &[&[u8]]| {
        asked.extend(request.concat());
        expected.extend(answer.concat());
    };
    for (number, len) in [65_000, 65_536, 70_000, MIB - 1_000].into_iter().enumerate() {
        let value = value(len, number as u64);
        let shown = format!(" {len}\r\n");
        let shown = shown.as_bytes();
        ask(&[b"set short 0 0 1\r\na\r\n"], &[b"STORED\r\n"]);
        ask(&[b"set a 5 0", shown, &value, b"\r\n"], &[b"STORED\r\n"]);
        ask(
            &[b"get a\r\nget short\r\n"],
            &[b"VALUE a 5", shown, &value, b"\r\nEND\r\nVALUE short 0 1\r\na\r\nEND\r\n"],
        );
        ask(&[b"set b 7 0 ", len.to_string().as_bytes(), b" noreply\r\n", &value, b"\r\n"], &[]);
        ask(&[b"get b\r\n"], &[b"VALUE b 7", shown, &value, b"\r\nEND\r\n"]);
        // Quiet ones are answered only if the outcome is unusual.
        ask(&[b"ms c", &shown[..shown.len() - 2], b" q\r\n", &value, b"\r\nmn\r\n"], &[b"MN\r\n"]);
        ask(&[b"ms c", &shown[..shown.len() - 2], b" q ME Oab\r\n", &value, b"\r\n"], &[b"NS Oab\r\n"]);
        ask(&[b"add a 0 0", shown, &value, b"\r\n"], &[b"NOT_STORED\r\n"]);
        // The value goes on after its end: the store says so, and where the next request begins.
        let bad: &[&[u8]] = &[b"set a 0 0", shown, &value, b"xxget short\r\n"];
        ask(bad, &[b"CLIENT_ERROR bad data chunk\r\n", b"VALUE short 0 1\r\na\r\nEND\r\n"]);
    }
    // Longer than this store takes: it says so itself, and forgets what it had.
    let long = value(4 * MIB, 9);
    ask(&[b"set b 0 0 4194304\r\n", &long, b"\r\n"], &[b"SERVER_ERROR object too large for cache\r\n"]);
    ask(&[b"get b\r\n"], &[b"END\r\n"]);
    // Longer than gate passes on.
    let long = value(9 * MIB, 9);
    ask(&[b"set short 0 0 9437184\r\n", &long, b"\r\n"], &[b"SERVER_ERROR object too large for cache\r\n"]);
    ask(&[b"get short\r\n"], &[b"VALUE short 0 1\r\na\r\nEND\r\n"]);
    converse(&gate, &asked, &expected)
}

#[test]
fn stalled_long_values_take_no_memory_and_delay_nobody() -> Result<()> {
    let store = Listening::redis()?;
    let limits = "max_request = \"64MiB\"\nconnections = \"1\"";
    let gate = Listening::gate("resp", store.address, limits, EVERYONE)?;
    let half = value(8 * MIB, 1);
    let head = |key: usize| format!("*3\r\n$3\r\nSET\r\n$2\r\nk{key}\r\n$16777216\r\n");
    gate.ask(b"SET k0 before\r\n", b"+OK\r\n")?;
    let before = gate.memory()?;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = gate.connect()?;
        client.write_all(head(0).as_bytes())?;
        client.write_all(&half)?;
        clients.push(client);
    }
    let asked = Instant::now();
    let said = gate.ask(b"GET k0\r\n", b"before\r\n")?;
    ensure!(asked.elapsed() < Duration::from_secs(5), "{:?}: {}", asked.elapsed(), shown(&said));
    // What the kernel has not handed on yet is in its buffers, and is handed on now.
    wait_until("the store has not got what was sent", || {
        let had = info(&store, "stats", "total_net_input_bytes")?;
        Ok(had >= (50 * half.len()) as u64)
    })?;
    let more = gate.memory()?.saturating_sub(before);
    ensure!(more < 40 * MIB, "{} MiB more for half of {} MiB", more / MIB, 50 * 16);
    // Whoever leaves now has said nothing, and whoever goes on has.
    let last = clients.pop().context("there are fifty")?;
    drop(clients);
    let mut last = last;
    last.write_all(&half)?;
    last.write_all(b"\r\n")?;
    read_until(&mut last, b"+OK\r\n")?;
    last.write_all(b"STRLEN k0\r\n")?;
    read_until(&mut last, b":16777216\r\n")?;
    Ok(())
}

#[test]
fn a_client_that_leaves_within_a_long_value_writes_nothing() -> Result<()> {
    let redis = Listening::redis()?;
    let memcached = Listening::memcached()?;
    let part = value(200_000, 1);
    for (protocol, store, set, ok, head, get, kept) in [
        (
            "resp",
            &redis,
            "SET a before\r\n",
            "+OK\r\n",
            "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$300000\r\n",
            "GET a\r\n",
            "$6\r\nbefore\r\n",
        ),
        (
            "memcached",
            &memcached,
            "set a 0 0 6\r\nbefore\r\n",
            "STORED\r\n",
            "set a 0 0 300000\r\n",
            "get a\r\n",
            "VALUE a 0 6\r\nbefore\r\nEND\r\n",
        ),
    ] {
        let gate = Listening::gate_with("threads = \"1\"", protocol, store.address, "", EVERYONE)?;
        gate.ask(set.as_bytes(), ok.as_bytes())?;
        for how in [Shutdown::Write, Shutdown::Both] {
            let mut client = gate.connect()?;
            client.write_all(head.as_bytes())?;
            client.write_all(&part)?;
            client.shutdown(how)?;
            let mut said = Vec::new();
            // It is closed without a word; it may have been reset.
            let _ = client.read_to_end(&mut said);
            ensure!(said.is_empty(), "{protocol}: {}", shown(&said));
        }
        // The next one's connection is not the one that was broken off.
        let rest = value(300_000, 2);
        let head = head.replace("$1\r\na", "$1\r\nb").replace(" a ", " b ");
        converse(&gate, &[head.as_bytes(), &rest, b"\r\n"].concat(), ok.as_bytes())?;
        let said = gate.ask(get.as_bytes(), kept.as_bytes())?;
        ensure!(said == kept.as_bytes(), "{protocol}: {}", shown(&said));
    }
    Ok(())
}

#[test]
fn a_refused_long_request_is_discarded_and_its_client_served() -> Result<()> {
    let redis = Listening::redis()?;
    let memcached = Listening::memcached()?;
    // A thousandth for what is short: one long value is dearer than all there is.
    let tenants = "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.0/8\"]\nquota = \"100 RU/s\"\nburst = \"1s\"\n\
                   deny = [\"append\"]";
    let service = "max_request = \"8MiB\"\nprice = { base = \"1 RU\", row = \"0 RU\", kib = \"1 RU\" }";
    let long = value(4 * MIB, 1);
    let too_long = value(8 * MIB + 1, 2);
    let gate = Listening::gate("resp", redis.address, service, tenants)?;
    let many: Vec<&[u8]> =
        [&b"MSET"[..]].into_iter().chain((0..60).flat_map(|_| [&b"b"[..], &long[..65_000]])).collect();
    for (long, reason) in [
        (resp(&[b"SET", b"a", &long]), "too-large rule=burst"),
        (resp(&[b"SET", b"a", &too_long]), "too-large rule=size"),
        (resp(&[b"APPEND", b"a", &long]), "unsupported rule=deny"),
        // Its head does not tell what it costs.
        (resp(&many), "quota bucket=poor"),
    ] {
        let mut client = gate.connect()?;
        let before = resp(&[b"SET", b"a", b"1"]);
        let after = resp(&[b"GET", b"a"]);
        wait_until("it cannot pay", || {
            client.write_all(&before)?;
            Ok(read_until(&mut client, b"\r\n")? == b"+OK\r\n")
        })?;
        client.write_all(&long)?;
        let said = String::from_utf8(read_until(&mut client, b"\r\n")?)?;
        let code = if reason.starts_with("quota") { "-THROTTLED " } else { "-DENIED " };
        let refused = said.starts_with(code) && said.trim_end().ends_with(&format!("={reason}"));
        ensure!(refused, "{reason}: {said}");
        wait_until("it is not served on", || {
            client.write_all(&after)?;
            let said = read_until(&mut client, b"\r\n")?;
            Ok(said == b"$1\r\n" && read_until(&mut client, b"1\r\n")? == b"1\r\n" || said == b"$1\r\n1\r\n")
        })?;
    }
    let gate = Listening::gate("memcached", memcached.address, service, tenants)?;
    let heads = ["set a 0 0 4194304\r\n", "set a 0 0 4194304 noreply\r\n", "append a 0 0 4194304\r\n"];
    for head in heads {
        let mut client = gate.connect()?;
        client.write_all(&[head.as_bytes(), &long, b"\r\nversion\r\n"].concat())?;
        let said = String::from_utf8(read_until(&mut client, b"\r\n")?)?;
        let said = match head.ends_with("noreply\r\n") {
            true => said,
            false if said.matches("\r\n").count() > 1 => said,
            false => said + &String::from_utf8(read_until(&mut client, b"\r\n")?)?,
        };
        let (refused, version) = said.trim_end().rsplit_once("\r\n").unwrap_or(("", said.trim_end()));
        ensure!(
            version.starts_with("VERSION ") || version.contains("reason=quota bucket="),
            "{head}: {said}"
        );
        ensure!(refused.is_empty() == head.ends_with("noreply\r\n"), "{head}: {said}");
        ensure!(refused.is_empty() || refused.starts_with("SERVER_ERROR denied "), "{head}: {said}");
    }
    let said = memcached.ask(b"get a\r\n", b"END\r\n")?;
    ensure!(said == b"END\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_refused_value_is_never_parsed_as_requests() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", &format!("{EVERYONE}\ndeny = [\"set\"]"))?;
    let head = b"set k 0 0 80000\r\n";
    let body = head.repeat(80_000 / head.len() + 1);
    let request = [&head[..], &body[..80_000], b"\r\nget k\r\n"].concat();
    let refused = b"SERVER_ERROR denied reason=unsupported rule=deny\r\n";
    converse(&gate, &request.repeat(2), &[&refused[..], b"END\r\n"].concat().repeat(2))
}

#[test]
fn a_store_failure_in_a_long_request_keeps_the_client() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate("memcached", store.address, "store_timeout = \"300ms\"", EVERYONE)?;
    let long = value(3 * MIB, 1);
    let (first, rest) = long.split_at(100_000);
    let head = b"set a 0 0 2000000\r\n";
    for silent in [false, true] {
        let mut client = gate.connect()?;
        client.write_all(head)?;
        client.write_all(first)?;
        // All of it has come, in however many pieces: from then on the store is gone, or says nothing.
        let (answers, mut had) = store.next()?;
        while had.len() < head.len() + first.len() {
            let (_, more) = store.next()?;
            had.extend(more);
        }
        ensure!(had.starts_with(head), "{}", shown(&had));
        if !silent {
            answers.shutdown(Shutdown::Both)?;
        }
        client.write_all(&rest[..1_900_000])?;
        client.write_all(b"\r\nget b\r\n")?;
        let said = read_until(&mut client, b"reason=store-down\r\n")?;
        // One that was not sent whole cannot have been done.
        let may_be_done = said == b"SERVER_ERROR uncertain reason=store-down\r\n";
        let is_not_done = said.starts_with(b"SERVER_ERROR unavailable retry_after_ms=");
        ensure!(may_be_done || (is_not_done && !silent), "{}", shown(&said));
        // The next request is found where it is.
        let mut answers = loop {
            let (answers, asked) = store.next()?;
            if asked == b"get b\r\n" {
                break answers;
            }
        };
        answers.write_all(b"END\r\n")?;
        read_until(&mut client, b"END\r\n")?;
    }
    Ok(())
}

#[test]
fn stalled_long_values_are_closed_and_slow_ones_are_not() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "client_timeout = \"1s\"", EVERYONE)?;
    let long = value(300_000, 1);
    let mut slow = gate.connect()?;
    let mut stuck = gate.connect()?;
    stuck.write_all(b"set a 0 0 300000\r\n")?;
    stuck.write_all(&long[..100_000])?;
    slow.write_all(b"set b 0 0 300000\r\n")?;
    let mut pieces =
        (0..).map(|number| number * Duration::from_millis(10)).zip(long.chunks(1_000)).peekable();
    let began = Instant::now();
    // It goes on for three times as long as the other is let wait.
    while counter(&gate, "slow-writer")? == 0 {
        while let Some((_, piece)) = pieces.next_if(|(due, _)| *due <= began.elapsed()) {
            slow.write_all(piece)?;
        }
    }
    pieces.try_for_each(|(_, piece)| slow.write_all(piece))?;
    slow.write_all(b"\r\n")?;
    read_until(&mut slow, b"STORED\r\n")?;
    let mut said = Vec::new();
    stuck.set_read_timeout(Some(PATIENCE))?;
    let _ = stuck.read_to_end(&mut said);
    ensure!(said.is_empty() && counter(&gate, "slow-writer")? == 1, "{}", shown(&said));
    let said = store.ask(b"get a\r\n", b"END\r\n")?;
    ensure!(said == b"END\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_streamed_request_waits_for_a_permit_and_shares_it() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "parallelism = \"1\"\nadmission = \"off\"\nqueue_limit = \"10\"\ndeadline = \"500ms\"\ncodel = { target = \"10s\" }\n\
                   store_timeout = \"10s\"";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, service, EVERYONE)?;
    let long = value(100_000, 1);
    let set = [b"set a 0 0 100000\r\n", &long[..], b"\r\n"].concat();
    let mut holder = gate.connect()?;
    holder.write_all(b"get x\r\n")?;
    let (mut answers, _) = store.next()?;
    // No place becomes free in time: it is refused, and all of it is read.
    let mut client = gate.connect()?;
    client.write_all(&set)?;
    let said = read_until(&mut client, b"\r\n")?;
    ensure!(said.ends_with(b"reason=deadline\r\n"), "{}", shown(&said));
    // A place becomes free, and is taken by one who sends only the beginning: others have it meanwhile.
    client.write_all(&set[..50_000])?;
    answers.write_all(b"END\r\n")?;
    read_until(&mut holder, b"END\r\n")?;
    let (mut to_client, mut had) = store.next()?;
    ensure!(had.starts_with(b"set a 0 0 100000\r\n"), "{}", shown(&had));
    while had.len() < 50_000 {
        had.extend(store.next()?.1);
    }
    holder.write_all(b"get y\r\n")?;
    let (mut answers, asked) = store.next()?;
    ensure!(asked == b"get y\r\n", "{}", shown(&asked));
    answers.write_all(b"END\r\n")?;
    read_until(&mut holder, b"END\r\n")?;
    // Once all of it is there, it has the place until it is answered.
    client.write_all(&set[50_000..])?;
    while had.len() < set.len() {
        had.extend(store.next()?.1);
    }
    holder.write_all(b"get z\r\n")?;
    let said = read_until(&mut holder, b"\r\n")?;
    ensure!(said.ends_with(b"reason=deadline\r\n"), "{}", shown(&said));
    to_client.write_all(b"STORED\r\n")?;
    read_until(&mut client, b"STORED\r\n")?;
    holder.write_all(b"get z\r\n")?;
    store.next()?.0.write_all(b"END\r\n")?;
    read_until(&mut holder, b"END\r\n")?;
    ensure!(had == set, "{} bytes of {}", had.len(), set.len());
    Ok(())
}

#[test]
fn a_long_value_in_a_transaction_stays_in_it() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let long = value(MIB, 1);
    let asked = [&b"MULTI\r\n"[..], &resp(&[b"SET", b"a", &long]), b"STRLEN a\r\nEXEC\r\n"];
    converse(&gate, &asked.concat(), b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:1048576\r\n")
}

#[test]
fn more_than_a_million_arguments_take_no_memory() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let mut client = gate.connect()?;
    let mut push = |values: usize| {
        client.write_all(format!("*{}\r\n$5\r\nRPUSH\r\n$1\r\nl\r\n", values + 2).as_bytes())?;
        let piece = b"$1\r\nx\r\n".repeat(values / 100);
        (0..100).try_for_each(|_| client.write_all(&piece))?;
        read_until(&mut client, b"\r\n")
    };
    // What any long request takes, and a gate that has just begun.
    ensure!(push(100_000)? == b":100000\r\n");
    let before = gate.memory()?;
    ensure!(push(1_100_000)? == b":1200000\r\n");
    let more = gate.memory()?.saturating_sub(before);
    ensure!(more < 4 * MIB, "{more} bytes for 1,000,000 arguments more");
    Ok(())
}

#[test]
fn a_protocol_error_in_a_long_request_writes_nothing() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let long = value(100_000, 1);
    let mut client: TcpStream = gate.connect()?;
    client.write_all(b"PING\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n")?;
    client.write_all(&long)?;
    client.write_all(b"xx")?;
    let mut said = Vec::new();
    client.read_to_end(&mut said)?;
    let expected = b"+PONG\r\n-ERR Protocol error: bulk string goes on after its length\r\n";
    ensure!(said == expected, "{}", shown(&said));
    let said = store.ask(b"EXISTS a\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_long_write_invalidates_and_blocks_its_key() -> Result<()> {
    let store = Listening::memcached()?;
    let eager = "threads = \"2\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(eager, "memcached", store.address, service, EVERYONE)?;
    let short = b"VALUE k 0 1\r\n1\r\nEND\r\n";
    gate.ask(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n")?;
    wait_until("it does not become hot", || {
        ensure!(gate.ask(b"get k\r\n", b"END\r\n")? == short);
        Ok(counter(&gate, "cache-hits")? > 0)
    })?;
    let long = value(100_000, 1);
    let (first, rest) = long.split_at(50_000);
    let mut writer = gate.connect()?;
    writer.write_all(b"set k 0 0 100000\r\n")?;
    writer.write_all(first)?;
    wait_until("it is not on its way", || Ok(counter(&gate, "streamed")? == 1))?;
    let hits = counter(&gate, "cache-hits")?;
    for _ in 0..10 {
        let said = gate.ask(b"get k\r\n", b"END\r\n")?;
        ensure!(said == short && counter(&gate, "cache-hits")? == hits, "{}", shown(&said));
    }
    writer.write_all(rest)?;
    writer.write_all(b"\r\n")?;
    read_until(&mut writer, b"STORED\r\n")?;
    let said = gate.ask(b"get k\r\n", b"\r\nEND\r\n")?;
    ensure!(said.len() > long.len(), "{}", shown(&said));
    Ok(())
}

#[test]
fn redis_refuses_what_it_takes_for_too_long_itself() -> Result<()> {
    let store = Listening::redis_with(&["--proto-max-bulk-len", "1mb"])?;
    let gate = Listening::gate("resp", store.address, "max_request = \"64MiB\"", EVERYONE)?;
    let long = value(16 * MIB, 1);
    // It answers the head, and reads no further.
    let asked = [resp(&[b"SET", b"a", &long]), resp(&[b"EXISTS", b"a"])];
    converse(&gate, &asked.concat(), b"-ERR Protocol error: invalid bulk length\r\n:0\r\n")
}

/// The tenant could pay for any length.
#[test]
fn a_value_beyond_max_request_is_refused_whoever_pays() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "max_request = \"1MiB\"", EVERYONE)?;
    let longest = resp(&[b"SET", b"a", &value(MIB, 1)]);
    let too_long = resp(&[b"SET", b"b", &value(2 * MIB, 2)]);
    let after = resp(&[b"EXISTS", b"a", b"b"]);
    let refused = b"-DENIED reason=too-large rule=size\r\n";
    converse(
        &gate,
        &[&longest[..], &too_long, &after].concat(),
        &[&b"+OK\r\n"[..], refused, b":1\r\n"].concat(),
    )
}

#[test]
fn by_default_redis_takes_what_it_takes_without_gate() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let value = vec![b'v'; 5 << 20];
    let request =
        [format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    ensure!(gate.ask(&request, b"\r\n")? == b"+OK\r\n");
    ensure!(store.ask(b"STRLEN a\r\n", b"\r\n")? == format!(":{}\r\n", value.len()).as_bytes());
    Ok(())
}
