//! The study of admission policies before a store: query types of different cost in a fixed mix, open loop, through `gate run`
//! with real sockets. One store is [`embedded`], with the published shares, the other is Redis itself ([`redis`]).
//!
//! `cargo xtask bench study` runs it whole; the suite `proxy`, module `study`, runs two policies at one rate.

use std::borrow::Cow;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::lab::process::{ChildProcess, bound_command};
use crate::paths;

pub mod embedded;
mod picture;
pub mod redis;

pub use picture::draw;

/// A query type of the study.
#[derive(Clone, Copy, Debug)]
pub struct QueryType {
    /// Its name.
    pub name: &'static str,
    /// Its share of the requests, beside the others' weights.
    pub weight: u32,
    /// The command that stands for it, with its arguments.
    command: &'static [&'static str],
}

/// How many requests may be at the store at once.
pub const PARALLELISM: u32 = 4;
/// The rates, as parts of [`Study::capacity`].
pub const RATES: [f64; 5] = [0.7, 0.9, 1.1, 1.3, 1.5];

/// A policy of the study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: &'static str,
    /// Its keys in the configuration of a service.
    keys: String,
}

/// The names of the policies, as the published study compares them.
pub const POLICIES: [&str; 6] = [
    "bouncer",
    "acceptance-allowance",
    "helping-the-underserved",
    "max-queue-length",
    "max-queue-wait",
    "accept-fraction",
];

/// The policies, for an objective and a store with this capacity. Limits have the published relation to the objective; the longest
/// queue is one that takes five times the objective to work off. Histograms take 200 values: where the store answers some two
/// hundred requests a second, the 3,000 of the published study would take a quarter of a minute to gather.
fn policies(p50_ms: f64, capacity: f64) -> Vec<Policy> {
    let keys = |name: &str| match name {
        "bouncer" => "histogram_values = \"200\"\nfairness = \"none\"".to_owned(),
        "acceptance-allowance" => {
            "histogram_values = \"200\"\nfairness = \"acceptance-allowance\"\nallowance = \"0.05\"".to_owned()
        }
        "helping-the-underserved" => {
            "histogram_values = \"200\"\nfairness = \"helping-the-underserved\"\nalpha = \"1\"".to_owned()
        }
        "max-queue-length" => {
            let longest = (5.0 * p50_ms / 1e3 * capacity).round();
            format!("admission = \"max-queue-length\"\nmax_queue_length = \"{longest}\"")
        }
        "max-queue-wait" => {
            let longest = (p50_ms * 2.0 / 3.0).round();
            format!("admission = \"max-queue-wait\"\nmax_queue_wait = \"{longest}ms\"")
        }
        _ => "admission = \"accept-fraction\"\naccept_fraction = \"80%\"".to_owned(),
    };
    POLICIES.map(|name| Policy { name, keys: keys(name) }).to_vec()
}

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Embedded,
    Redis,
}

/// A store, what is asked of it, and what it is held to.
#[derive(Clone, Debug)]
pub struct Study {
    /// The store's name.
    pub name: &'static str,
    /// The query types, the cheapest first.
    pub types: Vec<QueryType>,
    /// In their order: the mean time that the store takes when it is asked nothing else, in microseconds.
    pub mean_us: Vec<f64>,
    /// The name of the dearest type.
    pub dearest: &'static str,
    /// The objective of every type, in milliseconds, at p50 and p90.
    pub objective_ms: [f64; 2],
    /// Requests a second that the store serves when it is never idle.
    pub capacity: f64,
    /// The policies that are compared.
    pub policies: Vec<Policy>,
    store: Store,
}

/// The result of one policy at one rate.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The store.
    pub store: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// The rate, as a part of the capacity.
    pub rate: f64,
    /// Requests that were offered.
    pub offered: u64,
    /// Requests that neither were answered nor refused: not counted for either share.
    pub failed: u64,
    /// Refusals as a share of what was offered.
    pub refused: f64,
    /// Refusals of the dearest type, as a share of what was offered of it.
    pub dearest_refused: f64,
    /// From when a request of the dearest type was due to its answer, p50 and p90, in milliseconds.
    pub dearest_response_ms: [f64; 2],
    /// The same type's time at the store, as gate measures it, p50, in milliseconds.
    pub dearest_processing_ms: f64,
    /// The same type's wait and time at the store, as gate measures it, p50, in milliseconds.
    pub dearest_at_gate_ms: f64,
}

impl Study {
    /// Runs a policy at a rate: first unmeasured until gate knows the times, then measured.
    ///
    /// # Errors
    ///
    /// If a process fails, or answers nothing of the dearest type.
    pub fn run(&self, policy: &Policy, rate: f64, warm_up: Duration, measured: Duration) -> Result<Row> {
        let site = Site::start(self, policy)?;
        let per_sec = (rate * self.capacity).round();
        site.load(per_sec, warm_up, 1)?;
        let summary = site.load(per_sec, measured, 2)?;
        let queues = site.queues()?;
        self.row(policy.name, rate, &summary, &queues)
            .with_context(|| format!("{} at {rate}: {summary}", policy.name))
    }

    /// A sentence about the store.
    #[must_use]
    pub fn about(&self) -> Cow<'static, str> {
        match self.store {
            Store::Embedded => embedded::about(),
            Store::Redis => redis::about(),
        }
    }

    fn row(&self, policy: &'static str, rate: f64, summary: &Value, queues: &Value) -> Result<Row> {
        let named = |list: &Value| {
            let found = list.as_array()?.iter().find(|of| of["name"] == self.dearest);
            found.cloned()
        };
        let tenant = &summary["tenants"][0];
        let seen = named(&tenant["requests"]).context("no counts of the dearest type")?;
        let at_gate = named(&queues["services"][0]["types"]).context("gate has not seen the dearest type")?;
        let count = |of: &Value, what: &str| of[what].as_u64().context("no count");
        let share =
            |of: &Value| Ok::<_, anyhow::Error>(count(of, "refused")? as f64 / count(of, "offered")? as f64);
        let millis = |at: &str| Ok::<_, anyhow::Error>(count(&seen["latency_ns"], at)? as f64 / 1e6);
        let p50 = |of: &str| at_gate[of]["p50"].as_f64().with_context(|| format!("gate has no {of}"));
        ensure!(count(&seen, "answered")? > 0, "the dearest type was not answered at all");
        Ok(Row {
            store: self.name,
            policy,
            rate,
            offered: count(tenant, "offered")?,
            failed: count(tenant, "failed")? + count(tenant, "lost")? + count(tenant, "unsent")?,
            refused: share(tenant)?,
            dearest_refused: share(&seen)?,
            dearest_response_ms: [millis("p50")?, millis("p90")?],
            dearest_processing_ms: p50("processing_ms")?,
            dearest_at_gate_ms: p50("response_ms")?,
        })
    }

    /// Only what the policy refuses is to be seen: no controlled delay, no shedding, no answers by gate.
    fn config(&self, policy: &Policy, backend: SocketAddr, listen: SocketAddr, socket: &str) -> String {
        let types = self.types.iter().map(|of| format!("{} = [\"{}\"]", of.name, of.command[0]));
        let types = types.collect::<Vec<_>>().join(", ");
        let [p50, p90] = self.objective_ms;
        format!(
            "[gate]\nxdp = \"off\"\nthreads = \"1\"\nadmin = {socket:?}\n\
             [[service]]\nname = \"store\"\nprotocol = \"resp\"\nlisten = \"{listen}\"\nbackend = \"{backend}\"\n\
             parallelism = \"{PARALLELISM}\"\nconnections = \"2\"\nquery_types = {{ {types} }}\n\
             objectives.default = {{ p50 = \"{p50}ms\", p90 = \"{p90}ms\" }}\n\
             codel.law = \"off\"\nshedding.enabled = \"off\"\nhot_keys.cache = \"off\"\nprice.learn = \"off\"\n{}\n\
             [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n",
            policy.keys
        )
    }

    fn mix(&self) -> String {
        let request = |of: &QueryType| {
            let words = of.command.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
            format!(
                "[[request]]\nname = \"{}\"\nweight = {}\ncommand = [{words}]\nkeys = 100000\n",
                of.name, of.weight
            )
        };
        self.types.iter().map(request).collect()
    }
}

/// A store and a gate before it.
struct Site {
    _store: ChildProcess,
    _gate: ChildProcess,
    target: SocketAddr,
    files: [PathBuf; 3],
}

/// An address on loopback that no other store or gate of this or another run has.
fn address(port: u16) -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 64 | (high & 63), low, number.max(1)), port))
}

impl Site {
    fn start(study: &Study, policy: &Policy) -> Result<Self> {
        let backend = address(22_101);
        let target = SocketAddr::new(backend.ip(), 22_102);
        let file = |end: &str| {
            std::env::temp_dir().join(format!("gate-study-{}-{}.{end}", std::process::id(), backend.ip()))
        };
        let config = file("toml");
        let socket = file("sock");
        let mix = file("mix.toml");
        fs::write(&config, study.config(policy, backend, target, &socket.display().to_string()))?;
        fs::write(&mix, study.mix())?;
        let store = match study.store {
            Store::Embedded => started("gate store", embedded::command(backend), backend)?,
            Store::Redis => redis::start(backend)?,
        };
        let mut command = bound_command(paths::gate());
        command.arg("run").arg("--config").arg(&config);
        let gate = started("gate run", command, target)?;
        Ok(Self { _store: store, _gate: gate, target, files: [config, socket, mix] })
    }

    /// Offers the mix at a rate, and returns the summary of `gate load`.
    fn load(&self, per_sec: f64, lasting: Duration, seed: u64) -> Result<Value> {
        let [.., mix] = &self.files;
        let mut command = bound_command(paths::gate());
        command.args(["load", "--json", "--protocol", "resp", "--timeout", "10s"]);
        command.args(["--target", &self.target.to_string(), "--seed", &seed.to_string()]);
        command.args(["--for", &format!("{}ms", lasting.as_millis())]);
        // Connections enough that hardly an answer waits for that of an earlier request on its own.
        command.arg("--tenant");
        command.arg(format!("name=study,rate={per_sec}/s,connections=256,mix={}", mix.display()));
        let lines = ChildProcess::start("gate load", command)?.finish(lasting + PATIENCE)?;
        Ok(serde_json::from_str(&lines.join("\n"))?)
    }

    fn queues(&self) -> Result<Value> {
        let mut command = Command::new(paths::gate());
        let output = command.args(["queues", "--json", "--socket"]).arg(&self.files[1]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for file in &self.files {
            // The files lie in the directory for temporary files.
            let _ = fs::remove_file(file);
        }
    }
}

fn started(name: &'static str, command: Command, address: SocketAddr) -> Result<ChildProcess> {
    let mut process = ChildProcess::start(name, command)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        ensure!(process.is_running()? && Instant::now() < deadline, "{name} does not accept connections");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(process)
}

const PATIENCE: Duration = Duration::from_secs(30);
