//! More is asked than the store can do: what is admitted keeps its objective, and the rest is told at once.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// A store that takes its time for every request, one after the other.
fn slow_store() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> Option<()> {
    let mut piece = vec![0; 1 << 16];
    loop {
        let len = stream.read(&mut piece).ok().filter(|&len| len > 0)?;
        for line in piece[..len].split_inclusive(|&byte| byte == b'\n') {
            if line == b"version\r\n" {
                stream.write_all(b"VERSION slow\r\n").ok()?;
            } else {
                std::thread::sleep(SERVICE_TIME);
                stream.write_all(b"DELETED\r\n").ok()?;
            }
        }
    }
}

const SERVICE_TIME: Duration = Duration::from_millis(1);
/// Each waits for its answer before it asks again: with all of them in the queue, the wait is 64 service times.
const CLIENTS: usize = 64;
const OBJECTIVE_P50: Duration = Duration::from_millis(20);
const OBJECTIVE_P90: Duration = Duration::from_millis(45);
/// Bouncer needs 1,000 answers of a class before it knows it.
const WARM_UP: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(2);

/// What clients saw: sorted times of answered and of refused requests.
struct Seen {
    answered: Vec<Duration>,
    refused: Vec<Duration>,
}

fn overload(admission: &str) -> Result<Seen> {
    let objectives = "objectives = { delete = { p50 = \"20ms\", p90 = \"45ms\" } }";
    let service =
        format!("connections = \"1\"\nparallelism = \"1\"\nadmission = \"{admission}\"\n{objectives}");
    let gate = Listening::gate_with("threads = \"1\"", "memcached", slow_store()?, &service, EVERYONE)?;
    let began = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let stream = gate.connect()?;
            Ok(std::thread::spawn(move || ask(stream, began)))
        })
        .collect::<Result<_>>()?;
    let mut seen = Seen { answered: Vec::new(), refused: Vec::new() };
    for client in clients {
        let Seen { answered, refused } = client.join().expect("it does not panic")?;
        seen.answered.extend(answered);
        seen.refused.extend(refused);
    }
    seen.answered.sort_unstable();
    seen.refused.sort_unstable();
    Ok(seen)
}

fn ask(mut stream: TcpStream, began: Instant) -> Result<Seen> {
    let mut seen = Seen { answered: Vec::new(), refused: Vec::new() };
    while began.elapsed() < WARM_UP + MEASURED {
        let asked = Instant::now();
        stream.write_all(b"delete a\r\n")?;
        let said = read_until(&mut stream, b"\r\n")?;
        let (took, counts) = (asked.elapsed(), began.elapsed() > WARM_UP);
        if said == b"DELETED\r\n" {
            seen.answered.extend(counts.then_some(took));
        } else {
            ensure!(said.ends_with(b"reason=slo\r\n"), "{}", String::from_utf8_lossy(&said));
            seen.refused.extend(counts.then_some(took));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(seen)
}

fn at(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[test]
fn what_bouncer_admits_keeps_its_objective_and_without_it_nothing_does() -> Result<()> {
    let off = overload("off")?;
    ensure!(off.refused.is_empty() && at(&off.answered, 10) > OBJECTIVE_P90, "{:?}", at(&off.answered, 10));
    let on = overload("bouncer")?;
    let (p50, p90) = (at(&on.answered, 50), at(&on.answered, 90));
    println!("answered {} p50 {p50:?} p90 {p90:?}; refused {}", on.answered.len(), on.refused.len());
    // The queue is kept as long as the objective allows: a quarter of slack for what comes after the queue.
    ensure!(p50 <= OBJECTIVE_P50 * 5 / 4 && p90 <= OBJECTIVE_P90, "p50 {p50:?}, p90 {p90:?}");
    ensure!(
        on.answered.len() * 10 > off.answered.len() * 8,
        "{} of {}",
        on.answered.len(),
        off.answered.len()
    );
    let refused_p50 = at(&on.refused, 50);
    println!("refusals: p50 {refused_p50:?} p99 {:?}", at(&on.refused, 99));
    ensure!(refused_p50 < Duration::from_millis(5), "{refused_p50:?}");
    Ok(())
}
