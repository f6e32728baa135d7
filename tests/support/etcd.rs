//! Debian's etcd: one member on loopback, or several on machines. Each keeps its data in a directory for temporary files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::lab::fleet::etcd::{Member, MemberTls};
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::fleet::Peer;
use crate::http::curl;
use crate::proxy::address;
use crate::switch::Machine;
use crate::tls::Authority;

/// A running member of an etcd. It ends when dropped, and its data with it.
#[derive(Debug)]
pub struct Etcd {
    member: Member,
    program: Option<ChildProcess>,
}

impl Etcd {
    /// One without any keys.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not come up.
    pub fn start() -> Result<Self> {
        Self::start_at(address(), None)
    }

    /// One without any keys, which shows a certificate, and wants to see one of the same authority.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not come up.
    pub fn start_tls(authority: &Authority) -> Result<Self> {
        let client = address();
        Self::start_at(client, Some(member_tls(&Peer::of_address(authority, client)?)))
    }

    fn new(client: SocketAddr, peer: SocketAddr, tls: Option<MemberTls>) -> Self {
        let directory = std::env::temp_dir().join(format!("etcd-{}-{}", std::process::id(), client.ip()));
        let member = Member { client, peer, cluster: String::new(), directory, tls };
        Self { member, program: None }
    }

    fn start_at(client: SocketAddr, tls: Option<MemberTls>) -> Result<Self> {
        let mut etcd = Self::new(client, address(), tls);
        etcd.start_again()?;
        Ok(etcd)
    }

    /// A member on each of these machines, which show certificates to clients, and want to see some.
    ///
    /// # Errors
    ///
    /// As [`Etcd::start_tls`].
    pub fn cluster(machines: &[&Machine], authority: &Authority) -> Result<Vec<Self>> {
        let member = |machine: &&Machine| {
            let client = machine.at(CLIENT);
            Ok(Self::new(client, machine.at(PEER), Some(member_tls(&Peer::of_address(authority, client)?))))
        };
        let mut members = machines.iter().map(member).collect::<Result<Vec<_>>>()?;
        let all = members.iter().map(|etcd| etcd.member.entry()).collect::<Vec<_>>().join(",");
        for (machine, etcd) in machines.iter().zip(&mut members) {
            etcd.member.cluster.clone_from(&all);
            machine.on(|| etcd.launch())?;
        }
        for (machine, etcd) in machines.iter().zip(&mut members) {
            machine.on(|| etcd.wait_for_leader())?;
        }
        Ok(members)
    }

    /// Starts it with the keys that it had. One that runs is killed.
    ///
    /// # Errors
    ///
    /// As [`Etcd::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_for_leader()
    }

    fn launch(&mut self) -> Result<()> {
        self.kill()?;
        self.program = Some(self.member.launch()?);
        Ok(())
    }

    fn wait_for_leader(&mut self) -> Result<()> {
        let program = self.program.as_mut().context("etcd does not run")?;
        self.member.wait_for_leader(&paths::gate(), program)
    }

    /// Kills it.
    ///
    /// # Errors
    ///
    /// If it cannot be signalled.
    pub fn kill(&mut self) -> Result<()> {
        self.program.take().map_or(Ok(()), |program| program.signal(Signal::SIGKILL))
    }

    /// Stops it, as a network would that loses everything, or lets it go on.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.program.as_ref().context("etcd does not run")?.signal(signal)
    }

    /// Where it is asked.
    #[must_use]
    pub fn url(&self) -> String {
        self.member.url()
    }

    /// The line of a configuration that names it.
    #[must_use]
    pub fn key(&self) -> String {
        key(std::slice::from_ref(self))
    }

    /// The section `[fleet]` of a gate with this name.
    #[must_use]
    pub fn section(&self, name: &str) -> String {
        format!("[fleet]\n{}name = {name:?}\n", self.key())
    }

    /// The output of `gate quota` with these arguments and this etcd.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn gate(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    /// `gate quota` with these arguments and this etcd, to be run.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.member.command(&paths::gate(), arguments)
    }

    /// Applies limits, which are whole sections, and returns what `--json` prints.
    ///
    /// # Errors
    ///
    /// If they are refused.
    pub fn apply(&self, limits: &str) -> Result<Value> {
        self.apply_with(limits, &[])
    }

    /// Lifts all limits, by a file without any.
    ///
    /// # Errors
    ///
    /// If that is refused.
    pub fn lift_all(&self) -> Result<Value> {
        self.apply_with("", &["--remove-all"])
    }

    fn apply_with(&self, limits: &str, arguments: &[&str]) -> Result<Value> {
        let file = PathBuf::from(format!("{}.toml", self.member.directory.display()));
        std::fs::write(&file, limits)?;
        let path = file.display().to_string();
        let output = self.gate(&[&["apply", path.as_str(), "--json"], arguments].concat());
        std::fs::remove_file(&file)?;
        json(&output?)
    }

    /// Puts a value to a key, as another client of etcd's would; `None` deletes the key.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn put(&self, key: &str, value: Option<&str>) -> Result<()> {
        let key = base64(key)?;
        let (path, body) = match value {
            Some(value) => ("put", serde_json::json!({ "key": key, "value": base64(value)? })),
            None => ("deleterange", serde_json::json!({ "key": key })),
        };
        let answer = curl(&["-d", &body.to_string(), &format!("{}/v3/kv/{path}", self.url())])?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    }

    /// The output of `gate quota owners --json`.
    ///
    /// # Errors
    ///
    /// If it fails, or prints something else.
    pub fn owners(&self) -> Result<Value> {
        json(&self.gate(&["owners", "--json"])?)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.program.take());
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.member.directory);
    }
}

fn base64(text: &str) -> Result<String> {
    let mut command = Command::new("sh");
    let output = command.args(["-c", "printf %s \"$0\" | base64 -w 0", text]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The line of a configuration that names these members.
#[must_use]
pub fn key(members: &[Etcd]) -> String {
    format!("etcd = {:?}\n", members.iter().map(Etcd::url).collect::<Vec<_>>())
}

/// The arguments of a member that shows a certificate, and wants to see one of the same authority.
fn member_tls(shown: &Peer) -> MemberTls {
    let files = [
        ("--trusted-ca-file", &shown.ca),
        ("--cert-file", &shown.issued.certificate),
        ("--key-file", &shown.issued.key),
    ];
    let files = files.map(|(argument, file)| format!("{argument}={}", file.display()));
    let server = files.into_iter().chain(["--client-cert-auth".to_owned()]).collect();
    MemberTls { server, client: shown.arguments() }
}

/// The ports of members on machines: for clients, and among themselves.
const CLIENT: u16 = 2_379;
const PEER: u16 = 2_380;

/// The document that a command has printed.
///
/// # Errors
///
/// If it failed; with what it said.
pub fn json(output: &Output) -> Result<Value> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
