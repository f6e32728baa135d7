//! The lab's programs: the tenants' load, the service (guarded and proxied), the gate and its configuration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::counts::Snapshot;
use super::net::{CLIENT_INTERFACE, Namespace, Net, SERVER_INTERFACE, SERVER_V4};
use super::process::ChildProcess;
use super::report::{History, Summary};
use crate::sh;

/// A tenant of the lab.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its source address.
    pub source: &'static str,
    /// Its quota. Every request costs one RU in the lab.
    pub quota_ru_per_sec: u32,
    /// How much of its quota it may have saved up.
    pub burst_ms: u32,
    /// How often it asks, while it does.
    pub offered_per_sec: u32,
    /// When it asks: `poisson` or `constant`, and whether in bursts, in the words of `gate load`.
    pub arrivals: &'static str,
    /// How many keys of its own it asks for.
    pub keys: u32,
}

/// The tenants. What they have in common: a tenth of their requests is for [`HOT_KEY`].
pub const TENANTS: [Tenant; 3] = [
    // Well under its quota.
    Tenant {
        name: "polite",
        source: "198.18.1.1",
        quota_ru_per_sec: 5_000,
        burst_ms: 100,
        offered_per_sec: 2_000,
        arrivals: "arrivals=poisson",
        keys: 1_000,
    },
    // Under its quota on average, but for a fifth of each second at over three times it: 600 RU saved up and
    // 600 earned meanwhile let 1,200 of 2,000 pass.
    Tenant {
        name: "bursty",
        source: "198.18.1.2",
        quota_ru_per_sec: 3_000,
        burst_ms: 200,
        offered_per_sec: 10_000,
        arrivals: "arrivals=constant,bursts=200ms/1s",
        keys: 1_000,
    },
    // More than 50 times its quota, without a pause.
    Tenant {
        name: "hostile",
        source: "198.18.1.3",
        quota_ru_per_sec: 2_000,
        burst_ms: 100,
        offered_per_sec: 110_000,
        arrivals: "arrivals=constant",
        keys: 100_000,
    },
];

/// The tenant of the proxied service, over TCP: as polite as the first of [`TENANTS`].
pub const PROXIED: Tenant = Tenant {
    name: "proxied",
    source: "198.18.1.4",
    quota_ru_per_sec: 5_000,
    burst_ms: 100,
    offered_per_sec: 500,
    arrivals: "arrivals=poisson",
    keys: 1_000,
};

/// The key that is planted among the others.
pub const HOT_KEY: &str = "planted";
/// The service's port.
pub const PORT: u16 = 11_211;
/// Where the daemon takes requests for it.
pub const PROXIED_PORT: u16 = 11_311;

impl Tenant {
    /// Its load, in the words of `gate load`.
    #[must_use]
    pub fn load(&self) -> String {
        let Self { name, source, offered_per_sec, arrivals, keys, .. } = self;
        format!(
            "name={name},source={source},rate={offered_per_sec}/s,{arrivals},reads=90%,keys=uniform:{keys},hot={HOT_KEY}:10%"
        )
    }
}

/// The gate's configuration, with its pins in `pins`.
#[must_use]
pub fn config(pins: &Path) -> String {
    let mut toml = format!(
        "[gate]\ninterface = \"{SERVER_INTERFACE}\"\nxdp = \"native\"\npin_dir = \"{}\"\n\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n\
         # One RU a request, whatever its length, so that rates are easy to compare.\n\
         price = {{ base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }}\n\n\
         [[service]]\nname = \"proxied\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PROXIED_PORT}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\n\
         # Two cores with a flood on them are no place to judge a store by its latency.\n\
         shedding = {{ enabled = \"off\" }}\n",
        pins.display()
    );
    for Tenant { name, source, quota_ru_per_sec, burst_ms, .. } in TENANTS.into_iter().chain([PROXIED]) {
        write!(
            toml,
            "\n[[tenant]]\nname = \"{name}\"\nsources = [\"{source}\"]\nquota = \"{quota_ru_per_sec} RU/s\"\n\
             burst = \"{burst_ms}ms\"\n"
        )
        .expect("a string takes all that is written to it");
    }
    toml
}

/// The programs of the lab, running. Dropped, everything ends and goes.
#[derive(Debug)]
pub struct Scene {
    gate: PathBuf,
    // In the order in which they end.
    load: ChildProcess,
    proxied_load: ChildProcess,
    peer: ChildProcess,
    daemon: ChildProcess,
    store: ChildProcess,
    net: Net,
}

impl Scene {
    /// Starts everything, the tenants last: they ask for `duration`.
    ///
    /// # Errors
    ///
    /// If a program does not start; with its last lines.
    pub fn set(gate: &Path, duration: Duration) -> Result<Self> {
        let net = network()?;
        let store = start_store(&net, gate)?;
        let daemon = start_daemon(&net, gate)?;
        let peer = start_peer(&net, gate)?;
        let load = start_load(&net, gate, duration)?;
        let proxied_load = start_proxied_load(&net, gate, duration)?;
        Ok(Self { gate: gate.to_owned(), load, proxied_load, peer, daemon, store, net })
    }

    /// The gate's counters.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.gate, self.net.pins())
    }

    /// True while the tenants send.
    ///
    /// # Errors
    ///
    /// If a program has died.
    pub fn is_under_load(&mut self) -> Result<bool> {
        for child in [&mut self.store, &mut self.daemon, &mut self.peer] {
            ensure!(child.is_running()?, "{} ended by itself", child.name());
        }
        let proxied = self.proxied_load.is_running()?;
        Ok(self.load.is_running()? || proxied)
    }

    /// Ends everything, and returns the summary.
    ///
    /// # Errors
    ///
    /// If a program fails at its end.
    pub fn close(self, history: &History) -> Result<Summary> {
        let Self { gate, load, proxied_load, peer, daemon, store, net } = self;
        let [load, proxied] = [result_of(load)?, result_of(proxied_load)?];
        let end = Snapshot::take(&gate, net.pins())?;
        let mut command = Command::new(&gate);
        command.args(["hotkeys", "--json", "-n", "5", "--pin-dir"]).arg(net.pins());
        let hot_keys = serde_json::from_str(&sh::output(&mut command)?)?;
        for child in [peer, daemon, store] {
            child.end()?;
        }
        Ok(Summary::new(history, &end, &load, &proxied, hot_keys))
    }
}

/// The result of a load generator.
fn result_of(load: ChildProcess) -> Result<Value> {
    let last_lines = load.end()?.concat();
    serde_json::from_str(&last_lines).with_context(|| format!("`gate load --json` printed {last_lines}"))
}

/// A network on which every tenant has its address.
///
/// # Errors
///
/// If it cannot be made.
pub fn network() -> Result<Net> {
    let net = Net::open()?;
    for tenant in TENANTS.into_iter().chain([PROXIED]) {
        net.add_client_address(tenant.source.parse().expect("an address"))?;
    }
    Ok(net)
}

/// The store. Like the other parts it is ready when this returns.
///
/// # Errors
///
/// If it does not start; with its last lines.
pub fn start_store(net: &Net, gate: &Path) -> Result<ChildProcess> {
    let target = target();
    let mut command = ahead(&net.server, gate);
    command.args(["store", "--listen", &target]);
    let mut store = ChildProcess::start("gate store", command)?;
    store.wait_for(&target, START)?;
    Ok(store)
}

/// The gate, attached.
///
/// # Errors
///
/// If it does not start; with its last lines.
pub fn start_daemon(net: &Net, gate: &Path) -> Result<ChildProcess> {
    let file = std::env::temp_dir().join(format!("{}.toml", net.server.name()));
    std::fs::write(&file, config(net.pins())).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = net.server.command(gate);
    command.args(["run", "--config"]).arg(&file);
    let mut daemon = ChildProcess::start("gate run", command)?;
    let attached = daemon.wait_for("attached interface", START);
    std::fs::remove_file(&file)?;
    attached?;
    Ok(daemon)
}

/// The program that lets the clients' end receive XDP's replies.
///
/// # Errors
///
/// If it does not start; with its last lines.
pub fn start_peer(net: &Net, gate: &Path) -> Result<ChildProcess> {
    let mut command = net.client.command(gate);
    command.args(["peer", "--interface", CLIENT_INTERFACE]);
    let mut peer = ChildProcess::start("gate peer", command)?;
    peer.wait_for("passes", START)?;
    Ok(peer)
}

/// The tenants, who ask for `duration`. At its end it prints what they saw, as JSON.
///
/// # Errors
///
/// If it does not start.
pub fn start_load(net: &Net, gate: &Path, duration: Duration) -> Result<ChildProcess> {
    ask(net, gate, &["--udp", "--target", &target()], &TENANTS, duration)
}

/// As [`start_load`], for who asks through the daemon.
fn start_proxied_load(net: &Net, gate: &Path, duration: Duration) -> Result<ChildProcess> {
    let through = format!("{SERVER_V4}:{PROXIED_PORT}");
    ask(net, gate, &["--tcp", "--target", &through], &[PROXIED], duration)
}

fn ask(net: &Net, gate: &Path, how: &[&str], tenants: &[Tenant], duration: Duration) -> Result<ChildProcess> {
    let mut command = net.client.command(gate);
    command.args(["load", "--json", "--for", &format!("{}ms", duration.as_millis())]).args(how);
    for tenant in tenants {
        command.args(["--tenant", &tenant.load()]);
    }
    ChildProcess::start("gate load", command)
}

fn target() -> String {
    format!("{SERVER_V4}:{PORT}")
}

/// `gate` in a namespace, scheduled before the machine's other work: a generator that is kept waiting for
/// longer than a burst lasts leaves quota unused, and a store that is shows up as latency.
fn ahead(namespace: &Namespace, gate: &Path) -> Command {
    let mut command = namespace.command("nice");
    command.args(["-n", "-10"]).arg(gate);
    command
}

const START: Duration = Duration::from_secs(10);
