//! A tenant whose requests are refused is not read without end: refusals take no more of a thread than they may.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;

/// One tenant that may not delete, and another that may do all.
const TENANTS: &str = "[[tenant]]\nname = \"denied\"\nsources = [\"127.0.0.5\"]\nquota = \"unlimited\"\ndeny = [\"delete\"]\n\
                       [[tenant]]\nname = \"polite\"\nsources = [\"127.0.0.6\"]\nquota = \"unlimited\"";
const ONE_THREAD: &str = "threads = \"1\"";
const DENIED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

fn gate(store: &Listening) -> Result<Listening> {
    Listening::gate_with(ONE_THREAD, "memcached", store.address, "", TENANTS)
}

/// How often a client was not read for a round.
fn pauses(gate: &Listening) -> Result<u64> {
    let queues = gate.json(&["queues"])?;
    let count = &queues["services"][0]["events"]["reads-paused"];
    count.as_u64().with_context(|| format!("no count in {queues}"))
}

/// Sends `requests` so many times, and reads all answers; returns how many were refused.
fn ask(client: &TcpStream, requests: &[u8], times: usize, answers: usize) -> Result<usize> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..times {
                // The reader fails if not all of it is answered.
                let _ = { client }.write_all(requests);
            }
        });
        let mut read = 0;
        let mut refused = 0;
        let mut rest = Vec::new();
        let mut bytes = vec![0; 64 << 10];
        while read < answers {
            let len = { client }.read(&mut bytes)?;
            ensure!(len > 0, "closed after {read} answers");
            rest.extend_from_slice(&bytes[..len]);
            let complete = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            for answer in rest.drain(..complete).as_slice().split_inclusive(|&byte| byte == b'\n') {
                let is_refused = answer.starts_with(b"SERVER_ERROR denied ");
                ensure!(is_refused || answer == b"END\r\n", "{}", String::from_utf8_lossy(answer));
                refused += usize::from(is_refused);
                read += 1;
            }
        }
        Ok(refused)
    })
}

#[test]
fn a_flood_of_refusals_is_paused_and_answered_in_full() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(&store)?;
    let flood = gate.connect_from(DENIED)?;
    let refused = ask(&flood, &b"delete a\r\n".repeat(100), 300, 30_000)?;
    ensure!(refused == 30_000, "{refused}");
    ensure!(pauses(&gate)? >= 10, "{}", pauses(&gate)?);
    Ok(())
}

#[test]
fn a_tenant_whose_refusals_are_four_to_one_is_not_paused() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(&store)?;
    let client = gate.connect_from(DENIED)?;
    let four_to_one = b"get a\r\ndelete a\r\ndelete a\r\ndelete a\r\ndelete a\r\n".repeat(20);
    let refused = ask(&client, &four_to_one, 300, 30_000)?;
    ensure!(refused == 24_000, "{refused}");
    ensure!(pauses(&gate)? == 0, "{}", pauses(&gate)?);
    let mostly_refused = [&b"get a\r\n"[..], &b"delete a\r\n".repeat(99)].concat();
    ask(&client, &mostly_refused, 300, 30_000)?;
    ensure!(pauses(&gate)? > 0, "it is not paused at all");
    Ok(())
}

#[test]
fn refused_values_are_read_at_a_pace_and_others_are_served() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(&store)?;
    let flood = gate.connect_from(DENIED)?;
    let mut polite = gate.connect_from(POLITE)?;
    let value = [&b"set a 0 0 4000000\r\n"[..], &vec![b'v'; 4_000_000], b"\r\n"].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| { &flood }.write_all(&value));
        wait_until("it is not paused", || {
            polite.write_all(b"get b\r\n")?;
            ensure!(read_until(&mut polite, b"END\r\n")? == b"END\r\n");
            Ok(pauses(&gate)? >= 2)
        })?;
        let said = read_until(&mut { &flood }.try_clone()?, b"\r\n")?;
        ensure!(said.starts_with(b"SERVER_ERROR "), "{}", String::from_utf8_lossy(&said));
        Ok(())
    })
}

#[test]
fn every_client_of_a_paused_tenant_has_its_turn_and_leaves() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(&store)?;
    let clients = (0..100).map(|_| gate.connect_from(DENIED)).collect::<Result<Vec<_>>>()?;
    // More than one round's worth from each.
    std::thread::scope(|scope| {
        let asked: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(|| ask(client, &b"delete a\r\n".repeat(100), 2, 200)))
            .collect();
        asked.into_iter().try_for_each(|client| {
            let refused = client.join().expect("it does not panic")?;
            ensure!(refused == 200, "{refused}");
            Ok(())
        })
    })?;
    ensure!(pauses(&gate)? > 0, "nobody is paused");
    for client in &clients {
        // Gone before they are answered.
        { client }.write_all(&b"delete a\r\n".repeat(1_000))?;
    }
    drop(clients);
    wait_until("some have not left", || {
        Ok(gate.json(&["queues"])?["services"][0]["events"]["left"].as_u64() >= Some(100))
    })
}
