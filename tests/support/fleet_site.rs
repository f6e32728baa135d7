//! The gates and owners of a fleet, each on a machine of its own at one switch.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::fleet::{Owner, Peer};
use crate::proxy::Listening;
use crate::switch::{Machine, Switch};
use crate::tls::Authority;

/// A gate before a memcached on a machine where its clients are as well: only what the fleet says passes the switch.
#[derive(Debug)]
pub struct GateSite {
    /// The gate.
    pub gate: Listening,
    /// The memcached.
    pub store: Listening,
    /// The machine.
    pub machine: Machine,
}

/// An owner on a machine.
#[derive(Debug)]
pub struct OwnerSite {
    /// The owner.
    pub owner: Owner,
    /// The machine.
    pub machine: Machine,
}

/// The reads that each gate's memcached has done, at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The moment.
    pub at: Instant,
    /// In the order of the gates.
    pub reads: Vec<u64>,
}

impl GateSite {
    /// A gate of this name, with these lines in its section `[gate]`, and this one about owners in `[fleet]`; `tenants` are whole
    /// sections, and a request costs one unit.
    ///
    /// # Errors
    ///
    /// If something does not come up.
    pub fn start(
        switch: &Switch,
        authority: &Authority,
        name: &str,
        gate: &str,
        owners: &str,
        tenants: &str,
    ) -> Result<Self> {
        let fleet = format!("{gate}{}", section(authority, name, owners)?);
        let machine = switch.machine()?;
        let start = || {
            let store = Listening::memcached()?;
            let gate = Listening::gate_with(&fleet, "memcached", store.address, SERVICE, tenants)?;
            Ok((gate, store))
        };
        let (gate, store) = machine.on(start)?;
        Ok(Self { gate, store, machine })
    }

    /// Starts `gate load` on its machine, over TCP, with these tenants.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn load(&self, tenants: &[&str], time: Duration) -> Result<ChildProcess> {
        let mut command = Command::new(paths::gate());
        command.args(["load", "--tcp", "--json", "--target", &self.gate.address.to_string()]);
        command.args(tenants.iter().flat_map(|tenant| ["--tenant", tenant]));
        command.args(["--for", &format!("{}s", time.as_secs())]);
        self.machine.on(|| ChildProcess::start("gate load", command))
    }
}

impl OwnerSite {
    /// An owner of these limits, which are whole sections.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(switch: &Switch, authority: &Authority, limits: &str) -> Result<Self> {
        Self::by(switch, authority, |shown, machine| Owner::start_tls(machine.at(PORT), shown, "", limits))
    }

    /// An owner that registers with the etcd that this line names.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn register(switch: &Switch, authority: &Authority, etcd: &str) -> Result<Self> {
        Self::by(switch, authority, |shown, machine| Owner::register_as(shown, machine.at(PORT), etcd))
    }

    fn by(
        switch: &Switch,
        authority: &Authority,
        start: impl FnOnce(&Peer, &Machine) -> Result<Owner>,
    ) -> Result<Self> {
        let machine = switch.machine()?;
        let shown = Peer::of_address(authority, machine.at(PORT))?;
        let owner = machine.on(|| start(&shown, &machine))?;
        Ok(Self { owner, machine })
    }

    /// The request units that it has charged to a limit.
    ///
    /// # Errors
    ///
    /// If it does not say.
    pub fn charged(&self, limit: &str) -> Result<f64> {
        let account = self.machine.on(|| self.owner.account(limit))?;
        Ok(account.and_then(|account| account["charged_ru"].as_f64()).unwrap_or(0.0))
    }
}

/// The section `[fleet]` of a gate with a certificate.
///
/// # Errors
///
/// The openssl program's.
pub fn section(authority: &Authority, name: &str, owners: &str) -> Result<String> {
    let shown = Peer::new(authority, name, &format!("DNS:{name}"))?;
    Ok(format!("[fleet]\n{owners}name = {name:?}\n{}", shown.tls()))
}

/// The line of that section that names owners.
#[must_use]
pub fn named(owners: &[OwnerSite]) -> String {
    let owners: Vec<String> = owners.iter().map(|site| site.owner.address.to_string()).collect();
    format!("owners = {owners:?}\n")
}

impl Reading {
    /// The present one.
    ///
    /// # Errors
    ///
    /// If a store does not say.
    pub fn take<'a>(stores: impl IntoIterator<Item = (&'a Machine, &'a Listening)>) -> Result<Self> {
        let at = Instant::now();
        let reads = stores.into_iter().map(|(machine, store)| machine.on(|| store.stat("cmd_get")));
        Ok(Self { at, reads: reads.collect::<Result<_>>()? })
    }

    /// One every `step` for so long, beginning now.
    ///
    /// # Errors
    ///
    /// As [`Reading::take`].
    pub fn series(step: Duration, time: Duration, take: impl Fn() -> Result<Self>) -> Result<Vec<Self>> {
        let from = Instant::now();
        let mut readings = vec![take()?];
        while readings.last().is_some_and(|last| last.at < from + time) {
            std::thread::sleep(
                (from + step * readings.len() as u32).saturating_duration_since(Instant::now()),
            );
            readings.push(take()?);
        }
        Ok(readings)
    }

    /// The reads a second at each store, since an earlier one.
    #[must_use]
    pub fn per_sec(&self, earlier: &Self) -> Vec<f64> {
        let time = (self.at - earlier.at).as_secs_f64();
        self.reads.iter().zip(&earlier.reads).map(|(now, then)| (now - then) as f64 / time).collect()
    }
}

/// Where owners listen.
pub const PORT: u16 = 9_920;
/// A busy machine is no place to judge a store by its latency, by which prices would rise.
const SERVICE: &str =
    "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }\nshedding = { enabled = \"off\" }";
/// The line of a service by which a request costs one unit.
pub const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
