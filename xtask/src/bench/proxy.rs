//! Redis and memcached, asked directly and through gate and its peers.
//!
//! Every load runs against every target in turn, round by round, so that what else the machine does harms all
//! alike; the medians over the rounds are shown. CPU time is the scheduler's own accounting.
//!
//! Unless told otherwise client and store have one CPU between them, whether asked directly or through a proxy,
//! which has another to itself. On a machine whose CPUs all are busy with client and store alone, a proxy would
//! otherwise be charged for what it takes from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;

use super::cores::Dealt;
use super::load::{Answer, Load, NUMBER, NUMBERS};
use super::{Args, idle};
use crate::lab::process::ChildProcess;
use crate::setup::{self, Purpose};
use crate::{paths, run};

mod policies;
mod refusals;

/// Measures, and prints a table.
pub(super) fn run(args: &Args) -> Result<()> {
    setup::setup(Purpose::Bench)?;
    run::build_gate()?;
    let mut field = Field::set_up(args.cores.deal()?)?;
    if args.only.is_none() {
        idle(&field)?;
    }
    let mut rows = Vec::new();
    let only = args.only.as_deref().unwrap_or_default();
    for load in loads().into_iter().chain(policies::loads()).filter(|load| load.name.contains(only)) {
        let targets = || field.targets[load.store].iter().filter(|target| target.is_for(&load));
        for target in targets() {
            prime(&load, target.address)?;
        }
        let mut measured: BTreeMap<usize, Vec<Row>> = BTreeMap::new();
        for _ in 0..args.rounds {
            for (place, target) in targets().enumerate() {
                let row = measure(&load, target, &field, args.each())?;
                measured.entry(place).or_default().push(row);
            }
        }
        for (_, rounds) in measured {
            let row = median(rounds);
            println!("{}", row.line());
            rows.push(serde_json::to_value(row)?);
        }
    }
    for load in refusals::loads().into_iter().filter(|load| load.name.contains(only)) {
        let row = refusals::measure(&load, &mut field, args)?;
        println!("{}", row.line());
        rows.push(serde_json::to_value(row)?);
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_string_pretty(&rows)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Shows what idle connections cost gate, before anything else has used its memory.
fn idle(field: &Field) -> Result<()> {
    let loads = loads();
    for (store, name) in [(REDIS, "gate"), (MEMCACHED, "gate+policies")] {
        let found = |target: &&Target| target.name == name;
        let target = field.targets[store].iter().find(found).context("gate is among the targets")?;
        let named = loads.iter().find(|load| load.store == store).context("each store has a load")?;
        prime(named, target.address)?;
        let process = field.proxies[target.part.context("gate is a proxy")?].id();
        let request = named.load.batch(0);
        let each = idle::bytes_each(process, target.address, &request, named.answer)?;
        let count = idle::CONNECTIONS;
        println!("{:<28} {name:<12} {each:>10.0} bytes of memory each", format!("{count} idle connections"));
    }
    Ok(())
}

/// One load against one target.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: String,
    target: &'static str,
    per_sec: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    store_cpu_us: f64,
    proxy_cpu_us: f64,
    /// The share of the requests that was refused.
    refused: f64,
}

impl Row {
    fn line(&self) -> String {
        format!(
            "{:<28} {:<18} {:>10.0}/s  p50 {:>7.0} us  p99 {:>7.0} us  p99.9 {:>7.0} us  CPU us each: store {:>5.2}, proxy {:>5.2}{}",
            self.load,
            self.target,
            self.per_sec,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.store_cpu_us,
            self.proxy_cpu_us,
            if self.refused > 0.0 {
                format!("  refused {:.2} %", 100.0 * self.refused)
            } else {
                String::new()
            }
        )
    }
}

fn median(mut rounds: Vec<Row>) -> Row {
    let mut of = |field: fn(&mut Row) -> &mut f64| {
        let mut values: Vec<f64> = rounds.iter_mut().map(|row| *field(row)).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Row {
        per_sec: of(|row| &mut row.per_sec),
        p50_us: of(|row| &mut row.p50_us),
        p99_us: of(|row| &mut row.p99_us),
        p999_us: of(|row| &mut row.p999_us),
        store_cpu_us: of(|row| &mut row.store_cpu_us),
        proxy_cpu_us: of(|row| &mut row.proxy_cpu_us),
        refused: of(|row| &mut row.refused),
        ..rounds.swap_remove(0)
    }
}

fn measure(named: &Named, target: &Target, field: &Field, lasts: Duration) -> Result<Row> {
    let store = field.stores[named.store].id();
    let proxy = target.part.map(|part| field.proxies[part].id());
    let cpu = || Ok::<_, anyhow::Error>([cpu_micros(store)?, proxy.map_or(Ok(0.0), cpu_micros)?]);
    let before = cpu()?;
    let outcome =
        named.load.run(target.address, lasts).with_context(|| format!("{} {}", named.name, target.name))?;
    let after = cpu()?;
    let each = |which: usize| (after[which] - before[which]) / outcome.requests as f64;
    let [p50_us, p99_us, p999_us] = outcome.micros;
    Ok(Row {
        load: named.name.clone(),
        target: target.name,
        per_sec: outcome.per_sec,
        p50_us,
        p99_us,
        p999_us,
        store_cpu_us: each(0),
        proxy_cpu_us: each(1),
        refused: outcome.refused as f64 / outcome.requests as f64,
    })
}

/// A load, its name, and the store that it is for.
struct Named {
    name: String,
    store: usize,
    load: Load,
    /// How long an answer is, in bytes.
    answer: usize,
    /// The request that stores the values to read, and the length of its answer.
    prime: (String, usize),
    /// True if gates whose policies work are asked as well.
    at_work: bool,
}

const CONNECTIONS: usize = 64;
const REDIS: usize = 0;
const MEMCACHED: usize = 1;

fn loads() -> Vec<Named> {
    let mut loads = Vec::new();
    for (store, name) in [(REDIS, "redis"), (MEMCACHED, "memcached")] {
        for len in [32, 4_096] {
            for operation in ["GET", "SET"] {
                for pipelined in [1, 16] {
                    let value = "v".repeat(len);
                    let (set, stored, get) = match store {
                        REDIS => (
                            format!("*3\r\n$3\r\nSET\r\n$9\r\nbench:k{NUMBER}\r\n${len}\r\n{value}\r\n"),
                            "+OK\r\n".len(),
                            format!("*2\r\n$3\r\nGET\r\n$9\r\nbench:k{NUMBER}\r\n"),
                        ),
                        _ => (
                            format!("set bench:k{NUMBER} 0 0 {len}\r\n{value}\r\n"),
                            "STORED\r\n".len(),
                            format!("get bench:k{NUMBER}\r\n"),
                        ),
                    };
                    let found = policies::answer_of_get(store, "bench:k00", len);
                    let prime = (set.clone(), stored);
                    let (request, answer) = if operation == "GET" { (get, found) } else { (set, stored) };
                    let answers = Answer::Bytes(answer);
                    let load = Load {
                        connections: CONNECTIONS,
                        pipelined,
                        request,
                        numbers: NUMBERS,
                        every_other: None,
                        answer: answers,
                        pause: Duration::ZERO,
                    };
                    let name = format!("{name} {operation} {len} B x{pipelined}");
                    loads.push(Named { name, store, load, answer, prime, at_work: false });
                }
            }
        }
    }
    loads
}

/// Stores the values that are read.
fn prime(named: &Named, address: SocketAddr) -> Result<()> {
    let (request, answer) = named.prime.clone();
    let numbers = named.load.numbers;
    let answer = Answer::Bytes(answer);
    let load = named.load.clone();
    let once = Load { connections: 1, pipelined: numbers, request, every_other: None, answer, ..load };
    once.run(address, Duration::from_millis(20)).map(|_| ())
}

/// Where a load can go.
struct Target {
    name: &'static str,
    address: SocketAddr,
    /// Its place among the proxies.
    part: Option<usize>,
    /// For loads alone of which so many requests go together, and for which policies work.
    works_for: Option<usize>,
}

impl Target {
    fn is_for(&self, named: &Named) -> bool {
        self.works_for.is_none_or(|pipelined| named.at_work && named.load.pipelined == pipelined)
    }
}

/// Everything that runs.
struct Field {
    cores: Dealt,
    stores: Vec<ChildProcess>,
    proxies: Vec<ChildProcess>,
    targets: [Vec<Target>; 2],
    files: Vec<PathBuf>,
}

impl Drop for Field {
    fn drop(&mut self) {
        for file in &self.files {
            // The file lies in the directory for temporary files.
            let _ = fs::remove_file(file);
        }
    }
}

impl Field {
    fn set_up(cores: Dealt) -> Result<Self> {
        cores.bind_others()?;
        let redis = at(1);
        let memcached = at(2);
        let ip = |address: SocketAddr| address.ip().to_string();
        let port = PORT.to_string();
        let mut field = Self {
            cores,
            stores: Vec::new(),
            proxies: Vec::new(),
            targets: [Vec::new(), Vec::new()],
            files: Vec::new(),
        };
        let mut command = Command::new("redis-server");
        command.args(["--bind", &ip(redis), "--port", &port, "--save", "", "--appendonly", "no"]);
        field.stores.push(start("redis-server", command, &[redis])?);
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-l", &ip(memcached), "-p", &port, "-U", "0", "-t", "1", "-c", "4000"]);
        field.stores.push(start("memcached", command, &[memcached])?);
        for (store, address) in [redis, memcached].into_iter().enumerate() {
            field.targets[store].push(Target { name: "direct", address, part: None, works_for: None });
        }
        let own = |first: u8| [at(first), at(first + 1)];
        let gates =
            [("gate", 3, gate()), ("gate+policies", 5, deciding()), ("gate+hot keys", 11, hot_keys())];
        let gates = gates.map(|(name, first, gate)| (name, first, gate, None));
        let working = policies::gates().into_iter();
        let working = working.map(|of| (of.name, of.first, of.gate, Some(of.pipelined)));
        for (name, first, gate, works_for) in gates.into_iter().chain(working) {
            let file =
                field.file(&format!("{first}"), &gate_config(own(first), [redis, memcached], &gate))?;
            let mut command = Command::new(paths::gate());
            command.arg("run").arg("--config").arg(file);
            field.proxy(name, "gate", command, own(first))?;
            let started = field.targets.iter_mut().filter_map(|targets| targets.last_mut());
            started.for_each(|target| target.works_for = works_for);
        }
        let file = field.file("nutcracker", &nutcracker_config(own(7), [redis, memcached]))?;
        let mut command = Command::new("nutcracker");
        command.arg("-c").arg(file).args(["-v", "0", "-a", &ip(at(7)), "-s", "22001", "-o", "/dev/null"]);
        command.arg("-p").arg(std::env::temp_dir().join(format!("gate-bench-{}.pid", std::process::id())));
        field.proxy("nutcracker", "nutcracker", command, own(7))?;
        let file = field.file("haproxy", &haproxy_config(own(9), [redis, memcached]))?;
        let mut command = Command::new("haproxy");
        command.arg("-f").arg(file).arg("-db");
        field.proxy("haproxy", "haproxy", command, own(9))?;
        Ok(field)
    }

    fn file(&mut self, name: &str, text: &str) -> Result<PathBuf> {
        let file = std::env::temp_dir().join(format!("gate-bench-{}-{name}", std::process::id()));
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        self.files.push(file.clone());
        Ok(file)
    }

    fn proxy(
        &mut self,
        name: &'static str,
        program: &'static str,
        command: Command,
        own: [SocketAddr; 2],
    ) -> Result<()> {
        self.cores.bind_proxy()?;
        let proxy = start(program, command, &own);
        self.cores.bind_others()?;
        self.proxies.push(proxy?);
        let part = Some(self.proxies.len() - 1);
        for (targets, address) in self.targets.iter_mut().zip(own) {
            targets.push(Target { name, address, part, works_for: None });
        }
        Ok(())
    }
}

/// How gate is set up.
struct Gate {
    quota: &'static str,
    /// True if it may shed. A machine that the load keeps busy is no reason to.
    sheds: bool,
    /// Further lines of its services.
    service: Cow<'static, str>,
    /// Further lines of its tenant.
    tenant: &'static str,
}

impl Gate {
    const fn new(quota: &'static str, service: &'static str) -> Self {
        Self { quota, sheds: false, service: Cow::Borrowed(service), tenant: "" }
    }
}

/// As its peers, which keep nothing and refuse nothing.
const fn gate() -> Gate {
    Gate::new("unlimited", "hot_keys.cache = \"off\"\n")
}

/// Everything is decided, and nothing refused: objectives that even a busy machine keeps. See [`policies`] for more.
const fn deciding() -> Gate {
    Gate::new(
        "900000000 RU/s",
        "hot_keys.cache = \"off\"\nparallelism = \"100000\"\nobjectives.default.p50 = \"100s\"\n",
    )
}

/// All loads are about a few keys: once they are hot, gate answers their reads.
const fn hot_keys() -> Gate {
    Gate::new("unlimited", "hot_keys.threshold = \"100\"\n")
}

/// One thread each, as its peers have.
fn gate_config([redis, memcached]: [SocketAddr; 2], stores: [SocketAddr; 2], gate: &Gate) -> String {
    let Gate { quota, sheds, service: more, tenant } = gate;
    let sheds = if *sheds { "on" } else { "off" };
    let service = |name, protocol, listen, backend| {
        format!(
            "[[service]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\nlisten = \"{listen}\"\nbackend = \"{backend}\"\nmax_clients = \"{}\"\n\
             shedding.enabled = \"{sheds}\"\n{more}",
            2 * idle::CONNECTIONS
        )
    };
    let redis = service("redis", "resp", redis, stores[0]);
    let memcached = service("memcached", "memcached", memcached, stores[1]);
    let tenant =
        format!("[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"{quota}\"\n{tenant}");
    format!("[gate]\nxdp = \"off\"\nadmin = \"off\"\nthreads = \"1\"\n{redis}{memcached}{tenant}")
}

fn nutcracker_config(own: [SocketAddr; 2], stores: [SocketAddr; 2]) -> String {
    let pool = |name, redis, own, store| {
        format!(
            "{name}:\n  listen: {own}\n  redis: {redis}\n  hash: fnv1a_64\n  distribution: ketama\n  servers:\n   - {store}:1\n"
        )
    };
    pool("redis", true, own[0], stores[0]) + &pool("memcached", false, own[1], stores[1])
}

fn haproxy_config(own: [SocketAddr; 2], stores: [SocketAddr; 2]) -> String {
    let pair = |name, own, store| format!("listen {name}\n  bind {own}\n  server store {store}\n");
    let defaults = "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n";
    format!(
        "global\n  nbthread 1\n  maxconn 4000\n{defaults}{}{}",
        pair("redis", own[0], stores[0]),
        pair("memcached", own[1], stores[1])
    )
}

const PORT: u16 = 22_000;

/// An address on loopback that no other run uses.
pub(super) fn at(number: u8) -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 128 | (high & 63), low, number), PORT))
}

/// A program, once it accepts connections everywhere.
pub(super) fn start(name: &'static str, command: Command, addresses: &[SocketAddr]) -> Result<ChildProcess> {
    let mut part = ChildProcess::start(name, command)?;
    let deadline = Instant::now() + PATIENCE;
    while addresses.iter().any(|address| TcpStream::connect(address).is_err()) {
        if !part.is_running()? || Instant::now() > deadline {
            bail!("{name} does not accept connections");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(part)
}

const PATIENCE: Duration = Duration::from_secs(10);

/// The CPU time that a process has had, in microseconds.
fn cpu_micros(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name, which may hold anything but ends with the last parenthesis: fields 14 and 15 of all.
    let rest = stat.rsplit_once(") ").context("a process without a name")?.1;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    let per_sec = sysconf(SysconfVar::CLK_TCK)?.context("no clock ticks")? as f64;
    Ok(ticks / per_sec * 1e6)
}
