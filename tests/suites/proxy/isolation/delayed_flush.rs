//! A store that is told to forget everything later.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

fn read(client: &mut TcpStream) -> Result<Vec<u8>> {
    client.write_all(b"get k\r\n")?;
    read_until(client, b"END\r\n")
}

#[test]
fn a_delayed_flush_empties_the_cache() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = "threads = \"1\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(gate, "memcached", store.address, service, EVERYONE)?;
    let mut client = gate.connect()?;
    let mut direct = store.connect()?;
    client.write_all(b"set k 0 0 1\r\n1\r\n")?;
    read_until(&mut client, b"STORED\r\n")?;
    wait_until("it does not become hot", || {
        let before = counter(&gate, "cache-hits")?;
        read(&mut client)?;
        Ok(counter(&gate, "cache-hits")? > before)
    })?;
    client.write_all(b"flush_all 2\r\n")?;
    read_until(&mut client, b"OK\r\n")?;
    wait_until("the store does not forget it", || {
        read(&mut client)?;
        Ok(read(&mut direct)? == b"END\r\n")
    })?;
    let said = read(&mut client)?;
    ensure!(said == b"END\r\n", "{}", shown(&said));
    Ok(())
}
