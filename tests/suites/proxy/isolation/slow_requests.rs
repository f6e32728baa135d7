//! A store that works on something slow, or on much, is not taken for a dead one.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const ONE: &str = "store_timeout = \"300ms\"\nconnections = \"1\"";

#[test]
fn a_script_beyond_the_timeout_costs_nobody_its_answer() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, ONE, EVERYONE)?;
    let mut slow = gate.connect()?;
    let mut polite = gate.connect()?;
    let script = b"EVAL \"local t = redis.call('TIME'); local e = t[1] * 1000 + t[2] / 1000 + 1000; \
                   repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > e; return 7\" 0\r\n";
    slow.write_all(script)?;
    polite.write_all(b"INCR a\r\n")?;
    ensure!(read_until(&mut slow, b"\r\n")? == b":7\r\n");
    let said = read_until(&mut polite, b"\r\n")?;
    ensure!(said == b":1\r\n", "{}", shown(&said));
    ensure!(counter(&gate, "store-failed")? == 0);
    // One that is stopped is found out soon all the same.
    store.stall()?;
    polite.write_all(b"INCR a\r\n")?;
    let said = read_until(&mut polite, b"\r\n")?;
    ensure!(said == b"-UNCERTAIN reason=store-down\r\n", "{}", shown(&said));
    store.signal(Signal::SIGCONT)
}

#[test]
fn a_script_can_be_killed_by_another_client() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    for (runs, asks, end, kills) in [
        ("EVAL \"while true do end\" 0\r\n", "PING\r\n", "\r\n", "SCRIPT KILL\r\n"),
        ("FCALL endless 0\r\n", "FUNCTION STATS\r\n", "functions_count\r\n:1\r\n", "FUNCTION KILL\r\n"),
    ] {
        let mut slow = gate.connect()?;
        let mut other = gate.connect()?;
        let library = "#!lua name=l\nredis.register_function('endless', function() while true do end end)";
        write!(other, "CONFIG SET lua-time-limit 10\r\n")?;
        write!(
            other,
            "*4\r\n$8\r\nFUNCTION\r\n$4\r\nLOAD\r\n$7\r\nREPLACE\r\n${}\r\n{library}\r\n",
            library.len()
        )?;
        ensure!(read_until(&mut other, b"l\r\n")? == b"+OK\r\n$1\r\nl\r\n");
        slow.write_all(runs.as_bytes())?;
        wait_until("the store is busy", || Ok(store.ask(b"PING\r\n", b"\r\n")?.starts_with(b"-BUSY")))?;
        other.write_all(asks.as_bytes())?;
        let said = shown(&read_until(&mut other, end.as_bytes())?);
        ensure!(said.contains("-BUSY") || said.contains("running_script"), "{asks}: {said}");
        other.write_all(kills.as_bytes())?;
        let said = read_until(&mut other, b"\r\n")?;
        ensure!(said == b"+OK\r\n", "{kills}: {}", shown(&said));
        let said = read_until(&mut slow, b"\r\n")?;
        ensure!(shown(&said).contains("killed by user"), "{}", shown(&said));
    }
    ensure!(counter(&gate, "store-failed")? == 0);
    Ok(())
}

#[test]
fn a_paused_store_can_be_resumed_by_another_client() -> Result<()> {
    let store = Listening::redis()?;
    let gate =
        Listening::gate_with("threads = \"1\"", "resp", store.address, "parallelism = \"1\"", EVERYONE)?;
    let mut slow = gate.connect()?;
    let mut other = gate.connect()?;
    other.write_all(b"CLIENT PAUSE 60000 WRITE\r\n")?;
    ensure!(read_until(&mut other, b"\r\n")? == b"+OK\r\n");
    slow.write_all(b"EVAL \"return redis.call('INCR', KEYS[1])\" 1 a\r\n")?;
    wait_until("the store holds the script back", || {
        Ok(shown(&store.ask(b"INFO clients\r\nECHO end\r\n", b"end\r\n")?).contains("blocked_clients:1"))
    })?;
    other.write_all(b"CLIENT UNPAUSE\r\nECHO b\r\n")?;
    let said = read_until(&mut other, b"b\r\n")?;
    ensure!(said == b"+OK\r\n$1\r\nb\r\n", "{}", shown(&said));
    ensure!(read_until(&mut slow, b"\r\n")? == b":1\r\n");
    ensure!(counter(&gate, "store-failed")? == 0);
    Ok(())
}

#[test]
fn a_paused_store_is_not_taken_for_a_dead_one() -> Result<()> {
    const CLIENTS: usize = 8;
    let store = Listening::redis()?;
    let timeout = "store_timeout = \"500ms\"";
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, timeout, EVERYONE)?;
    let mut asking = gate.connect()?;
    let mut others = (0..CLIENTS).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    for (pauses, end) in [
        ("CLIENT PAUSE 1500\r\n", "+OK\r\n"),
        ("CLIENT PAUSE 1500 WRITE\r\nCLIENT PAUSE 10 ALL\r\n", "+OK\r\n+OK\r\n"),
        ("MULTI\r\nCLIENT PAUSE 1500\r\nEXEC\r\n", "*1\r\n+OK\r\n"),
    ] {
        asking.write_all(pauses.as_bytes())?;
        read_until(&mut asking, end.as_bytes())?;
        let asked = Instant::now();
        for (number, client) in others.iter_mut().enumerate() {
            client.write_all(format!("SET k{number} 1\r\n").as_bytes())?;
        }
        // A new client, whose request needs a new connection to the store.
        let mut new = gate.connect()?;
        new.write_all(b"MULTI\r\nSET a 1\r\nEXEC\r\n")?;
        for client in &mut others {
            let said = read_until(client, b"\r\n")?;
            ensure!(said == b"+OK\r\n", "{pauses}: {}", shown(&said));
        }
        ensure!(asked.elapsed() > Duration::from_secs(1), "{pauses}: nothing was paused");
        let said = read_until(&mut new, b"*1\r\n+OK\r\n")?;
        ensure!(said == b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", "{pauses}: {}", shown(&said));
    }
    ensure!(counter(&gate, "store-failed")? == 0);
    Ok(())
}

#[test]
fn a_silence_beyond_a_pause_or_slow_timeout_is_a_failure() -> Result<()> {
    const UNCERTAIN: &[u8] = b"-UNCERTAIN reason=store-down\r\n";
    let store = Listening::redis()?;
    let timeouts = "store_timeout = \"200ms\"\nslow_timeout = \"5s\"\nconnections = \"1\"";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, timeouts, EVERYONE)?;
    let mut client = gate.connect()?;
    let mut other = gate.connect()?;
    let mut ask = |request: &str| -> Result<(Vec<u8>, Duration)> {
        let asked = Instant::now();
        client.write_all(request.as_bytes())?;
        Ok((read_until(&mut client, b"\r\n")?, asked.elapsed()))
    };
    // A pause that has ended, or that the store has refused, is none, and what is short may not take long.
    ensure!(ask("CLIENT PAUSE 100\r\n")?.0 == b"+OK\r\n");
    ensure!(ask("SET a 1\r\n")?.0 == b"+OK\r\n");
    ensure!(ask("CLIENT PAUSE 60000 WRITE\r\n")?.0 == b"+OK\r\n");
    other.write_all(b"CLIENT UNPAUSE\r\n")?;
    ensure!(read_until(&mut other, b"\r\n")? == b"+OK\r\n");
    ensure!(ask("CLIENT PAUSE 60000 NONSENSE\r\n")?.0.starts_with(b"-ERR"));
    store.stall()?;
    let (said, took) = ask("INCR a\r\n")?;
    ensure!(said == UNCERTAIN && took < Duration::from_secs(3), "{} after {took:?}", shown(&said));
    store.signal(Signal::SIGCONT)?;
    wait_until("it is not served again", || Ok(ask("SET a 1\r\n")?.0 == b"+OK\r\n"))?;
    // A pause without an end in sight is a failure all the same.
    wait_until("it is not paused", || Ok(ask("CLIENT PAUSE 60000 WRITE\r\n")?.0 == b"+OK\r\n"))?;
    let (said, took) = ask("SET a 1\r\n")?;
    ensure!(said == UNCERTAIN && took >= Duration::from_secs(5), "{} after {took:?}", shown(&said));
    Ok(())
}

#[test]
fn a_store_that_answers_is_alive_however_busy() -> Result<()> {
    let store = FakeStore::start()?;
    let one = "store_timeout = \"500ms\"\nconnections = \"1\"\nhot_keys.cache = \"off\"";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, one, EVERYONE)?;
    let mut client = gate.connect()?;
    client.write_all(b"delete a\r\ntouch b 1\r\n")?;
    let (mut answers, _) = store.next()?;
    // The answer to the first comes byte by byte, and takes longer than the timeout in all.
    for byte in b"DELETED\r" {
        answers.write_all(&[*byte])?;
        std::thread::park_timeout(Duration::from_millis(100));
    }
    answers.write_all(b"\nTOUCHED\r\n")?;
    let said = read_until(&mut client, b"TOUCHED\r\n")?;
    ensure!(said == b"DELETED\r\nTOUCHED\r\n", "{}", shown(&said));
    ensure!(counter(&gate, "store-failed")? == 0);
    Ok(())
}
