//! Hot keys behind gate: one read for all who ask, and never a value that a write has ended.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

mod history;
mod meta;
mod others;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
/// Every request is looked at, and a key that is asked for twice is hot.
const EAGER: &str = "threads = \"2\"\nsample = \"1/1\"\ntick = \"10ms\"";
const FOUND: &[u8] = b"VALUE k 0 1\r\n1\r\nEND\r\n";

fn gate(store: std::net::SocketAddr, hot_keys: &str, service: &str) -> Result<Listening> {
    let service =
        format!("hot_keys = {{ threshold = \"1\"{hot_keys} }}\nshedding.enabled = \"off\"\n{service}");
    Listening::gate_with(EAGER, "memcached", store, &service, EVERYONE)
}

/// Has `k` read until each worker takes it for hot: they learn of it one by one.
fn heat(gate: &Listening, read: impl Fn(&mut TcpStream) -> Result<Vec<u8>>) -> Result<()> {
    // More than enough for each of the two threads to have some.
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| gate.connect()).collect::<Result<_>>()?;
    let shared = || {
        let shared = ["cache-hits", "coalesced", "flights"].map(|name| counter(gate, name));
        shared.into_iter().sum::<Result<u64>>()
    };
    wait_until("it does not become hot in both threads", || {
        let before = shared()?;
        for client in &mut clients {
            let said = read(client)?;
            ensure!(said.ends_with(b"END\r\n"), "{}", shown(&said));
        }
        Ok(shared()? == before + CONNECTIONS as u64)
    })
}

/// A client's reply for `k`, while the fake store answers.
fn served(client: &mut TcpStream, store: &FakeStore) -> Result<Vec<u8>> {
    client.write_all(b"get k\r\n")?;
    while_answering(store, || {
        let said = read_until(client, b"\r\n")?;
        let whole = said.ends_with(b"END\r\n") || !said.starts_with(b"VALUE");
        Ok(if whole { said } else { [said, read_until(client, b"END\r\n")?].concat() })
    })
}

/// The result of `reading`, while the fake store answers.
fn while_answering<T: Send>(store: &FakeStore, reading: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let reader = scope.spawn(reading);
        while !reader.is_finished() {
            if let Ok((answers, asked)) = store.next_within(Duration::from_millis(5)) {
                // It may have come by a connection that is gone.
                let _ = answer(answers, &asked);
            }
        }
        reader.join().expect("it does not panic")
    })
}

/// Answers as memcached would that has `k` and keeps it for ever.
fn answer(mut answers: TcpStream, asked: &[u8]) -> Result<()> {
    for line in asked.split_inclusive(|&byte| byte == b'\n') {
        let said: &[u8] = match line {
            b"get k\r\n" => FOUND,
            b"mg k v\r\n" => meta::FOUND,
            b"me k\r\n" => b"ME k exp=-1 la=0 cas=1 fetch=yes cls=1 size=64\r\n",
            b"delete k\r\n" => b"DELETED\r\n",
            _ => anyhow::bail!("the store was asked {}", shown(line)),
        };
        answers.write_all(said)?;
    }
    Ok(())
}

/// Ten thousand reads of `k`, which no cache can answer, and the one of them that came to the store.
fn ten_thousand(gate: &Listening, store: &FakeStore) -> Result<(Vec<TcpStream>, TcpStream, Vec<u8>)> {
    // What is kept does not outlive a write.
    let mut writer = gate.connect()?;
    writer.write_all(b"delete k\r\n")?;
    let (answers, asked) = store.next()?;
    answer(answers, &asked)?;
    read_until(&mut writer, b"DELETED\r\n")?;
    let before = counter(gate, "requests")?;
    let mut readers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| gate.connect()).collect::<Result<_>>()?;
    for reader in &mut readers {
        reader.write_all(&b"get k\r\n".repeat(READS / CONNECTIONS))?;
    }
    wait_until("gate has not read all requests", || Ok(counter(gate, "requests")? == before + READS as u64))?;
    let (answers, asked) = store.next()?;
    ensure!(asked == b"get k\r\nme k\r\n", "{}", shown(&asked));
    ensure!(store.next_within(Duration::ZERO).is_err(), "another read came to the store");
    Ok((readers, answers, asked))
}

const READS: usize = 10_000;
const CONNECTIONS: usize = 40;

#[test]
fn ten_thousand_reads_of_a_hot_key_reach_the_store_once() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "", "store_timeout = \"20s\"")?;
    heat(&gate, |client| served(client, &store))?;
    let coalesced = counter(&gate, "coalesced")?;
    let (readers, answers, asked) = ten_thousand(&gate, &store)?;
    answer(answers, &asked)?;
    for mut reader in readers {
        let expected = FOUND.repeat(READS / CONNECTIONS);
        let mut said = Vec::new();
        while said.len() < expected.len() {
            said.extend(read_until(&mut reader, b"END\r\n")?);
        }
        ensure!(said == expected, "{}", shown(&said));
    }
    ensure!(counter(&gate, "coalesced")? - coalesced == READS as u64 - 1);
    // From now on nobody needs the store.
    let mut reader = gate.connect()?;
    let hits = counter(&gate, "cache-hits")?;
    wait_until("it is not kept", || {
        ensure!(served(&mut reader, &store)? == FOUND);
        Ok(counter(&gate, "cache-hits")? > hits)
    })
}

const TIERS: &str = r#"
[[tenant]]
name = "high"
sources = ["127.0.0.2"]
quota = "unlimited"
tier = "critical"
[[tenant]]
name = "low"
sources = ["127.0.0.0/8"]
quota = "unlimited"
tier = "best-effort"
"#;

/// A client at 127.0.0.`source` whose request gate has read.
fn ask(gate: &Listening, source: u8, request: &[u8]) -> Result<TcpStream> {
    let before = counter(gate, "requests")?;
    let mut client = gate.connect_from(std::net::Ipv4Addr::new(127, 0, 0, source))?;
    client.write_all(request)?;
    wait_until("gate has not read the request", || Ok(counter(gate, "requests")? > before))?;
    Ok(client)
}

#[test]
fn a_critical_read_waits_in_no_lower_tiers_flight() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"\nadmission = \"off\"\n\
                   codel = { law = \"off\" }\nparallelism = \"1\"\nstore_timeout = \"20s\"";
    let gate = Listening::gate_with(EAGER, "memcached", store.address, service, TIERS)?;
    heat(&gate, |client| served(client, &store))?;
    let ask = |source: u8, request: &[u8]| ask(&gate, source, request);
    // It has the only permit, and ends what is kept of the key.
    let mut writer = ask(3, b"delete k\r\n")?;
    let (answers, asked) = store.next()?;
    ensure!(asked == b"delete k\r\n", "{}", shown(&asked));
    let mut writer = {
        answer(answers, &asked)?;
        read_until(&mut writer, b"DELETED\r\n")?;
        ask(3, b"delete other\r\n")?
    };
    let (mut answers, asked) = store.next()?;
    ensure!(asked == b"delete other\r\n", "{}", shown(&asked));
    let mut before = ask(4, b"delete before\r\n")?;
    let mut low = ask(5, b"get k\r\n")?;
    let mut high = ask(2, b"get k\r\n")?;
    answers.write_all(b"DELETED\r\n")?;
    read_until(&mut writer, b"DELETED\r\n")?;
    // What waits before the lower tier's read does not hold up the critical one.
    let (answers, asked) = store.next()?;
    ensure!(asked == b"get k\r\nme k\r\n", "{}", shown(&asked));
    answer(answers, &asked)?;
    ensure!(read_until(&mut high, b"END\r\n")? == FOUND);
    let (mut answers, asked) = store.next()?;
    ensure!(asked == b"delete before\r\n", "{}", shown(&asked));
    answers.write_all(b"DELETED\r\n")?;
    read_until(&mut before, b"DELETED\r\n")?;
    let (answers, asked) = store.next()?;
    answer(answers, &asked)?;
    ensure!(read_until(&mut low, b"END\r\n")? == FOUND);
    Ok(())
}

#[test]
fn who_follows_a_flight_is_not_refused_for_its_leaders_sake() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"\nadmission = \"off\"\n\
                   codel = { target = \"1s\", interval = \"1s\" }\nparallelism = \"1\"\nstore_timeout = \"20s\"";
    // With several threads, one that ticks late counts answers of before, so that shares come into force, by which nobody is refused.
    let eager = EAGER.replace("threads = \"2\"", "threads = \"1\"");
    let gate = Listening::gate_with(&eager, "memcached", store.address, service, TWO)?;
    heat(&gate, |client| served(client, &store))?;
    let ask = |source: u8, request: &[u8]| ask(&gate, source, request);
    // It ends what is kept of the key, and the next one has the only permit.
    let mut writer = ask(4, b"delete k\r\n")?;
    let (answers, asked) = store.next()?;
    answer(answers, &asked)?;
    read_until(&mut writer, b"DELETED\r\n")?;
    let mut writer = ask(4, b"delete other\r\n")?;
    let (mut answers, asked) = store.next()?;
    ensure!(asked == b"delete other\r\n", "{}", shown(&asked));
    let coalesced = counter(&gate, "coalesced")?;
    let mut leader = ask(2, b"get k\r\n")?;
    let mut same = ask(2, b"get k\r\n")?;
    let mut others = [ask(3, b"get k\r\n")?, ask(3, b"get k\r\n")?];
    ensure!(counter(&gate, "coalesced")? == coalesced + 3, "they do not follow");
    // The leader has waited too long, and its tenant is refused.
    for refused in [&mut leader, &mut same] {
        let said = String::from_utf8(read_until(refused, b"\r\n")?)?;
        ensure!(said.contains("reason=queue-delay"), "{said}");
    }
    answers.write_all(b"DELETED\r\n")?;
    read_until(&mut writer, b"DELETED\r\n")?;
    // One of the others asks for both.
    let (answers, asked) = store.next()?;
    ensure!(asked == b"get k\r\nme k\r\n", "{}", shown(&asked));
    answer(answers, &asked)?;
    for other in &mut others {
        let said = read_until(other, b"\r\n")?;
        ensure!(said.starts_with(b"VALUE k "), "{}", shown(&said));
    }
    Ok(())
}

/// Two tenants of one tier.
const TWO: &str = r#"
[[tenant]]
name = "first"
sources = ["127.0.0.2"]
quota = "unlimited"
[[tenant]]
name = "second"
sources = ["127.0.0.3"]
quota = "unlimited"
[[tenant]]
name = "all"
sources = ["127.0.0.0/8"]
quota = "unlimited"
"#;

#[test]
fn a_store_that_dies_in_a_flight_fails_all_its_followers() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "", "store_timeout = \"20s\"")?;
    heat(&gate, |client| served(client, &store))?;
    let (mut readers, answers, _) = ten_thousand(&gate, &store)?;
    // In the middle of the answer.
    (&answers).write_all(&FOUND[..5])?;
    answers.shutdown(std::net::Shutdown::Both)?;
    let died = Instant::now();
    for reader in &mut readers {
        let mut refused = 0;
        while refused < READS / CONNECTIONS {
            let said = String::from_utf8(read_until(reader, b"reason=store-down\r\n")?)?;
            ensure!(said.lines().all(|line| line.ends_with("reason=store-down")), "{said}");
            refused += said.lines().count();
        }
    }
    ensure!(died.elapsed() < PATIENCE, "it took {:?}", died.elapsed());
    // The same clients are served again, as soon as the store is trusted again.
    for reader in readers.iter_mut().take(4) {
        wait_until("it is not served again", || Ok(served(reader, &store)? == FOUND))?;
    }
    Ok(())
}

/// How often something has happened at a gate before Redis.
fn event(gate: &Listening, name: &str) -> Result<u64> {
    let queues = gate.json(&["queues"])?;
    queues["services"][0]["events"][name].as_u64().with_context(|| format!("no {name} in {queues}"))
}

/// How often a Redis was asked for a value.
fn gets(store: &Listening) -> Result<u64> {
    let said = String::from_utf8(store.ask(b"INFO commandstats\r\nPING\r\n", b"+PONG\r\n")?)?;
    let calls = said.split_once("cmdstat_get:calls=").map_or("0", |(_, rest)| rest);
    Ok(calls.split(',').next().unwrap_or_default().parse()?)
}

#[test]
fn one_read_serves_all_clients_of_a_user_on_every_thread() -> Result<()> {
    let store = Listening::redis()?;
    store.ask(b"ACL SETUSER bob on >secret ~* &* +@all\r\n", b"+OK\r\n")?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"\nstore_timeout = \"20s\"";
    let gate = Listening::gate_with(EAGER, "resp", store.address, service, EVERYONE)?;
    // More than enough for each of the two threads to have some.
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| gate.connect()).collect::<Result<_>>()?;
    for client in &mut clients {
        client.write_all(b"AUTH bob secret\r\n")?;
        read_until(client, b"+OK\r\n")?;
    }
    let all_ask =
        |clients: &mut [TcpStream]| clients.iter_mut().try_for_each(|client| client.write_all(b"GET k\r\n"));
    let all_read = |clients: &mut [TcpStream]| {
        clients.iter_mut().try_for_each(|client| read_until(client, b"$1\r\nv\r\n").map(drop))
    };
    clients[0].write_all(b"SET k v\r\n")?;
    read_until(&mut clients[0], b"+OK\r\n")?;
    wait_until("it is not hot in both threads", || {
        let before = event(&gate, "cache-hits")?;
        all_ask(&mut clients)?;
        all_read(&mut clients)?;
        Ok(event(&gate, "cache-hits")? == before + CONNECTIONS as u64)
    })?;
    // What is kept does not outlive a write.
    clients[0].write_all(b"SET k v\r\n")?;
    read_until(&mut clients[0], b"+OK\r\n")?;
    let asked = gets(&store)?;
    let requests = event(&gate, "requests")?;
    let flights = event(&gate, "flights")?;
    let coalesced = event(&gate, "coalesced")?;
    // It says nothing for as long as they all ask.
    store.stall()?;
    all_ask(&mut clients)?;
    let sent = wait_until("gate has not read all requests", || {
        Ok(event(&gate, "requests")? == requests + CONNECTIONS as u64)
    });
    store.signal(Signal::SIGCONT)?;
    sent?;
    all_read(&mut clients)?;
    ensure!(gets(&store)? == asked + 1, "{} reads came to the store", gets(&store)? - asked);
    ensure!(event(&gate, "flights")? == flights + 1);
    ensure!(event(&gate, "coalesced")? == coalesced + CONNECTIONS as u64 - 1);
    Ok(())
}

#[test]
fn writes_past_gate_are_seen_when_the_entry_expires() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(store.address, ", ttl = \"100ms\"", "")?;
    gate.ask(b"set k 0 0 1\r\n1\r\n", b"STORED\r\n")?;
    wait_until("it does not become hot", || {
        ensure!(gate.ask(b"get k\r\n", b"END\r\n")? == FOUND);
        Ok(counter(&gate, "cache-hits")? > 0)
    })?;
    store.ask(b"set k 0 0 1\r\n2\r\n", b"STORED\r\n")?;
    wait_until("it is never seen", || {
        Ok(gate.ask(b"get k\r\n", b"END\r\n")? == b"VALUE k 0 1\r\n2\r\nEND\r\n")
    })
}

#[test]
fn an_answer_does_not_outlive_its_key() -> Result<()> {
    let store = Listening::redis()?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(EAGER, "resp", store.address, service, EVERYONE)?;
    for _ in 0..5 {
        gate.ask(b"SET k v PX 250\r\n", b"+OK\r\n")?;
        let many = [&b"GET k\r\n".repeat(50)[..], b"PING\r\n"].concat();
        wait_until("it lives for ever", || {
            let is_over = store.ask(b"GET k\r\n", b"\r\n")? == b"$-1\r\n";
            let said = String::from_utf8(gate.ask(&many, b"+PONG\r\n")?)?;
            ensure!(!is_over || said == "$-1\r\n".repeat(50) + "+PONG\r\n", "gate still says {said}");
            let gate_is_over = said.ends_with("$-1\r\n+PONG\r\n");
            ensure!(!gate_is_over || store.ask(b"GET k\r\n", b"\r\n")? == b"$-1\r\n");
            Ok(is_over)
        })?;
    }
    Ok(())
}

#[test]
fn a_service_and_a_tenant_can_do_without() -> Result<()> {
    for (hot_keys, tenant) in [(", cache = \"off\"", ""), ("", "cache = \"off\"")] {
        let store = Listening::memcached()?;
        let service = format!("hot_keys = {{ threshold = \"1\"{hot_keys} }}");
        let tenants = format!("{EVERYONE}\n{tenant}");
        let gate = Listening::gate_with(EAGER, "memcached", store.address, &service, &tenants)?;
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            gate.ask(&b"get k\r\n".repeat(20), &b"END\r\n".repeat(20))?;
        }
        ensure!(
            counter(&gate, "cache-hits")? + counter(&gate, "coalesced")? + counter(&gate, "flights")? == 0
        );
    }
    Ok(())
}

#[test]
fn what_a_client_asks_about_one_key_takes_effect_in_its_order() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = gate(store.address, "", "connections = \"2\"")?;
    heat(&gate, |client| {
        client.write_all(b"get k\r\n")?;
        read_until(client, b"END\r\n")
    })?;
    // Two clients of different connections to the store, and a third that is always about to read.
    let mut clients = (0..4).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    let mut noise = gate.connect()?;
    for round in 0..2_000_u32 {
        noise.write_all(&b"get k\r\n".repeat(8))?;
        let client = &mut clients[round as usize % 4];
        let value = format!("{round:08}");
        let asked = format!("get k\r\nget k\r\nset k 0 0 8\r\n{value}\r\nget k\r\nget k\r\n");
        client.write_all(asked.as_bytes())?;
        let said = read_until(client, format!("{value}\r\nEND\r\n").repeat(1).as_bytes())?;
        let mut said = String::from_utf8(said)?;
        while said.matches(&value).count() < 2 {
            said += &String::from_utf8(read_until(client, b"END\r\n")?)?;
        }
        let (before, after) = said.split_once("STORED\r\n").expect("it was stored");
        ensure!(!before.contains(&value), "round {round}: a read saw the write behind it: {said}");
        ensure!(after.matches(&value).count() == 2, "round {round}: {said}");
        let mut answered = 0;
        while answered < 8 {
            answered += String::from_utf8(read_until(&mut noise, b"END\r\n")?)?.matches("END\r\n").count();
        }
    }
    ensure!(counter(&gate, "coalesced")? > 0 && counter(&gate, "invalidated")? > 0);
    Ok(())
}
