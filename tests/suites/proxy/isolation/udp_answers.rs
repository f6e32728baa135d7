//! Answers to datagrams, whose sources anyone can forge.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::memcached::Datagrams;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;

const KNOWN: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const VALUE: usize = 20_000;

fn gate(store: &Listening, tenant: &str) -> Result<Listening> {
    let tenant =
        format!("[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n{tenant}");
    let service = "transports = [\"udp\", \"tcp\"]";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, service, &tenant)?;
    let mut stream = gate.connect()?;
    stream.write_all(
        &[&b"set large 0 0 20000\r\n"[..], &[b'v'; VALUE], b"\r\nset small 0 0 1\r\n1\r\n"].concat(),
    )?;
    read_until(&mut stream, b"STORED\r\nSTORED\r\n")?;
    Ok(gate)
}

#[test]
fn a_flood_of_short_requests_for_a_long_value_is_not_amplified() -> Result<()> {
    const FLOOD: usize = 500;
    let store = Listening::memcached()?;
    let gate = gate(&store, "reply_budget = \"100KiB/s\"")?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    for sent in 1..=FLOOD {
        client.send(b"get large\r\n")?;
        // So that none is lost on its way to gate.
        wait_until("a datagram is lost", || Ok(counter(&gate, "datagrams")? == sent as u64))?;
    }
    // All have been answered by the store, and most of that is not sent: 10 MB would be.
    wait_until("the answers go out", || Ok(counter(&gate, "answers-dropped")? > FLOOD as u64 / 2))?;
    // Whoever asks for no more than it sends is served all the while.
    let mut other = Datagrams::to(KNOWN, gate.address)?;
    ensure!(other.ask("get none\r\n")? == "END\r\n");
    Ok(())
}

#[test]
fn by_default_values_that_fit_into_datagrams_are_answered() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(&store, "")?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    for _ in 0..1_000 {
        ensure!(client.ask("get small\r\n")? == "VALUE small 0 1\r\n1\r\nEND\r\n");
    }
    let id = client.send(b"get large\r\n")?;
    let (answer, _) = client.answer(id)?;
    ensure!(answer.len() > VALUE);
    ensure!(counter(&gate, "answers-dropped")? == 0);
    Ok(())
}
