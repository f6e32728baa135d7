//! A Redis for one run, and a gate before it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::lab::process::{ChildProcess, bound_command};
use crate::paths;

/// The way that a suite's requests take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// To the server.
    Direct,
    /// To gate, and from there to the server.
    Gate,
}

/// Running servers; they end when it is dropped.
pub(super) struct Servers {
    /// Where the suite connects.
    pub(super) address: SocketAddr,
    _gate: Option<ChildProcess>,
    _store: ChildProcess,
}

impl Servers {
    /// An empty Redis, directly or behind a gate with its default configuration and one tenant without a quota.
    ///
    /// # Errors
    ///
    /// If one of them does not come up.
    pub(super) fn start(side: Side, directory: &Path) -> Result<Self> {
        let process = std::process::id().to_be_bytes();
        let address = |last| SocketAddr::from((Ipv4Addr::new(127, 101, process[3], last), PORT));
        let store = address(1);
        let mut command = bound_command("redis-server");
        command.args(["--bind", &store.ip().to_string(), "--port", &PORT.to_string()]);
        command
            .args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
            .current_dir(directory);
        let running = started("redis-server", command, store)?;
        if side == Side::Direct {
            return Ok(Self { address: store, _gate: None, _store: running });
        }
        let proxy = address(2);
        let config = directory.join("gate.toml");
        let admin = directory.join("gate.sock");
        let text = format!(
            "[gate]\nxdp = \"off\"\nadmin = {admin:?}\n[[service]]\nname = \"store\"\nprotocol = \"resp\"\nlisten = \"{proxy}\"\n\
             backend = \"{store}\"\n[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n"
        );
        fs::write(&config, text)?;
        let mut command = bound_command(paths::gate());
        command.arg("run").arg("--config").arg(config);
        Ok(Self { address: proxy, _gate: Some(started("gate", command, proxy)?), _store: running })
    }
}

/// The process of a server, once `address` takes connections.
///
/// # Errors
///
/// If it does not come up.
pub(super) fn started(
    name: &'static str,
    command: std::process::Command,
    address: SocketAddr,
) -> Result<ChildProcess> {
    let mut process = ChildProcess::start(name, command)?;
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(process.is_running()? && began.elapsed() < PATIENCE, "{name} does not come up");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(process)
}

const PORT: u16 = 21_390;
const PATIENCE: Duration = Duration::from_secs(20);
