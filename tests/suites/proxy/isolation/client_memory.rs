//! The memory of one tenant's clients in gate, beside another's.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const TENANTS: &str = r#"
[[tenant]]
name = "polite"
sources = ["127.0.0.1", "127.0.0.5"]
quota = "unlimited"
[[tenant]]
name = "greedy"
sources = ["127.0.0.6"]
quota = "unlimited"
"#;
const VALUE: usize = 500_000;
const MIB: usize = 1 << 20;
/// The memory that gate may take beside its clients' budget: the allocator's reserve, and data on its way.
const SLACK: usize = 48 * MIB;

fn store() -> Result<Listening> {
    let store = Listening::memcached()?;
    let value = vec![b'v'; VALUE];
    let set =
        [format!("set big 0 0 {VALUE}\r\n").as_bytes(), &value, b"\r\nset small 0 0 1\r\n1\r\n"].concat();
    store.ask(&set, b"STORED\r\nSTORED\r\n")?;
    Ok(store)
}

fn gate(store: &Listening, threads: usize) -> Result<Listening> {
    let service = "client_memory = \"256MiB\"\nhot_keys.cache = \"off\"";
    Listening::gate_with(&format!("threads = \"{threads}\""), "memcached", store.address, service, TENANTS)
}

/// A client that asks for so many large values.
fn asking(gate: &Listening, source: Ipv4Addr, values: usize) -> Result<TcpStream> {
    let mut client = gate.connect_from(source)?;
    client.write_all(&[&b"get big\r\n".repeat(values)[..], b"get small\r\n"].concat())?;
    Ok(client)
}

fn read_all(client: &mut TcpStream, values: usize) -> Result<()> {
    let said = read_until(client, b"VALUE small 0 1\r\n1\r\nEND\r\n")?;
    ensure!(said.len() > values * VALUE, "{} bytes, {}", said.len(), shown(&said));
    Ok(())
}

#[test]
fn a_tenant_that_does_not_read_fills_its_share_and_no_others() -> Result<()> {
    const SHARE: usize = 128 * MIB;
    let store = store()?;
    for threads in [1, 2] {
        let gate = gate(&store, threads)?;
        let before = gate.memory()?;
        // It has been waiting for longest of all, and holds as much as each of the others.
        let mut patient = asking(&gate, POLITE, 20)?;
        let mut greedy = Vec::new();
        let mut most = 0;
        // Five times what there may be, in all.
        for _ in 0..128 {
            greedy.push(asking(&gate, GREEDY, 20)?);
            read_all(&mut asking(&gate, POLITE, 1)?, 1)?;
            most = most.max(gate.memory()?.saturating_sub(before));
        }
        wait_until("none is closed", || Ok(counter(&gate, "slow-reader")? > 20))?;
        read_all(&mut patient, 20)?;
        ensure!(most > SHARE / 2, "{} MiB: they did not come to hold anything", most / MIB);
        ensure!(most < SHARE + SLACK, "{} MiB with {threads} threads", most / MIB);
    }
    Ok(())
}

#[test]
fn what_half_sent_requests_hold_counts_to_their_tenant() -> Result<()> {
    let store = store()?;
    let service = "client_memory = \"2MiB\"\nmax_request = \"1MiB\"";
    let gate = Listening::gate_with("threads = \"2\"", "memcached", store.address, service, TENANTS)?;
    let begun = [&b"set a 0 0 60000\r\n"[..], &[b'v'; 40_000]].concat();
    let mut patient = gate.connect_from(POLITE)?;
    patient.write_all(&begun)?;
    let mut greedy = Vec::new();
    for _ in 0..100 {
        let mut client = gate.connect_from(GREEDY)?;
        client.write_all(&begun)?;
        greedy.push(client);
        gate.ask(b"get small\r\n", b"VALUE small 0 1\r\n1\r\nEND\r\n")?;
    }
    wait_until("none is closed", || Ok(counter(&gate, "slow-writer")? > 40))?;
    patient.write_all(&[&[b'v'; 20_000][..], b"\r\n"].concat())?;
    let said = read_until(&mut patient, b"\r\n")?;
    ensure!(said == b"STORED\r\n", "{}", shown(&said));
    Ok(())
}
