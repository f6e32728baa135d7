//! The proxied half of the lab, which needs no root: gate, a store and the tenants on loopback.
//!
//! ```text
//!   gate load: polite, bursty, hostile ── TCP ──► gate run (xdp = "off") ── TCP ──► gate store
//!   127.0.0.2, .3, .4                             127.x.y.z:11311                   127.x.y.z:11411
//! ```
//!
//! x.y.z is made of the process id, so that several labs run side by side. The configuration and gate's socket lie in a
//! directory that only this user can read.

use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, process};

use anyhow::{Context as _, Result};

use super::net::{PREFIX, stale_entries};
use super::process::{ChildProcess, bound_command};
use super::programs::{START, ask_with};
use super::tenants::LOOPBACK_TENANTS;

/// Where gate takes requests.
const GATE_PORT: u16 = 11_311;
/// Where the store does.
const STORE_PORT: u16 = 11_411;
/// Where gate shows its documents and metrics, here and in the whole lab.
pub(super) const ADMIN_PORT: u16 = 9_911;

/// A directory of this process' own; removed when dropped. What a killed process left goes when the next one makes its
/// own.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    socket: PathBuf,
}

impl Directory {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn make() -> Result<Self> {
        let parent = env::temp_dir();
        for name in stale_entries(&parent) {
            // Another user's cannot be removed, and need not be.
            let _ = fs::remove_dir_all(parent.join(name));
        }
        let path = parent.join(format!("{PREFIX}{}-0", process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { socket: path.join("admin.sock"), path })
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where gate listens to `gate queues`, `gate tenants` and `gate hotkeys`.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing in here can be done about a failure, and the next run tries again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The store. Like gate it is ready when this returns.
///
/// # Errors
///
/// If it does not start; with its last lines.
pub fn start_store(gate: &Path) -> Result<ChildProcess> {
    let address = store_address(process::id()).to_string();
    let mut command = bound_command(gate);
    command.args(["store", "--listen", &address]);
    let mut store = ChildProcess::start("gate store", command)?;
    store.wait_for(&address, START)?;
    Ok(store)
}

/// The gate, as a proxy alone.
///
/// # Errors
///
/// If it does not start; with its last lines.
pub fn start_daemon(directory: &Directory, gate: &Path) -> Result<ChildProcess> {
    let file = directory.path.join("gate.toml");
    fs::write(&file, config(directory.socket()))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = bound_command(gate);
    command.args(["run", "--config"]).arg(&file);
    let mut daemon = ChildProcess::start("gate run", command)?;
    daemon.wait_for("running without XDP", START)?;
    Ok(daemon)
}

/// The tenants, who ask for `duration`. At its end it prints what they saw, as JSON.
///
/// # Errors
///
/// If it does not start.
pub fn start_load(gate: &Path, duration: Duration) -> Result<ChildProcess> {
    let mut command = bound_command(gate);
    ask_with(
        &mut command,
        &["--tcp", "--target", &gate_address(process::id()).to_string()],
        &LOOPBACK_TENANTS,
        duration,
    );
    ChildProcess::start("gate load", command)
}

/// Prints what runs, what root adds, and how to look at it.
pub fn introduce(directory: &Directory, gate: &Path) {
    println!(
        "Not root: this is the proxied half of the lab, on loopback. As root, `cargo xtask run` adds XDP:\n\
         refusals at the network interface, UDP, and services that gate protects without a proxy.\n\n\
         memcached behind gate: {}. While it runs, from another terminal:\n",
        gate_address(process::id())
    );
    let gate = shortened(gate);
    for command in ["queues", "tenants", "hotkeys"] {
        println!("    {} {command} --socket {}", gate.display(), directory.socket().display());
    }
    println!("    curl http://{}/metrics\n", admin_address(process::id()));
}

/// The path as one would type it in the current directory; a name alone would be looked for on `$PATH`.
pub(super) fn shortened(path: &Path) -> &Path {
    let below = env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok());
    below.filter(|below| below.components().count() > 1).unwrap_or(path)
}

/// The gate's configuration.
fn config(socket: &Path) -> String {
    let gate = gate_address(process::id());
    let store = store_address(process::id());
    let socket = socket.display();
    let port = admin_address(process::id());
    let mut toml = format!(
        "[gate]\nxdp = \"off\"\nadmin = \"{socket}\"\nadmin_http = \"{port}\"\n\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\ntransports = [\"tcp\"]\n\
         listen = \"{gate}\"\nbackend = \"{store}\"\nhot_keys = {{}}\n\
         # One RU a request, whatever its length, so that rates are easy to compare.\n\
         price = {{ base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }}\n\
         # A machine that also builds and browses is no place to judge a store by its latency.\n\
         shedding = {{ enabled = \"off\" }}\n"
    );
    toml.extend(LOOPBACK_TENANTS.map(|tenant| tenant.section()));
    toml
}

/// Where gate takes requests in the lab of a process.
pub(super) fn gate_address(process: u32) -> SocketAddr {
    (address(process), GATE_PORT).into()
}

/// An address of this process' lab.
pub(super) fn at(port: u16) -> SocketAddr {
    (address(process::id()), port).into()
}

/// Where that gate shows its documents and metrics.
fn admin_address(process: u32) -> SocketAddr {
    (address(process), ADMIN_PORT).into()
}

/// Where its store does.
pub(super) fn store_address(process: u32) -> SocketAddr {
    (address(process), STORE_PORT).into()
}

/// An address of 127.64.0.0/10 for the lab of a process: process ids have at most 22 bits.
fn address(process: u32) -> Ipv4Addr {
    let [_, high, middle, low] = process.to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_an_address_of_its_own() {
        assert_eq!(address(1), Ipv4Addr::new(127, 64, 0, 1));
        assert_eq!(address((1 << 22) - 1), Ipv4Addr::new(127, 127, 255, 255));
        assert_eq!(address(0x01_02_03), Ipv4Addr::new(127, 65, 2, 3));
    }

    #[test]
    fn the_directory_is_private_and_goes_when_dropped() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = Directory::make().unwrap();
        let path = directory.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(directory);
        assert!(!path.exists());
    }
}
