//! A store that works on something slow, or on much, is not taken for a dead one.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, read_until, shown};
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
