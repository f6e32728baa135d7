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
fn a_new_password_is_needed_within_a_second() -> Result<()> {
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
fn clients_are_greeted_by_what_the_store_wants_now() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, "", EVERYONE)?;
    let greeted = || asks(&mut gate.connect()?, b"HELLO 3\r\n");
    let mut admin = store.connect()?;
    let mut set = |password: &str| -> Result<()> {
        let len = password.len();
        let request =
            format!("*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$11\r\nrequirepass\r\n${len}\r\n{password}\r\n");
        ensure!(asks(&mut admin, request.as_bytes())? == "+OK\r\n");
        Ok(())
    };
    // Too fast for gate to look whether a password is wanted.
    for round in 0..5 {
        let said = greeted()?;
        ensure!(said.starts_with('%'), "round {round}: {said}");
        set("secret")?;
        let said = greeted()?;
        ensure!(said.starts_with("-NOAUTH "), "round {round}: {said}");
        set("")?;
    }
    Ok(())
}
