//! The queue before the store, for real: who waits too long, and who may not wait at all.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until, slow_store};

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
fn in_a_queue_that_stands_the_lowest_tier_is_refused_and_the_critical_goes_on() -> Result<()> {
    let service = "connections = \"1\"\nparallelism = \"1\"\nadmission = \"off\"\n\
                   codel = { target = \"10ms\", interval = \"50ms\" }";
    let gate =
        Listening::gate_with("threads = \"1\"", "memcached", slow_store(SERVICE_TIME)?, service, TWO_TIERS)?;
    let (done, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let idle: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (mut stream, done, refused) =
                (gate.connect_from(Ipv4Addr::new(127, 0, 0, 6))?, Arc::clone(&done), Arc::clone(&refused));
            Ok(std::thread::spawn(move || -> Result<()> {
                while !done.load(Ordering::Relaxed) {
                    stream.write_all(b"delete a\r\n")?;
                    let said = read_until(&mut stream, b"\r\n")?;
                    let is_refused = said != b"DELETED\r\n";
                    let why = String::from_utf8_lossy(&said);
                    ensure!(!is_refused || why.ends_with("reason=queue-delay\r\n"), "{why}");
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
