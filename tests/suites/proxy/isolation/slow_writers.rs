//! Clients that begin a request and do not end it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// Sends a byte every 100 ms until it is closed.
fn dribble(client: &mut TcpStream) -> Result<()> {
    client.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        ensure!(Instant::now() < deadline, "it still holds its request");
        match client.read(&mut [0; 1]) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => anyhow::bail!("it read {other:?}"),
        }
        if client.write_all(b"a").is_err() {
            return Ok(());
        }
    }
}

#[test]
fn a_byte_now_and_then_does_not_keep_a_request_open() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "client_timeout = \"500ms\"", EVERYONE)?;
    // A line; a value that is gathered; one that is passed on as it comes.
    for begun in ["get ", "set a 0 0 1000\r\n", "set a 0 0 1000000\r\n"] {
        let mut client = gate.connect()?;
        client.write_all(begun.as_bytes())?;
        dribble(&mut client)?;
    }
    // Whoever ends its requests may take its time between them.
    let mut polite = gate.connect()?;
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        polite.write_all(b"get a\r\n")?;
        read_until(&mut polite, b"END\r\n")?;
        std::thread::park_timeout(Duration::from_millis(50));
    }
    Ok(())
}
