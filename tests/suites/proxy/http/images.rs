//! The workload of a service of images, between Debian's nginx as origin and Debian's nginx with `image_filter` as processor: URLs by
//! Zipf, many of them of the same photograph, in four sizes, some of which change.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::images::ImageProcessor;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::cache::{Directory, wait_open};
use super::{OPEN, client};

/// The sizes that are asked for.
const SPECS: [&str; 4] = ["w40", "w60", "w80", "w100"];

/// A run may take longer than a refusal of a content usually holds.
const ERRORS_HOLD: &str = ", error_ttl = \"24h\"";

/// The size of a run.
struct Size {
    urls: usize,
    photographs: usize,
    calls: usize,
}

impl Size {
    /// All of it with GATE_LONG, else a tenth of all, and fewer calls.
    fn of_run() -> Self {
        match std::env::var_os("GATE_LONG") {
            Some(_) => Self { urls: 10_000, photographs: 2_000, calls: 1_000_000 },
            None => Self { urls: 1_000, photographs: 200, calls: 40_000 },
        }
    }
}

/// An origin, which content each URL has, and what clients have asked for.
struct Workload {
    nginx: Nginx,
    /// Photographs, and behind them contents that are none.
    contents: Vec<Vec<u8>>,
    photographs: usize,
    by_url: Vec<usize>,
    /// By URL: how often it and those before it are asked for (Zipf's law).
    cumulative: Vec<u64>,
    rng: Rng,
    downloads: usize,
    /// The URLs that were asked for since they changed.
    asked: HashSet<usize>,
    /// Each call: URL and spec.
    calls: Vec<(usize, &'static str)>,
    originals: HashSet<usize>,
    made: HashSet<(usize, &'static str)>,
    took: Vec<Duration>,
}

impl Workload {
    fn new(size: &Size, nginx: Nginx, processor: &ImageProcessor) -> Result<Self> {
        let mut contents = processor.photographs(size.photographs + size.photographs / 100)?;
        let spare = contents.split_off(size.photographs);
        // One in a hundred is no image.
        contents.extend((0..size.photographs / 100).map(|place| format!("no image {place}").into_bytes()));
        let of_first = contents.len();
        contents.extend(spare);
        let this = Self {
            nginx,
            photographs: size.photographs,
            by_url: (0..size.urls).map(|url| url * 7 % of_first).collect(),
            contents,
            cumulative: (1..=size.urls as u64)
                .scan(0, |sum, rank| {
                    *sum += 1_000_000 / rank;
                    Some(*sum)
                })
                .collect(),
            rng: Rng::new(1),
            downloads: 0,
            asked: HashSet::new(),
            calls: Vec::new(),
            originals: HashSet::new(),
            made: HashSet::new(),
            took: Vec::new(),
        };
        for (url, &content) in this.by_url.iter().enumerate() {
            this.nginx.put(&format!("{url}.jpg"), &this.contents[content])?;
        }
        Ok(this)
    }

    fn is_image(&self, content: usize) -> bool {
        content < self.photographs || self.contents[content].starts_with(b"\xff\xd8")
    }

    /// Calls the service so often.
    fn call(&mut self, client: &mut HttpClient, calls: usize) -> Result<()> {
        for _ in 0..calls {
            let drawn = self.rng.below(self.cumulative[self.by_url.len() - 1]);
            let url = self.cumulative.partition_point(|&sum| sum <= drawn);
            let spec = SPECS[self.rng.below(4) as usize];
            let line = format!("GET /img/{spec}/http%3A%2F%2F{}%2F{url}.jpg", self.nginx.address);
            let begun = Instant::now();
            let reply = client.ask(&line, "")?;
            self.took.push(begun.elapsed());
            let content = self.by_url[url];
            let expected = if self.is_image(content) { 200 } else { 415 };
            ensure!(reply.status == expected, "{url} {spec}: {:?}", reply.fields);
            ensure!(expected != 200 || reply.body.starts_with(b"\xff\xd8"), "{url} {spec}: no image");
            self.downloads += usize::from(self.asked.insert(url));
            self.originals.insert(content);
            self.made.insert((content, spec));
            self.calls.push((url, spec));
        }
        Ok(())
    }

    /// Makes the same calls to nginx with `proxy_cache` before the same processor.
    fn call_nginx(&mut self, processor: &ImageProcessor) -> Result<()> {
        let stream = TcpStream::connect(processor.cached)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = HttpClient::new(stream);
        self.took.clear();
        for &(url, spec) in &self.calls {
            let begun = Instant::now();
            let reply = client.ask(&format!("GET /{spec}/{url}.jpg"), "")?;
            self.took.push(begun.elapsed());
            let expected = if self.is_image(self.by_url[url]) { 200 } else { 415 };
            ensure!(reply.status == expected, "{url} {spec}: {:?}", reply.fields);
        }
        Ok(())
    }

    /// The share of calls for which one was made, and percentiles of the times of all.
    fn print(&mut self, cache: &str, made: u64) {
        self.took.sort_unstable();
        let calls = self.took.len();
        let percentile = |part: usize| self.took[calls * part / 100].as_secs_f64() * 1e3;
        println!(
            "{cache}: {calls} calls, {made} processed: {:.2} % (source: below 1 %); p50 {:.2} ms (source: 100), \
             p90 {:.2} ms (source: 500), p99 {:.2} ms",
            made as f64 / calls as f64 * 100.0,
            percentile(50),
            percentile(90),
            percentile(99)
        );
    }

    /// Changes one URL in a hundred, every second one to bytes that others have.
    fn change(&mut self) -> Result<()> {
        let mut spare = self.photographs + self.photographs / 100;
        for (place, url) in (0..self.by_url.len()).step_by(100).enumerate() {
            self.by_url[url] = if place % 2 == 0 && spare < self.contents.len() {
                spare += 1;
                spare - 1
            } else {
                (self.by_url[url] + 1) % self.photographs
            };
            self.nginx.put(&format!("{url}.jpg"), &self.contents[self.by_url[url]])?;
            self.asked.remove(&url);
        }
        Ok(())
    }

    /// The specs that were made of images, and those that could not be made.
    fn expected(&self) -> (u64, u64) {
        let images = self.made.iter().filter(|(content, _)| self.is_image(*content)).count();
        (images as u64, (self.made.len() - images) as u64)
    }

    /// The contents that the origin has sent.
    fn sent(&self) -> Result<usize> {
        Ok(self.nginx.statuses()?.lines().filter(|line| line.starts_with("200 ")).count())
    }
}

fn gate(
    workload: &Workload,
    processor: &ImageProcessor,
    blobs: SocketAddr,
    directory: &Directory,
) -> Result<Listening> {
    let origin = workload.nginx.address;
    let process = super::processed::process(processor.address, blobs, &[origin], ERRORS_HOLD);
    let service = format!("{}\n{process}", directory.cache(", disk = \"4GiB\""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin, &service, OPEN)?;
    wait_open(&gate)?;
    Ok(gate)
}

fn event(gate: &Listening, name: &str) -> Result<u64> {
    gate.json(&["cache", "status"])?["caches"][0]["events"][name].as_u64().context("no such event")
}

#[test]
fn each_photograph_is_processed_once_for_each_spec() -> Result<()> {
    let size = Size::of_run();
    let directory = Directory::new("images");
    let blobs = address();
    let origin = Nginx::start(&[])?;
    let processor = ImageProcessor::start(blobs, origin.address)?;
    let mut workload = Workload::new(&size, origin, &processor)?;
    let mut first = gate(&workload, &processor, blobs, &directory)?;
    workload.call(&mut client(&first)?, size.calls / 2)?;
    workload.change()?;
    workload.call(&mut client(&first)?, size.calls * 2 / 5)?;
    for failure in ["process-failed", "download-failed", "write-skipped", "write-failed"] {
        ensure!(event(&first, failure)? == 0, "{failure}: {}", event(&first, failure)?);
    }
    let (processed, refused) = workload.expected();
    let counts = (event(&first, "processed")?, event(&first, "content-refused")?);
    ensure!(counts == (processed, refused), "{counts:?}, not {processed} and {refused}");
    // Originals, what was made of them, and the texts of refusals: one for each status.
    let least = workload.originals.len() as u64;
    wait_until("all is written", || Ok(event(&first, "blobs-written")? > least && first.rests().is_ok()))?;
    first.signal(Signal::SIGTERM)?;
    wait_until("it has ended", || Ok(!first.program().is_running()?))?;
    // After a restart nothing is downloaded or processed that was before.
    let second = gate(&workload, &processor, blobs, &directory)?;
    workload.call(&mut client(&second)?, size.calls / 10)?;
    let (all, all_refused) = workload.expected();
    let counts = (event(&second, "processed")?, event(&second, "content-refused")?);
    ensure!(counts == (all - processed, all_refused - refused), "{counts:?}, not {all} - {processed}");
    let made = processor.made()?.lines().count() as u64;
    ensure!(made == all + all_refused, "{made} made, not {all} and {all_refused}");
    let downloads = workload.downloads;
    wait_until("nginx has written its log", || Ok(workload.sent()? >= downloads))?;
    ensure!(workload.sent()? == downloads, "{} sent, not {downloads}", workload.sent()?);
    let verified = second.json(&["cache", "verify"])?;
    ensure!(verified["caches"][0]["damaged"] == 0 && verified["caches"][0]["missing"] == 0, "{verified}");
    println!("{downloads} downloads of {} originals", workload.originals.len());
    workload.print("gate", made);
    drop(second);
    workload.call_nginx(&processor)?;
    let made_for_nginx = processor.made()?.lines().count() as u64 - made;
    workload.print("nginx proxy_cache", made_for_nginx);
    Ok(())
}
