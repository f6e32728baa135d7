//! gate's behaviour when its store or its clients misbehave: errors soon, memory bounded, and nobody else harmed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn a_dead_store_is_reported_soon_and_comes_back_by_itself() -> Result<()> {
    let store = Listening::memcached()?;
    // Another thread might still be connecting, and would know that its request has not been sent.
    let one = "threads = \"1\"";
    let service = "store_timeout = \"200ms\"";
    let gate = Listening::gate_with(one, "memcached", store.address, service, EVERYONE)?;
    wait_until("it is not served", || Ok(gate.ask(b"set a 0 0 1\r\n1\r\n", b"\r\n")? == b"STORED\r\n"))?;
    store.stall()?;
    let asked = Instant::now();
    let said = gate.ask(b"get a\r\n", b"reason=store-down\r\n")?;
    let took = asked.elapsed();
    ensure!(said == b"SERVER_ERROR uncertain reason=store-down\r\n", "{}", shown(&said));
    ensure!(took < Duration::from_secs(2), "the first took {took:?}");
    // Whoever asks while it is known to be down does not wait for it.
    let asked = Instant::now();
    for _ in 0..20 {
        gate.ask(b"get a\r\nset b 0 0 1 noreply\r\n2\r\nget a\r\n", b"reason=store-down\r\n")?;
    }
    ensure!(asked.elapsed() < Duration::from_secs(3), "twenty took {:?}", asked.elapsed());
    store.signal(Signal::SIGCONT)?;
    wait_until("it has not come back", || {
        Ok(gate.ask(b"get a\r\n", b"\r\n")? == b"VALUE a 0 1\r\n1\r\nEND\r\n")
    })
}

#[test]
fn a_store_with_malformed_answers_loses_no_client() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate("memcached", store.address, "connections = \"1\"", EVERYONE)?;
    for nonsense in ["HELLO\r\n", "VALUE other 0 1\r\nx\r\nEND\r\n", "VALUE a 0 x\r\n", "END\r\nEND\r\n"] {
        let mut client = gate.connect()?;
        client.write_all(b"get a\r\n")?;
        let (mut answers, asked) = store.next()?;
        ensure!(asked == b"get a\r\n", "{}", shown(&asked));
        answers.write_all(nonsense.as_bytes())?;
        let said = read_until(&mut client, b"\r\n")?;
        let fine = said.ends_with(b"reason=store-down\r\n") || said == b"END\r\n";
        ensure!(fine, "{nonsense:?}: {}", shown(&said));
        // The same client is served again, as soon as the store is trusted again.
        wait_until("it is not served again", || {
            client.write_all(b"get b\r\n")?;
            if let Ok((mut answers, _)) = store.next_within(Duration::from_millis(50)) {
                // It may have come by the connection that is gone.
                let _ = answers.write_all(b"END\r\n");
            }
            Ok(read_until(&mut client, b"\r\n")? == b"END\r\n")
        })?;
    }
    Ok(())
}

#[test]
fn a_store_that_fails_within_a_reply_closes_only_that_client() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate("memcached", store.address, "connections = \"1\"\n", EVERYONE)?;
    // Long values are passed on as they come. Several clients of which one thread has at least two.
    let mut clients: Vec<TcpStream> = (0..2).map(|_| gate.connect()).collect::<Result<_>>()?;
    clients[0].write_all(b"get a\r\n")?;
    let (mut answers, _) = store.next()?;
    clients[1].write_all(b"get b\r\n")?;
    answers.write_all(b"VALUE a 0 100000\r\nthe beginning")?;
    read_until(&mut clients[0], b"the beginning")?;
    answers.shutdown(std::net::Shutdown::Both)?;
    let mut rest = Vec::new();
    clients[0].read_to_end(&mut rest)?;
    ensure!(rest.is_empty(), "{}", shown(&rest));
    // The other one's request was on the same connection, or on another thread's.
    let answered = std::thread::spawn(move || read_until(&mut clients[1], b"\r\n"));
    while !answered.is_finished() {
        if let Ok((mut answers, _)) = store.next_within(Duration::from_millis(10)) {
            // It may have come by the connection that is gone.
            let _ = answers.write_all(b"END\r\n");
        }
    }
    let said = answered.join().expect("it does not panic")?;
    ensure!(said == b"END\r\n" || said.ends_with(b"reason=store-down\r\n"), "{}", shown(&said));
    wait_until("it was not counted", || Ok(counter(&gate, "cut")? == 1))
}

#[test]
fn a_second_connection_bypasses_a_slow_answer() -> Result<()> {
    let store = FakeStore::start()?;
    // The third is for what is slow by kind.
    let service = "connections = \"3\"\nstore_timeout = \"10s\"\nhot_keys.cache = \"off\"";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, service, EVERYONE)?;
    wait_until("it has not connected thrice", || Ok(counter(&gate, "store-connected")? == 3))?;
    let mut clients: Vec<TcpStream> = (0..4).map(|_| gate.connect()).collect::<Result<_>>()?;
    let mut lanes = Vec::new();
    for client in &mut clients {
        client.write_all(b"get a\r\n")?;
        let (mut answers, _) = store.next()?;
        lanes.push(answers.peer_addr()?);
        answers.write_all(b"END\r\n")?;
        read_until(client, b"END\r\n")?;
    }
    ensure!(lanes.iter().all(|lane| *lane == lanes[0]), "they were spread: {lanes:?}");

    clients[0].write_all(b"get slow\r\n")?;
    let (mut slow, _) = store.next()?;
    wait_until("all stand behind it", || {
        gate.connect()?.write_all(b"get b\r\n")?;
        let asked = store.next_within(Duration::from_millis(50));
        Ok(asked.is_ok_and(|(answers, _)| answers.peer_addr().is_ok_and(|lane| lane != lanes[0])))
    })?;
    // But for whoever has something on its way there.
    clients[0].write_all(b"get c\r\n")?;
    slow.write_all(b"END\r\n")?;
    let (answers, asked) = store.next()?;
    ensure!(answers.peer_addr()? == lanes[0] && asked.ends_with(b" c\r\n"), "{}", shown(&asked));
    Ok(())
}

#[test]
fn a_client_that_does_not_read_is_closed_and_others_served() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "max_output = \"1MiB\"", EVERYONE)?;
    let value = vec![b'v'; 500_000];
    let set = [&b"set big 0 0 500000\r\n"[..], &value, b"\r\n"].concat();
    gate.ask(&set, b"STORED\r\n")?;
    let mut deaf = gate.connect()?;
    deaf.write_all(&b"get big\r\n".repeat(500))?;
    wait_until("it is not closed", || Ok(counter(&gate, "slow-reader")? == 1))?;
    let said = gate.ask(b"get big\r\n", b"END\r\n")?;
    ensure!(said.len() > value.len());
    Ok(())
}

#[test]
fn clients_that_do_not_read_share_a_bound_and_others_are_served() -> Result<()> {
    const BOUND: usize = 64 << 20;
    let store = Listening::memcached()?;
    let service = "client_memory = \"64MiB\"\nhot_keys.cache = \"off\"";
    let gate = Listening::gate("memcached", store.address, service, EVERYONE)?;
    let value = vec![b'v'; 500_000];
    let set = [&b"set big 0 0 500000\r\n"[..], &value, b"\r\nset small 0 0 1\r\n1\r\n"].concat();
    gate.ask(&set, b"STORED\r\nSTORED\r\n")?;
    let before = gate.memory()?;
    let mut polite = gate.connect()?;
    let mut deaf = Vec::new();
    let mut most = 0;
    let mut longest = Duration::ZERO;
    // Each asks for 10 MB: ten times the bound in all, and none of them more than it may hold by itself.
    for _ in 0..64 {
        let mut client = gate.connect()?;
        client.write_all(&b"get big\r\n".repeat(20))?;
        deaf.push(client);
        let asked = Instant::now();
        polite.write_all(b"get big\r\nget small\r\n")?;
        let said = read_until(&mut polite, b"VALUE small 0 1\r\n1\r\nEND\r\n")?;
        ensure!(said.len() > value.len());
        longest = longest.max(asked.elapsed());
        most = most.max(gate.memory()?.saturating_sub(before));
    }
    ensure!(longest < Duration::from_secs(5), "who reads waited for {longest:?}");
    ensure!(most < BOUND + SLACK, "{} MiB, of {} that there may be", most >> 20, BOUND >> 20);
    wait_until("none is closed", || Ok(counter(&gate, "slow-reader")? > 20))?;
    // Who is left and reads gets all that it asked for.
    drop(deaf);
    polite.write_all(b"get small\r\n")?;
    read_until(&mut polite, b"END\r\n")?;
    Ok(())
}

/// The memory that gate may take beside its clients' budget: the allocator's reserve, and data on its way.
const SLACK: usize = 48 << 20;

#[test]
fn stalled_senders_are_closed_and_slow_ones_served() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "client_timeout = \"100ms\"", EVERYONE)?;
    let mut half = gate.connect()?;
    half.write_all(b"set a 0 0 10\r\nhal")?;
    let mut slow = gate.connect()?;
    for byte in b"set b 0 0 3\r\nabc\r\nget b\r\n" {
        slow.write_all(&[*byte])?;
    }
    read_until(&mut slow, b"STORED\r\nVALUE b 0 3\r\nabc\r\nEND\r\n")?;
    let mut said = Vec::new();
    half.read_to_end(&mut said)?;
    ensure!(said.is_empty(), "{}", shown(&said));
    wait_until("it was not counted", || Ok(counter(&gate, "slow-writer")? == 1))?;
    // Who has nothing to say may stay.
    slow.write_all(b"get b\r\n")?;
    read_until(&mut slow, b"END\r\n")?;
    Ok(())
}

#[test]
fn an_endless_line_a_long_key_and_a_long_value_get_an_error() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "max_request = \"64KiB\"", EVERYONE)?;
    let key = "k".repeat(251);
    for (sent, said) in [
        (format!("get {key}\r\nget a\r\n"), "CLIENT_ERROR bad command line format\r\nEND\r\n"),
        (
            format!("set a 0 0 70000\r\n{}\r\nget a\r\n", "v".repeat(70_000)),
            "SERVER_ERROR object too large for cache\r\nEND\r\n",
        ),
        (format!("get {}", "k".repeat(300_000)), "CLIENT_ERROR line too long\r\n"),
    ] {
        let answer = gate.ask(sent.as_bytes(), said.as_bytes())?;
        ensure!(answer == said.as_bytes(), "{}", shown(&answer));
    }
    Ok(())
}

#[test]
fn only_as_many_clients_are_let_in_as_there_may_be() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "max_clients = \"4\"", EVERYONE)?;
    let mut clients: Vec<TcpStream> = (0..20).map(|_| gate.connect()).collect::<Result<_>>()?;
    let served = clients.iter_mut().filter_map(|client| {
        client.write_all(b"get a\r\n").ok()?;
        read_until(client, b"END\r\n").ok()
    });
    let served = served.count();
    ensure!((1..=4).contains(&served), "{served} were served");
    drop(clients);
    wait_until("nobody is let in any more", || Ok(gate.ask(b"get a\r\n", b"END\r\n").is_ok()))
}

#[test]
fn requests_wait_for_a_permit_and_are_refused_in_their_order() -> Result<()> {
    let store = FakeStore::start()?;
    let service = "parallelism = \"1\"\nadmission = \"off\"\nqueue_limit = \"4\"\ndeadline = \"100ms\"\n\
                   store_timeout = \"10s\"";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, service, EVERYONE)?;
    let mut client = gate.connect()?;
    // One has the place, three wait; the fourth place in the queue is another client's.
    client.write_all(&b"get a\r\n".repeat(4))?;
    let (mut answers, asked) = store.next()?;
    ensure!(asked == b"get a\r\n", "{}", shown(&asked));
    let mut other = gate.connect()?;
    other.write_all(b"get b\r\n")?;
    // The store answers nothing, and yet whoever waits is told in time.
    let late = read_until(&mut other, b"\r\n")?;
    ensure!(late.ends_with(b"reason=deadline\r\n"), "{}", shown(&late));
    other.write_all(&b"get b\r\n".repeat(5))?;
    let said = String::from_utf8(read_until(&mut other, b"reason=queue-full\r\n")?)?;
    ensure!(said.matches("reason=deadline\r\n").count() == 4, "{said}");
    answers.write_all(b"VALUE a 0 1\r\n1\r\nEND\r\n")?;
    let mut said = String::new();
    while said.matches("\r\n").count() < 3 + 3 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines[..3] == ["VALUE a 0 1", "1", "END"], "{said}");
    ensure!(lines[3..].iter().all(|line| line.ends_with("reason=deadline")), "{said}");
    Ok(())
}

#[test]
fn a_tls_client_reads_an_error_and_is_logged_once() -> Result<()> {
    for (protocol, store, answer) in [
        ("memcached", Listening::memcached()?, &b"SERVER_ERROR gate does not support TLS\r\n"[..]),
        ("resp", Listening::redis()?, b"-ERR gate does not support TLS\r\n"),
    ] {
        let mut gate = Listening::gate(protocol, store.address, "", EVERYONE)?;
        for _ in 0..2 {
            // Two bytes are enough of a ClientHello, and they may come one by one.
            let mut client = gate.connect()?;
            client.write_all(&[0x16])?;
            client.write_all(&[0x03])?;
            let mut said = Vec::new();
            client.read_to_end(&mut said)?;
            ensure!(said == answer, "{protocol}: {}", shown(&said));
        }
        gate.program().wait_for("a client wants to speak TLS", PATIENCE)?;
        // What comes after it would have come after a second such line.
        gate.program().signal(Signal::SIGHUP)?;
        let next = gate.program().wait_for("", PATIENCE)?;
        ensure!(!next.contains("TLS"), "{next}");
    }
    Ok(())
}

#[test]
fn a_store_in_cluster_mode_is_refused_in_words_that_say_so() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("gate-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let place = directory.to_string_lossy();
    let store = Listening::redis_with(&["--cluster-enabled", "yes", "--dir", &place])?;
    let mut gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    gate.program().wait_for("the store is in cluster mode, which gate does not support", PATIENCE)?;
    for request in ["GET a\r\n", "CLUSTER SLOTS\r\n", "MULTI\r\n", "SUBSCRIBE a\r\n"] {
        let said = gate.ask(request.as_bytes(), b"\r\n")?;
        ensure!(said == b"-ERR gate does not support a store in cluster mode\r\n", "{}", shown(&said));
    }
    drop(store);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// A request that needs a dedicated connection waits for no shared one, which may not have asked for the mode yet.
#[test]
fn a_dedicated_connection_never_leads_into_a_cluster() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    std::thread::spawn(move || -> Result<()> {
        let mut unanswered = Vec::new();
        loop {
            let (mut answers, asked) = store.next()?;
            match asked.as_slice() {
                b"INFO cluster\r\n" => answers.write_all(b"$19\r\ncluster_enabled:1\r\n\r\n")?,
                // gate's first question on a shared connection.
                b"*3\r\n$3\r\nACL\r\n$7\r\nGETUSER\r\n$7\r\ndefault\r\n" => unanswered.push(answers),
                _ => answers.write_all(b"+the store got it\r\n")?,
            }
        }
    });
    for request in ["MULTI\r\n", "SUBSCRIBE a\r\n", "WATCH a\r\n"] {
        let said = gate.ask(request.as_bytes(), b"\r\n")?;
        let expected = b"-ERR gate does not support a store in cluster mode\r\n";
        ensure!(said == expected, "{request}: {}", shown(&said));
    }
    Ok(())
}
