//! Invariants while daemons are killed, stopped, replaced and reconfigured under load.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gate_common::abi::{Exit, Reason, TenantCounters, maps};
use gate_common::units::{NANOS_PER_SEC, Nanos};
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE, Site};
use gate_tests::flood::{Flood, Sink};
use gate_tests::privilege;
use gate_tests::wait::until;
use gate_userspace::clock;
use gate_userspace::kernel::Maps;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;

const TARGET: &str = "198.18.0.1:11211";
/// The tenant that floods: `polite` in the configuration, whose bucket must hold it.
const FLOODER: usize = 1;
/// The tenant that is in debt: `other` in the configuration.
const DEBTOR: usize = 2;
/// Requests a second, by both in turn: the flooder sends twice its quota.
const PER_SEC: u32 = 20_000;
/// A small get costs a little over one.
const PRICE_MRU: u64 = 2_000;
const FLOODER_MRU_PER_SEC: u64 = 5_000_000;
const BURST: Nanos = Nanos::from_millis(100);
/// The time by which pushed refusals may outlive their daemon.
const STALE_WITHIN: Duration = Duration::from_millis(1_100);
const TAKEOVER_WITHIN: Duration = Duration::from_millis(500);

fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("GATE_LONG").is_some() { long } else { short }
}

fn target() -> SocketAddr {
    TARGET.parse().unwrap()
}

/// The maps of a site, seen beside its daemons.
struct Seen(Maps);

impl Seen {
    fn open(site: &Site) -> Self {
        Self(Maps::pinned(site.pins(), true).unwrap())
    }

    fn now(&self) -> Nanos {
        self.0.clock().at_monotonic(clock::monotonic())
    }

    fn tenant(&self, id: usize) -> TenantCounters {
        self.0.tenant_counters(id)
    }

    fn refused(&self, id: usize, reason: Reason) -> u64 {
        self.tenant(id).refused[reason.index()]
    }

    /// Packets that the program has processed, with any verdict.
    fn processed(&self) -> u64 {
        let exits = self.0.cpu_counters().exits;
        let processed = [Exit::Passed, Exit::RefusedDropped, Exit::RefusedReplied, Exit::StalePassed];
        processed.iter().map(|exit| exits[exit.index()]).sum()
    }

    fn word(&self, id: usize) -> &std::sync::atomic::AtomicU64 {
        self.0.quota_tat(id)
    }
}

/// Kills or stops daemons under load, and looks at what XDP does meanwhile.
fn daemons_die(test: &str, on_stale: &str, stale: fn(&Seen) -> u64) {
    if !privilege::root(test) {
        return;
    }
    let site = Site::new(&format!("[gate]\non_stale = \"{on_stale}\"\n{CONFIG}")).unwrap();
    let mut gate = site.start(&[]).unwrap();
    let seen = Seen::open(&site);
    let _sink = Sink::start(&site.net, target()).unwrap();
    let sources = ["198.18.1.1".parse().unwrap(), "198.18.2.1".parse().unwrap()];
    let flood = Flood::start(&site.net, &sources, target(), PER_SEC).unwrap();
    let started = seen.now();
    let debt_until = started.saturating_add(Nanos::from_secs(1_000));
    seen.word(DEBTOR).store(debt_until.0, std::sync::atomic::Ordering::SeqCst);

    let mut took = Vec::new();
    for round in 0..rounds(10, 100) {
        let pushed = || seen.refused(DEBTOR, Reason::RejectedUntil);
        let before = pushed();
        until("the debt is pushed", PATIENCE, || pushed() > before + 100);
        let counted = seen.tenant(DEBTOR).refused_in_all();
        let stopped = round % 2 == 1;
        let stale_before = stale(&seen);
        gate.signal(if stopped { Signal::SIGSTOP } else { Signal::SIGKILL }).unwrap();
        let killed = Instant::now();
        until("pushed refusals must end", PATIENCE, || killed.elapsed() >= STALE_WITHIN);
        let last_pushed = pushed();
        until("stale packets come", PATIENCE, || stale(&seen) > stale_before + 500);
        assert_eq!(pushed(), last_pushed, "round {round}: a pushed refusal outlived its daemon");

        let (mut next, this_took) = site.take_over(if stopped { &["--takeover"] } else { &[] }).unwrap();
        took.push(this_took);
        next.wait_for(ATTACHED, PATIENCE).unwrap();
        let ended = std::mem::replace(&mut gate, next).finish(PATIENCE).unwrap_err().to_string();
        assert!(ended.contains("signal: 9"), "{ended}");
        assert!(seen.tenant(DEBTOR).refused_in_all() > counted, "counters begin anew");
        assert_eq!(seen.word(DEBTOR).load(std::sync::atomic::Ordering::SeqCst), debt_until.0);
    }

    let sent = flood.stop();
    until("every packet is processed", PATIENCE, || seen.processed() >= sent);
    assert_eq!(seen.processed(), sent);
    took.sort();
    let median = took[took.len() / 2];
    let worst = took[took.len() - 1];
    println!(
        "{} takeovers, on_stale {on_stale}: median {median:?}, worst {worst:?}, {sent} packets",
        took.len()
    );
    assert!(worst <= TAKEOVER_WITHIN, "taken over in {worst:?}");
    if on_stale == "bucket" {
        let elapsed = seen.now().saturating_sub(started).0 + seen.0.clock().tick_ns;
        let most =
            u128::from(FLOODER_MRU_PER_SEC) * u128::from(elapsed + BURST.0) / u128::from(NANOS_PER_SEC);
        let charged = u128::from(seen.tenant(FLOODER).charged_mru);
        assert!(charged <= most + u128::from(PRICE_MRU), "{charged} of at most {most}");
        assert!(charged * 100 >= most * 90, "{charged} of {most}: more was refused than the bucket says");
    }
    drop(seen);
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn without_a_daemon_the_bucket_stays() {
    let stale = |seen: &Seen| seen.refused(DEBTOR, Reason::Quota);
    daemons_die("survival::without_a_daemon_the_bucket_stays", "bucket", stale);
}

#[test]
fn without_a_daemon_all_passes_where_so_configured() {
    let stale = |seen: &Seen| seen.0.cpu_counters().exits[Exit::StalePassed.index()];
    daemons_die("survival::without_a_daemon_all_passes_where_so_configured", "pass", stale);
}

/// A configuration that the load is well within, and whose ticks do not make the tests wait.
fn roomy() -> String {
    format!("[gate]\ntick = \"20ms\"\n{}", CONFIG.replace("5000 RU/s", "1000000 RU/s"))
}

/// Replaces something about the gate again and again under a load that is within its quota.
fn nothing_is_lost(test: &str, rounds: usize, mut change: impl FnMut(&Site, &mut ChildProcess, usize)) {
    if !privilege::root(test) {
        return;
    }
    let site = Site::new(&roomy()).unwrap();
    let mut gate = site.start(&[]).unwrap();
    let seen = Seen::open(&site);
    let sink = Sink::start(&site.net, target()).unwrap();
    let flood = Flood::start(&site.net, &["198.18.1.1".parse().unwrap()], target(), PER_SEC).unwrap();
    for round in 0..rounds {
        let sent = flood.sent();
        change(&site, &mut gate, round);
        until("more is sent", PATIENCE, || flood.sent() > sent + 200);
    }
    let sent = flood.stop();
    until("every packet arrives", PATIENCE, || sink.received() >= sent);
    assert_eq!((sink.received(), seen.processed(), seen.tenant(FLOODER).passed), (sent, sent, sent));
    println!("{test}: {rounds} rounds, {sent} packets, all of them judged and arrived");
    drop(seen);
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn no_packet_is_lost_or_skipped_while_gates_are_upgraded() {
    let test = "survival::no_packet_is_lost_or_skipped_while_gates_are_upgraded";
    nothing_is_lost(test, rounds(10, 100), |site, gate, _| {
        let next = site.start(&["--takeover"]).unwrap();
        std::mem::replace(gate, next).finish(PATIENCE).unwrap();
    });
}

#[test]
fn reloads_lose_and_skip_no_packet() {
    let test = "survival::reloads_lose_and_skip_no_packet";
    nothing_is_lost(test, rounds(100, 1_000), |site, gate, round| {
        let tenant =
            format!("[[tenant]]\nname = \"t{round}\"\nsources = [\"198.19.0.0/16\"]\nquota = \"100 RU/s\"\n");
        site.configure(&(roomy() + &tenant)).unwrap();
        gate.signal(Signal::SIGHUP).unwrap();
        gate.wait_for("read again", PATIENCE).unwrap();
    });
}

/// More tenants than the maps were made for: larger ones take their place under the load.
#[test]
fn no_packet_is_lost_or_skipped_while_maps_are_outgrown() {
    let test = "survival::no_packet_is_lost_or_skipped_while_maps_are_outgrown";
    if !privilege::root(test) {
        return;
    }
    let site = Site::new(&roomy()).unwrap();
    let mut gate = site.start(&[]).unwrap();
    let sink = Sink::start(&site.net, target()).unwrap();
    let flood = Flood::start(&site.net, &["198.18.1.1".parse().unwrap()], target(), PER_SEC).unwrap();
    let debt_until = {
        let seen = Seen::open(&site);
        let until = seen.now().saturating_add(Nanos::from_secs(1_000)).0;
        seen.word(DEBTOR).store(until, std::sync::atomic::Ordering::SeqCst);
        until
    };
    for round in 0..rounds(4, 8) {
        let sent = flood.sent();
        until("more is sent", PATIENCE, || flood.sent() > sent + 200);
        let tenants = 50 << round;
        let more = (0..tenants).map(|n| {
            format!(
                "[[tenant]]\nname = \"r{round}t{n}\"\nsources = [\"10.{round}.{}.{}/32\"]\nquota = \"100 RU/s\"\n",
                n >> 8,
                n & 255
            )
        });
        site.configure(&format!("{}{}", roomy(), more.collect::<String>())).unwrap();
        // One takes over from a gate that runs, the next finds one that was killed.
        let killed = round % 2 == 1;
        if killed {
            gate.signal(Signal::SIGKILL).unwrap();
            gate.finish(PATIENCE).unwrap_err();
            gate = site.launch(&[]).unwrap();
        } else {
            let next = site.launch(&["--takeover"]).unwrap();
            std::mem::replace(&mut gate, next).finish(PATIENCE).unwrap();
        }
        gate.wait_for("larger ones took their place", PATIENCE).unwrap();
        let seen = Seen::open(&site);
        assert_eq!(seen.word(DEBTOR).load(std::sync::atomic::Ordering::SeqCst), debt_until);
        assert_eq!(site.json(&["status"]).unwrap()["tenants"], 2 + tenants);
        assert_eq!(site.json(&["maps", "list"]).unwrap().as_array().unwrap().len(), maps::ALL.len());
    }
    let sent = flood.stop();
    let seen = Seen::open(&site);
    until("every packet arrives", PATIENCE, || sink.received() >= sent);
    assert_eq!((sink.received(), seen.processed(), seen.tenant(FLOODER).passed), (sent, sent, sent));
    drop(seen);
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}
