//! The queue before the store, for real: who waits too long, and who may not wait at all.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::slow_store::slow_store;

const TWO_TIERS: &str = r#"
[[tenant]]
name = "important"
sources = ["127.0.0.5"]
quota = "unlimited"
tier = "critical"
[[tenant]]
name = "idle"
sources = ["127.0.0.0/8"]
quota = "unlimited"
tier = "best-effort"
"#;

#[test]
fn a_standing_queue_refuses_the_lowest_tier_and_not_critical() -> Result<()> {
    let service = "connections = \"1\"\nparallelism = \"1\"\nadmission = \"off\"\n\
                   codel = { target = \"10ms\", interval = \"50ms\" }";
    let gate =
        Listening::gate_with("threads = \"1\"", "memcached", slow_store(SERVICE_TIME)?, service, TWO_TIERS)?;
    let done = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let idle: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut stream = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
            let done = Arc::clone(&done);
            let refused = Arc::clone(&refused);
            Ok(std::thread::spawn(move || -> Result<()> {
                while !done.load(Ordering::Relaxed) {
                    stream.write_all(b"delete a\r\n")?;
                    let said = read_until(&mut stream, b"\r\n")?;
                    let is_refused = said != b"DELETED\r\n";
                    let why = String::from_utf8_lossy(&said);
                    // For what it has waited, or beyond its tenant's share.
                    let reasons = ["reason=queue-delay\r\n", "reason=penalty\r\n"];
                    ensure!(!is_refused || reasons.iter().any(|reason| why.ends_with(reason)), "{why}");
                    refused.fetch_add(usize::from(is_refused), Ordering::Relaxed);
                }
                Ok(())
            }))
        })
        .collect::<Result<_>>()?;
    let mut important = gate.connect_from(Ipv4Addr::new(127, 0, 0, 5))?;
    let deadline = Instant::now() + PATIENCE;
    let mut answered = 0;
    while answered < 100 || refused.load(Ordering::Relaxed) < 100 {
        ensure!(Instant::now() < deadline, "{answered} answered, {refused:?} refused");
        important.write_all(b"delete a\r\n")?;
        let said = read_until(&mut important, b"\r\n")?;
        ensure!(said == b"DELETED\r\n", "{}", String::from_utf8_lossy(&said));
        answered += 1;
    }
    done.store(true, Ordering::Relaxed);
    idle.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
}

const SERVICE_TIME: Duration = Duration::from_millis(1);
/// With all of them in the queue, the wait is 64 service times.
const CLIENTS: usize = 64;

/// The bytes that a connection reads before it is closed.
fn rest(mut stream: TcpStream) -> Result<String> {
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

const LIMITED: &str = r#"
[[tenant]]
name = "small"
sources = ["127.0.0.5"]
quota = "unlimited"
max_connections = "2"
max_outstanding = "5"
[[tenant]]
name = "other"
sources = ["127.0.0.0/8"]
quota = "unlimited"
"#;

#[test]
fn a_tenant_has_so_many_connections_and_no_more() -> Result<()> {
    let gate = Listening::gate("memcached", slow_store(SERVICE_TIME)?, "", LIMITED)?;
    let small = || gate.connect_from(Ipv4Addr::new(127, 0, 0, 5));
    let mut open = [small()?, small()?];
    for stream in &mut open {
        stream.write_all(b"delete a\r\n")?;
        read_until(stream, b"DELETED\r\n")?;
    }
    let said = rest(small()?)?;
    ensure!(said == "SERVER_ERROR throttled retry_after_ms=10 reason=limit\r\n", "{said}");
    // Others are not concerned, and who leaves makes room.
    let mut other = gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?;
    other.write_all(b"delete a\r\n")?;
    read_until(&mut other, b"DELETED\r\n")?;
    drop(open);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut again = small()?;
        again.write_all(b"delete a\r\n")?;
        match read_until(&mut again, b"\r\n") {
            Ok(said) if said == b"DELETED\r\n" => break,
            _ => ensure!(Instant::now() < deadline, "nobody is let in any more"),
        }
    }
    let tenants = gate.json(&["tenants", "small"])?["tenants"].take();
    ensure!(tenants[0]["refused"]["limit"].as_u64() >= Some(1), "{tenants}");
    Ok(())
}

#[test]
fn a_tenant_has_so_many_requests_unanswered_and_no_more() -> Result<()> {
    let store = slow_store(Duration::from_millis(50))?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store, "", LIMITED)?;
    let mut client = gate.connect_from(Ipv4Addr::new(127, 0, 0, 5))?;
    client.write_all(&b"delete a\r\n".repeat(8))?;
    let mut said = String::new();
    while said.matches("\r\n").count() < 8 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let answered = said.lines().take_while(|line| *line == "DELETED").count();
    let refused = said.lines().filter(|line| line.ends_with("reason=limit")).count();
    ensure!((answered, refused) == (5, 3), "{said}");
    // Those are answered now.
    client.write_all(b"delete a\r\n")?;
    read_until(&mut client, b"DELETED\r\n")?;
    Ok(())
}

#[test]
fn a_class_of_requests_has_a_lower_tier_than_its_tenant() -> Result<()> {
    // One place: what is asked first has it, and of those that wait the critical are first.
    let service = "connections = \"1\"\nparallelism = \"1\"\nadmission = \"off\"\n\
                   codel = { law = \"off\" }\ntiers = { touch = \"batch\" }";
    let tenants =
        "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\ntier = \"critical\"";
    let store = slow_store(Duration::from_millis(50))?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store, service, tenants)?;
    let mut first = gate.connect()?;
    let mut low = gate.connect()?;
    let mut high = gate.connect()?;
    first.write_all(b"delete a\r\n")?;
    let waiting = |tier: usize| -> Result<bool> {
        Ok(gate.json(&["queues"])?["services"][0]["tiers"][tier]["waiting"].as_u64() > Some(0))
    };
    low.write_all(&b"touch a 1\r\n".repeat(40))?;
    let deadline = Instant::now() + PATIENCE;
    while !waiting(2)? {
        ensure!(Instant::now() < deadline, "nothing of tier batch waits");
    }
    ensure!(!waiting(0)?, "a touch is critical");
    high.write_all(b"delete a\r\n")?;
    read_until(&mut high, b"DELETED\r\n")?;
    ensure!(waiting(2)?, "the critical one was not first");
    Ok(())
}
