//! A password that is set while the store runs holds for clients that come through gate, as for those that come directly.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::within;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// The first line of the reply to one request.
fn asks(client: &mut TcpStream, request: &[u8]) -> Result<String> {
    client.write_all(request)?;
    Ok(String::from_utf8(read_until(client, b"\r\n")?)?)
}

#[test]
fn who_comes_after_a_password_was_set_needs_it_within_a_second() -> Result<()> {
    for set in ["CONFIG SET requirepass secret\r\n", "ACL SETUSER default resetpass >secret\r\n"] {
        let store = Listening::redis()?;
        let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
        let mut old: Vec<TcpStream> = (0..8).map(|_| gate.connect()).collect::<Result<_>>()?;
        for client in &mut old {
            ensure!(asks(client, b"SET a 1\r\n")? == "+OK\r\n");
            ensure!(asks(client, b"SELECT 0\r\n")? == "+OK\r\n");
        }
        store.ask(set.as_bytes(), b"+OK\r\n")?;
        within("new clients are let in", Duration::from_secs(1), || {
            Ok(asks(&mut gate.connect()?, b"GET a\r\n")?.starts_with("-NOAUTH "))
        })?;
        within("another thread lets them in", Duration::from_secs(1), || {
            for request in
                [&b"SET a 2\r\n"[..], b"CONFIG SET maxmemory 1mb\r\n", b"SELECT 1\r\n", b"MULTI\r\n"]
            {
                for _ in 0..8 {
                    if !asks(&mut gate.connect()?, request)?.starts_with("-NOAUTH ") {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })?;
        // Who has it comes in, and who was there goes on, as with Redis itself.
        let mut new = gate.connect()?;
        ensure!(asks(&mut new, b"AUTH secret\r\n")? == "+OK\r\n");
        ensure!(asks(&mut new, b"STRLEN a\r\n")? == ":1\r\n");
        for client in &mut old {
            ensure!(asks(client, b"STRLEN a\r\n")? == ":1\r\n");
        }
    }
    Ok(())
}

#[test]
fn new_clients_are_greeted_once_no_password_is_wanted_any_more() -> Result<()> {
    let store = Listening::redis_with(&["--requirepass", "secret"])?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let greet = || asks(&mut gate.connect()?, b"HELLO 3\r\n");
    // Each thread has asked the store in the name of an unauthenticated client.
    for _ in 0..16 {
        let said = greet()?;
        ensure!(said.starts_with("-NOAUTH "), "{said}");
    }
    let mut admin = gate.connect()?;
    ensure!(asks(&mut admin, b"AUTH secret\r\n")? == "+OK\r\n");
    let none = b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$11\r\nrequirepass\r\n$0\r\n\r\n";
    ensure!(asks(&mut admin, none)? == "+OK\r\n");
    within("clients of all threads are greeted", Duration::from_secs(1), || {
        for _ in 0..16 {
            if !greet()?.starts_with('%') {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    ensure!(asks(&mut admin, b"PING\r\n")? == "+PONG\r\n");
    Ok(())
}
