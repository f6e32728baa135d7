//! Machines at one switch: network namespaces that a bridge in another one joins, where nftables drops what a test wants lost.
//!
//! ```text
//! gate-lab-<pid>-switch<n>                       gate-lab-<pid>-switch<n>-<m>
//!   bridge0 ── port<m> ─────────── veth ───────────── eth0  198.19.<n>.<m>
//! ```
//!
//! Traffic over a machine's own loopback does not pass the switch.

use std::cell::Cell;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result};
use xtask::lab::net::{Namespace, prefix, remove_stale};
use xtask::sh;

/// A switch. It is gone when dropped, and the cables with it.
#[derive(Debug)]
pub struct Switch {
    namespace: Namespace,
    number: u8,
    machines: Cell<u8>,
}

/// A machine at a switch. It is gone when dropped, with all that runs on it.
#[derive(Debug)]
pub struct Machine {
    namespace: Namespace,
    /// Its address.
    pub ip: Ipv4Addr,
}

impl Switch {
    /// One without machines. For root.
    ///
    /// # Errors
    ///
    /// Without `ip` or `nft`, or if the kernel refuses.
    pub fn open() -> Result<Self> {
        static OPENED: AtomicU8 = AtomicU8::new(0);
        remove_stale()?;
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::add(format!("{}switch{number}", prefix()))?;
        namespace.ip("link add bridge0 type bridge")?;
        namespace.ip("link set bridge0 addrgenmode none up")?;
        let switch = Self { namespace, number, machines: Cell::new(0) };
        switch.nft(TABLE)?;
        Ok(switch)
    }

    /// Adds a machine.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn machine(&self) -> Result<Machine> {
        let number = self.machines.get().checked_add(1).context("too many machines")?;
        self.machines.set(number);
        let ip = Ipv4Addr::new(198, 19, self.number, number);
        let namespace = Namespace::add(format!("{}-{number}", self.namespace.name()))?;
        let inside = namespace.name();
        self.namespace
            .ip(&format!("link add port{number} type veth peer name {INTERFACE} netns {inside}"))?;
        self.namespace.ip(&format!("link set port{number} master bridge0 addrgenmode none up"))?;
        namespace.ip(&format!("link set {INTERFACE} addrgenmode none up"))?;
        namespace.add_address(INTERFACE, ip.into())?;
        Ok(Machine { namespace, ip })
    }

    /// From now on loses what one machine sends to another.
    ///
    /// # Errors
    ///
    /// If `nft` fails.
    pub fn cut_one_way(&self, from: &Machine, to: &Machine) -> Result<()> {
        self.add("cut", &[(from, to)])
    }

    /// From now on loses everything between two groups of machines.
    ///
    /// # Errors
    ///
    /// If `nft` fails.
    pub fn cut(&self, one: &[&Machine], other: &[&Machine]) -> Result<()> {
        self.add("cut", &both_ways(one, other))
    }

    /// From now on loses a packet in five of those between two groups of machines.
    ///
    /// # Errors
    ///
    /// If `nft` fails.
    pub fn lose_a_fifth(&self, one: &[&Machine], other: &[&Machine]) -> Result<()> {
        self.add("lossy", &both_ways(one, other))
    }

    /// Loses nothing any more.
    ///
    /// # Errors
    ///
    /// If `nft` fails.
    pub fn heal(&self) -> Result<()> {
        self.nft("flush set bridge gate cut\nflush set bridge gate lossy")
    }

    fn add(&self, set: &str, pairs: &[(&Machine, &Machine)]) -> Result<()> {
        let pairs: Vec<String> = pairs.iter().map(|(from, to)| format!("{} . {}", from.ip, to.ip)).collect();
        self.nft(&format!("add element bridge gate {set} {{ {} }}", pairs.join(", ")))
    }

    fn nft(&self, rules: &str) -> Result<()> {
        sh::run(self.namespace.command("nft").arg(rules))
            .context("nft is in Debian's package nftables; `cargo xtask setup` installs it")
    }
}

fn both_ways<'a>(one: &[&'a Machine], other: &[&'a Machine]) -> Vec<(&'a Machine, &'a Machine)> {
    one.iter().flat_map(|&one| other.iter().flat_map(move |&other| [(one, other), (other, one)])).collect()
}

impl Machine {
    /// A port of its address.
    #[must_use]
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.ip, port).into()
    }

    /// A command that will run on it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// Does something on it: programs that are started and sockets that are made meanwhile stay there.
    ///
    /// # Errors
    ///
    /// Those of `work`, or if this thread cannot enter.
    pub fn on<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _visit = self.namespace.visit()?;
        work()
    }

    /// Gives it one more address, of 198.18.0.0/15.
    ///
    /// # Errors
    ///
    /// If `ip` refuses it.
    pub fn add_address(&self, address: IpAddr) -> Result<()> {
        self.namespace.add_address(INTERFACE, address)
    }

    /// Ends its connections to this port with a reset.
    ///
    /// # Errors
    ///
    /// If `ss` fails.
    pub fn reset_connections_to(&self, port: u16) -> Result<()> {
        sh::output(self.command("ss").args(["-H", "-t", "-K", &format!("dport = :{port}")])).map(drop)
    }

    /// A directory under bpffs that is its own. Not made yet; removed with it.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.namespace.pins()
    }
}

/// The interface of a machine.
pub const INTERFACE: &str = "eth0";

const TABLE: &str = "table bridge gate {
    set cut { type ipv4_addr . ipv4_addr; }
    set lossy { type ipv4_addr . ipv4_addr; }
    chain forward {
        type filter hook forward priority 0
        ip saddr . ip daddr @cut drop
        ip saddr . ip daddr @lossy numgen random mod 100 < 20 drop
    }
}";
