//! Prices by latency, of routes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::Listening;
use gate_tests::wait::within;

use super::{OPEN, client};

/// One route takes the store 50 times as long as others.
const STORE: [&str; 6] = ["--concurrency", "16", "--service-time", "3ms", "--time", "slow=150ms"];
/// No ratio, or a busy machine would look like an overload, which is not recorded.
const SERVICE: &str = "shedding.floor = \"1h\"\nquery_types = { slow = [\"GET /slow*\"] }\n\
    price = { base = \"0.9 RU\", row = \"0.1 RU\", kib = \"0 RU\", learn = \"on\", range = \"100\" }\n";
const LEARNED_WITHIN: Duration = Duration::from_secs(60);

/// The answers of a route and the time that they took, as its clients see it: a busy machine adds to that as well.
#[derive(Default)]
struct Took {
    answers: AtomicU64,
    micros: AtomicU64,
}

impl Took {
    fn add(&self, took: Duration) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    fn mean(&self) -> f64 {
        self.micros.load(Ordering::Relaxed) as f64 / self.answers.load(Ordering::Relaxed) as f64
    }
}

/// How many times as much a request of the slow route costs.
fn dearer(gate: &Listening) -> Result<f64> {
    let queues = gate.json(&["queues"])?;
    let price = &queues["services"][0]["price"];
    let part = |name: &str| price[name].as_f64().with_context(|| format!("{name} of {price}"));
    let fixed = part("base")? + part("row")?;
    let of = |class: &str| fixed + price["latency"][class].as_f64().unwrap_or(0.0);
    Ok(of("route-1") / of("read"))
}

#[test]
fn a_route_fifty_times_as_slow_costs_about_as_many_times() -> Result<()> {
    let store = Listening::embedded_with("http", &STORE)?;
    let gate = Listening::gate_with("threads = \"1\"", "http", store.address, SERVICE, OPEN)?;
    let stop = AtomicBool::new(false);
    let stopped = &stop;
    let [slow, fast] = &[Took::default(), Took::default()];
    let ask = move |mut client: HttpClient, path: &str| -> Result<()> {
        while !stopped.load(Ordering::Relaxed) {
            let begun = Instant::now();
            client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes())?;
            let status = client.reply(false)?.status;
            let (took, expected) = if path == "/slow" { (slow, 200) } else { (fast, 404) };
            ensure!(status == expected, "{path}: {status}");
            took.add(begun.elapsed());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let paths = ["/slow", "/slow", "/fast", "/fast", "/fast"];
        let connected = paths.map(|path| Ok((client(&gate)?, path)));
        let connected = connected.into_iter().collect::<Result<Vec<_>>>()?;
        let clients: Vec<_> =
            connected.into_iter().map(|(client, path)| scope.spawn(move || ask(client, path))).collect();
        let learned = within("the slow route costs what it takes", LEARNED_WITHIN, || {
            ensure!(!clients.iter().any(|client| client.is_finished()), "a client has ended");
            let times = dearer(&gate)? / (slow.mean() / fast.mean());
            Ok((0.6..=1.4).contains(&times))
        });
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("it does not panic")?;
        }
        let longer = slow.mean() / fast.mean();
        println!("{:.1} times as dear, {longer:.1} times as long: {learned:?}", dearer(&gate)?);
        ensure!(longer > 5.0, "the slow route is not slow");
        learned?;
        Ok(())
    })
}
