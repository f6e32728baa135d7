//! Hits beside processing that is asked for three times what it can do.
//!
//! Origin, processor and those who ask for processing give way to all other threads (`SCHED_IDLE`): in earnest each has a machine
//! of its own. gate, and the client that asks for hits, run before all others (`SCHED_FIFO`), so that what else keeps this machine
//! busy does not count. What a hit waits for then is gate's own work.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::http_server::{HttpServer, target, whole};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;
use nix::unistd::gettid;
use xtask::isolation::give_way;

use super::{Directory, FRESH, OPEN, client, fetch, process, wait_open};

/// The time of one processing, one at a time.
const PROCESSING: Duration = Duration::from_millis(10);
/// The time between two requests for processing: three times as many as can be done.
const ASKED_EVERY: Duration = Duration::from_micros(3_333);
/// Those who ask; each waits for its answer.
const ASKERS: u64 = 48;
/// The time between two hits.
const HIT_EVERY: Duration = Duration::from_millis(2);
const ROUNDS: usize = 9;
/// Hits of a round, beside processing or not.
const HITS: usize = 400;
/// One original in this many is a long one.
const LONG_EVERY: u64 = 20;
const LONG: usize = 2 << 20;
const SHORT: usize = 16 << 10;
const MOST_RATIO: f64 = 2.0;

fn original(path: &str) -> Vec<u8> {
    let number: u64 = path.trim_start_matches('/').parse().unwrap_or(1);
    let len = if number.is_multiple_of(LONG_EVERY) { LONG } else { SHORT };
    path.bytes().cycle().take(len).collect()
}

fn line(spec: &str, origin: SocketAddr, path: &str) -> String {
    format!("GET /img/{spec}/http%3A%2F%2F{origin}{}", path.replace('/', "%2F"))
}

/// Asks for what is not there, at its turns, while the `gate` is to be busy. Returns the statuses of the answers.
fn ask(
    [gate, origin]: [SocketAddr; 2],
    (number, next): (u64, &AtomicU64),
    [busy, over]: [&AtomicBool; 2],
) -> Result<[u64; 2]> {
    give_way();
    let stream = TcpStream::connect(gate)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut client = HttpClient::new(stream);
    let mut answered = [0, 0];
    let turn = ASKED_EVERY * ASKERS as u32;
    let mut due = Instant::now() + ASKED_EVERY * number as u32;
    while !over.load(Relaxed) {
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        due = (due + turn).max(Instant::now());
        if busy.load(Relaxed) {
            let path = format!("/{}", next.fetch_add(1, Relaxed));
            let reply = client.ask(&line("w", origin, &path), "")?;
            ensure!([200, 503].contains(&reply.status), "{path}: {:?}", reply.fields);
            answered[usize::from(reply.status == 503)] += 1;
        }
    }
    Ok(answered)
}

/// The times of hits, from when each was due.
fn hits(client: &mut HttpClient, line: &str, expected: &[u8]) -> Result<Vec<Duration>> {
    let begun = Instant::now();
    let mut took = Vec::with_capacity(HITS);
    for number in 0..HITS {
        let due = begun + HIT_EVERY * number as u32;
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        let reply = client.ask(line, "")?;
        took.push(due.elapsed());
        ensure!(reply.status == 200 && reply.body == expected, "a hit is lost: {:?}", reply.fields);
        ensure!(reply.field("cache-status") == Some("gate; hit"), "{:?}", reply.fields);
    }
    Ok(took)
}

fn p99(took: &[Duration]) -> f64 {
    let mut took = took.to_vec();
    took.sort_unstable();
    took[took.len() * 99 / 100].as_secs_f64() * 1e3
}

/// Has this thread, and those that it starts, run before all that do not so.
fn run_first() -> Result<()> {
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", "1", &gettid().to_string()]);
    ensure!(command.status()?.success(), "this thread cannot run before others");
    Ok(())
}

#[test]
fn hits_keep_their_time_beside_thrice_what_can_be_processed() -> Result<()> {
    if !privilege::root("http::processed::thrice::hits_keep_their_time_beside_thrice_what_can_be_processed") {
        return Ok(());
    }
    let directory = Directory::new("processed-thrice");
    let blobs = address();
    let origin = HttpServer::start(|head| {
        give_way();
        Some(whole(200, FRESH, &original(target(head))))
    })?;
    let processor = HttpServer::start(move |head| {
        give_way();
        let (_, name) = target(head).trim_start_matches('/').split_once('/')?;
        let original = fetch(blobs, name).ok()?;
        std::thread::park_timeout(PROCESSING);
        Some(whole(200, "content-type: image/y\r\n", &original.body[..SHORT.min(original.body.len())]))
    })?;
    let more = ", concurrency = \"1\", queue = \"16\", objective = \"20s\"";
    let process = process(processor.address, blobs, &[origin.address], more);
    let service = format!("{}\n{process}", directory.cache(", memory = \"64MiB\""));
    let gate = Listening::gate_that_runs_first("threads = \"1\"", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let hit = line("w", origin.address, "/1");
    let mut hitting = client(&gate)?;
    let expected = hitting.ask(&hit, "")?.body;
    ensure!(expected.len() == SHORT);
    let event = |name: &str| {
        let status = gate.json(&["cache", "status"])?;
        Ok::<_, anyhow::Error>(status["caches"][0]["events"][name].as_u64().unwrap_or(0))
    };
    let busy = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let next = AtomicU64::new(2);
    run_first()?;
    let (rounds, answered) = std::thread::scope(|scope| {
        let servers = [gate.address, origin.address];
        let asking: Vec<_> = (0..ASKERS)
            .map(|number| {
                let flags = [&busy, &over];
                let next = &next;
                scope.spawn(move || ask(servers, (number, next), flags))
            })
            .collect();
        let measured = (0..ROUNDS).map(|_| {
            let quiet = hits(&mut hitting, &hit, &expected)?;
            let refused = event("process-refused")?;
            busy.store(true, Relaxed);
            wait_until("it is not asked for too much", || Ok(event("process-refused")? > refused + 10))?;
            let loaded = hits(&mut hitting, &hit, &expected)?;
            busy.store(false, Relaxed);
            wait_until("it does not come to rest", || Ok(gate.rests().is_ok()))?;
            Ok([quiet, loaded])
        });
        let measured = measured.collect::<Result<Vec<_>>>();
        over.store(true, Relaxed);
        let mut answered = [0, 0];
        for asker in asking {
            let of_one = asker.join().expect("it does not panic")?;
            answered = [answered[0] + of_one[0], answered[1] + of_one[1]];
        }
        anyhow::Ok((measured?, answered))
    })?;
    let [made, refused] = answered;
    let of_rounds = |place: usize| {
        let mut of_rounds: Vec<_> = rounds.iter().map(|round| p99(&round[place])).collect();
        of_rounds.sort_by(f64::total_cmp);
        println!("p99 of hits, by round: {of_rounds:.2?} ms");
        of_rounds[ROUNDS / 2]
    };
    let [quiet, loaded] = [0, 1].map(of_rounds);
    let ratio = loaded / quiet;
    println!("medians {quiet:.2} and {loaded:.2} ms: {ratio:.2}; {made} made, {refused} refused");
    ensure!(refused > made, "{made} made, {refused} refused: not three times its capacity");
    ensure!(ratio <= MOST_RATIO, "p99 is {loaded:.2} ms, {ratio:.2} times as long");
    Ok(())
}
