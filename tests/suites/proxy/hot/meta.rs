//! memcached's `mg` of hot keys: shared as `get` is, but for answers to one client.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{CONNECTIONS, answer, gate, heat, served, while_answering};

pub(super) const FOUND: &[u8] = b"VA 1\r\n1\r\n";
const ASKED: &[u8] = b"mg k v\r\n";

/// All clients ask for `k`, so often, and gate has read the requests.
fn all_ask(gate: &Listening, clients: &mut [TcpStream], often: usize) -> Result<()> {
    let before = counter(gate, "requests")?;
    let asked = (clients.len() * often) as u64;
    clients.iter_mut().try_for_each(|client| client.write_all(&ASKED.repeat(often)))?;
    wait_until("gate has not read all requests", || Ok(counter(gate, "requests")? == before + asked))
}

/// Reads one reply.
fn read_reply(client: &mut TcpStream) -> Result<String> {
    let mut said = read_until(client, b"\r\n")?;
    while said.iter().filter(|&&byte| byte == b'\n').count() < 2 {
        said.extend(read_until(client, b"\r\n")?);
    }
    Ok(String::from_utf8(said)?)
}

#[test]
fn a_thousand_meta_reads_of_a_hot_key_reach_the_store_once() -> Result<()> {
    const OFTEN: usize = 25;
    let store = FakeStore::start()?;
    let gate = gate(store.address, "", "store_timeout = \"20s\"")?;
    heat(&gate, |client| served(client, &store))?;
    let coalesced = counter(&gate, "coalesced")?;
    let mut readers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| gate.connect()).collect::<Result<_>>()?;
    all_ask(&gate, &mut readers, OFTEN)?;
    let (answers, asked) = store.next()?;
    ensure!(asked == b"mg k v\r\nme k\r\n", "{}", shown(&asked));
    ensure!(store.next_within(std::time::Duration::ZERO).is_err(), "another read came to the store");
    answer(answers, &asked)?;
    for reader in &mut readers {
        let mut said = Vec::new();
        while said.len() < FOUND.len() * OFTEN {
            said.extend(read_until(reader, b"1\r\n")?);
        }
        ensure!(said == FOUND.repeat(OFTEN), "{}", shown(&said));
    }
    ensure!(counter(&gate, "coalesced")? - coalesced == (CONNECTIONS * OFTEN) as u64 - 1);
    // From now on nobody needs the store.
    wait_until("it is not kept in both threads", || {
        let hits = counter(&gate, "cache-hits")?;
        for reader in &mut readers {
            reader.write_all(ASKED)?;
            ensure!(while_answering(&store, || read_reply(reader))?.as_bytes() == FOUND);
        }
        Ok(counter(&gate, "cache-hits")? == hits + CONNECTIONS as u64)
    })
}

#[test]
fn of_all_who_read_a_stale_item_one_is_to_make_it_anew() -> Result<()> {
    let store = Listening::memcached()?;
    // Longer than what is shared: the one client reads it all the same.
    for (max_value, value) in [("64KiB", "v".repeat(10)), ("1KiB", "v".repeat(100_000))] {
        let gate = gate(store.address, &format!(", max_value = \"{max_value}\""), "store_timeout = \"20s\"")?;
        let set = format!("ms k {}\r\n{value}\r\n", value.len());
        gate.ask(b"ms k 1\r\n1\r\n", b"HD\r\n")?;
        heat(&gate, |client| {
            client.write_all(b"get k\r\n")?;
            read_until(client, b"END\r\n")
        })?;
        gate.ask(set.as_bytes(), b"HD\r\n")?;
        gate.ask(b"md k I T60\r\n", b"HD\r\n")?;
        let mut readers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| gate.connect()).collect::<Result<_>>()?;
        let coalesced = counter(&gate, "coalesced")?;
        // It says nothing until they all have asked.
        store.stall()?;
        let sent = all_ask(&gate, &mut readers, 1);
        store.signal(Signal::SIGCONT)?;
        sent?;
        ensure!(counter(&gate, "coalesced")? == coalesced + CONNECTIONS as u64 - 1);
        let mut winners = 0;
        for reader in &mut readers {
            let said = read_reply(reader)?;
            let (line, held) = said.split_once("\r\n").expect("two lines");
            ensure!(held == format!("{value}\r\n"), "{line}");
            let flags: Vec<&str> = line.split(' ').skip(2).collect();
            ensure!(flags.contains(&"X") && flags.contains(&"W") != flags.contains(&"Z"), "{line}");
            winners += usize::from(flags.contains(&"W"));
        }
        ensure!(winners == 1, "{winners} are to make it anew");
        // What is said of a stale item is not kept.
        gate.ask(set.as_bytes(), b"HD\r\n")?;
        for reader in &mut readers {
            reader.write_all(ASKED)?;
            ensure!(read_reply(reader)? == format!("VA {}\r\n{value}\r\n", value.len()));
        }
    }
    Ok(())
}

#[test]
fn gates_own_question_takes_no_right_to_renew_an_item() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(store.address, "", "store_timeout = \"20s\"")?;
    gate.ask(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n")?;
    let mut reader = gate.connect()?;
    for _ in 0..5 {
        // Past gate, so that the kept answer does not end with it.
        store.ask(b"ms k 1\r\n1\r\nmd k I T60\r\n", b"HD\r\nHD\r\n")?;
        let flights = counter(&gate, "flights")?;
        wait_until("no read of it leads a flight", || {
            reader.write_all(b"get k\r\n")?;
            ensure!(read_until(&mut reader, b"END\r\n")? == b"VALUE k 0 1\r\n1\r\nEND\r\n");
            Ok(counter(&gate, "flights")? > flights)
        })?;
        // The question has been asked when a request behind it is answered.
        let said = String::from_utf8(gate.ask(b"delete other\r\nmg k v\r\n", b"\r\n1\r\n")?)?;
        ensure!(
            said == "NOT_FOUND\r\nVA 1 X W\r\n1\r\n" || said == "NOT_FOUND\r\nVA 1 W X\r\n1\r\n",
            "{said}"
        );
    }
    Ok(())
}
