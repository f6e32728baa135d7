//! Owners that etcd knows: they come, leave and crash, and gates follow; etcd itself goes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::etcd::Etcd;
use gate_tests::fleet::{LIMIT, Owner, Peer, TENANTS};
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::tls::Authority;
use gate_tests::wait::{wait_until, within};
use gate_userspace::fleet::wire::Report;
use nix::sys::signal::Signal;
use serde_json::json;
use tonic::Code;
use xtask::paths;

use super::bare_gate::{BareGate, first, hello, next};

/// The lease of an owner, the time in which etcd notices that it is over, two ticks, and time for a busy machine.
pub(super) const TAKEOVER: Duration = Duration::from_millis(3_000 + 500 + 200 + 800);
/// Two ticks, and time for a busy machine: far less than a lease.
pub(super) const MOVE: Duration = Duration::from_millis(200 + 800);

struct Fleet {
    etcd: Etcd,
    owners: Vec<Owner>,
    gate: Listening,
    _store: Listening,
}

impl Fleet {
    /// One gate, with a limit of 100 RU/s that one of two owners owns: the first of them.
    fn new() -> Result<Self> {
        let etcd = Etcd::start()?;
        etcd.apply(LIMIT)?;
        let owners = vec![Owner::register(&etcd)?, Owner::register(&etcd)?];
        let store = Listening::memcached()?;
        let gate = Listening::gate_with(&etcd.section("gate-1"), "memcached", store.address, "", TENANTS)?;
        let mut fleet = Self { etcd, owners, gate, _store: store };
        wait_until("an owner has the account", || {
            fleet.ask()?;
            Ok(fleet.owns(0)? || fleet.owns(1)?)
        })?;
        if fleet.owns(1)? {
            fleet.owners.swap(0, 1);
        }
        wait_until("the limit holds", || Ok(fleet.quota()? == Some(100.0)))?;
        Ok(fleet)
    }

    /// Asks for a missing key, and takes whatever is the answer.
    fn ask(&self) -> Result<()> {
        self.gate.ask(b"get k\r\n", b"\r\n").map(drop)
    }

    /// The quota of `acme`, in request units a second.
    fn quota(&self) -> Result<Option<f64>> {
        Ok(self.gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64())
    }

    fn owns(&self, owner: usize) -> Result<bool> {
        Ok(self.owners[owner].account("acme")?.is_some())
    }

    fn charged(&self, owner: usize) -> Result<f64> {
        let account = self.owners[owner].account("acme")?.context("no account")?;
        account["charged_ru"].as_f64().context("no amount")
    }

    /// Asks until the owner has charged more; the gate's own quota is never in force meanwhile.
    fn wait_until_charged(&self, owner: usize, patience: Duration) -> Result<Duration> {
        let before = if self.owns(owner)? { self.charged(owner)? } else { 0.0 };
        within("the owner is in charge", patience, || {
            self.ask()?;
            let quota = self.quota()?;
            ensure!(quota.is_some_and(|quota| quota < 1_000.0), "{quota:?}");
            Ok(self.owns(owner)? && self.charged(owner)? > before)
        })
    }

    /// The addresses that etcd knows.
    fn registered(&self) -> Result<Vec<String>> {
        let said = self.etcd.owners()?;
        let owners = said["owners"].as_array().context("no owners")?;
        Ok(owners.iter().filter_map(|owner| Some(owner["address"].as_str()?.to_owned())).collect())
    }
}

#[test]
fn owners_that_leave_and_come_back_are_followed_at_once() -> Result<()> {
    let mut fleet = Fleet::new()?;
    fleet.owners[0].program.signal(Signal::SIGTERM)?;
    let took = fleet.wait_until_charged(1, MOVE)?;
    println!("the other owner was in charge {took:?} after the first was told to leave");
    let address = fleet.owners[0].address;
    ensure!(fleet.registered()? == [fleet.owners[1].address.to_string()]);
    fleet.owners[0] = Owner::register_at(address, &fleet.etcd)?;
    let took = fleet.wait_until_charged(0, MOVE)?;
    println!("the first owner was in charge {took:?} after it had registered again");
    ensure!(fleet.registered()?.len() == 2);
    Ok(())
}

#[test]
fn without_etcd_all_goes_on() -> Result<()> {
    let mut fleet = Fleet::new()?;
    let time = Duration::from_secs(if std::env::var_os("GATE_LONG").is_some() { 60 } else { 8 });
    // One that loses everything, and one that is gone.
    for is_stopped in [true, false] {
        if is_stopped {
            fleet.etcd.signal(Signal::SIGSTOP)?;
        } else {
            fleet.etcd.kill()?;
        }
        let from = Instant::now();
        while from.elapsed() < time / 2 {
            fleet.wait_until_charged(0, MOVE)?;
        }
        if is_stopped {
            fleet.etcd.signal(Signal::SIGCONT)?;
        } else {
            fleet.etcd.start_again()?;
        }
        wait_until("both are owners again", || Ok(fleet.registered()?.len() == 2))?;
        fleet.wait_until_charged(0, PATIENCE)?;
        // Who comes and goes is followed again.
        let address = fleet.owners[0].address;
        fleet.owners[0].program.signal(Signal::SIGTERM)?;
        fleet.wait_until_charged(1, TAKEOVER)?;
        fleet.owners[0] = Owner::register_at(address, &fleet.etcd)?;
        fleet.wait_until_charged(0, MOVE)?;
    }
    Ok(())
}

#[test]
fn etcd_owners_and_gates_show_each_other_certificates() -> Result<()> {
    let authority = Authority::new()?;
    let etcd = Etcd::start_tls(&authority)?;
    etcd.apply(LIMIT)?;
    let owner = Owner::register_tls(&etcd, &authority)?;
    let store = Listening::memcached()?;
    let gate = |name: &str, shown: &Peer| {
        let fleet = etcd.section(name) + &shown.tls();
        Listening::gate_with(&fleet, "memcached", store.address, "", TENANTS)
    };
    let quota = |gate: &Listening| -> Result<Option<f64>> {
        gate.ask(b"get k\r\n", b"\r\n")?;
        Ok(gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64())
    };
    let known = gate("gate-1", &Peer::new(&authority, "gate-1", "DNS:gate-1")?)?;
    wait_until("the limit holds", || Ok(quota(&known)?.is_some_and(|quota| quota < 1_000.0)))?;
    ensure!(etcd.owners()?["owners"][0]["address"] == owner.address.to_string());

    // Whoever has no certificate of this authority is told nothing.
    let foreign = Authority::new()?;
    let stranger = Peer::new(&foreign, "gate-2", "DNS:gate-2")?;
    let trusting = Peer { ca: authority.ca(), ..stranger.clone() };
    // Often: whether the client still writes when etcd closes is chance.
    for (shown, said) in
        [(&stranger, "invalid peer certificate")].into_iter().chain([(&trusting, "etcd"); 30])
    {
        let mut command = std::process::Command::new(paths::gate());
        command.args(["quota", "owners", "--etcd", &etcd.url()]).args(shown.arguments());
        let output = command.output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && error.contains(said), "{error}");
    }
    let mut unknown = gate("gate-2", &trusting)?;
    unknown.program().wait_for("without etcd", PATIENCE)?;
    ensure!(quota(&unknown)? == Some(1_000.0), "it has a share");
    let bare = std::process::Command::new(paths::gate())
        .args(["quota", "owners", "--etcd", &etcd.url()])
        .output()?;
    let error = String::from_utf8_lossy(&bare.stderr);
    ensure!(error.contains("add --ca, --certificate and --key"), "{error}");
    Ok(())
}

#[test]
fn an_owner_stopped_past_its_lease_decides_nothing_older() -> Result<()> {
    let etcd = Etcd::start()?;
    etcd.apply(LIMIT)?;
    let owner = Owner::register(&etcd)?;
    let revision = etcd.owners()?["revision"].as_u64().context("no revision")?;
    let report = |report: Report| Report { revision, ..report };
    let mut gate = BareGate::connect(owner.address, hello("gate-1"))??;
    gate.exchange(report(first("acme", 1_000)))??;
    owner.program.signal(Signal::SIGSTOP)?;
    gate.send(report(next(2, 0, 50_000)))?;
    wait_until("etcd has given its place up", || Ok(etcd.owners()?["owners"] == json!([])))?;
    owner.program.signal(Signal::SIGCONT)?;
    let status = gate.answer()?.err().context("it has decided a report from before it was stopped")?;
    ensure!(status.code() == Code::Unavailable, "{status}");
    wait_until("it has registered anew", || {
        Ok(etcd.owners()?["owners"].as_array().is_some_and(|owners| owners.len() == 1))
    })?;
    ensure!(owner.count("undecided")? == 1);
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 1.0);
    // Nor does it later: the gate has to have heard that it registered anew.
    let mut gate = BareGate::connect(owner.address, hello("gate-1"))??;
    let status =
        gate.exchange(report(next(2, 0, 50_000)))?.err().context("it decides under an old revision")?;
    ensure!(status.message().contains("registered anew"), "{status}");
    let revision = etcd.owners()?["revision"].as_u64().context("no revision")?;
    let mut gate = BareGate::connect(owner.address, hello("gate-1"))??;
    gate.exchange(Report { revision, ..next(2, 0, 50_000) })??;
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 51.0);
    Ok(())
}

#[test]
fn of_two_owners_at_one_address_the_later_one_is_in_charge() -> Result<()> {
    let etcd = Etcd::start()?;
    etcd.apply(LIMIT)?;
    let owner = Owner::register(&etcd)?;
    let revision = || etcd.owners()?["revision"].as_u64().context("no revision");
    let connect = || -> Result<BareGate> { Ok(BareGate::connect(owner.address, hello("gate-1"))??) };
    let before = revision()?;
    connect()?.exchange(Report { revision: before, ..first("acme", 1_000) })??;
    // On this machine there is no room for another one.
    let second = Owner::register_at(owner.address, &etcd).err().map(|error| format!("{error:#}"));
    ensure!(second.is_some_and(|said| said.contains("another program listens there")));
    // Elsewhere there is, by a clock of its own.
    let key = format!("gate/owners/{}", owner.address);
    etcd.put(&key, Some(&u64::MAX.to_string()))?;
    let other = revision()?;
    for known in [before, other] {
        let report = Report { revision: known, ..next(2, 0, 50_000) };
        let mut said = String::new();
        // It may not have read of the other one yet when it is asked under the old revision.
        wait_until("it does not decide", || {
            let answer = connect()?.exchange(report.clone())?;
            said = answer.err().map(|status| status.message().to_owned()).unwrap_or_default();
            Ok(said.contains("another owner has registered at"))
        })
        .context(said)?;
    }
    ensure!(owner.count("undecided")? >= 2);
    // When that one leaves, the first one registers anew.
    etcd.put(&key, None)?;
    wait_until("it has registered anew", || {
        Ok(etcd.owners()?["owners"].as_array().is_some_and(|owners| owners.len() == 1))
    })?;
    let report = Report { revision: revision()?, ..next(2, 0, 50_000) };
    connect()?.exchange(report)??;
    ensure!(owner.account("acme")?.context("no account")?["charged_ru"] == 51.0);
    Ok(())
}
