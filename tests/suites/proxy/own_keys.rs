//! Tenants that may touch keys of their own only, and one that may touch any.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::memcached::Datagrams;
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const BOUND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const FREE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

const TENANTS: &str = r#"
[[tenant]]
name = "bound"
sources = ["127.0.0.5"]
quota = "unlimited"
keys = "own"
key_prefixes = ["a:", "aa:"]
[[tenant]]
name = "part"
part_of = "bound"
quota = "unlimited"
key_prefixes = ["web:"]
[[tenant]]
name = "free"
sources = ["127.0.0.6"]
quota = "unlimited"
deny = ["KEYS"]
"#;

const DENIED: &str = "SERVER_ERROR denied reason=unsupported rule=keys\r\n";
const REFUSED: &str = "-DENIED reason=unsupported rule=keys\r\n";

/// The whole reply to this request: a mark is sent behind it.
fn ask(client: &mut TcpStream, request: &[u8], mark: &[u8], marked: &[u8]) -> Result<String> {
    client.write_all(&[request, mark].concat())?;
    let mut said = read_until(client, marked).with_context(|| shown(request))?;
    said.truncate(said.len() - marked.len());
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn ask_memcached(client: &mut TcpStream, request: &[u8]) -> Result<String> {
    ask(client, request, b"mn\r\n", b"MN\r\n")
}

fn ask_redis(client: &mut TcpStream, request: &[u8]) -> Result<String> {
    ask(client, request, b"PING mark\r\n", b"$4\r\nmark\r\n")
}

#[test]
fn no_request_of_memcached_touches_a_key_of_another() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", TENANTS)?;
    let mut bound = gate.connect_from(BOUND)?;
    let mut free = gate.connect_from(FREE)?;
    // The last is the base64 of `a:x`, as it is written.
    let foreign = "set b:1 7 0 1\r\n1\r\nset YTp4 7 0 1\r\n1\r\n";
    ensure!(ask_memcached(&mut free, foreign.as_bytes())? == "STORED\r\nSTORED\r\n");
    for (request, answer) in [
        ("set a:1 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("set web:1 0 0 1\r\n1\r\n", "STORED\r\n"),
        ("get a:1 a:2 web:1\r\n", "VALUE a:1 0 1\r\n1\r\nVALUE web:1 0 1\r\n1\r\nEND\r\n"),
        ("incr a:1 1\r\n", "2\r\n"),
        ("set a:x 0 0 1\r\n3\r\n", "STORED\r\n"),
        ("mg YTp4 b v\r\n", "VA 1\r\n3\r\n"),
        ("mg a:x v\r\n", "VA 1\r\n3\r\n"),
        ("stats nothing\r\n", DENIED),
        ("delete a:1 noreply\r\n", ""),
        ("get a:1\r\n", "END\r\n"),
    ] {
        let said = ask_memcached(&mut bound, request.as_bytes())?;
        ensure!(said == answer, "{request:?}: {said:?}");
    }
    ensure!(ask_memcached(&mut bound, b"stats\r\n")?.starts_with("STAT pid"));
    let large = format!("set b:1 0 0 200000\r\n{}\r\n", "v".repeat(200_000));
    for request in [
        "get b:1\r\n",
        "get a:1 b:1\r\n",
        "gets b:1 a:1\r\n",
        "gat 1 a:1 b:1\r\n",
        "gats 1 b:1\r\n",
        "set b:1 0 0 1\r\n2\r\n",
        &large,
        "add b:1 0 0 1\r\n2\r\n",
        "replace b:1 0 0 1\r\n2\r\n",
        "append b:1 0 0 1\r\n2\r\n",
        "prepend b:1 0 0 1\r\n2\r\n",
        "cas b:1 0 0 1 1\r\n2\r\n",
        "incr b:1 1\r\n",
        "decr b:1 1\r\n",
        "touch b:1 1\r\n",
        "delete b:1\r\n",
        "mg b:1 v\r\n",
        "mg Yjox b v\r\n",
        "mg YTp4 v\r\n",
        "ms Yjox 1 b\r\n2\r\n",
        "md Yjox b\r\n",
        "ma Yjox b\r\n",
        "md b:1\r\n",
        "me b:1\r\n",
        "me Yjox b\r\n",
        "me YTp4\r\n",
        "me YTp4 x b\r\n",
        "md Y-jox b\r\n",
        "get  b:1\r\n",
        "get a\r\n",
        "get A:1\r\n",
        "flush_all\r\n",
        "flush_all 1\r\n",
        "stats items\r\n",
        "stats cachedump 1 10\r\n",
        "lru_crawler enable\r\n",
        "cache_memlimit 64\r\n",
        "verbosity 1\r\n",
        "slabs automove 0\r\n",
    ] {
        let said = ask_memcached(&mut bound, request.as_bytes())?;
        ensure!(said == DENIED, "{}: {said:?}", shown(request.as_bytes()));
    }
    for silent in [
        "set b:1 0 0 1 noreply\r\n2\r\n",
        "delete b:1 noreply\r\n",
        "flush_all noreply\r\n",
        "incr b:1 1 noreply\r\n",
    ] {
        ensure!(ask_memcached(&mut bound, silent.as_bytes())?.is_empty(), "{silent:?} is answered");
    }
    let said = ask_memcached(&mut free, b"get b:1 YTp4\r\nmg b:1 t\r\n")?;
    ensure!(said == "VALUE b:1 7 1\r\n1\r\nVALUE YTp4 7 1\r\n1\r\nEND\r\nHD t-1\r\n", "{said}");
    Ok(())
}

#[test]
fn datagrams_touch_no_key_of_another() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "transports = [\"udp\", \"tcp\"]", TENANTS)?;
    let mut free = gate.connect_from(FREE)?;
    ensure!(ask_memcached(&mut free, b"set b:1 7 0 1\r\n1\r\n")? == "STORED\r\n");
    let mut bound = Datagrams::to(IpAddr::V4(BOUND), gate.address)?;
    for (request, answer) in [
        ("set a:1 0 0 1\r\n1\r\n", "STORED\r\n".to_owned()),
        ("get b:1\r\n", DENIED.to_owned()),
        (
            "get a:1\r\nget b:1\r\nget a:2 b:1\r\nflush_all\r\n",
            format!("VALUE a:1 0 1\r\n1\r\nEND\r\n{DENIED}{DENIED}{DENIED}"),
        ),
        ("md Yjox b\r\n", DENIED.to_owned()),
    ] {
        let said = bound.ask(request)?;
        ensure!(said == answer, "{request:?}: {said:?}");
    }
    // The binary protocol: a GET of `b:1`, to which gate answers nothing of the store's.
    let binary = [&[0x80, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3][..], &[0; 12], b"b:1"].concat();
    let id = bound.send(&binary)?;
    let (answer, _) = bound.answer(id)?;
    ensure!(answer.get(6..8) != Some(&[0, 0]), "it is served: {answer:?}");
    ensure!(bound.ask("get a:2\r\n")? == "END\r\n");
    ensure!(ask_memcached(&mut free, b"get b:1\r\n")? == "VALUE b:1 7 1\r\n1\r\nEND\r\n");
    Ok(())
}

fn array(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    [format!("*{}\r\n", words.len())].into_iter().chain(words).collect::<String>().into_bytes()
}

#[test]
fn no_request_of_redis_touches_a_key_of_another() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut bound = gate.connect_from(BOUND)?;
    let mut free = gate.connect_from(FREE)?;
    ensure!(ask_redis(&mut free, b"SET b:1 1\r\nSADD b:set 1\r\nDEL a:1\r\n")? == "+OK\r\n:1\r\n:0\r\n");
    for (request, answer) in [
        ("SET a:1 1\r\n", "+OK\r\n"),
        ("MGET a:1 web:1\r\n", "*2\r\n$1\r\n1\r\n$-1\r\n"),
        ("RPUSH a:list 1\r\n", ":1\r\n"),
        ("SORT a:list BY nosort GET # GET a:w_*\r\n", "*2\r\n$1\r\n1\r\n$-1\r\n"),
        ("SORT a:list STORE a:sorted\r\n", ":1\r\n"),
        ("CLIENT SETNAME me\r\n", "+OK\r\n"),
        ("PUBLISH a:channel 1\r\n", ":0\r\n"),
    ] {
        let said = ask_redis(&mut bound, request.as_bytes())?;
        ensure!(said == answer, "{request:?}: {said:?}");
    }
    let long = "v".repeat(200_000);
    ensure!(ask_redis(&mut bound, &array(&["SET", "a:1", &long]))? == "+OK\r\n");
    for request in [
        array(&["SET", "b:1", &long]),
        // The second key is not at hand when the request is judged.
        array(&["MSET", "a:1", &long, "b:1", "2"]),
        array(&["DEL", "a:1", &long, "b:1"]),
    ] {
        ensure!(ask_redis(&mut bound, &request)? == REFUSED, "{}", shown(&request[..30]));
    }
    for request in [
        "GET b:1",
        "MGET a:1 b:1",
        "MSET a:1 1 b:1 2",
        "COPY a:1 b:1 REPLACE",
        "COPY b:1 a:1",
        "RENAME a:1 b:1",
        "SORT a:list BY b:*",
        "SORT a:list GET b:*",
        "SORT a:list GET *",
        "SORT a:list STORE b:1",
        "sort_ro a:list by b:*",
        "GEORADIUS a:g 1 1 1 m STORE b:1",
        "GEORADIUSBYMEMBER a:g m 1 m STOREDIST b:1",
        "GEOSEARCHSTORE b:1 a:g FROMMEMBER m BYRADIUS 1 m",
        "BITOP NOT b:1 a:1",
        "ZUNIONSTORE a:z 2 a:1 b:set",
        "SINTERCARD 2 a:1 b:set",
        "LMPOP 2 a:list b:list LEFT",
        "XREAD STREAMS a:x b:x 0 0",
        "XREADGROUP GROUP g c STREAMS b:x >",
        "EVAL \"return redis.call('GET', 'b:1')\" 1 a:1",
        "EVALSHA 0 1 a:1",
        "FCALL f 1 a:1",
        "SCRIPT FLUSH",
        "OBJECT ENCODING b:1",
        "MEMORY USAGE b:1",
        "DEBUG OBJECT b:1",
        "DUMP b:1",
        "MIGRATE 127.0.0.1 1 a:1 0 1",
        "KEYS *",
        "KEYS a:*",
        "SCAN 0 MATCH a:*",
        "RANDOMKEY",
        "DBSIZE",
        "FLUSHDB",
        "SWAPDB 0 1",
        "CONFIG GET save",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
        "CLIENT UNPAUSE",
        "SCRIPT KILL",
        "FUNCTION KILL",
        "FUNCTION STATS",
        "SLOWLOG GET",
        "PUBSUB CHANNELS",
        "PUBLISH b:channel 1",
        "NO.SUCH b:1",
        // These would need a connection of their own.
        "WATCH b:1",
        "BLPOP a:list b:list 0",
        "MONITOR",
        "CLIENT TRACKING on BCAST",
        "SUBSCRIBE __keyspace@0__:b:1",
        "PSUBSCRIBE *",
        "SUBSCRIBE b:1",
    ] {
        let said = ask_redis(&mut bound, format!("{request}\r\n").as_bytes())?;
        ensure!(said == REFUSED, "{request:?}: {said:?}");
    }
    let said = ask_redis(&mut free, b"GET b:1\r\nSCARD b:set\r\n")?;
    ensure!(said == "$1\r\n1\r\n:1\r\n", "{said}");
    Ok(())
}

#[test]
fn a_connection_of_its_own_touches_no_key_of_another() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", TENANTS)?;
    let mut bound = gate.connect_from(BOUND)?;
    let mut free = gate.connect_from(FREE)?;
    ensure!(ask_redis(&mut free, b"SET b:1 1\r\n")? == "+OK\r\n");
    bound.write_all(b"WATCH a:1\r\nMULTI\r\nSET a:1 1\r\nSET b:1 2\r\nEXEC\r\n")?;
    let said = String::from_utf8(read_until(&mut bound, b"previous errors.\r\n")?)?;
    ensure!(said.starts_with("+OK\r\n+OK\r\n+QUEUED\r\n-ERR unknown command 'DENIED"), "{said}");
    ensure!(said.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"), "{said}");
    for request in ["GET b:1", "WATCH b:1", "EVAL \"return 1\" 0", "FLUSHALL", "SUBSCRIBE b:1", "NO.SUCH a:1"]
    {
        bound.write_all(format!("MULTI\r\n{request}\r\nDISCARD\r\n").as_bytes())?;
        let said = String::from_utf8(read_until(&mut bound, b"\r\n+OK\r\n")?)?;
        ensure!(said.contains("reason=unsupported"), "{request}: {said}");
    }
    bound.write_all(b"MULTI\r\nSET a:1 3\r\nGET web:1\r\nEXEC\r\n")?;
    read_until(&mut bound, b"*2\r\n+OK\r\n$-1\r\n")?;
    bound.write_all(b"SUBSCRIBE a:channel\r\n")?;
    read_until(&mut bound, b"a:channel\r\n:1\r\n")?;
    ensure!(ask_redis(&mut free, b"PUBLISH a:channel x\r\nGET b:1\r\n")? == ":1\r\n$1\r\n1\r\n");
    read_until(&mut bound, b"$1\r\nx\r\n")?;
    Ok(())
}

#[test]
fn a_reload_binds_clients_that_are_connected() -> Result<()> {
    let store = Listening::memcached()?;
    let free = TENANTS.replace("keys = \"own\"\nkey_prefixes = [\"a:\", \"aa:\"]\n", "");
    let mut gate = Listening::gate_with("tick = \"10ms\"", "memcached", store.address, "", &free)?;
    let mut client = gate.connect_from(BOUND)?;
    ensure!(ask_memcached(&mut client, b"get b:1\r\n")? == "END\r\n");
    let path = gate.files()?.0.to_owned();
    let text = std::fs::read_to_string(&path)?;
    let bound = text.replace(
        "sources = [\"127.0.0.5\"]",
        "sources = [\"127.0.0.5\"]\nkeys = \"own\"\nkey_prefixes = \"a:\"",
    );
    for (text, is_bound) in [(&bound, true), (&text, false)] {
        std::fs::write(&path, text)?;
        gate.signal(Signal::SIGHUP)?;
        gate.program().wait_for("configuration read again", PATIENCE)?;
        wait_until("it is as before", || {
            Ok((ask_memcached(&mut client, b"get b:1\r\n")? == DENIED) == is_bound)
        })?;
        ensure!(ask_memcached(&mut client, b"get a:1 web:1\r\n")? == "END\r\n");
    }
    ensure!(counter(&gate, "requests")? > 0);
    Ok(())
}
