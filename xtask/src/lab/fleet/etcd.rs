//! Debian's etcd: a member, which owners of limits register with.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::lab::process::{ChildProcess, bound_command};
use crate::lab::programs::START;
use crate::sh;

/// A member of an etcd.
#[derive(Debug, Clone)]
pub struct Member {
    /// Where it is asked.
    pub client: SocketAddr,
    /// Where other members ask it.
    pub peer: SocketAddr,
    /// The entries ([`Member::entry`]) of all members, with commas between them; empty if it is the only one.
    pub cluster: String,
    /// Its data.
    pub directory: PathBuf,
    /// The certificates that it shows and is shown.
    pub tls: Option<MemberTls>,
}

/// The arguments about certificates.
#[derive(Debug, Clone)]
pub struct MemberTls {
    /// For etcd.
    pub server: Vec<String>,
    /// For `gate quota`.
    pub client: Vec<String>,
}

impl Member {
    /// Starts it; `gate` asks it. It has a leader when this returns.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not come up; with its last lines.
    pub fn start(&self, gate: &Path) -> Result<ChildProcess> {
        let mut etcd = self.launch()?;
        self.wait_for_leader(gate, &mut etcd)?;
        Ok(etcd)
    }

    /// Starts it, and does not wait for it: the members of a cluster have no leader before most of them run.
    ///
    /// # Errors
    ///
    /// If it is not installed.
    pub fn launch(&self) -> Result<ChildProcess> {
        let program = sh::find("etcd").context("no etcd: `cargo xtask setup fleet` installs it")?;
        let peer = format!("http://{}", self.peer);
        let cluster = if self.cluster.is_empty() { self.entry() } else { self.cluster.clone() };
        let mut command = bound_command(program);
        command
            .args(["--name", &self.name(), "--log-level", "error", "--logger", "zap", "--data-dir"])
            .arg(&self.directory)
            .args(["--listen-client-urls", &self.url(), "--advertise-client-urls", &self.url()])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster, "--unsafe-no-fsync", "--pre-vote"]);
        command.args(self.tls.iter().flat_map(|tls| &tls.server));
        ChildProcess::start("etcd", command)
    }

    /// Waits until it accepts connections and has a leader.
    ///
    /// # Errors
    ///
    /// If it does not come up; with its last lines.
    pub fn wait_for_leader(&self, gate: &Path, etcd: &mut ChildProcess) -> Result<()> {
        etcd.wait_until("accepts connections", START, || Ok(TcpStream::connect(self.client).is_ok()))?;
        let mut said = Vec::new();
        let led = etcd.wait_until("has a leader", START, || {
            let output = self.command(gate, &["owners", "--json"]).output()?;
            said = output.stderr;
            Ok(output.status.success())
        });
        led.with_context(|| String::from_utf8_lossy(&said).into_owned())
    }

    /// Its entry in the list of a cluster's members.
    #[must_use]
    pub fn entry(&self) -> String {
        format!("{}=http://{}", self.name(), self.peer)
    }

    fn name(&self) -> String {
        format!("at-{}", self.client.ip())
    }

    /// Where it is asked.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.client)
    }

    /// The line of a configuration that names it.
    #[must_use]
    pub fn key(&self) -> String {
        format!("etcd = [{:?}]\n", self.url())
    }

    /// `gate quota` with these arguments and this etcd.
    #[must_use]
    pub fn command(&self, gate: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(gate);
        command.arg("quota").args(arguments).args(["--etcd", &self.url()]);
        command.args(self.tls.iter().flat_map(|tls| &tls.client));
        command
    }
}
