//! A store, a gate before it as a sensible operator configures it, and one measurement.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;

use super::hostile::{Hostile, PATIENCE, give_way};
use super::polite::{Seen, measure};
use super::{Behaviour, Store, memcached, redis};
use crate::lab::loopback::Directory;
use crate::lab::process::{ChildProcess, bound_command};
use crate::paths;

/// A directory for gate's configuration, and the programs that are started for each measurement.
#[derive(Debug)]
pub struct Site {
    directory: Directory,
    elements: usize,
}

/// The server that the polite tenant and the hostile one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The store itself.
    Directly,
    /// gate before the store.
    ThroughGate,
}

/// The polite tenant's view, without its neighbour and beside it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Without the neighbour, through gate; `None` if that was not measured.
    pub baseline: Option<Seen>,
    /// While the neighbour does what it does.
    pub with_neighbour: Seen,
    /// The number of requests that the neighbour sent, or of connections that it opened.
    pub done: u64,
}

impl Site {
    /// Makes the directory.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or gate has not been built.
    pub fn make() -> Result<Self> {
        ensure!(paths::gate().exists(), "no {}: run `cargo xtask test`", paths::gate().display());
        reserve_descriptors();
        Ok(Self { directory: Directory::make()?, elements: ELEMENTS })
    }

    /// The same, with so many elements in the keys of dear commands.
    #[must_use]
    pub fn with_elements(self, elements: usize) -> Self {
        Self { elements, ..self }
    }

    /// Measures the polite tenant for `lasts` beside a behaviour; before that, without it, for `baseline`.
    ///
    /// # Errors
    ///
    /// If a program does not start, the polite tenant is not served before, or the behaviour does nothing within 20 s.
    pub fn measure(
        &self,
        behaviour: &Behaviour,
        target: Target,
        baseline: Option<Duration>,
        lasts: Duration,
    ) -> Result<Measured> {
        let (_store, store_address) = start_store(behaviour.store)?;
        if !behaviour.fill.is_empty() {
            redis::run_script(store_address, behaviour.fill, &self.elements.to_string())?;
        }
        let gate = match target {
            Target::Directly => None,
            Target::ThroughGate => Some(Gate::start(&self.directory, behaviour.store, store_address)?),
        };
        let address = gate.as_ref().map_or(store_address, |gate| gate.address);
        let patience = if behaviour.may_wait { LONG_PATIENCE } else { USUAL_PATIENCE };
        let ask =
            |lasts, begun: &mut dyn FnMut()| measure(behaviour.store, address, (lasts, patience), begun);
        let baseline = baseline.map(|lasts| ask(lasts, &mut || ())).transpose()?;
        let (begin, may_begin) = mpsc::channel();
        let (tell, has_begun) = mpsc::channel();
        let between = gate.as_ref();
        let neighbour = move || {
            give_way();
            // The polite tenant is served, or has failed.
            let _ = may_begin.recv();
            let hostile = Hostile::new(address, behaviour.origin, lasts, between, tell);
            (behaviour.run)(&hostile).map(|()| hostile.done())
        };
        let (with_neighbour, done) = std::thread::scope(|scope| {
            let neighbour =
                std::thread::Builder::new().name("neighbour".to_owned()).spawn_scoped(scope, neighbour)?;
            let with_neighbour = ask(lasts, &mut || {
                let _ = begin.send(());
                // Both measure the same time; a neighbour that does nothing is found below.
                let _ = has_begun.recv();
            });
            drop(begin);
            let done = neighbour.join().map_err(|_| anyhow::anyhow!("the behaviour panicked"))?;
            Ok::<_, anyhow::Error>((with_neighbour?, done?))
        })?;
        ensure!(done > 0, "the behaviour did nothing");
        Ok(Measured { baseline, with_neighbour, done })
    }
}

/// A store that is ready, with what behaviours ask for in it.
fn start_store(store: Store) -> Result<(ChildProcess, SocketAddr)> {
    let address = address();
    let ip = address.ip().to_string();
    let port = address.port().to_string();
    let process = match store {
        Store::Memcached => {
            let mut command = bound_command("memcached");
            command.args(["-u", "root", "-l", &ip, "-p", &port, "-U", &port, "-m", "256"]);
            let process = start("memcached", command, address)?;
            memcached::fill(address)?;
            process
        }
        Store::Redis => {
            let mut command = bound_command("redis-server");
            command.args(["--bind", &ip, "--port", &port, "--save", "", "--protected-mode", "no"]);
            let process = start("redis-server", command, address)?;
            redis::fill(address)?;
            process
        }
    };
    Ok((process, address))
}

/// A gate that runs, and what its operator does with it.
#[derive(Debug)]
pub struct Gate {
    /// The address that it listens at.
    pub(super) address: SocketAddr,
    file: PathBuf,
    config: String,
    /// The present process, and the ones that drain.
    processes: Mutex<Vec<ChildProcess>>,
}

impl Gate {
    fn start(directory: &Directory, store: Store, backend: SocketAddr) -> Result<Self> {
        let address = address();
        let file = directory.path().join(format!("gate-{}.toml", address.port()));
        let config = config(store, address, backend);
        let gate = Self { address, file, config, processes: Mutex::new(Vec::new()) };
        gate.configure("")?;
        let mut command = bound_command(paths::gate());
        command.arg("run");
        gate.launch(command)?;
        Ok(gate)
    }

    fn configure(&self, more: &str) -> Result<()> {
        fs::write(&self.file, format!("{}{more}", self.config))
            .with_context(|| self.file.display().to_string())
    }

    fn processes(&self) -> MutexGuard<'_, Vec<ChildProcess>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self, mut command: Command) -> Result<()> {
        command.arg("--config").arg(&self.file);
        let mut process = ChildProcess::start("gate", command)?;
        process.wait_for("running without XDP", PATIENCE)?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_err() {
            ensure!(Instant::now() < deadline && process.is_running()?, "gate does not accept connections");
            std::thread::sleep(LOOK_EVERY);
        }
        self.processes().push(process);
        Ok(())
    }

    /// Has it read its configuration again, with these sections behind it.
    pub(super) fn reload(&self, more: &str) -> Result<()> {
        self.configure(more)?;
        let mut processes = self.processes();
        let process = processes.last_mut().context("no gate runs")?;
        process.signal(Signal::SIGHUP)?;
        process.wait_for("configuration read again", PATIENCE).map(drop)
    }

    /// Starts another gate at the same address, and hands over to it.
    pub(super) fn replace(&self) -> Result<()> {
        // Not bound to this thread, which ends before the measurement does.
        let mut command = Command::new(paths::gate());
        command.args(["run", "--takeover"]);
        self.launch(command)?;
        let processes = self.processes();
        let [.., old, _] = &processes[..] else { bail!("no gate runs") };
        old.signal(Signal::SIGUSR2)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The directory goes at the end in any case.
        let _ = fs::remove_file(&self.file);
    }
}

/// The configuration of a sensible operator: defaults, tenants by source with quotas, and the denied commands that
/// docs/CONFIGURATION.md recommends.
fn config(store: Store, address: SocketAddr, backend: SocketAddr) -> String {
    let (protocol, denied, transports) = match store {
        Store::Memcached => ("memcached", DENIED_MEMCACHED, "transports = [\"udp\", \"tcp\"]\n"),
        Store::Redis => ("resp", DENIED_REDIS, ""),
    };
    format!(
        "[gate]\nxdp = \"off\"\nadmin = \"off\"\n\n\
         [[service]]\nname = \"store\"\nprotocol = \"{protocol}\"\n{transports}listen = \"{address}\"\nbackend = \"{backend}\"\n\n\
         [[tenant]]\nname = \"polite\"\nsources = [\"127.0.6.0/24\"]\nquota = \"5000 RU/s\"\n\n\
         [[tenant]]\nname = \"hostile\"\nsources = [\"127.0.5.0/24\"]\nquota = \"2000 RU/s\"\n\
         keys = \"own\"\nkey_prefixes = [\"hostile:\"]\ndeny = [{denied}]\n{}\n\
         [[tenant]]\nname = \"privileged\"\nsources = [\"127.0.7.0/24\"]\nquota = \"2000 RU/s\"\n\n",
        if store == Store::Redis { "deny_scripts = \"on\"\nusers = [\"hostile\"]\n" } else { "" }
    )
}

const DENIED_MEMCACHED: &str = r#""flush_all", "cache_memlimit", "lru", "lru_crawler", "slabs", "verbosity""#;
const DENIED_REDIS: &str = r#"
  "ACL", "BGREWRITEAOF", "BGSAVE", "CLIENT KILL", "CLIENT PAUSE", "CLUSTER", "CONFIG", "DEBUG", "FAILOVER",
  "FLUSHALL", "FLUSHDB", "FUNCTION", "KEYS", "LATENCY", "MIGRATE", "MODULE", "MONITOR", "PSYNC", "REPLICAOF", "SAVE",
  "SCRIPT FLUSH", "SHUTDOWN", "SLAVEOF", "SLOWLOG", "SWAPDB", "SYNC", "unknown",
"#;

/// An address that nothing else listens at: the port is another each time, so that what a neighbour still sends to the
/// last one reaches nobody.
fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let port = FIRST_PORT + NEXT.fetch_add(1, Ordering::Relaxed) % 5_000;
    SocketAddr::from((Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low), port))
}

/// Below the ports that the kernel gives to clients.
const FIRST_PORT: u16 = 23_000;

fn start(name: &'static str, command: Command, address: SocketAddr) -> Result<ChildProcess> {
    let mut process = ChildProcess::start(name, command)?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        ensure!(Instant::now() < deadline && process.is_running()?, "{name} does not accept connections");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(process)
}

/// Has the kernel make room in this process' table of descriptors. Otherwise it does so while the neighbour opens its
/// connections, which takes milliseconds in a process with threads, and the polite tenant's new connections wait.
fn reserve_descriptors() {
    let open = |(soft, _)| i32::try_from(soft).unwrap_or(i32::MAX).min(MOST_DESCRIPTORS);
    let last = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, open) - 1;
    if let Ok(descriptor) = fcntl(std::io::stderr(), FcntlArg::F_DUPFD_CLOEXEC(last)) {
        let _ = nix::unistd::close(descriptor);
    }
}

/// In the keys of dear commands.
const ELEMENTS: usize = 1_000_000;
/// How long the polite tenant waits for an answer: where all have to wait, longer than gate lets a store be silent.
const USUAL_PATIENCE: Duration = Duration::from_secs(2);
const LONG_PATIENCE: Duration = Duration::from_secs(12);
/// More than any behaviour takes.
const MOST_DESCRIPTORS: i32 = 4_096;
const LOOK_EVERY: Duration = Duration::from_millis(2);
