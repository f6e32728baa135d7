//! The programs of a fleet, on loopback: etcd, the owners, the gates before a store, and an Envoy.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::envoy::{self, EnvoyPlace, Filter};
use super::etcd::Member;
use super::limits::{ENVOYS, LIMITS, TENANTS};
use super::owner;
use crate::lab::loopback::{self, Directory, at};
use crate::lab::process::{ChildProcess, bound_command};
use crate::lab::programs::START;
use crate::sh;

/// How many gates share the limits.
pub(super) const GATES: usize = 3;
/// How many owners there are.
pub(super) const OWNERS: usize = 2;

/// The programs, running. Dropped, everything ends and goes.
#[derive(Debug)]
pub(super) struct Fleet {
    gate: PathBuf,
    // In the order in which they end.
    envoy: ChildProcess,
    gates: Vec<ChildProcess>,
    owners: Vec<Owner>,
    store: ChildProcess,
    etcd: ChildProcess,
    member: Member,
    directory: Directory,
}

/// An owner of limits.
#[derive(Debug)]
struct Owner {
    address: SocketAddr,
    /// `None` while it is gone.
    program: Option<ChildProcess>,
    /// RU that it had charged to the watched limit when it was last asked.
    charged: f64,
}

impl Fleet {
    /// Starts everything; the limits are in etcd.
    ///
    /// # Errors
    ///
    /// If a program is missing or does not start; with its last lines.
    pub(super) fn open(gate: &Path) -> Result<Self> {
        let directory = Directory::make()?;
        let member = Member {
            client: at(2_379),
            peer: at(2_380),
            cluster: String::new(),
            directory: directory.path().join("etcd"),
            tls: None,
        };
        let etcd = member.start(gate)?;
        let limits = directory.path().join("limits.toml");
        fs::write(&limits, sections(LIMITS.iter().map(|limit| limit.section("limit"))))?;
        sh::run(&mut member.command(gate, &["apply", &limits.display().to_string()]))?;
        let owner = |address| {
            let program = start_owner(gate, &directory, &member, address)?;
            Ok(Owner { address, program: Some(program), charged: 0.0 })
        };
        let owners = owners().into_iter().map(owner).collect::<Result<_>>()?;
        let store = loopback::start_store(gate)?;
        let gates =
            (0..GATES).map(|number| start_gate(gate, &directory, &member, number)).collect::<Result<_>>()?;
        let place = EnvoyPlace {
            address: envoy_address(),
            backend: at(10_001),
            config: directory.path().join("envoy.yaml"),
            number: process::id() * 64,
        };
        let envoy = envoy::start(&place, &envoys_socket(&directory), Filter::EachAddress)?;
        Ok(Self { gate: gate.to_owned(), envoy, gates, owners, store, etcd, member, directory })
    }

    /// Prints what runs, and how to look at it.
    pub(super) fn introduce(&self) {
        let addresses = owners().map(|owner| owner.to_string());
        println!(
            "{GATES} gates share the limits in etcd at {}; owners are {}.\nWhile they run, from another terminal:\n",
            self.member.url(),
            addresses.join(" and ")
        );
        let gate = loopback::shortened(&self.gate).display();
        let url = self.member.url();
        for command in ["owners", "show", "explain greedy"] {
            println!("    {gate} quota {command} --etcd {url}");
        }
        println!("    {gate} tenants --socket {}", socket(&self.directory, 0).display());
        println!("    curl -i http://{}/\n", envoy_address());
    }

    /// RU that each owner has charged to the limit `name` since it was last asked: the one that decides is given reports. 0 of one
    /// that is gone.
    ///
    /// # Errors
    ///
    /// If one that runs does not answer.
    pub(super) fn charged_since(&mut self, name: &str) -> Result<[f64; OWNERS]> {
        let mut since = [0.0; OWNERS];
        for (since, owner) in since.iter_mut().zip(&mut self.owners) {
            if owner.program.is_none() {
                continue;
            }
            let shown = owner::show(&self.gate, owner.address, name, &[])?;
            let account = shown["accounts"].as_array().context("no accounts")?.first().cloned();
            let charged = account.and_then(|account| account["charged_ru"].as_f64()).unwrap_or(0.0);
            *since = charged - owner.charged;
            owner.charged = charged;
        }
        Ok(since)
    }

    /// Kills an owner.
    ///
    /// # Errors
    ///
    /// If it is gone already.
    pub(super) fn kill_owner(&mut self, number: usize) -> Result<()> {
        let owner = &mut self.owners[number];
        owner.charged = 0.0;
        owner.program.take().context("the owner is gone")?.signal(Signal::SIGKILL)
    }

    /// Starts an owner that was killed, at its address.
    ///
    /// # Errors
    ///
    /// If it does not start; with its last lines.
    pub(super) fn start_owner_again(&mut self, number: usize) -> Result<()> {
        let owner = &mut self.owners[number];
        let program = start_owner(&self.gate, &self.directory, &self.member, owner.address)?;
        owner.program = Some(program);
        Ok(())
    }

    /// Fails if a program has ended by itself.
    ///
    /// # Errors
    ///
    /// With its last lines.
    pub(super) fn check(&mut self) -> Result<()> {
        let owners = self.owners.iter_mut().filter_map(|owner| owner.program.as_mut());
        let others = [&mut self.envoy, &mut self.store, &mut self.etcd];
        for program in self.gates.iter_mut().chain(owners).chain(others) {
            ensure!(program.is_running()?, "{} ended by itself", program.name());
        }
        Ok(())
    }
}

/// Where the owners are.
pub(super) fn owners() -> [SocketAddr; OWNERS] {
    [at(9_920), at(9_921)]
}

/// Where a gate takes requests.
pub(super) fn gate_address(number: usize) -> SocketAddr {
    at(11_311 + number as u16)
}

/// Where Envoy does.
pub(super) fn envoy_address() -> SocketAddr {
    at(10_000)
}

fn start_owner(
    gate: &Path,
    directory: &Directory,
    etcd: &Member,
    address: SocketAddr,
) -> Result<ChildProcess> {
    let file = directory.path().join(format!("owner-{}.toml", address.port()));
    owner::start(gate, &file, address, &etcd.key(), owner::REGISTERED)
}

/// Starts a gate, with a number from 0; Envoy asks the first.
fn start_gate(gate: &Path, directory: &Directory, etcd: &Member, number: usize) -> Result<ChildProcess> {
    let name = format!("gate-{}", number + 1);
    let file = directory.path().join(format!("{name}.toml"));
    let mut toml = format!(
        "[gate]\nxdp = \"off\"\nadmin = {:?}\n\n[fleet]\n{}name = {name:?}\n\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\ntransports = [\"tcp\"]\nlisten = \"{}\"\nbackend = \"{}\"\n\
         # One RU a request, whatever its length, so that rates are easy to compare.\n\
         price = {{ base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }}\n\
         # A machine that also builds and browses is no place to judge a store by its latency.\n\
         shedding = {{ enabled = \"off\" }}\n\n",
        socket(directory, number),
        etcd.key(),
        gate_address(number),
        loopback::store_address(process::id()),
    );
    toml += &sections(
        TENANTS
            .iter()
            .map(|tenant| format!("{}sources = [\"{}\"]\n", tenant.section("tenant"), tenant.source)),
    );
    if number == 0 {
        toml += &format!("\n[envoy]\nlisten = {:?}\n\n{}", envoys_socket(directory), ENVOYS.section("limit"));
    }
    fs::write(&file, toml).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = bound_command(gate);
    command.args(["run", "--config"]).arg(&file);
    let mut program = ChildProcess::start("gate run", command)?;
    program.wait_for("running without XDP", START)?;
    Ok(program)
}

fn sections(sections: impl Iterator<Item = String>) -> String {
    sections.collect::<Vec<_>>().join("\n")
}

/// The admin socket of a gate.
fn socket(directory: &Directory, number: usize) -> PathBuf {
    directory.path().join(format!("gate-{}.sock", number + 1))
}

/// Where Envoy asks the first gate.
fn envoys_socket(directory: &Directory) -> String {
    directory.path().join("envoy.sock").display().to_string()
}
