//! The lab's programs: the tenants' load, the service (guarded and proxied), the gate and its configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::counts::Snapshot;
use super::loopback::{self, ADMIN_PORT, Directory};
use super::net::{CLIENT_INTERFACE, Namespace, Net, SERVER_INTERFACE, SERVER_V4};
use super::place::Place;
use super::process::ChildProcess;
use super::report::{History, Summary};
use super::tenants::{LOOPBACK_TENANTS, PROXIED, TENANTS, Tenant};
use crate::sh;

/// The service's port.
pub const PORT: u16 = 11_211;
/// Where the daemon takes requests for it.
pub const PROXIED_PORT: u16 = 11_311;

/// The gate's configuration, with its pins in `pins`.
#[must_use]
pub fn config(pins: &Path) -> String {
    let mut toml = format!(
        "[gate]\ninterface = \"{SERVER_INTERFACE}\"\nxdp = \"native\"\npin_dir = \"{}\"\n\
         admin_http = \"{SERVER_V4}:{ADMIN_PORT}\"\n\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n\
         # One RU a request, whatever its length, so that rates are easy to compare.\n\
         price = {{ base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }}\n\n\
         [[service]]\nname = \"proxied\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PROXIED_PORT}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\n\
         # Two cores with a flood on them are no place to judge a store by its latency.\n\
         shedding = {{ enabled = \"off\" }}\n",
        pins.display()
    );
    toml.extend(TENANTS.into_iter().chain([PROXIED]).map(|tenant| tenant.section()));
    toml
}

/// The programs of the lab, running. Dropped, everything ends and goes.
#[derive(Debug)]
pub struct Programs {
    gate: PathBuf,
    tenants: &'static [Tenant],
    /// The tenants' load, the first that ends.
    load: ChildProcess,
    /// The load of [`PROXIED`], beside tenants who ask at the interface.
    proxied_load: Option<ChildProcess>,
    /// The other programs, in the order in which they end.
    programs: Vec<ChildProcess>,
    place: Place,
}

impl Programs {
    /// Starts everything on a network of its own, with XDP, the tenants last: they ask for `duration`.
    ///
    /// # Errors
    ///
    /// Without root, or if a program does not start; with its last lines.
    pub fn with_xdp(gate: &Path, duration: Duration) -> Result<Self> {
        let net = network()?;
        let store = start_store(&net, gate)?;
        let daemon = start_daemon(&net, gate)?;
        let server = net.server.name();
        println!("metrics, as root: ip netns exec {server} curl http://{SERVER_V4}:{ADMIN_PORT}/metrics\n");
        let peer = start_peer(&net, gate)?;
        let load = start_load(&net, gate, duration)?;
        let proxied_load = Some(start_proxied_load(&net, gate, duration)?);
        let programs = vec![peer, daemon, store];
        Ok(Self {
            gate: gate.to_owned(),
            tenants: &TENANTS,
            load,
            proxied_load,
            programs,
            place: Place::Network(net),
        })
    }

    /// Starts the proxied half on loopback, as any user.
    ///
    /// # Errors
    ///
    /// If a program does not start; with its last lines.
    pub fn on_loopback(gate: &Path, duration: Duration) -> Result<Self> {
        let directory = Directory::make()?;
        let store = loopback::start_store(gate)?;
        let daemon = loopback::start_daemon(&directory, gate)?;
        loopback::introduce(&directory, gate);
        let load = loopback::start_load(gate, duration)?;
        Ok(Self {
            gate: gate.to_owned(),
            tenants: &LOOPBACK_TENANTS,
            load,
            proxied_load: None,
            programs: vec![daemon, store],
            place: Place::Loopback(directory),
        })
    }

    /// The tenants whose counters are shown.
    #[must_use]
    pub fn tenants(&self) -> &'static [Tenant] {
        self.tenants
    }

    /// The gate's counters.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.gate, self.place.query())
    }

    /// True while the tenants send.
    ///
    /// # Errors
    ///
    /// If a program has died.
    pub fn is_under_load(&mut self) -> Result<bool> {
        for child in &mut self.programs {
            ensure!(child.is_running()?, "{} ended by itself", child.name());
        }
        let mut running = false;
        for load in [&mut self.load].into_iter().chain(&mut self.proxied_load) {
            running |= load.is_running()?;
        }
        Ok(running)
    }

    /// Ends everything, and returns the summary.
    ///
    /// # Errors
    ///
    /// If a program fails at its end.
    pub fn close(self, history: &History) -> Result<Summary> {
        let Self { gate, tenants, load, proxied_load, programs, place } = self;
        let load = result_of(load)?;
        let proxied = proxied_load.map(result_of).transpose()?;
        let end = Snapshot::take(&gate, place.query())?;
        let mut command = Command::new(&gate);
        command.args(["hotkeys", "--json", "-n", "5"]).args(place.query());
        let mut document: Value = serde_json::from_str(&sh::output(&mut command)?)?;
        let hot_keys = serde_json::from_value(document["keys"].take())?;
        programs.into_iter().try_for_each(|child| child.end().map(drop))?;
        Ok(Summary::new(tenants, history, &end, &load, proxied.as_ref(), hot_keys))
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
    ask_with(&mut command, how, tenants, duration);
    ChildProcess::start("gate load", command)
}

/// The arguments of `gate load`, for tenants who ask for `duration`.
pub(super) fn ask_with(command: &mut Command, how: &[&str], tenants: &[Tenant], duration: Duration) {
    command.args(["load", "--json", "--for", &format!("{}ms", duration.as_millis())]).args(how);
    for tenant in tenants {
        command.args(["--tenant", &tenant.load()]);
    }
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

/// How long a program may take until it is ready.
pub(super) const START: Duration = Duration::from_secs(30);
