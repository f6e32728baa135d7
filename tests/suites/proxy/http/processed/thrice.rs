//! Hits beside processing that is asked for three times what it can do.
//!
//! Origin, processor and those who ask for processing give way to all other threads (`SCHED_IDLE`): in earnest each has a machine
//! of its own. gate, and the clients that ask for hits, run before all others (`SCHED_FIFO`), so that what else keeps this machine
//! busy does not count. The same hits are asked of a second gate at the same moments, which processes nothing: a machine that
//! stands still is late for both. What a hit at the first waits for beyond that is gate's own work.

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
/// Hits of a round, at each gate.
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

/// Asks for what is not there, at its turns. Returns how many were made and how many refused.
fn ask(
    [gate, origin]: [SocketAddr; 2],
    (number, next): (u64, &AtomicU64),
    over: &AtomicBool,
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
        let path = format!("/{}", next.fetch_add(1, Relaxed));
        let reply = client.ask(&line("w", origin, &path), "")?;
        ensure!([200, 503].contains(&reply.status), "{path}: {:?}", reply.fields);
        answered[usize::from(reply.status == 503)] += 1;
    }
    Ok(answered)
}

/// A gate that processes at most one original at a time, and its processor.
struct Site {
    gate: Listening,
    _processor: HttpServer,
    _directory: Directory,
}

impl Site {
    fn start(name: &str, origin: SocketAddr) -> Result<Self> {
        let directory = Directory::new(name);
        let blobs = address();
        let processor = HttpServer::start(move |head| {
            give_way();
            let (_, name) = target(head).trim_start_matches('/').split_once('/')?;
            let original = fetch(blobs, name).ok()?;
            std::thread::park_timeout(PROCESSING);
            Some(whole(200, "content-type: image/y\r\n", &original.body[..SHORT.min(original.body.len())]))
        })?;
        let more = ", concurrency = \"1\", queue = \"16\", objective = \"20s\"";
        let process = process(processor.address, blobs, &[origin], more);
        // Those who give way may stand still for long.
        let service =
            format!("store_timeout = \"30s\"\n{}\n{process}", directory.cache(", memory = \"64MiB\""));
        let gate = Listening::gate_that_runs_first("threads = \"1\"", origin, &service, OPEN)?;
        wait_open(&gate)?;
        Ok(Self { gate, _processor: processor, _directory: directory })
    }

    fn refused(&self) -> Result<u64> {
        let status = self.gate.json(&["cache", "status"])?;
        Ok(status["caches"][0]["events"]["process-refused"].as_u64().unwrap_or(0))
    }
}

/// A client of one gate that asks for what it keeps.
struct Hitter {
    client: HttpClient,
    line: String,
    expected: Vec<u8>,
}

impl Hitter {
    fn start(site: &Site, origin: SocketAddr) -> Result<Self> {
        let line = line("w", origin, "/1");
        let mut client = client(&site.gate)?;
        let expected = client.ask(&line, "")?.body;
        ensure!(expected.len() == SHORT);
        Ok(Self { client, line, expected })
    }

    /// The 99th percentile of hits' times in ms, from when each was due.
    fn p99(&mut self, begun: Instant) -> Result<f64> {
        let mut took = Vec::with_capacity(HITS);
        for number in 0..HITS {
            let due = begun + HIT_EVERY * number as u32;
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
            let reply = self.client.ask(&self.line, "")?;
            took.push(due.elapsed());
            ensure!(reply.status == 200 && reply.body == self.expected, "a hit is lost: {:?}", reply.fields);
            ensure!(reply.field("cache-status") == Some("gate; hit"), "{:?}", reply.fields);
        }
        took.sort_unstable();
        Ok(took[took.len() * 99 / 100].as_secs_f64() * 1e3)
    }
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
    let origin = HttpServer::start(|head| {
        give_way();
        Some(whole(200, FRESH, &original(target(head))))
    })?;
    let busy = Site::start("processed-thrice", origin.address)?;
    let idle = Site::start("processed-never", origin.address)?;
    let mut at_busy = Hitter::start(&busy, origin.address)?;
    let mut at_idle = Hitter::start(&idle, origin.address)?;
    let over = AtomicBool::new(false);
    let next = AtomicU64::new(2);
    run_first()?;
    let (rounds, answered) = std::thread::scope(|scope| {
        let servers = [busy.gate.address, origin.address];
        let next = &next;
        let over = &over;
        let asking: Vec<_> =
            (0..ASKERS).map(|number| scope.spawn(move || ask(servers, (number, next), over))).collect();
        let measured = (0..ROUNDS).map(|_| {
            let refused = busy.refused()?;
            wait_until("it is not asked for too much", || Ok(busy.refused()? > refused + 10))?;
            let begun = Instant::now();
            std::thread::scope(|scope| {
                let idle = scope.spawn(|| at_idle.p99(begun));
                Ok([at_busy.p99(begun)?, idle.join().expect("it does not panic")?])
            })
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
    let mut ratios: Vec<_> = rounds.iter().map(|[busy, idle]| busy / idle).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ROUNDS / 2];
    println!(
        "p99 of hits in ms, busy and idle: {rounds:.2?}; ratio {ratio:.2}; {made} made, {refused} refused"
    );
    ensure!(refused > made, "{made} made, {refused} refused: not three times its capacity");
    ensure!(ratio <= MOST_RATIO, "p99 beside processing is {ratio:.2} times as long: {rounds:.2?} ms");
    Ok(())
}
