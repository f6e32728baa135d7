//! Real owners of limits, and gates that report to them.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use gate_userspace::fleet::membership::{Member, View};
use serde_json::Value;
use xtask::lab::fleet::owner;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::etcd::Etcd;
use crate::proxy::address;
use crate::tls::{Authority, Issued};

/// A running `gate quota run`. It ends when dropped.
#[derive(Debug)]
pub struct Owner {
    /// Where gates report.
    pub address: SocketAddr,
    /// The program.
    pub program: ChildProcess,
    config: PathBuf,
    /// The arguments that `gate quota show` needs beside the address.
    credentials: Vec<String>,
}

impl Owner {
    /// An owner of these limits, which are whole sections.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(limits: &str) -> Result<Self> {
        Self::start_at(address(), limits)
    }

    /// [`Owner::start`] where one was before.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start_at(address: SocketAddr, limits: &str) -> Result<Self> {
        Self::start_with(address, "", limits)
    }

    /// [`Owner::start_at`], with what its section `[quota]` says beside.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start_with(address: SocketAddr, section: &str, limits: &str) -> Result<Self> {
        Self::start_until(owner::OWNS, address, &format!("{section}{limits}\n"))
    }

    /// An owner with a certificate, which speaks TLS.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start_tls(address: SocketAddr, peer: &Peer, section: &str, limits: &str) -> Result<Self> {
        let section = format!("{}{section}", peer.tls());
        let mut owner = Self::start_with(address, &section, limits)?;
        owner.ask_as(peer);
        Ok(owner)
    }

    /// An owner that registers with etcd, and has its limits there.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn register(etcd: &Etcd) -> Result<Self> {
        Self::register_at(address(), etcd)
    }

    /// [`Owner::register`] where one was before.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn register_at(address: SocketAddr, etcd: &Etcd) -> Result<Self> {
        Self::start_until(owner::REGISTERED, address, &etcd.key())
    }

    /// [`Owner::register`], with a certificate, which is shown to etcd as well.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn register_tls(etcd: &Etcd, authority: &Authority) -> Result<Self> {
        let address = address();
        Self::register_as(&Peer::of_address(authority, address)?, address, &etcd.key())
    }

    /// [`Owner::register_tls`] at this address, with the etcd that a line of the configuration names.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn register_as(shown: &Peer, address: SocketAddr, etcd: &str) -> Result<Self> {
        let section = format!("{etcd}{}", shown.tls());
        let mut owner = Self::start_until(owner::REGISTERED, address, &section)?;
        owner.ask_as(shown);
        Ok(owner)
    }

    fn start_until(up: &str, address: SocketAddr, more: &str) -> Result<Self> {
        let name = format!("gate-quota-{}-{}.toml", std::process::id(), address.ip());
        let config = std::env::temp_dir().join(name);
        let program = owner::start(&paths::gate(), &config, address, more, up)?;
        Ok(Self { address, program, config, credentials: Vec::new() })
    }

    /// Has it asked with this certificate from now on.
    pub fn ask_as(&mut self, peer: &Peer) {
        self.credentials = peer.arguments();
    }

    /// Its configuration file.
    #[must_use]
    pub const fn config(&self) -> &PathBuf {
        &self.config
    }

    /// The output of `gate quota show --json`.
    ///
    /// # Errors
    ///
    /// If it fails, or prints something else.
    pub fn show(&self) -> Result<Value> {
        owner::show(&paths::gate(), self.address, "", &self.credentials)
    }

    /// The account of a limit; `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// As [`Owner::show`].
    pub fn account(&self, name: &str) -> Result<Option<Value>> {
        let shown = self.show()?;
        let accounts = shown["accounts"].as_array().context("no accounts")?;
        Ok(accounts.iter().find(|account| account["name"] == name).cloned())
    }

    /// How often something has happened.
    ///
    /// # Errors
    ///
    /// As [`Owner::show`].
    pub fn count(&self, event: &str) -> Result<u64> {
        self.show()?["counters"][event].as_u64().with_context(|| format!("no counter {event}"))
    }

    /// How many gates are connected.
    ///
    /// # Errors
    ///
    /// As [`Owner::show`].
    pub fn gates(&self) -> Result<usize> {
        let shown = self.show()?;
        let gates = shown["gates"].as_array().context("no gates")?;
        Ok(gates.iter().filter(|gate| gate["is_connected"] == true).count())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.config);
    }
}

/// A certificate, its key, and the authority of those that are trusted.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The own ones.
    pub issued: Issued,
}

impl Peer {
    /// A peer with a certificate for a name like `DNS:gate-1`, by an authority that it trusts.
    ///
    /// # Errors
    ///
    /// The openssl program's.
    pub fn new(authority: &Authority, file: &str, name: &str) -> Result<Self> {
        Ok(Self { ca: authority.ca(), issued: authority.issue(file, name, 30)? })
    }

    /// A peer with a certificate for an address.
    ///
    /// # Errors
    ///
    /// The openssl program's.
    pub fn of_address(authority: &Authority, address: SocketAddr) -> Result<Self> {
        Self::new(authority, &address.ip().to_string(), &format!("IP:{}", address.ip()))
    }

    /// The key `tls` of a configuration.
    #[must_use]
    pub fn tls(&self) -> String {
        let Issued { certificate, key } = &self.issued;
        format!("tls = {{ ca = {:?}, certificate = {certificate:?}, key = {key:?} }}\n", self.ca)
    }

    /// The same, for the command line.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let Issued { certificate, key } = &self.issued;
        let files = [("--ca", &self.ca), ("--certificate", certificate), ("--key", key)];
        files
            .iter()
            .flat_map(|(argument, file)| [(*argument).to_owned(), file.display().to_string()])
            .collect()
    }
}

/// The section `[fleet]` of a gate with this name.
#[must_use]
pub fn section(owners: &[&Owner], name: &str) -> String {
    let owners: Vec<String> = owners.iter().map(|owner| format!("{:?}", owner.address.to_string())).collect();
    format!("[fleet]\nowners = [{}]\nname = {name:?}\n", owners.join(", "))
}

/// So many names that begin so and that one of these owners owns.
#[must_use]
pub fn names_owned_by(owner: SocketAddr, owners: &[SocketAddr], prefix: &str, count: usize) -> Vec<String> {
    let member = |owner: &SocketAddr| Member { address: owner.to_string(), since: 0, revision: 0 };
    let view = View { owners: owners.iter().map(member).collect(), ..View::default() };
    let is_owned = |name: &String| view.owner_of(name) == Some(&member(&owner));
    (0..).map(|number| format!("{prefix}-{number}")).filter(is_owned).take(count).collect()
}

/// A limit of 100 RU a second.
pub const LIMIT: &str = "[[limit]]\nname = \"acme\"\nquota = \"100 RU/s\"\n";
/// Its tenant, who has more at each gate and is whoever asks over loopback.
pub const TENANTS: &str = r#"
[[tenant]]
name = "acme"
sources = ["127.0.0.0/8"]
quota = "1000 RU/s"
"#;
