//! `WAIT` waits for what its client has written, over whichever connection that went.

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn wait_counts_replicas_that_have_the_client_s_writes() -> Result<()> {
    let store =
        Listening::redis_with(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"])?;
    let ip = store.address.ip().to_string();
    let port = store.address.port().to_string();
    let replica = Listening::redis_with(&["--replicaof", &ip, &port, "--repl-diskless-load", "on-empty-db"])?;
    wait_until("the replica is not in step", || {
        let info = store.ask(b"INFO replication\r\nPING\r\n", b"+PONG\r\n")?;
        Ok(String::from_utf8_lossy(&info).contains("state=online"))
    })?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    let said = gate.ask(b"SET a 1\r\nWAIT 1 10000\r\n", b"\r\n:1\r\n")?;
    ensure!(said == b"+OK\r\n:1\r\n", "{}", shown(&said));
    replica.stall()?;
    // What the client asks again and again goes the same way.
    for asked in ["SET a 2\r\nWAIT 1 200\r\n", "SET a 3\r\nUNWATCH\r\nWAIT 1 200\r\n"] {
        let said = gate.ask(asked.as_bytes(), b"\r\n:0\r\n")?;
        ensure!(said.starts_with(b"+OK\r\n"), "{asked:?}: {}", shown(&said));
    }
    replica.signal(Signal::SIGCONT)?;
    let said = gate.ask(b"SET a 4\r\nWAIT 1 10000\r\n", b"\r\n:1\r\n")?;
    ensure!(said == b"+OK\r\n:1\r\n", "{}", shown(&said));
    Ok(())
}
