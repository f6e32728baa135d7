//! The permits that a client which does not read takes from others.

use std::io::Write as _;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const KEYS: usize = 1_000;

/// A request of 72 KB whose answer is 100 MB.
fn huge_mget() -> Vec<u8> {
    let mut request = format!("*{}\r\n$4\r\nMGET\r\n", KEYS + 1).into_bytes();
    let key = format!("k{}", "x".repeat(65));
    (0..KEYS).for_each(|_| request.extend(format!("${}\r\n{key}\r\n", key.len()).into_bytes()));
    request
}

#[test]
fn a_client_that_does_not_read_holds_no_permit() -> Result<()> {
    let store = Listening::redis()?;
    let service = "parallelism = \"2\"\nadmission = \"off\"\ndeadline = \"10s\"";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, EVERYONE)?;
    let mut client = gate.connect()?;
    let key = format!("k{}", "x".repeat(65));
    let value = "v".repeat(100_000);
    client.write_all(
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len()).as_bytes(),
    )?;
    read_until(&mut client, b"+OK\r\n")?;
    let mut deaf = [gate.connect()?, gate.connect()?];
    for deaf in &mut deaf {
        deaf.write_all(&huge_mget())?;
        // Its answer has begun, and is not read.
        let mut first = [0; 1];
        wait_until("it is not answered", || Ok(deaf.peek(&mut first)? == 1))?;
    }
    for _ in 0..10 {
        client.write_all(b"PING\r\n")?;
        let said = read_until(&mut client, b"\r\n")?;
        ensure!(said == b"+PONG\r\n", "{}", shown(&said));
    }
    Ok(())
}
