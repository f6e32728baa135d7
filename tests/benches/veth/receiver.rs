//! The receiving end: one NAPI thread, and its CPU time.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gate_tests::net::{Net, SERVER_INTERFACE};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use xtask::sh;

/// Where the flood is sent and received.
pub(crate) const CPU: usize = 1;

/// The NAPI thread of a network's server.
pub(crate) struct Receiver {
    thread: i32,
}

/// Packets that a figure rests on at least.
const LEAST: u64 = 10_000;

/// The CPU time and the packets up to a moment.
pub(crate) struct Reading {
    at: Instant,
    cpu: Duration,
    packets: u64,
}

/// The cost of a packet.
pub(crate) struct Cost {
    pub(crate) ns: f64,
    pub(crate) per_sec: f64,
}

impl Receiver {
    /// Gives the server's interface a thread for what it receives. To be called when it has its program: before,
    /// a veth has no NAPI.
    pub(crate) fn start(net: &Net) -> Result<Self> {
        let before = threads()?;
        // In a mount namespace of its own, with the interfaces of its network.
        let script =
            format!("mount -t sysfs none /sys && echo 1 > /sys/class/net/{SERVER_INTERFACE}/threaded");
        sh::run(net.server.command("unshare").args(["--mount", "sh", "-c", &script]))?;
        let mut new = threads()?.into_iter().filter(|thread| !before.contains(thread));
        let thread = new.next().context("the interface has no NAPI thread")?;
        pin_thread(Pid::from_raw(thread), CPU)?;
        Ok(Self { thread })
    }

    /// The CPU time used so far, and the packets that the interface has received.
    pub(crate) fn reading(&self, net: &Net) -> Result<Reading> {
        net.server.enter(|| {
            let at = Instant::now();
            let schedstat = fs::read_to_string(format!("/proc/{}/schedstat", self.thread))?;
            let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
            let cpu = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).context("no CPU time")?;
            let packets = received(&devices).with_context(|| format!("no packets in {devices}"))?;
            Ok(Reading { at, cpu: Duration::from_nanos(cpu), packets })
        })?
    }
}

impl Reading {
    /// The cost of each packet since `before`; `None` if there were too few to tell.
    pub(crate) fn since(&self, before: &Self) -> Option<Cost> {
        let packets = self.packets - before.packets;
        let ns = (self.cpu - before.cpu).as_nanos() as f64;
        let secs = (self.at - before.at).as_secs_f64();
        (packets >= LEAST).then(|| Cost { ns: ns / packets as f64, per_sec: packets as f64 / secs })
    }
}

/// Lets a thread run on one CPU only, and there ahead of the machine's other work.
pub(crate) fn pin_thread(thread: Pid, cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    sched_setaffinity(thread, &cpus)
        .with_context(|| format!("cannot run on CPU {cpu}: the benchmark needs two"))?;
    sh::run(Command::new("renice").args(["--priority", "-20", "--pid", &thread.to_string()]))
}

/// The NAPI threads of all interfaces called as ours.
fn threads() -> Result<HashSet<i32>> {
    let name = format!("napi/{SERVER_INTERFACE}-");
    let processes = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let named = |process: &i32| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|comm| comm.starts_with(&name))
    };
    Ok(processes.filter(named).collect())
}

/// The second number of the interface's line: packets received.
fn received(devices: &str) -> Option<u64> {
    let line = devices
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(SERVER_INTERFACE)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}
