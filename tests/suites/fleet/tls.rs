//! Gates and owners that show each other certificates, and peers that show wrong ones.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::{LIMIT, Owner, Peer, TENANTS, section};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::tls::{Authority, Issued, TlsClient};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// A fleet with an authority, an owner and a gate that reports to it.
struct Fleet {
    authority: Authority,
    store: Listening,
    owner: Owner,
    gate: Listening,
}

impl Fleet {
    fn new() -> Result<Self> {
        let authority = Authority::new()?;
        let store = Listening::memcached()?;
        let owner = owner(&authority, "")?;
        let gate = gate(&store, &[&owner], &host(), &peer(&authority, &host())?)?;
        wait_until("the limit holds", || Ok(quota(&gate)?.is_some_and(is_shared)))?;
        Ok(Self { authority, store, owner, gate })
    }

    /// The first gate still reports.
    fn goes_on(&self) -> Result<()> {
        let charged = || -> Result<f64> {
            let account = self.owner.account("acme")?.context("no account")?;
            account["charged_ru"].as_f64().context("nothing charged")
        };
        let before = charged()?;
        wait_until("the first gate reports", || {
            ask(&self.gate)?;
            Ok(charged()? > before)
        })
    }
}

fn host() -> String {
    let name = nix::unistd::gethostname().expect("a host has a name");
    name.into_string().expect("it is text")
}

/// A gate's certificate, in files of its name.
fn peer(authority: &Authority, name: &str) -> Result<Peer> {
    Peer::new(authority, name, &format!("DNS:{name}"))
}

/// An owner with a certificate for its address.
fn owner(authority: &Authority, settings: &str) -> Result<Owner> {
    let at = address();
    let shown = Peer::of_address(authority, at)?;
    Owner::start_tls(at, &shown, settings, LIMIT)
}

fn gate(store: &Listening, owners: &[&Owner], name: &str, shown: &Peer) -> Result<Listening> {
    let fleet = section(owners, name) + &shown.tls();
    let gate = Listening::gate_with(&fleet, "memcached", store.address, "", TENANTS)?;
    ask(&gate)?;
    Ok(gate)
}

fn quota(gate: &Listening) -> Result<Option<f64>> {
    ask(gate)?;
    Ok(gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64())
}

/// True of the limit, or of a share of it and of what is in its bucket: not of the gate's own quota.
fn is_shared(quota: f64) -> bool {
    quota < 1_000.0
}

/// Asks for a missing key, and takes whatever is the answer.
fn ask(gate: &Listening) -> Result<()> {
    gate.ask(b"get k\r\n", b"\r\n").map(drop)
}

fn refused(fleet: &Fleet, gate: &mut Listening, event: &str, answer: &str) -> Result<()> {
    let before = fleet.owner.count(event)?;
    gate.program().wait_for(answer, PATIENCE)?;
    wait_until("it is counted", || Ok(fleet.owner.count(event)? > before))?;
    ensure!(quota(gate)? == Some(1_000.0), "it has a share");
    fleet.goes_on()
}

#[test]
fn a_fleet_with_certificates_holds_its_quota() -> Result<()> {
    let fleet = Fleet::new()?;
    let second = gate(&fleet.store, &[&fleet.owner], "gate-2", &peer(&fleet.authority, "gate-2")?)?;
    wait_until("both report", || Ok(fleet.owner.gates()? == 2))?;
    let load = |gate: &Listening| {
        let mut command = Command::new(paths::gate());
        command.args(["load", "--tcp", "--json", "--target", &gate.address.to_string(), "--for", "20s"]);
        command.args(["--tenant", "name=acme,rate=500/s,source=127.0.0.1,reads=100%,connections=1"]);
        ChildProcess::start("gate load", command)
    };
    let _loads = [load(&fleet.gate)?, load(&second)?];
    let quotas = || -> Result<f64> {
        let of = |gate: &Listening| -> Result<f64> {
            gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64().context("none")
        };
        Ok(of(&fleet.gate)? + of(&second)?)
    };
    wait_until("both share the limit", || Ok((50.0..=115.0).contains(&quotas()?)))?;
    ensure!(fleet.owner.count("tls-failed")? == 0 && fleet.owner.count("turned-away")? == 0);
    Ok(())
}

#[test]
fn wrong_certificates_of_gates_are_refused_and_counted() -> Result<()> {
    let fleet = Fleet::new()?;
    let foreign = Authority::new()?;
    let ca = fleet.authority.ca();
    let of_foreign = Peer { ca: ca.clone(), ..peer(&foreign, "gate-2")? };
    let expired = Peer { ca, issued: fleet.authority.issue("expired", "DNS:gate-2", -1)? };
    let trusting_others = Peer { ca: foreign.ca(), ..peer(&fleet.authority, "gate-2")? };
    for (shown, answer) in
        [(of_foreign, "DecryptError"), (expired, "CertificateExpired"), (trusting_others, "BadSignature")]
    {
        let mut gate = gate(&fleet.store, &[&fleet.owner], "gate-2", &shown)?;
        refused(&fleet, &mut gate, "tls-failed", answer).context(answer)?;
    }
    Ok(())
}

#[test]
fn a_gate_with_the_name_of_another_is_turned_away() -> Result<()> {
    let mut fleet = Fleet::new()?;
    // It says its host's name, as the first gate does.
    let other = peer(&fleet.authority, "gate-2")?;
    let settings = section(&[&fleet.owner], "").replace("name = \"\"\n", "") + &other.tls();
    let mut liar = Listening::gate_with(&settings, "memcached", fleet.store.address, "", TENANTS)?;
    refused(&fleet, &mut liar, "turned-away", "the certificate is not for")?;
    fleet.owner.program.wait_for("refused a peer", PATIENCE)?;
    // A name in its own file is compared at the start.
    let settings = section(&[&fleet.owner], "gate-1") + &other.tls();
    let started = Listening::gate_with(&settings, "memcached", fleet.store.address, "", TENANTS);
    let error = format!("{:#}", started.err().context("it started")?);
    ensure!(error.contains("begins with a certificate that is not for"), "{error}");
    Ok(())
}

#[test]
fn peers_without_certificates_are_told_what_is_wrong() -> Result<()> {
    let fleet = Fleet::new()?;
    let before = fleet.owner.count("tls-failed")?;
    let stream = TcpStream::connect(fleet.owner.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = fleet.owner.address.ip().to_string();
    let mut unnamed = TlsClient::over(stream, &fleet.authority.ca(), &name)?;
    let said = unnamed.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\n");
    let error = format!("{:#}", said.err().context("it was answered")?);
    ensure!(error.contains("CertificateRequired"), "{error}");
    wait_until("it is counted", || Ok(fleet.owner.count("tls-failed")? > before))?;
    // Plain text to an owner with a certificate.
    let settings = section(&[&fleet.owner], "gate-2");
    let mut plain = Listening::gate_with(&settings, "memcached", fleet.store.address, "", TENANTS)?;
    refused(&fleet, &mut plain, "tls-failed", "security properties do not meet")
}

#[test]
fn tls_to_an_owner_in_plain_text_is_told_so() -> Result<()> {
    let authority = Authority::new()?;
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMIT)?;
    let plain = Listening::gate_with(&section(&[&owner], "gate-1"), "memcached", store.address, "", TENANTS)?;
    wait_until("the limit holds", || Ok(quota(&plain)?.is_some_and(is_shared)))?;
    let mut other = gate(&store, &[&owner], "gate-2", &peer(&authority, "gate-2")?)?;
    other.program().wait_for("HandshakeFailure", PATIENCE)?;
    wait_until("it is counted", || Ok(owner.count("tls-failed")? > 0))?;
    ensure!(owner.gates()? == 1);
    ensure!(quota(&plain)?.is_some_and(|quota| quota <= 100.0));
    Ok(())
}

#[test]
fn owners_with_wrong_certificates_are_not_reported_to() -> Result<()> {
    let fleet = Fleet::new()?;
    let foreign = Authority::new()?;
    let shown = peer(&fleet.authority, "gate-2")?;
    for (wrong, answer) in
        [("foreign", "BadSignature"), ("expired", "Expired"), ("host", "not valid for name")]
    {
        let at = address();
        let name = format!("IP:{}", at.ip());
        let issued = match wrong {
            "foreign" => foreign.issue(wrong, &name, 30)?,
            "expired" => fleet.authority.issue(wrong, &name, -1)?,
            _ => fleet.authority.issue(wrong, "IP:127.0.0.1,DNS:quota.example", 30)?,
        };
        let wrong = Peer { ca: fleet.authority.ca(), issued };
        let impostor = Owner::start_tls(at, &wrong, "", LIMIT)?;
        // The owner of this name is the one or the other; the other one's limit holds.
        let mut gate = gate(&fleet.store, &[&impostor, &fleet.owner], "gate-2", &shown)?;
        gate.program().wait_for(answer, PATIENCE).context(answer)?;
        wait_until("it reports to the other owner", || Ok(fleet.owner.gates()? == 2))?;
        drop(gate);
        wait_until("it has left", || Ok(fleet.owner.gates()? == 1))?;
        fleet.goes_on()?;
    }
    Ok(())
}

/// Puts files in the place of others.
fn replace(old: &Peer, new: &Peer) -> Result<()> {
    let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop);
    copy(&new.ca, &old.ca)?;
    copy(&new.issued.certificate, &old.issued.certificate)?;
    Ok(copy(&new.issued.key, &old.issued.key)?)
}

/// The same files under other names, to be replaced.
fn in_files(peer: &Peer, name: &str) -> Result<Peer> {
    let file = |kind: &str| peer.ca.with_file_name(format!("{name}-{kind}"));
    let issued = Issued { certificate: file("certificate"), key: file("key") };
    let copy = Peer { ca: file("ca"), issued };
    replace(&copy, peer)?;
    Ok(copy)
}

#[test]
fn certificates_that_are_read_again_hold_for_new_connections() -> Result<()> {
    let old = Authority::new()?;
    let new = Authority::new()?;
    let store = Listening::memcached()?;
    let at = address();
    let name = format!("IP:{}", at.ip());
    let of_owner = in_files(&Peer::new(&old, "owner", &name)?, "owner")?;
    let of_gate = in_files(&peer(&old, "gate-1")?, "gate")?;
    let mut owner = Owner::start_tls(at, &of_owner, "", LIMIT)?;
    owner.ask_as(&peer(&old, "people")?);
    let mut first = gate(&store, &[&owner], "gate-1", &of_gate)?;
    wait_until("it reports", || Ok(owner.gates()? == 1))?;
    // Files that cannot be used change nothing.
    let good = fs::read(&of_owner.issued.certificate)?;
    fs::write(&of_owner.issued.certificate, "no certificate")?;
    owner.program.signal(Signal::SIGHUP)?;
    owner.program.wait_for("limits and certificates stay as they were", PATIENCE)?;
    ensure!(owner.gates()? == 1);
    fs::write(&of_owner.issued.certificate, good)?;
    let good = fs::read(&of_gate.issued.key)?;
    fs::write(&of_gate.issued.key, "no key")?;
    first.signal(Signal::SIGHUP)?;
    first.program().wait_for("the certificate in use stays", PATIENCE)?;
    fs::write(&of_gate.issued.key, good)?;
    // Another authority: the connection goes on, and others need its certificates.
    replace(&of_owner, &Peer::new(&new, "owner", &name)?)?;
    owner.program.signal(Signal::SIGHUP)?;
    owner.program.wait_for("limits read again", PATIENCE)?;
    owner.ask_as(&peer(&new, "people")?);
    wait_until("the gate is still connected", || Ok(owner.gates()? == 1))?;
    let second = gate(&store, &[&owner], "gate-2", &peer(&new, "gate-2")?)?;
    wait_until("another one reports", || Ok(owner.gates()? == 2))?;
    let mut third = gate(&store, &[&owner], "gate-3", &peer(&old, "gate-3")?)?;
    third.program().wait_for("cannot report to an owner", PATIENCE)?;
    drop((second, third));
    // The first one's certificate is of no use at the next connection, until it is replaced.
    replace(&of_gate, &peer(&new, "gate-1")?)?;
    first.signal(Signal::SIGHUP)?;
    first.program().wait_for("configuration read again", PATIENCE)?;
    drop(owner);
    let mut owner = Owner::start_tls(at, &of_owner, "", LIMIT)?;
    owner.ask_as(&peer(&new, "people-2")?);
    wait_until("it reports with the new one", || Ok(owner.gates()? == 1))
}
