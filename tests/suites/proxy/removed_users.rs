//! Users of a Redis that are removed and made again while their clients come and go.

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, shown};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn a_user_who_was_removed_and_is_back_is_served_at_once() -> Result<()> {
    let store = Listening::redis()?;
    let gate =
        Listening::gate_with("threads = \"1\"", "resp", store.address, "connections = \"1\"", EVERYONE)?;
    for _ in 0..5 {
        store.ask(b"ACL SETUSER eve on >e-secret ~* -@all +strlen\r\n", b"+OK\r\n")?;
        let said = gate.ask(b"AUTH eve e-secret\r\nSTRLEN none\r\nSTRLEN none\r\n", b"\r\n:0\r\n")?;
        ensure!(said.starts_with(b"+OK\r\n:0\r\n"), "{}", shown(&said));
        let failed = counter(&gate, "store-failed")?;
        // The store closes all connections of a user that it forgets.
        store.ask(b"ACL DELUSER eve\r\n", b":1\r\n")?;
        wait_until("the pool is not cut off", || Ok(counter(&gate, "store-failed")? > failed))?;
    }
    Ok(())
}
