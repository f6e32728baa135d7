//! The workload of a service of images before Debian's nginx: URLs by Zipf, many of them of the same bytes, some of which change.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::cache::{Directory, wait_open};
use super::{OPEN, client};

const URLS: usize = 500;
const BODIES: usize = 100;

/// The body with this number: each has a length of its own.
fn body(number: usize) -> Vec<u8> {
    (0..200 + 37 * number).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// An origin, which body each URL has, and which URLs a client has asked for.
struct Workload {
    nginx: Nginx,
    bodies: Vec<usize>,
    /// By URL: how often it and those before it are asked for, in parts of all calls (Zipf's law).
    cumulative: Vec<u64>,
    rng: Rng,
    downloads: usize,
    asked: HashSet<usize>,
    digests: HashSet<usize>,
}

impl Workload {
    fn new() -> Result<Self> {
        let this = Self {
            nginx: Nginx::start(&[])?,
            bodies: (0..URLS).map(|url| url % BODIES).collect(),
            cumulative: (1..=URLS as u64)
                .scan(0, |sum, rank| {
                    *sum += 1_000_000 / rank;
                    Some(*sum)
                })
                .collect(),
            rng: Rng::new(1),
            downloads: 0,
            asked: HashSet::new(),
            digests: HashSet::new(),
        };
        for (url, &number) in this.bodies.iter().enumerate() {
            this.nginx.put(&url.to_string(), &body(number))?;
        }
        Ok(this)
    }

    /// Calls the service so often; every answer is what the origin has.
    fn call(&mut self, client: &mut HttpClient, calls: usize) -> Result<()> {
        for _ in 0..calls {
            let url = self.draw();
            let reply = client.ask(&format!("GET /{url}"), "")?;
            let number = self.bodies[url];
            ensure!(reply.status == 200 && reply.body == body(number), "{url}: {:?}", reply.fields);
            self.downloads += usize::from(self.asked.insert(url));
            self.digests.insert(number);
        }
        Ok(())
    }

    /// A URL by Zipf's law.
    fn draw(&mut self) -> usize {
        let drawn = self.rng.below(self.cumulative[URLS - 1]);
        self.cumulative.partition_point(|&sum| sum <= drawn)
    }

    /// Changes one URL in a hundred, every second one to bytes that others have.
    fn change(&mut self) -> Result<()> {
        for (place, url) in (0..URLS).step_by(100).enumerate() {
            let number = if place % 2 == 0 { BODIES + place } else { (self.bodies[url] + 1) % BODIES };
            self.bodies[url] = number;
            self.nginx.put(&url.to_string(), &body(number))?;
            self.asked.remove(&url);
        }
        Ok(())
    }

    /// The bodies that the origin has sent.
    fn sent(&self) -> Result<usize> {
        Ok(self.nginx.statuses()?.lines().filter(|line| line.starts_with("200 ")).count())
    }
}

#[test]
fn each_url_is_fetched_once_and_each_body_kept_once() -> Result<()> {
    let directory = Directory::new("dedup");
    let calls = if std::env::var_os("GATE_LONG").is_some() { 100_000 } else { 4_000 };
    let mut workload = Workload::new()?;
    let gate = |address| Listening::gate_with("tick = \"10ms\"", "http", address, &directory.cache(""), OPEN);
    let mut first = gate(workload.nginx.address)?;
    workload.call(&mut client(&first)?, calls / 2)?;
    workload.change()?;
    workload.call(&mut client(&first)?, calls / 4)?;
    let state =
        |gate: &Listening| Ok::<_, anyhow::Error>(gate.json(&["cache", "status"])?["caches"][0].clone());
    let bodies = workload.digests.len() as u64;
    wait_until("all is written", || Ok(state(&first)?["events"]["blobs-written"] == bodies))?;
    first.signal(Signal::SIGTERM)?;
    wait_until("it has ended", || Ok(!first.program().is_running()?))?;
    // After a restart nothing is fetched that was fetched before.
    let second = gate(workload.nginx.address)?;
    wait_open(&second)?;
    workload.call(&mut client(&second)?, calls / 4)?;
    let downloads = workload.downloads;
    wait_until("nginx has written its log", || Ok(workload.sent()? >= downloads))?;
    ensure!(workload.sent()? == downloads, "{} fetched, {downloads} URLs and changes", workload.sent()?);
    let revalidated = state(&second)?["events"]["revalidated"].as_u64().context("no count")?;
    ensure!(revalidated > 0, "the origin is asked about what has no lifetime");
    let verified = second.json(&["cache", "verify"])?;
    ensure!(verified["caches"][0]["damaged"] == 0 && verified["caches"][0]["missing"] == 0, "{verified}");
    println!("{calls} calls, {downloads} downloads, {bodies} bodies of {URLS} URLs");
    Ok(())
}
