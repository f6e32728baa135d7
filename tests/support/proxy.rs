//! Real stores on loopback, and a gate before them.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrStorage, bind, connect, socket,
};
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::mounts::{with_files, with_small_disk};
use crate::wait::{until_up, wait_until};

pub use crate::wait::PATIENCE;

/// A service's patience with its store where a test is not about that: the store may wait for a busy machine's processor.
pub const PATIENT: &str = "store_timeout = \"10s\"";

/// A program that listens on an address of its own; ends when dropped.
#[derive(Debug)]
pub struct Listening {
    /// Where.
    pub address: SocketAddr,
    program: ChildProcess,
    /// A gate's configuration.
    config: Option<PathBuf>,
}

impl Listening {
    /// A memcached with one thread, so that what one connection sends is done in order. It takes datagrams too.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn memcached() -> Result<Self> {
        Self::memcached_at(address())
    }

    /// [`Listening::memcached`] where one was before.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn memcached_at(address: SocketAddr) -> Result<Self> {
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        command.args(["-U", &address.port().to_string(), "-m", "256", "-t", "1", "-c", "2000"]);
        Self::start("memcached", command, address, None)
    }

    /// A memcached that wants one of these users and passwords, a line each (`user:password`), before anything else.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn memcached_with_users(users: &Path) -> Result<Self> {
        let address = address();
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        command.args(["-t", "1", "-U", "0", "-Y"]).arg(users);
        Self::start("memcached", command, address, None)
    }

    /// A redis-server that keeps nothing.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn redis() -> Result<Self> {
        Self::redis_with(&[])
    }

    /// [`Listening::redis`] with further arguments.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn redis_with(arguments: &[&str]) -> Result<Self> {
        Self::redis_at(address(), arguments)
    }

    /// [`Listening::redis`] where one was before, with further arguments.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn redis_at(address: SocketAddr, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]).args(arguments);
        Self::start("redis-server", command, address, None)
    }

    /// gate's own store, which speaks this protocol.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn embedded(protocol: &str) -> Result<Self> {
        Self::embedded_with(protocol, &[])
    }

    /// [`Listening::embedded`] with these arguments.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn embedded_with(protocol: &str, arguments: &[&str]) -> Result<Self> {
        let address = address();
        let mut command = Command::new(paths::gate());
        command.args(["store", "--protocol", protocol, "--listen", &address.to_string()]).args(arguments);
        Self::start("gate store", command, address, None)
    }

    /// A gate in user space alone, with one service named `store` before `backend`; `service` is what else
    /// its section says, `tenants` are whole sections.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate(protocol: &str, backend: SocketAddr, service: &str, tenants: &str) -> Result<Self> {
        Self::gate_with("", protocol, backend, service, tenants)
    }

    /// [`Listening::gate`], with what its section `[gate]` says beside.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_with(
        gate: &str,
        protocol: &str,
        backend: impl Display,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        Self::gate_by(Command::new(paths::gate()), gate, protocol, backend, service, tenants)
    }

    /// [`Listening::gate_with`], in a mount namespace of its own where this file is `/etc/hosts`, and nothing but that file is
    /// asked for addresses. For root.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_with_hosts(
        hosts: &Path,
        protocol: &str,
        backend: impl Display,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let order = hosts.with_extension("nsswitch");
        std::fs::write(&order, "hosts: files\n")?;
        let files = [(hosts, "/etc/hosts"), (order.as_path(), "/etc/nsswitch.conf")];
        let command = with_files(Command::new("unshare"), &files, &paths::gate());
        Self::gate_by(command, "", protocol, backend, service, tenants)
    }

    /// A gate before `backend` that logs a JSON object a line.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_with_json_log(protocol: &str, backend: SocketAddr, tenants: &str) -> Result<Self> {
        let mut command = Command::new(paths::gate());
        command.env("GATE_LOG_FORMAT", "json");
        Self::gate_by(command, "", protocol, backend, "", tenants)
    }

    /// A gate whose service manager listens at this socket, and wants a sign of life within `watchdog`.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_with_manager(
        (socket, watchdog): (&Path, Duration),
        gate: &str,
        backend: SocketAddr,
        tenants: &str,
    ) -> Result<Self> {
        let mut command = Command::new(paths::gate());
        command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Self::gate_by(command, gate, "memcached", backend, "", tenants)
    }

    /// [`Listening::gate_with`] for HTTP, in a mount namespace of its own where `/dev/shm` has room for so many bytes. For root.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_with_small_disk(
        bytes: u64,
        gate: &str,
        backend: SocketAddr,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let command = with_small_disk(Command::new("unshare"), bytes, &paths::gate());
        Self::gate_by(command, gate, "http", backend, service, tenants)
    }

    /// [`Listening::gate_with`] for HTTP, which takes the place of another gate.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_that_takes_over(
        gate: &str,
        backend: SocketAddr,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" --takeover"]).arg(paths::gate());
        Self::gate_by(command, gate, "http", backend, service, tenants)
    }

    /// [`Listening::gate_with`] for HTTP, which runs before all programs of this machine that do not so (`SCHED_FIFO`). For root.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_that_runs_first(
        gate: &str,
        backend: SocketAddr,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let mut command = Command::new("chrt");
        command.args(["--fifo", "1"]).arg(paths::gate());
        Self::gate_by(command, gate, "http", backend, service, tenants)
    }

    /// [`Listening::gate_with`], by a line of the shell in which `"$0" "$@"` is the gate and its arguments.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_by_shell(
        line: &str,
        protocol: &str,
        backend: SocketAddr,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", line]).arg(paths::gate());
        Self::gate_by(command, "", protocol, backend, service, tenants)
    }

    /// A gate before these memcacheds, as `backends` lists them.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_before_pool(gate: &str, backends: &[String], service: &str, tenants: &str) -> Result<Self> {
        let store = format!("backends = {backends:?}\n{}", calm(service));
        Self::gate_before(Command::new(paths::gate()), gate, "memcached", &store, service, tenants)
    }

    /// A gate before a Redis Cluster with these seeds, as `backends` lists them.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn gate_before_cluster(seeds: &[String], service: &str, tenants: &str) -> Result<Self> {
        let store = format!("cluster = \"on\"\nbackends = {seeds:?}\n{}", calm(service));
        Self::gate_before(Command::new(paths::gate()), "", "resp", &store, service, tenants)
    }

    fn gate_by(
        command: Command,
        gate: &str,
        protocol: &str,
        backend: impl Display,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        let store = format!("backend = \"{backend}\"");
        Self::gate_before(command, gate, protocol, &store, service, tenants)
    }

    fn gate_before(
        mut command: Command,
        gate: &str,
        protocol: &str,
        store: &str,
        service: &str,
        tenants: &str,
    ) -> Result<Self> {
        ensure!(paths::gate().exists(), "no {}: run `cargo xtask test`", paths::gate().display());
        let address = address();
        let config = std::env::temp_dir().join(format!("gate-{}-{}.toml", std::process::id(), address.ip()));
        let socket = config.with_extension("sock");
        let patience =
            if service.contains("store_timeout") || service.contains("slow_timeout") { "" } else { PATIENT };
        let text = format!(
            "[gate]\nxdp = \"off\"\nadmin = {socket:?}\n{gate}\n[[service]]\nname = \"store\"\nprotocol = \"{protocol}\"\n\
             listen = \"{address}\"\n{store}\n{patience}\n{service}\n{tenants}\n"
        );
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        command.arg("run").arg("--config").arg(&config);
        Self::start("gate", command, address, Some(config))
    }

    fn start(
        name: &'static str,
        command: Command,
        address: SocketAddr,
        config: Option<PathBuf>,
    ) -> Result<Self> {
        let program = ChildProcess::start(name, command)?;
        let mut this = Self { address, program, config };
        // A gate's admin socket comes last.
        let socket = this.config.as_ref().map(|config| config.with_extension("sock"));
        let is_there = || socket.as_ref().is_none_or(|socket| UnixStream::connect(socket).is_ok());
        until_up(&mut this.program, name, || Ok(TcpStream::connect(address).is_ok() && is_there()))?;
        Ok(this)
    }

    /// A new connection to it, on which nothing waits longer than [`PATIENCE`].
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// [`Listening::connect`], from this address.
    ///
    /// # Errors
    ///
    /// If it is refused, or the address is not this machine's.
    pub fn connect_from(&self, source: Ipv4Addr) -> Result<TcpStream> {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0)))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(self.address))?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The reply to `request`, up to `end`.
    ///
    /// # Errors
    ///
    /// If it says something else.
    pub fn ask(&self, request: &[u8], end: &[u8]) -> Result<Vec<u8>> {
        let mut stream = self.connect()?;
        stream.write_all(request)?;
        read_until(&mut stream, end)
    }

    /// [`Listening::ask`] from this address on loopback.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn ask_from(&self, source: Ipv4Addr, request: &[u8], end: &[u8]) -> Result<Vec<u8>> {
        let mut stream = self.connect_from(source)?;
        stream.write_all(request)?;
        read_until(&mut stream, end)
    }

    /// A counter of a memcached's.
    ///
    /// # Errors
    ///
    /// If it does not say.
    pub fn stat(&self, name: &str) -> Result<u64> {
        let said = String::from_utf8(self.ask(b"stats\r\n", b"END\r\n")?)?;
        let mut values = said.lines().filter_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name));
        Ok(values.find_map(|value| value.strip_prefix(' ')).context("no such counter")?.parse()?)
    }

    /// A gate's configuration, and its admin socket.
    ///
    /// # Errors
    ///
    /// If it is no gate.
    pub fn files(&self) -> Result<(&Path, PathBuf)> {
        let config = self.config.as_ref().context("it is no gate")?;
        Ok((config, config.with_extension("sock")))
    }

    /// Runs `gate` with these arguments and this gate's admin socket.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn command(&self, arguments: &[&str]) -> Result<Output> {
        let (_, socket) = self.files()?;
        Ok(Command::new(paths::gate()).args(arguments).arg("--socket").arg(socket).output()?)
    }

    /// The output of `gate ... --json` for this gate.
    ///
    /// # Errors
    ///
    /// If it fails, or prints something else.
    pub fn json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let output = self.command(&[arguments, &["--json"]].concat())?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.signal(signal)
    }

    /// Stops it in the middle of whatever it does: when this returns, none of its threads runs. SIGCONT lets it go on.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn stall(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        wait_until("it is stopped", || self.all_threads_are('T'))
    }

    /// Waits until none of its threads has anything to do. What is sent to it on two connections after that, it reads in the
    /// order in which it was sent: one that is still busy may look first at a connection that it has just served.
    ///
    /// # Errors
    ///
    /// If it has ended, or goes on for [`PATIENCE`].
    pub fn rests(&self) -> Result<()> {
        wait_until("it rests", || self.all_threads_are('S'))
    }

    /// True if all of its threads are in this state of `/proc/PID/stat`.
    fn all_threads_are(&self, state: char) -> Result<bool> {
        let mut states =
            std::fs::read_dir(format!("/proc/{}/task", self.program.id()))?.map(|task| -> Result<bool> {
                // After the name, which may hold anything but ends with the last parenthesis.
                let stat = std::fs::read_to_string(task?.path().join("stat"))?;
                Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state)))
            });
        states.try_fold(true, |all, found| Ok(all && found?))
    }

    /// The memory that it has in use, in bytes.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn memory(&self) -> Result<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.program.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("it has ended")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
    }

    /// The program itself.
    pub fn program(&mut self) -> &mut ChildProcess {
        &mut self.program
    }

    /// The request units that a gate has charged a tenant.
    ///
    /// # Errors
    ///
    /// If it does not say, or has no such tenant.
    pub fn charged(&self, tenant: &str) -> Result<f64> {
        let shown = self.json(&["tenants", tenant])?;
        shown["tenants"][0]["charged_ru"].as_f64().with_context(|| format!("no charge of {tenant}: {shown}"))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(config) = &self.config {
            // It lies in the directory for temporary files.
            let _ = std::fs::remove_file(config);
        }
    }
}

/// Everything up to and with `end`.
///
/// # Errors
///
/// If the connection ends or falls silent before.
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    let mut piece = vec![0; 1 << 16];
    while !said.ends_with(end) {
        let len = stream.read(&mut piece).with_context(|| format!("after {}", shown(&said)))?;
        ensure!(len > 0, "closed after {}", shown(&said));
        said.extend_from_slice(&piece[..len]);
    }
    Ok(said)
}

/// Asks on an open connection. The answer is `expected`: what differs from its beginning on is waited for no longer.
///
/// # Errors
///
/// If something else is answered, or the connection ends or falls silent before.
pub fn check(stream: &mut TcpStream, asked: &str, expected: &str) -> Result<()> {
    stream.write_all(asked.as_bytes())?;
    let mut said = vec![0; expected.len()];
    let mut len = 0;
    while len < said.len() {
        let more = stream.read(&mut said[len..]).with_context(|| format!("after {}", shown(&said[..len])))?;
        ensure!(more > 0, "{asked:?}: closed after {}", shown(&said[..len]));
        len += more;
        let begins = expected.as_bytes().starts_with(&said[..len]);
        ensure!(begins, "{asked:?}: {}, not {expected:?}", shown(&said[..len]));
    }
    Ok(())
}

/// The key by which no tier is shed, where a service's keys say nothing of that: several stores, of which one may be killed, on a
/// machine that stands still now and then are slow for other reasons.
fn calm(service: &str) -> &'static str {
    if service.contains("shedding") { "" } else { "shedding.enabled = \"off\"" }
}

/// The last bytes of something that may be long.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(300);
    format!("{:?}", String::from_utf8_lossy(&bytes[start..]))
}

/// An address on loopback that nothing else of this or another run listens on: of a block of them that this process
/// claims by listening in it for as long as it lives. None is given twice: some stores live as long as the process.
pub fn address() -> SocketAddr {
    static BLOCK: LazyLock<(TcpListener, u32)> = LazyLock::new(|| {
        let blocks = (0..BLOCKS).map(|next| FIRST + (std::process::id() + next) % BLOCKS * ADDRESSES);
        let mut claims = blocks.filter_map(|block| {
            Some((TcpListener::bind((Ipv4Addr::from_bits(block), CLAIMED)).ok()?, block))
        });
        claims.next().expect("there are fewer runs than blocks")
    });
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(next < ADDRESSES, "a process has {ADDRESSES} addresses");
    SocketAddr::from((Ipv4Addr::from_bits(BLOCK.1 + next), 21_211))
}

/// The blocks lie in 127.64.0.0/10.
const FIRST: u32 = Ipv4Addr::new(127, 64, 0, 0).to_bits();
const BLOCKS: u32 = 1 << 10;
const ADDRESSES: u32 = 1 << 12;
const CLAIMED: u16 = 21_210;
