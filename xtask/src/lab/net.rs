//! A network of one's own: two namespaces and the veth pair between them.
//!
//! ```text
//! gate-lab-<pid>-<n>-client                    gate-lab-<pid>-<n>-server
//!   client0  198.18.0.2  fd00::2  ── veth ──  gate0  198.18.0.1  fd00::1
//! ```
//!
//! Invariants: both ends lie inside, so nothing sent here can reach the machine's own network; every name
//! carries the process id. Everything goes when the [`Net`] is dropped, a panic included; what a killed
//! process left behind goes when the next one opens its own.

use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use super::process::bound_command_in;
use crate::sh;

/// The client's end of the pair.
pub const CLIENT_INTERFACE: &str = "client0";
/// The server's end, where a gate is attached.
pub const SERVER_INTERFACE: &str = "gate0";
/// The server's addresses. All of 198.18.0.0/15 (set aside for benchmarks, RFC 2544) is on the link.
pub const SERVER_V4: &str = "198.18.0.1";
/// The server's address in fd00::/64.
pub const SERVER_V6: &str = "fd00::1";
/// The client's first addresses.
pub const CLIENT_V4: &str = "198.18.0.2";
/// The client's first address in fd00::/64.
pub const CLIENT_V6: &str = "fd00::2";

/// How the names of what a lab makes begin; its process id follows.
pub(super) const PREFIX: &str = "gate-lab-";
/// The same whatever the machine's is. Always there, and without pacing, which on a busy machine takes a lack of CPU for a
/// narrow link.
const CONGESTION_CONTROL: &str = "reno";
const BPFFS: &str = "/sys/fs/bpf";
const NAMESPACES: &str = "/run/netns";
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// Where a gate that was killed leaves its socket, named after its pins.
const SOCKETS: &str = "/run/gate";

/// Two namespaces, the pair between them, and a place for pins.
#[derive(Debug)]
pub struct Net {
    /// Where the requests come from.
    pub client: Namespace,
    /// Where the gate and the store are.
    pub server: Namespace,
    pins: PathBuf,
}

impl Net {
    /// Makes the namespaces and the pair, and brings both ends up.
    ///
    /// # Errors
    ///
    /// Without root, without `ip` (iproute2), or if the kernel refuses.
    pub fn open() -> Result<Self> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            bail!("network namespaces need root");
        }
        remove_stale()?;
        let n = OPENED.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}{n}", prefix());
        let net = Self {
            client: Namespace::add(format!("{id}-client"))?,
            server: Namespace::add(format!("{id}-server"))?,
            pins: Path::new(BPFFS).join(&id),
        };
        let peer = &net.client.name;
        net.server.ip(&format!(
            "link add {SERVER_INTERFACE} type veth peer name {CLIENT_INTERFACE} netns {peer}"
        ))?;
        for (namespace, interface, v4, v6) in [
            (&net.client, CLIENT_INTERFACE, CLIENT_V4, CLIENT_V6),
            (&net.server, SERVER_INTERFACE, SERVER_V4, SERVER_V6),
        ] {
            // No link-local address: its solicitations would be unsolicited packets.
            namespace.ip(&format!("link set {interface} addrgenmode none up"))?;
            namespace.ip(&format!("addr add {v4}/15 dev {interface}"))?;
            namespace.ip(&format!("addr add {v6}/64 dev {interface} nodad"))?;
        }
        Ok(net)
    }

    /// Gives the client one more source address, of 198.18.0.0/15 or fd00::/64.
    ///
    /// # Errors
    ///
    /// If `ip` refuses it.
    pub fn add_client_address(&self, address: IpAddr) -> Result<()> {
        self.client.add_address(CLIENT_INTERFACE, address)
    }

    /// Gives the server one more address, of 198.18.0.0/15 or fd00::/64.
    ///
    /// # Errors
    ///
    /// If `ip` refuses it.
    pub fn add_server_address(&self, address: IpAddr) -> Result<()> {
        self.server.add_address(SERVER_INTERFACE, address)
    }

    /// A directory under bpffs that is this network's own. Not made yet; removed with the network.
    #[must_use]
    pub fn pins(&self) -> &Path {
        &self.pins
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Nothing in here can be done about a failure, and the next run tries again.
        let _ = remove_pins(&self.pins);
        let name = self.pins.file_name().unwrap_or_default();
        let _ = remove_socket(&Path::new(SOCKETS).join(name).with_extension("sock"));
    }
}

/// One network namespace; removed, with the processes in it, when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// A new one, in which loopback is up. Its name begins with [`prefix`].
    ///
    /// # Errors
    ///
    /// Without root, without `ip` (iproute2), or if the kernel refuses.
    pub fn add(name: String) -> Result<Self> {
        ip(&format!("netns add {name}"))?;
        let path = Path::new(NAMESPACES).join(&name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let this = Self { name, file };
        this.ip("link set lo up")?;
        this.enter(|| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION_CONTROL))??;
        Ok(this)
    }

    /// Its name, as `ip netns` lists it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A directory under bpffs that is this namespace's own. Not made yet; removed with the namespace.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        Path::new(BPFFS).join(&self.name)
    }

    /// Runs `ip` in here, with arguments that hold no blanks. Not `ip -n`, which also remounts things and so fails in some chroots.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        sh::run(self.command("ip").args(arguments.split_whitespace()))
    }

    /// Gives an interface one more address, of 198.18.0.0/15 or fd00::/64.
    ///
    /// # Errors
    ///
    /// If `ip` refuses it.
    pub fn add_address(&self, interface: &str, address: IpAddr) -> Result<()> {
        let length = if address.is_ipv4() { "15" } else { "64" };
        // Only IPv6 would otherwise be slow to start, looking for another owner of the address.
        let flag = if address.is_ipv4() { "" } else { "nodad" };
        self.ip(&format!("addr add {address}/{length} dev {interface} {flag}"))
    }

    /// A command that will run in here.
    ///
    /// As [`bound_command`](super::process::bound_command); its mounts stay the caller's (`ip netns exec` would hide bpffs).
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        bound_command_in(program, self.file.try_clone())
    }

    /// Runs `work` on a thread that is inside, and returns what it returned.
    ///
    /// Sockets made there stay there wherever they are used.
    ///
    /// # Errors
    ///
    /// If the thread cannot enter.
    ///
    /// # Panics
    ///
    /// When `work` does.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Has this thread be inside until the guard is dropped. Processes that it starts are inside, and stay there.
    ///
    /// # Errors
    ///
    /// If the thread cannot enter.
    pub fn visit(&self) -> Result<Visit> {
        let before = File::open(OWN_NAMESPACE).context(OWN_NAMESPACE)?;
        setns(&self.file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")?;
        Ok(Visit { before, _thread: PhantomData })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = remove_namespace(&self.name);
        // As with a network's.
        let _ = remove_pins(&self.pins());
        let _ = remove_socket(&Path::new(SOCKETS).join(&self.name).with_extension("sock"));
    }
}

/// A thread's stay in a [`Namespace`]. It is where it was before when this is dropped, on the same thread.
#[derive(Debug)]
pub struct Visit {
    before: File,
    _thread: PhantomData<*const ()>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        setns(&self.before, CloneFlags::CLONE_NEWNET).expect("a thread can leave as it came");
    }
}

/// How the names of namespaces begin that this process makes: those of one that is gone are removed ([`remove_stale`]).
#[must_use]
pub fn prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// Removes what processes that are gone left behind: namespaces with what still runs in them, pins and sockets.
///
/// # Errors
///
/// If something can be seen but not removed.
pub fn remove_stale() -> Result<()> {
    for name in stale_entries(NAMESPACES) {
        remove_namespace(&name)?;
    }
    for name in stale_entries(BPFFS) {
        remove_pins(&Path::new(BPFFS).join(name))?;
    }
    for name in stale_entries(SOCKETS) {
        remove_socket(&Path::new(SOCKETS).join(name))?;
    }
    Ok(())
}

/// The entries of `directory` whose name carries the id of a process that is no more.
pub(super) fn stale_entries(directory: impl AsRef<Path>) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| owner(name).is_some_and(|pid| !Path::new("/proc").join(pid).exists())).collect()
}

/// The process id in one of our names.
fn owner(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.bytes().all(|b| b.is_ascii_digit()).then_some(pid)
}

fn remove_namespace(name: &str) -> Result<()> {
    let path = Path::new(NAMESPACES).join(name);
    let pids = sh::output(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.trim().parse().ok()) {
        // The process may have ended since.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    match ip(&format!("netns del {name}")) {
        Err(_) if !path.exists() => Ok(()),
        done => done,
    }
}

fn remove_pins(directory: &Path) -> Result<()> {
    gone(directory, fs::remove_dir_all(directory))
}

fn remove_socket(file: &Path) -> Result<()> {
    gone(file, fs::remove_file(file))
}

/// Not to have been there is as good as to have been removed.
fn gone(path: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Runs `ip` with arguments that hold no blanks.
fn ip(arguments: &str) -> Result<()> {
    sh::run(Command::new("ip").args(arguments.split_whitespace()))
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_our_names_have_an_owner() {
        for (name, pid) in [
            ("gate-lab-12-0-client", Some("12")),
            ("gate-lab-12-3", Some("12")),
            ("gate-lab-12-3.sock", Some("12")),
            ("gate-lab-12", None),
            ("gate-lab-x-0", None),
            ("gate-lab-../../1-0", None),
            ("gate", None),
            ("other-12-0", None),
        ] {
            assert_eq!(owner(name), pid, "{name}");
        }
    }
}
