//! A network that is split: gates from their owner, owners from etcd, a member of etcd from the others. Three times the limit is asked
//! for all the time, and the memcached behind each gate counts what was given out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::etcd::{Etcd, key};
use gate_tests::fleet_site::{GateSite, OwnerSite, Reading, named};
use gate_tests::privilege;
use gate_tests::proxy::PATIENCE;
use gate_tests::switch::{Machine, Switch};
use gate_tests::tls::Authority;
use gate_tests::wait::{wait_until, within};
use serde_json::Value;
use xtask::lab::process::ChildProcess;

const LIMITS: &str = "[[limit]]\nname = \"greedy\"\nquota = \"1000 RU/s\"\n[[limit]]\nname = \"polite\"\nquota = \"400 RU/s\"\n";
const LIMIT: f64 = 1_000.0;
/// Gates go alone by half of a limit, never by these.
const TENANTS: &str = r#"
[[tenant]]
name = "greedy"
sources = ["127.0.1.0/24"]
quota = "5000 RU/s"

[[tenant]]
name = "polite"
sources = ["127.0.2.0/24"]
quota = "5000 RU/s"
"#;
/// At each gate. The polite one writes, and so is not counted among reads.
const LOADS: [&str; 2] = [
    "name=greedy,rate=1500/s,source=127.0.1.1,reads=100%,connections=1",
    "name=polite,rate=10/s,source=127.0.2.1,reads=0%,connections=1,arrivals=constant",
];
/// An owner's lease, two ticks, and time for a busy machine.
const HEALED: Duration = Duration::from_millis(3_000 + 200 + 800);
/// The lease, the time in which etcd notices that it is over, two ticks, and time for a busy machine.
const TAKEOVER: Duration = Duration::from_millis(3_000 + 500 + 200 + 800);
/// The longest time in which members of etcd notice that their leader is gone.
const ELECTION: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Two gates under load, and their owners, of which the first owns the limit.
struct Fleet {
    _loads: Vec<ChildProcess>,
    gates: Vec<GateSite>,
    owners: Vec<OwnerSite>,
    etcd: Vec<(Etcd, Machine)>,
    switch: Switch,
    _authority: Authority,
}

impl Fleet {
    /// With one owner, which both gates name.
    fn with_owner() -> Result<Self> {
        let switch = Switch::open()?;
        let authority = Authority::new()?;
        let owners = vec![OwnerSite::start(&switch, &authority, LIMITS)?];
        let named = named(&owners);
        Self::with_gates(switch, authority, owners, Vec::new(), &named)
    }

    /// With three members of etcd and two owners.
    fn with_etcd() -> Result<Self> {
        let switch = Switch::open()?;
        let authority = Authority::new()?;
        let machines = (0..3).map(|_| switch.machine()).collect::<Result<Vec<_>>>()?;
        let members = Etcd::cluster(&machines.iter().collect::<Vec<_>>(), &authority)?;
        machines[0].on(|| members[0].apply(LIMITS))?;
        let key = key(&members);
        let owners =
            (0..2).map(|_| OwnerSite::register(&switch, &authority, &key)).collect::<Result<Vec<_>>>()?;
        let etcd = members.into_iter().zip(machines).collect();
        Self::with_gates(switch, authority, owners, etcd, &key)
    }

    fn with_gates(
        switch: Switch,
        authority: Authority,
        owners: Vec<OwnerSite>,
        etcd: Vec<(Etcd, Machine)>,
        line: &str,
    ) -> Result<Self> {
        let gate = |name| GateSite::start(&switch, &authority, name, "", line, TENANTS);
        let gates = vec![gate("gate-1")?, gate("gate-2")?];
        let time = 2 * MOST_TIME;
        let loads = gates.iter().map(|gate| gate.load(&LOADS, time)).collect::<Result<_>>()?;
        let mut fleet = Self { _loads: loads, gates, owners, etcd, switch, _authority: authority };
        let mut place = None;
        wait_until("an owner has the limit", || {
            let charged =
                fleet.owners.iter().map(|owner| owner.charged("greedy")).collect::<Result<Vec<_>>>()?;
            place = charged.iter().position(|charged| *charged > 0.0);
            Ok(place.is_some())
        })?;
        fleet.owners.swap(0, place.unwrap_or(0));
        fleet.wait_until_it_shares(PATIENCE)?;
        Ok(fleet)
    }

    fn reading(&self) -> Result<Reading> {
        Reading::take(self.gates.iter().map(|site| (&site.machine, &site.store)))
    }

    /// Waits until the first owner grants both gates a part, and until they have given out the limit together for a second from then
    /// on, each about half of it.
    fn wait_until_it_shares(&self, patience: Duration) -> Result<Duration> {
        let mut last = VecDeque::new();
        within("both gates give out one limit together", patience, || {
            std::thread::sleep(STEP);
            if !self.are_both_granted_parts()? {
                last.clear();
                return Ok(false);
            }
            let now = self.reading()?;
            while last.get(1).is_some_and(|before: &Reading| now.at - before.at >= SECOND) {
                last.pop_front();
            }
            let rates =
                last.front().filter(|before| now.at - before.at >= SECOND).map(|before| now.per_sec(before));
            last.push_back(now);
            Ok(rates.is_some_and(|rates| shares(&rates)))
        })
    }

    /// True if the first owner grants both gates a part.
    fn are_both_granted_parts(&self) -> Result<bool> {
        let OwnerSite { owner, machine } = &self.owners[0];
        let account = machine.on(|| owner.account("greedy"))?;
        let shares = account.as_ref().and_then(|account| account["shares"].as_array());
        let granted = |share: &Value| share["granted"].as_f64().is_some_and(|granted| granted > 0.0);
        Ok(shares.is_some_and(|shares| shares.len() == 2 && shares.iter().all(granted)))
    }

    /// Each of these groups of gates gives out no more than the limit in this time, in all and in any second; and no gate is
    /// without a part.
    fn stays_within(&self, time: Duration, sides: &[&[usize]]) -> Result<()> {
        let readings = Reading::series(STEP, time, || self.reading())?;
        let rates = |from: &Reading, to: &Reading| -> Vec<f64> {
            let each = to.per_sec(from);
            sides.iter().map(|side| side.iter().map(|&gate| each[gate]).sum()).collect()
        };
        let [first, .., last] = readings.as_slice() else { anyhow::bail!("no readings") };
        println!("  in {time:?} each gate gave out {:.0?} a second", last.per_sec(first));
        let burst = 0.1 * LIMIT;
        let most = 1.05 * LIMIT + burst / time.as_secs_f64();
        ensure!(rates(first, last).iter().all(|rate| *rate < most), "{:?}", last.per_sec(first));
        ensure!(last.per_sec(first).iter().all(|rate| *rate > 0.15 * LIMIT), "{:?}", last.per_sec(first));
        for (place, from) in readings.iter().enumerate() {
            let Some(to) = readings[place..].iter().find(|to| to.at - from.at >= SECOND) else { break };
            for (side, rate) in sides.iter().zip(rates(from, to)) {
                // A new owner: one interval's quota at each gate.
                let most = 1.2 * LIMIT + burst + 0.1 * LIMIT * side.len() as f64;
                ensure!(rate < most, "{rate:.0} in one second");
            }
        }
        Ok(())
    }

    /// Splits the network for so long, and heals it. Each side of gates stays within the limit, so that two give out at most twice
    /// as much; then all is as before.
    fn split(
        &self,
        what: &str,
        time: Duration,
        sides: &[&[usize]],
        cut: impl FnOnce(&Switch) -> Result<()>,
    ) -> Result<()> {
        println!("{what}:");
        cut(&self.switch)?;
        self.stays_within(time, sides)?;
        self.heal()
    }

    /// The same, in which time the second owner takes over.
    fn split_etcd(
        &self,
        what: &str,
        time: Duration,
        sides: &[&[usize]],
        cut: impl FnOnce(&Switch) -> Result<()>,
    ) -> Result<()> {
        println!("{what}:");
        let before = self.owners[1].charged("greedy")?;
        cut(&self.switch)?;
        self.stays_within(time, sides)?;
        ensure!(self.owners[1].charged("greedy")? > before, "nobody has taken over in {time:?}");
        if is_long() {
            self.stays_within(Duration::from_secs(30), sides)?;
        }
        self.heal()
    }

    fn heal(&self) -> Result<()> {
        let healed = Instant::now();
        self.switch.heal()?;
        self.wait_until_it_shares(HEALED + SECOND)?;
        println!("  as before {:?} after it healed", healed.elapsed().saturating_sub(SECOND));
        self.stays_within(Duration::from_millis(1_500), &[&[0, 1]])
    }

    /// A tenant below its limit was not refused at any time.
    fn polite_was_never_refused(&self) -> Result<()> {
        for site in &self.gates {
            let document = site.gate.json(&["tenants", "polite"])?;
            let refused = document["tenants"][0]["refused"].as_object().context("no refusals")?;
            ensure!(refused.is_empty(), "{refused:?}");
        }
        Ok(())
    }
}

/// True if these rates of two gates are the limit, and about as much is asked for at each.
fn shares(rates: &[f64]) -> bool {
    let sum: f64 = rates.iter().sum();
    (0.85 * LIMIT..1.15 * LIMIT).contains(&sum) && rates.iter().all(|rate| *rate > 0.3 * LIMIT)
}

fn is_long() -> bool {
    std::env::var_os("GATE_LONG").is_some()
}

#[test]
fn a_gate_without_its_owner_keeps_its_part_and_comes_back() -> Result<()> {
    if !privilege::root("a_gate_without_its_owner_keeps_its_part_and_comes_back") {
        return Ok(());
    }
    let fleet = Fleet::with_owner()?;
    let owner = &fleet.owners[0].machine;
    let gate = &fleet.gates[1].machine;
    let time = Duration::from_secs(if is_long() { 30 } else { 3 });
    let sides: &[&[usize]] = &[&[0], &[1]];
    fleet.split("a gate from its owner", time, sides, |switch| switch.cut(&[gate], &[owner]))?;
    let time = time.div_f64(1.5);
    fleet.split("what the owner says", time, sides, |switch| switch.cut_one_way(owner, gate))?;
    fleet.split("what the gate says", time, sides, |switch| switch.cut_one_way(gate, owner))?;
    fleet.polite_was_never_refused()
}

#[test]
fn each_side_of_a_split_etcd_stays_within_the_limit() -> Result<()> {
    if !privilege::root("each_side_of_a_split_etcd_stays_within_the_limit") {
        return Ok(());
    }
    let fleet = Fleet::with_etcd()?;
    let [first, second] = [0, 1].map(|owner| &fleet.owners[owner].machine);
    let members: Vec<&Machine> = fleet.etcd.iter().map(|(_, machine)| machine).collect();
    // Both gates follow etcd.
    fleet.split_etcd("an owner from etcd", TAKEOVER, &[&[0, 1]], |switch| switch.cut(&[first], &members))?;
    let few = [members[0], first, &fleet.gates[0].machine];
    let many = [members[1], members[2], second, &fleet.gates[1].machine];
    // Their leader may be on the other side: after an election leases last anew.
    let time = TAKEOVER + ELECTION;
    fleet.split_etcd("etcd's minority", time, &[&[0], &[1]], |switch| switch.cut(&few, &many))?;
    fleet.polite_was_never_refused()
}

/// Longer than any of these tests takes.
const MOST_TIME: Duration = Duration::from_secs(300);
