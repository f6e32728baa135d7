//! Redis' hot keys: what one client says ends what all share only as far as it concerns them.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

use super::{EAGER, EVERYONE, event};

const VALUE: &[u8] = b"$1\r\nv\r\n";
/// Reads that are sent at once.
const READS: usize = 50;

/// A Redis with a key, and a gate before it that shares reads.
fn shared(key: &str) -> Result<(Listening, Listening)> {
    let store = Listening::redis()?;
    store.ask(format!("SET {key} v\r\n").as_bytes(), b"+OK\r\n")?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"\nstore_timeout = \"20s\"";
    let gate = Listening::gate_with(EAGER, "resp", store.address, service, EVERYONE)?;
    Ok((store, gate))
}

/// Waits until reads of a key are answered from memory.
fn is_kept(gate: &Listening, reader: &mut TcpStream, key: &str) -> Result<()> {
    let read = format!("GET {key}\r\n").repeat(READS);
    wait_until("it is not kept", || {
        let hits = event(gate, "cache-hits")?;
        reader.write_all(read.as_bytes())?;
        let mut said = Vec::new();
        while said.len() < VALUE.len() * READS {
            said.extend(read_until(reader, VALUE)?);
        }
        ensure!(said == VALUE.repeat(READS), "{}", shown(&said));
        Ok(event(gate, "cache-hits")? >= hits + READS as u64)
    })
}

#[test]
fn what_an_error_says_ends_no_sharing() -> Result<()> {
    let (_store, gate) = shared("k")?;
    let mut reader = gate.connect()?;
    is_kept(&gate, &mut reader, "k")?;
    let mut other = gate.connect()?;
    for _ in 0..5 {
        other.write_all(b"EVAL \"return {err='NOPERM x'}\" 0\r\n")?;
        ensure!(read_until(&mut other, b"\r\n")? == b"-NOPERM x\r\n");
        is_kept(&gate, &mut reader, "k")?;
    }
    let long = "x".repeat(200_000);
    let script = "return {err='NOPERM x'}";
    let request =
        format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n$200000\r\n{long}\r\n", script.len());
    other.write_all(request.as_bytes())?;
    ensure!(
        read_until(&mut other, b"\r\n")? == b"-NOPERM x\r\n",
        "nor does one in answer to a streamed request"
    );
    is_kept(&gate, &mut reader, "k")
}

#[test]
fn writes_without_replies_end_the_sharing_of_their_keys_alone() -> Result<()> {
    for begin in ["CLIENT REPLY OFF\r\n", "HELLO 3\r\nSUBSCRIBE c\r\n"] {
        let (store, gate) = shared("k")?;
        let mut reader = gate.connect()?;
        is_kept(&gate, &mut reader, "k")?;
        let mut writer = gate.connect()?;
        writer.write_all(begin.as_bytes())?;
        writer.write_all(b"SET own 1\r\n")?;
        wait_until("it is not written", || Ok(store.ask(b"STRLEN own\r\n", b"\r\n")? == b":1\r\n"))?;
        is_kept(&gate, &mut reader, "k")?;
        writer.write_all(b"SET k ww\r\n")?;
        wait_until("it is not written", || Ok(store.ask(b"STRLEN k\r\n", b"\r\n")? == b":2\r\n"))?;
        reader.write_all(b"GET k\r\n")?;
        ensure!(read_until(&mut reader, b"\r\nww\r\n")? == b"$2\r\nww\r\n");
    }
    Ok(())
}

#[test]
fn a_transaction_ends_the_sharing_of_what_it_writes() -> Result<()> {
    let (_store, gate) = shared("k")?;
    let mut reader = gate.connect()?;
    is_kept(&gate, &mut reader, "k")?;
    let mut writer = gate.connect()?;
    let invalidated = event(&gate, "invalidated")?;
    for _ in 0..20 {
        writer.write_all(b"MULTI\r\nSET own 1\r\nINCR own\r\nEXEC\r\n")?;
        read_until(&mut writer, b"*2\r\n+OK\r\n:2\r\n")?;
        is_kept(&gate, &mut reader, "k")?;
    }
    ensure!(event(&gate, "invalidated")? == invalidated, "what is kept of another key has ended");
    for (transaction, reply) in [
        ("MULTI\r\nSET other 1\r\nSET k w\r\nEXEC\r\n", "*2\r\n+OK\r\n+OK\r\n"),
        (
            "MULTI\r\nSET k v\r\nDISCARD\r\nMULTI\r\nEVAL \"redis.call('SET', 'k', 'w')\" 0\r\nEXEC\r\n",
            "*1\r\n$-1\r\n",
        ),
    ] {
        reader.write_all(b"SET k v\r\n")?;
        read_until(&mut reader, b"+OK\r\n")?;
        is_kept(&gate, &mut reader, "k")?;
        writer.write_all(transaction.as_bytes())?;
        read_until(&mut writer, reply.as_bytes())?;
        reader.write_all(b"GET k\r\n")?;
        let said = read_until(&mut reader, b"\r\nw\r\n")?;
        ensure!(said == b"$1\r\nw\r\n", "{transaction}");
    }
    Ok(())
}

#[test]
fn rights_that_are_taken_away_through_gate_end_at_once() -> Result<()> {
    const RIGHTS: &str = "ACL SETUSER al reset on >pw ~* +@all\r\n";
    let (store, gate) = shared("k")?;
    let mut admin = gate.connect()?;
    for take in [
        "ACL SETUSER al resetkeys ~other:*\r\n",
        "ACL SETUSER al -get\r\n",
        "MULTI\r\nACL SETUSER al resetkeys\r\nEXEC\r\n",
    ] {
        store.ask(RIGHTS.as_bytes(), b"+OK\r\n")?;
        let mut reader = gate.connect()?;
        reader.write_all(b"AUTH al pw\r\n")?;
        read_until(&mut reader, b"+OK\r\n")?;
        is_kept(&gate, &mut reader, "k")?;
        admin.write_all(take.as_bytes())?;
        let end: &[u8] = if take.starts_with("MULTI") { b"*1\r\n+OK\r\n" } else { b"+OK\r\n" };
        read_until(&mut admin, end)?;
        for _ in 0..READS {
            reader.write_all(b"GET k\r\n")?;
            let said = read_until(&mut reader, b"\r\n")?;
            ensure!(said.starts_with(b"-NOPERM"), "{take}: {}", shown(&said));
        }
        store.ask(b"ACL DELUSER al\r\n", b":1\r\n")?;
    }
    Ok(())
}
