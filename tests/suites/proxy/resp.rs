//! Redis behind gate: what it answers is what it answers by itself.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use gate_userspace::load::{self, Plan, Protocol, TenantLoad, Transport};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

fn tool(name: &str, server: &Listening, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(name);
    command.args(["-h", &server.address.ip().to_string(), "-p", &server.address.port().to_string()]);
    Ok(command.args(arguments).output()?)
}

#[test]
fn the_default_set_of_redis_benchmark_works() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    for pipelined in ["1", "16"] {
        let output = tool("redis-benchmark", &gate, &["-n", "2000", "-c", "20", "-q", "-P", pipelined])?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "LPUSH", "LRANGE_600", "MSET"] {
            ensure!(said.contains(&format!("{test}: ")) || said.contains(test), "no {test} in {said}");
        }
        ensure!(!said.contains("Error"), "{said}");
    }
    Ok(())
}

#[test]
fn the_load_generator_counts_answers_and_refusals() -> Result<()> {
    let store = Listening::redis()?;
    let tenants = "[[tenant]]\nname = \"rich\"\nsources = [\"127.0.0.1\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.2\"]\nquota = \"1 RU/s\"\nburst = \"20s\"";
    let price = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    let gate = Listening::gate("resp", store.address, price, tenants)?;
    let tenant = |text: &str| text.parse::<TenantLoad>().map_err(anyhow::Error::from);
    let plan = Plan {
        target: gate.address,
        transport: Transport::Tcp,
        protocol: Protocol::Resp,
        tenants: vec![
            tenant("name=rich,source=127.0.0.1,rate=5000/s,reads=50%,keys=uniform:20,value=1000B")?,
            tenant("name=poor,source=127.0.0.2,rate=5000/s,reads=50%,keys=uniform:20,value=0B")?,
        ],
        duration: Nanos::from_secs(60),
        count: Some(1_000),
        timeout: Nanos::from_secs(10),
        seed: 7,
    };
    let summary = load::start(&plan)?.finish();
    let [rich, poor] = &summary.tenants[..] else { anyhow::bail!("{summary:?}") };
    ensure!((rich.answered, rich.refused) == (1_000, 0) && rich.hits > 300, "{rich:?}");
    ensure!((20..=30).contains(&poor.answered) && poor.answered + poor.refused == 1_000, "{poor:?}");
    ensure!(poor.refused_by_reason == [("quota", poor.refused)].into(), "{poor:?}");
    Ok(())
}

#[test]
fn a_transaction_gets_a_dedicated_connection() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let end = b"+PONG\r\n";
    for (asked, answered) in [
        ("SET a 1\r\nMULTI\r\nINCR a\r\nEXEC\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:2\r\n"),
        ("SELECT 3\r\nSET a x\r\nGET a\r\n", "+OK\r\n+OK\r\n$1\r\nx\r\n"),
        ("GET a\r\n", "$1\r\n2\r\n"),
        ("LPUSH l 1\r\nBLPOP l 0\r\n", ":1\r\n*2\r\n$1\r\nl\r\n$1\r\n1\r\n"),
        ("CLIENT SETNAME me\r\nCLIENT GETNAME\r\n", "+OK\r\n$2\r\nme\r\n"),
        ("WATCH a\r\nMULTI\r\nGET a\r\nDISCARD\r\n", "+OK\r\n+OK\r\n+QUEUED\r\n+OK\r\n"),
        ("CLIENT REPLY SKIP\r\nSET a 3\r\nGET a\r\n", "$1\r\n3\r\n"),
    ] {
        let asked = format!("{asked}PING\r\n");
        let said = gate.ask(asked.as_bytes(), end)?;
        let expected = [answered.as_bytes(), end].concat();
        ensure!(said == expected, "{asked:?}: {}", shown(&said));
    }
    let mut subscriber = gate.connect()?;
    subscriber.write_all(b"SUBSCRIBE news\r\n")?;
    read_until(&mut subscriber, b":1\r\n")?;
    gate.ask(b"PUBLISH news hello\r\n", b":1\r\n")?;
    read_until(&mut subscriber, b"$5\r\nhello\r\n")?;
    Ok(())
}

/// How often something happened.
fn event(gate: &Listening, name: &str) -> Result<u64> {
    let queues = gate.json(&["queues"])?;
    queues["services"][0]["events"][name].as_u64().context("it is not counted")
}

/// A client of gate with a connection to the store of its own.
fn dedicated_connection(gate: &Listening) -> Result<TcpStream> {
    let mut client = gate.connect()?;
    // As long as it watches a key, it keeps the connection.
    client.write_all(b"WATCH unused\r\n")?;
    read_until(&mut client, b"+OK\r\n")?;
    Ok(client)
}

#[test]
fn dedicated_connections_count_to_client_memory() -> Result<()> {
    let store = Listening::redis()?;
    let service = "client_memory = \"1MiB\"";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, EVERYONE)?;
    // All but the end of a request: forty of them are more than there may be.
    let begun = [&b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$60000\r\n"[..], &[b'v'; 50_000]].concat();
    let mut polite = dedicated_connection(&gate)?;
    let mut stuck = Vec::new();
    for _ in 0..40 {
        let mut client = dedicated_connection(&gate)?;
        client.write_all(&begun)?;
        stuck.push(client);
        polite.write_all(b"SET b 1\r\nGET b\r\n")?;
        read_until(&mut polite, b"+OK\r\n$1\r\n1\r\n")?;
    }
    wait_until("none is closed", || Ok(event(&gate, "slow-writer")? > 10))?;
    let rest = [&[b'v'; 10_000][..], b"\r\n"].concat();
    let done = stuck.iter_mut().filter_map(|client| {
        client.write_all(&rest).ok()?;
        read_until(client, b"+OK\r\n").ok()
    });
    // Seven eighths of the bound are theirs.
    let done = done.count();
    ensure!((5..=20).contains(&done), "{done} could go on");
    Ok(())
}

#[test]
fn slow_readers_on_dedicated_connections_are_closed() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "client_timeout = \"100ms\"", EVERYONE)?;
    let value = vec![b'v'; 60_000];
    gate.ask(&[&b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$60000\r\n"[..], &value, b"\r\n"].concat(), b"+OK\r\n")?;
    let mut waiting = gate.connect()?;
    waiting.write_all(b"BLPOP list 0\r\n")?;
    let mut deaf = dedicated_connection(&gate)?;
    deaf.write_all(&b"GET big\r\n".repeat(500))?;
    wait_until("it is not closed", || Ok(event(&gate, "slow-reader")? == 1))?;
    gate.ask(b"RPUSH list 1\r\n", b":1\r\n")?;
    read_until(&mut waiting, b"*2\r\n$4\r\nlist\r\n$1\r\n1\r\n")?;
    Ok(())
}

#[test]
fn requests_on_dedicated_connections_count_by_type() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let counted = || {
        let queues = gate.json(&["queues"])?;
        let types = queues["services"][0]["types"].as_array().cloned().unwrap_or_default();
        // `WATCH` and `EXEC` count as well.
        let is_known = |kind: &serde_json::Value| kind["name"] == "counter" || kind["name"] == "transaction";
        ensure!(types.iter().all(is_known), "{types:?}");
        let counter = types.iter().find(|kind| kind["name"] == "counter");
        let count = |name: &str| counter.and_then(|kind| kind[name].as_u64()).unwrap_or(0);
        Ok::<_, anyhow::Error>([count("offered"), count("answered")])
    };
    let mut client = dedicated_connection(&gate)?;
    for (asked, answered, count) in [
        ("INCR a\r\nINCR a\r\n", ":1\r\n:2\r\n", 2),
        // In a transaction they are done, but not answered.
        ("MULTI\r\nINCR a\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n:3\r\n", 2),
        ("INCR a\r\n", ":4\r\n", 3),
        // From here on nobody can tell which answer is whose.
        ("CLIENT REPLY SKIP\r\nINCR a\r\nINCR a\r\n", ":6\r\n", 3),
        ("INCR a\r\n", ":7\r\n", 3),
    ] {
        client.write_all(asked.as_bytes())?;
        read_until(&mut client, answered.as_bytes())?;
        let found = counted()?;
        ensure!(found == [count; 2], "after {asked:?}: {found:?}");
    }
    Ok(())
}

#[test]
fn redis_cli_works_in_both_protocol_versions() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    tool("redis-cli", &gate, &["HSET", "h", "f", "v"])?;
    for version in ["-2", "-3"] {
        let said = tool("redis-cli", &gate, &[version, "HGETALL", "h"])?;
        let direct = tool("redis-cli", &store, &[version, "HGETALL", "h"])?;
        ensure!(said.status.success() && said.stdout == direct.stdout, "{}", shown(&said.stdout));
    }
    Ok(())
}

#[test]
fn malformed_bytes_end_a_connection_after_its_replies() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    for wrong in ["*1\r\n$-5\r\n", "*9999999999\r\n", "*1\r\n:5\r\n", "SET \"a\r\n"] {
        let asked = format!("SET k v\r\nGET k\r\n{wrong}GET k\r\n");
        let mut stream = gate.connect()?;
        stream.write_all(asked.as_bytes())?;
        let said = read_to_end(stream)?;
        let said = String::from_utf8_lossy(&said);
        ensure!(said.starts_with("+OK\r\n$1\r\nv\r\n-ERR Protocol error: "), "{wrong:?}: {said}");
        ensure!(said.ends_with("\r\n") && said.matches("\r\n").count() == 4, "{wrong:?}: {said}");
    }
    Ok(())
}

fn read_to_end(mut stream: TcpStream) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut said)?;
    Ok(said)
}

#[test]
fn random_commands_are_answered_as_by_the_store_itself() -> Result<()> {
    let commands = if std::env::var_os("GATE_LONG").is_some() { 1_000_000 } else { 100_000 };
    let direct = Listening::redis()?;
    let behind = Listening::redis()?;
    let gate = Listening::gate("resp", behind.address, "", EVERYONE)?;
    let mut rng = Rng::new(0x5eed);
    let mut clients: Vec<[TcpStream; 2]> =
        (0..CLIENTS).map(|_| Ok([direct.connect()?, gate.connect()?])).collect::<Result<_>>()?;
    let mut done = 0;
    for round in 0_u64.. {
        let end = format!("$20\r\n{round:020}\r\n");
        let mut batches = Vec::new();
        for (number, client) in clients.iter_mut().enumerate() {
            let mut batch = Vec::new();
            for _ in 0..1 + rng.below(40) {
                command(&mut rng, number, &mut batch);
                done += 1;
            }
            batch.extend_from_slice(format!("ECHO {round:020}\r\n").as_bytes());
            client.iter_mut().try_for_each(|stream| stream.write_all(&batch))?;
            batches.push(batch);
        }
        for ([direct, gate], batch) in clients.iter_mut().zip(&batches) {
            let direct = read_until(direct, end.as_bytes())?;
            let gate = read_until(gate, end.as_bytes())?;
            let differs = direct.iter().zip(&gate).take_while(|(direct, gate)| direct == gate).count();
            let around =
                |said: &[u8]| shown(&said[differs.saturating_sub(100)..said.len().min(differs + 100)]);
            ensure!(
                direct == gate,
                "round {round}: directly {}\nthrough gate {}\nafter {}",
                around(&direct),
                around(&gate),
                shown(batch)
            );
        }
        if done >= commands {
            break;
        }
    }
    Ok(())
}

/// Connections with keys of their own.
const CLIENTS: usize = 8;

/// Every byte occurs; mostly short, rarely long.
fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(2_000) {
        0 => 1_000_000,
        1..40 => rng.index(100_000),
        40..400 => rng.index(3),
        _ => rng.index(100),
    };
    rng.value(len)
}

/// Appends a command on few keys, of which each may hold any type.
fn command(rng: &mut Rng, client: usize, out: &mut Vec<u8>) {
    let key = format!("c{client}:{}", rng.below(12));
    let other = format!("c{client}:{}", rng.below(12));
    let small = rng.below(20).to_string();
    let member = format!("m{}", rng.below(5));
    let value = value(rng);
    let text = |text: &str| text.as_bytes().to_vec();
    let arguments: Vec<Vec<u8>> = match rng.below(25) {
        0..=3 => vec![text("SET"), text(&key), value],
        4..=7 => vec![text("get"), text(&key)],
        8 => vec![text("APPEND"), text(&key), value],
        9 => vec![
            text(rng.pick(&["INCR", "DECR", "STRLEN", "TYPE", "EXISTS", "TTL", "LLEN", "SCARD"])),
            text(&key),
        ],
        10 => {
            vec![text(rng.pick(&["DEL", "UNLINK", "MGET", "TOUCH", "PFCOUNT"])), text(&key), text(&other)]
        }
        11 => vec![text("MSET"), text(&key), value, text(&other), text(&small)],
        12 => vec![text("LPUSH"), text(&key), value, text(&small)],
        13 => vec![text(rng.pick(&["LRANGE", "GETRANGE"])), text(&key), text("0"), text(&small)],
        14 => vec![text("HSET"), text(&key), text(&member), value],
        15 => vec![text("HGET"), text(&key), text(&member)],
        16 => vec![text("SADD"), text(&key), text(&member)],
        17 => vec![text("ZADD"), text(&key), text(&small), text(&member)],
        18 => vec![text("ZRANGE"), text(&key), text("0"), text("-1"), text("WITHSCORES")],
        19 => vec![text("SETEX"), text(&key), text("1000"), value],
        20 => vec![text(rng.pick(&["LPOP", "RPOP", "PERSIST", "ZCARD", "HLEN", "GETDEL"])), text(&key)],
        21 => vec![
            text("EVAL"),
            text("return {KEYS[1], ARGV[1], 3, {1, 'x'}, redis.error_reply('no')}"),
            text("1"),
            text(&key),
            text(&small),
        ],
        22 => vec![text("SETRANGE"), text(&key), text(&small), value],
        23 => {
            vec![text(rng.pick(&["NONSENSE", "PING", "ECHO", "OBJECT", "XADD", "BITCOUNT"])), text(&key)]
        }
        _ => vec![text("GETSET"), text(&key), value],
    };
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(&argument);
        out.extend_from_slice(b"\r\n");
    }
}
