//! Gates of older ABI versions, built from the project's history, are taken over while they are under load.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use gate_common::abi::{ABI_VERSION, Control, Exit, TenantCounters};
use gate_common::units::Nanos;
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE, Site};
use gate_tests::flood::{Flood, Sink};
use gate_tests::net::SERVER_INTERFACE;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use gate_userspace::clock;
use gate_userspace::kernel::Maps;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::old_gate;

const TARGET: &str = "198.18.0.1:11211";
/// Requests a second, by both tenants in turn.
const PER_SEC: u32 = 10_000;
/// `polite` and `other` of the configuration.
const POLITE: u32 = 1;
const DEBTOR: u32 = 2;
/// An older version of the ABI.
#[derive(Clone, Copy)]
struct Version {
    /// Its last commit.
    commit: &'static str,
    /// Where the words of a tenant's four buckets are: the map, and the offset in its element.
    buckets: [(&'static str, usize); 4],
}

const V4: Version = Version {
    commit: old_gate::ABI_V4,
    buckets: [("TENANTS", 0), ("TENANTS", 8), ("TENANTS", 16), ("TENANTS", 24)],
};
const V5: Version = Version {
    commit: old_gate::ABI_V5,
    buckets: [("TENANT_LINES", 0), ("TENANTS", 0), ("TENANTS", 8), ("TENANTS", 16)],
};

/// True if the old gate can be built. A clone without history has nothing to build it from, and says so.
fn has_history(test: &str, version: Version) -> bool {
    let there = old_gate::is_in_history(version.commit);
    if !there {
        println!("skipped: {test} (this clone has no commit {}: run git fetch --unshallow)", version.commit);
    }
    there
}

/// A site whose gate is an old one.
struct OldSite {
    site: Site,
    version: Version,
    old: std::path::PathBuf,
}

impl OldSite {
    fn new(version: Version, config: &str) -> Result<Self> {
        Ok(Self { version, old: old_gate::gate(version.commit)?, site: Site::new(config)? })
    }

    /// Starts the old gate, and waits until it is attached.
    fn start(&self) -> Result<ChildProcess> {
        let mut gate = ChildProcess::start("old gate", self.site.command_of(&self.old, SERVER_INTERFACE))?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        Ok(gate)
    }

    /// The output of `gate ... --json` of that binary.
    fn json(&self, gate: &Path, arguments: &[&str]) -> Result<Value> {
        let mut command = self.site.net.server.command(gate);
        let output = command.args(arguments).arg("--json").arg("--pin-dir").arg(self.site.pins()).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Every counter that the commands show, by a name of its own.
    fn counted(&self, gate: &Path) -> Result<BTreeMap<String, f64>> {
        let status = self.json(gate, &["status"])?;
        let document = self.json(gate, &["tenants"])?;
        // Of old the list was all that was printed.
        let tenants = document.get("tenants").unwrap_or(&document);
        let mut counted = BTreeMap::new();
        for group in ["exits", "events"] {
            let named = status[group].as_object().context("counters by name")?;
            counted.extend(
                named.iter().filter_map(|(name, count)| Some((format!("{group} {name}"), count.as_f64()?))),
            );
        }
        for tenant in tenants.as_array().context("a list of tenants")? {
            let name = &tenant["name"];
            for field in ["passed", "passed_bytes", "charged_ru", "refused_ru", "replied"] {
                let count = tenant[field].as_f64().with_context(|| format!("{field} in {tenant}"))?;
                counted.insert(format!("{name} {field}"), count);
            }
            let reasons = tenant["refused"].as_object().context("refusals by reason")?;
            counted.extend(
                reasons
                    .iter()
                    .filter_map(|(reason, n)| Some((format!("{name} refused {reason}"), n.as_f64()?))),
            );
        }
        Ok(counted)
    }

    /// Writes the words of an old tenant's buckets.
    fn set_old_buckets(&self, tenant: u32, until: [u64; 4]) -> Result<()> {
        self.version.buckets.into_iter().zip(until).try_for_each(|((map, offset), until)| match map {
            "TENANTS" => self.set_word::<512>(map, tenant, offset, until),
            _ => self.set_word::<64>(map, tenant, offset, until),
        })
    }

    fn set_word<const BYTES: usize>(&self, map: &str, tenant: u32, offset: usize, word: u64) -> Result<()> {
        let data = MapData::from_pin(self.site.pins().join(map))?;
        let mut elements: Array<MapData, [u8; BYTES]> = Map::Array(data).try_into()?;
        let mut element = elements.get(&tenant, 0)?;
        element[offset..offset + 8].copy_from_slice(&word.to_ne_bytes());
        Ok(elements.set(tenant, element, 0)?)
    }
}

fn now(clock: gate_common::abi::Clock) -> Nanos {
    clock.at_monotonic(clock::monotonic())
}

fn counters(maps: &Maps, tenant: u32) -> TenantCounters {
    maps.tenant_counters(tenant as usize)
}

/// A configuration that the polite tenant's load is well within.
fn roomy() -> String {
    format!("[gate]\ntick = \"20ms\"\n{}", CONFIG.replace("5000 RU/s", "1000000 RU/s"))
}

/// Takes over from a running old gate, or from one that was killed, under the load of a tenant within its quota and of
/// one in debt.
fn taken_over(test: &str, version: Version, killed: bool) -> Result<()> {
    if !privilege::root(test) || !has_history(test, version) {
        return Ok(());
    }
    let old = OldSite::new(version, &roomy())?;
    let mut gate = old.start()?;
    let target: SocketAddr = TARGET.parse()?;
    let sink = Sink::start(&old.site.net, target)?;
    // Far enough in the future on either clock: what is compared are the words.
    let far = now(gate_common::abi::Clock::default()).0 + 1_000_000_000_000;
    let debts = [far, far + 1, far + 2, far + 3];
    old.set_old_buckets(DEBTOR, debts)?;
    let sources = ["198.18.1.1".parse()?, "198.18.2.1".parse()?];
    let flood = Flood::start(&old.site.net, &sources, target, PER_SEC)?;
    let more = |what: &str| {
        let sent = flood.sent();
        wait_until(what, || Ok(flood.sent() > sent + 1_000))
    };
    more("the old gate judges")?;

    let before = old.counted(&old.old)?;
    ensure!(before["\"polite\" passed"] > 0.0 && before["exits refused-dropped"] > 0.0, "{before:?}");
    if killed {
        gate.signal(Signal::SIGKILL)?;
        ensure!(gate.finish(PATIENCE).is_err());
        gate = old.site.start(&[])?;
    } else {
        let refusal = old.site.refusal(old.site.command(SERVER_INTERFACE))?;
        ensure!(refusal.contains("--takeover"), "{refusal}");
        let next = old.site.start(&["--takeover"])?;
        std::mem::replace(&mut gate, next).finish(PATIENCE)?;
    }
    let after = old.counted(&xtask::paths::gate())?;
    for (name, count) in &before {
        let now = after.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(now >= count, "{name} fell from {count} to {now}");
    }
    more("the new gate judges")?;
    let sent = flood.stop();

    let maps = Maps::pinned(old.site.pins(), false)?;
    let judged = || {
        let exits = maps.cpu_counters().exits;
        [Exit::Passed, Exit::RefusedDropped, Exit::RefusedReplied]
            .iter()
            .map(|exit| exits[exit.index()])
            .sum::<u64>()
    };
    wait_until("every packet is judged", || Ok(judged() >= sent))?;
    let polite = counters(&maps, POLITE);
    let debtor = counters(&maps, DEBTOR);
    ensure!(judged() == sent, "{} of {sent} were judged", judged());
    ensure!(debtor.passed == 0 && polite.refused_in_all() == 0, "{polite:?} {debtor:?}");
    ensure!(polite.passed + debtor.refused_in_all() == sent, "{polite:?} {debtor:?}");
    wait_until("what passed arrives", || Ok(sink.received() >= polite.passed))?;
    ensure!(sink.received() == polite.passed, "{} arrived, {} passed", sink.received(), polite.passed);

    let element = maps.tenants.load(DEBTOR as usize);
    let quota_tat = maps.quota_tat(DEBTOR as usize).load(Ordering::SeqCst);
    let words = [quota_tat, element.tcp_tat, element.reply_tat, element.candidate_tat];
    ensure!(words == debts, "{words:?} instead of {debts:?}");
    let version = maps.control.load_at::<u64>(0, std::mem::offset_of!(Control, abi_version)) as u32;
    ensure!(version == ABI_VERSION);
    drop(maps);
    println!("{test}: {sent} packets, all of them judged");
    gate.end()?;
    ensure!(old.site.anything_left()?.is_none());
    Ok(())
}

#[test]
fn a_running_gate_of_abi_version_5_is_taken_over_under_load() -> Result<()> {
    taken_over("upgrade::a_running_gate_of_abi_version_5_is_taken_over_under_load", V5, false)
}

#[test]
fn pins_of_a_killed_abi_4_gate_are_taken_over_under_load() -> Result<()> {
    taken_over("upgrade::pins_of_a_killed_abi_4_gate_are_taken_over_under_load", V4, true)
}

#[test]
fn an_upgrade_interrupted_while_renaming_pins_is_completed() -> Result<()> {
    if !privilege::root("upgrade::an_upgrade_interrupted_while_renaming_pins_is_completed") {
        return Ok(());
    }
    let site = Site::new(CONFIG)?;
    let gate = site.start(&[])?;
    gate.signal(Signal::SIGKILL)?;
    ensure!(gate.finish(PATIENCE).is_err());
    let debt = {
        let maps = Maps::pinned(site.pins(), true)?;
        let until = now(maps.clock()).0 + 1_000_000_000_000;
        maps.quota_tat(DEBTOR as usize).store(until, Ordering::SeqCst);
        until
    };
    // As a gate leaves it that has renamed some of its pins, and not yet the others.
    let replacing = site.pins().join("replacing");
    std::fs::create_dir(&replacing)?;
    for name in ["CONTROL", "COUNTERS", "TENANTS"] {
        std::fs::rename(site.pins().join(name), replacing.join(name))?;
    }
    let gate = site.start(&[])?;
    let maps = Maps::pinned(site.pins(), false)?;
    ensure!(maps.quota_tat(DEBTOR as usize).load(Ordering::SeqCst) == debt);
    drop(maps);
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

const MEMCACHED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 11_311);

fn check(stream: &mut TcpStream, asked: &str, expected: &str) -> Result<()> {
    stream.write_all(asked.as_bytes())?;
    let said = read_until(stream, expected.as_bytes())?;
    ensure!(said == expected.as_bytes(), "{asked:?}: {}", shown(&said));
    Ok(())
}

#[test]
fn an_old_gate_drains_and_its_counts_go_over() -> Result<()> {
    let test = "upgrade::an_old_gate_drains_and_its_counts_go_over";
    if !privilege::root(test) || !has_history(test, V4) {
        return Ok(());
    }
    let old = OldSite::new(V4, "")?;
    old.site.net.server.enter(|| {
        let store = Listening::memcached()?;
        old.site.configure(&format!(
            "[gate]\ntick = \"10ms\"\ndrain = \"60s\"\n\
             [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{MEMCACHED}\"\nbackend = \"{}\"\n\
             transports = [\"tcp\"]\nshedding.enabled = \"off\"\n\
             [[tenant]]\nname = \"all\"\nsources = \"127.0.0.0/8\"\nquota = \"1000000 RU/s\"\n",
            store.address
        ))?;
        let mut first = old.start()?;
        let connect = || -> Result<TcpStream> {
            let stream = TcpStream::connect(MEMCACHED)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let mut client = connect()?;
        for _ in 0..50 {
            check(&mut client, "get none\r\n", "END\r\n")?;
        }
        let second = old.site.start(&["--takeover"])?;
        first.wait_for("accepts no more", PATIENCE)?;
        let mut other = connect()?;
        for _ in 0..50 {
            check(&mut client, "get none\r\n", "END\r\n")?;
            check(&mut other, "get none\r\n", "END\r\n")?;
        }
        ensure!(first.is_running()?);
        // Either may have accepted this one: the old gate's threads hear of it a little later.
        drop((client, other));
        first.finish(PATIENCE)?;
        wait_until("what the old gate counted goes over", || {
            Ok(old.json(&xtask::paths::gate(), &["tenants"])?["tenants"][0]["passed"] == 150)
        })?;
        second.end()?;
        ensure!(old.site.anything_left()?.is_none());
        Ok(())
    })?
}
