use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::drr::DeficitRoundRobin;
use crate::test_rng::TestRng;

const MS: Nanos = Nanos::from_millis(1);
/// The price of each request.
const MRU: u64 = 1_000;

/// A tenant that asks for so many requests a second, at random times.
#[derive(Clone, Copy, Debug)]
struct Client {
    sharer: Sharer,
    weight: Option<u64>,
    per_sec: f64,
    /// In ms: asks from the first on, before the second.
    during: (u64, u64),
}

fn client(tenant: u32, tier: Tier, per_sec: f64) -> Client {
    Client { sharer: Sharer { tier, tenant }, weight: Some(1), per_sec, during: (0, u64::MAX) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    asked: u64,
    refused: u64,
    served: u64,
    longest_wait_ms: u64,
}

/// A store behind a queue as gate's is: by tier, those below their share before the others, by turns.
struct Bench {
    shares: FairShare,
    clients: Vec<Client>,
    queues: BTreeMap<(Tier, bool), DeficitRoundRobin<(usize, u64)>>,
    counts: Vec<Counts>,
    loads: BTreeMap<Sharer, Load>,
    rng: TestRng,
    busy: f64,
    answers: u64,
    is_drained: bool,
    /// True if nothing says that the store is overloaded but its queue.
    is_healthy: bool,
}

impl Bench {
    fn new(clients: Vec<Client>) -> Self {
        Self {
            shares: FairShare::default(),
            counts: vec![Counts::default(); clients.len()],
            clients,
            queues: BTreeMap::new(),
            loads: BTreeMap::new(),
            rng: TestRng::new(7),
            busy: 0.0,
            answers: 0,
            is_drained: false,
            is_healthy: false,
        }
    }

    fn share(&self, sharer: Sharer) -> Option<Share> {
        self.shares.shares().find(|(of, _)| *of == sharer).map(|(_, share)| share)
    }

    fn load(&mut self, client: &Client) -> &mut Load {
        let Client { sharer, weight, .. } = *client;
        self.loads.entry(sharer).or_insert(Load { sharer, weight, offered_mru: 0 })
    }

    /// One ms in which the store does `capacity / 1000` requests.
    fn step(&mut self, ms: u64, capacity: f64) {
        for place in 0..self.clients.len() {
            let client = self.clients[place];
            if !(client.during.0..client.during.1).contains(&ms) {
                continue;
            }
            let mut due = client.per_sec / 1e3 * 2.0 * self.rng.unit();
            while self.rng.unit() < due {
                due -= 1.0;
                self.counts[place].asked += 1;
                self.load(&client).offered_mru += MRU;
                let share = self.share(client.sharer);
                if share.is_some_and(|share| self.rng.unit() >= share.accepted) {
                    self.counts[place].refused += 1;
                    continue;
                }
                let is_behind = share.is_none_or(|share| share.waits_behind);
                let queue = self.queues.entry((client.sharer.tier, is_behind));
                queue.or_insert_with(|| DeficitRoundRobin::new(8 * MRU)).push(
                    client.sharer.tenant,
                    MRU,
                    (place, ms),
                );
            }
        }
        self.busy += capacity / 1e3;
        while self.busy >= 1.0 {
            let Some((place, since)) = self.queues.values_mut().find_map(|queue| queue.pop(|_| true)) else {
                self.busy = self.busy.min(1.0);
                self.is_drained = true;
                break;
            };
            self.busy -= 1.0;
            self.answers += 1;
            self.counts[place].served += 1;
            let longest = &mut self.counts[place].longest_wait_ms;
            *longest = (*longest).max(ms - since);
        }
        if ms % 100 == 99 {
            let loads: Vec<_> = std::mem::take(&mut self.loads).into_values().collect();
            let queued = self.queues.values().map(DeficitRoundRobin::len).sum::<usize>() as u64;
            let stood = queued > 0 && !std::mem::take(&mut self.is_drained);
            self.shares.tick(&Tick {
                now: Nanos(ms * MS.0),
                interval: Nanos::from_millis(100),
                stood,
                answers: self.answers,
                served_mru: std::mem::take(&mut self.answers) * MRU,
                queued_mru: queued * MRU,
                is_overloaded: stood && !self.is_healthy,
                loads: &loads,
            });
        }
    }

    /// The counts of so many seconds, after as many that are not counted.
    fn run(&mut self, [before, counted]: [u64; 2], capacity: impl Fn(u64) -> f64) -> Vec<Counts> {
        for ms in 0..(before + counted) * 1_000 {
            if ms == before * 1_000 {
                self.counts.fill(Counts::default());
            }
            self.step(ms, capacity(ms));
        }
        self.counts.clone()
    }
}

fn jain(shares: impl Iterator<Item = u64> + Clone) -> f64 {
    let count = shares.clone().count() as f64;
    let sum: f64 = shares.clone().map(|share| share as f64).sum();
    sum * sum / (count * shares.map(|share| (share as f64).powi(2)).sum::<f64>())
}

#[test]
fn who_asks_for_half_their_share_is_never_refused() {
    let of_many = [(1, 2_000.0, 20, 2_000), (10, 2_000.0, 20, 2_000), (100, 2_000.0, 20, 2_000)];
    // Two requests a second are half of a share.
    let of_few = [(100, 400.0, 100, 3_000)];
    for (greedy, capacity, secs, most_waited) in of_many.into_iter().chain(of_few) {
        for times in [1.5, 3.0, 7.0] {
            let polite = capacity / f64::from(greedy + 1) / 2.0;
            let each = (capacity * times - polite) / f64::from(greedy);
            let clients = (1..=greedy).map(|tenant| client(tenant, Tier::Standard, each));
            let clients = std::iter::once(client(0, Tier::Standard, polite)).chain(clients).collect();
            let counts = Bench::new(clients).run([5, secs], |_| capacity);
            let case = format!("{greedy} at {times} of {capacity}: {:?}", counts[0]);
            assert_eq!(counts[0].refused, 0, "{case}");
            assert!(counts[0].longest_wait_ms <= 20, "{case}");
            let served: u64 = counts.iter().map(|counts| counts.served).sum();
            assert!(served as f64 >= 0.95 * capacity * secs as f64, "{case}: {served} served of all");
            let jain = jain(counts[1..].iter().map(|counts| counts.served));
            assert!(jain >= 0.98, "{case}: {jain}");
            let waited = counts.iter().map(|counts| counts.longest_wait_ms).max().unwrap();
            assert!(waited <= most_waited, "{case}: {waited} ms");
        }
    }
}

#[test]
fn the_first_seconds_refuse_no_one_below_their_share() {
    let mut greedy = client(1, Tier::Standard, 7_000.0);
    greedy.during.0 = 2_000;
    let counts = Bench::new(vec![client(0, Tier::Standard, 250.0), greedy]).run([0, 6], |_| 1_000.0);
    assert_eq!(counts[0].refused, 0, "{counts:?}");
    assert!(counts[1].refused > 20_000, "{counts:?}");
}

#[test]
fn a_lower_tier_gets_what_is_left() {
    let critical = client(0, Tier::Critical, 100.0);
    let counts = Bench::new(vec![critical, client(1, Tier::BestEffort, 2_000.0)]).run([3, 20], |_| 1_000.0);
    assert_eq!(counts[0].refused, 0, "{counts:?}");
    assert!(counts[1].served as f64 >= 0.95 * 900.0 * 20.0, "{counts:?}");
    // All that there is goes to the tier above, once it asks for it, and comes back when it does no more.
    let mut critical = client(0, Tier::Critical, 1_200.0);
    critical.during = (5_000, 10_000);
    let mut bench = Bench::new(vec![critical, client(1, Tier::BestEffort, 2_000.0)]);
    let mut served = Vec::new();
    for ms in 0..15_000 {
        bench.step(ms, 1_000.0);
        if ms % 1_000 == 999 {
            served.push(bench.counts[1].served);
        }
    }
    let of = |from: usize, to: usize| served[to] - served[from];
    // What was let in before is served where the tier above leaves a moment.
    assert!(of(6, 9) < 400, "{served:?}");
    assert!(of(10, 14) > 3_800, "{served:?}");
}

#[test]
fn a_store_that_recovers_is_used_again() {
    let clients = vec![client(0, Tier::Standard, 3_000.0), client(1, Tier::Standard, 3_000.0)];
    let mut bench = Bench::new(clients);
    let mut served = Vec::new();
    for ms in 0..16_000 {
        bench.step(ms, if (4_000..10_000).contains(&ms) { 250.0 } else { 1_000.0 });
        if ms % 1_000 == 999 {
            served.push(bench.counts.iter().map(|counts| counts.served).sum::<u64>());
        }
    }
    let of = |from: usize, to: usize| served[to] - served[from];
    assert!(of(1, 3) >= 1_900, "{served:?}");
    assert!(of(5, 9) >= 950, "{served:?}");
    assert!(of(12, 15) >= 2_850, "{served:?}");
}

#[test]
fn a_queue_alone_says_who_goes_first_and_refuses_no_one() {
    let clients = vec![client(0, Tier::Standard, 100.0), client(1, Tier::Standard, 1_100.0)];
    let mut bench = Bench { is_healthy: true, ..Bench::new(clients.clone()) };
    let counts = bench.run([2, 5], |_| 1_000.0);
    assert!(counts.iter().all(|count| count.refused == 0) && bench.shares.is_in_force(), "{counts:?}");
    assert!(counts[0].longest_wait_ms < 10 && counts[1].longest_wait_ms > 200, "{counts:?}");
    let counts = Bench::new(clients).run([2, 5], |_| 1_000.0);
    assert!(counts[0].refused == 0 && counts[1].refused > 0, "{counts:?}");
}

#[test]
fn shares_follow_weights() {
    let weighted = |tenant, weight| Client { weight, ..client(tenant, Tier::Standard, 3_000.0) };
    let clients = vec![weighted(0, Some(1)), weighted(1, Some(3)), weighted(2, None)];
    let counts = Bench::new(clients).run([5, 20], |_| 1_400.0);
    for (count, expected) in counts.iter().zip([200.0, 600.0, 600.0]) {
        let found = count.served as f64 / 20.0;
        assert!((found / expected - 1.0).abs() < 0.1, "{counts:?}");
    }
}

#[test]
fn calm_stores_refuse_no_one_and_shares_end() {
    let mut bench = Bench::new(vec![client(0, Tier::Standard, 400.0), client(1, Tier::BestEffort, 400.0)]);
    let counts = bench.run([0, 10], |ms| if (2_000..2_500).contains(&ms) { 0.0 } else { 1_000.0 });
    assert_eq!(counts[1].refused, 0, "a store that stops for a moment: {counts:?}");
    assert!(!bench.shares.is_in_force());
    let mut bench = Bench::new(vec![client(0, Tier::Standard, 400.0)]);
    let counts = bench.run([0, 10], |_| 1_000.0);
    assert!(counts[0].refused == 0 && !bench.shares.is_in_force());
}

fn load(tenant: u32, tier: Tier, weight: Option<u64>, mru: u64) -> Load {
    Load { sharer: Sharer { tier, tenant }, weight, offered_mru: mru }
}

/// Shares of these demands (mRU a tick, for long), where the store does `served` of them all.
fn shares(loads: &[Load], served: u64) -> FairShare {
    let mut shares = FairShare::default();
    for tick in 1..100 {
        let now = Nanos::from_millis(100 * tick);
        let interval = Nanos::from_millis(100);
        let tick = Tick {
            now,
            interval,
            stood: true,
            answers: 50,
            served_mru: served,
            queued_mru: 0,
            is_overloaded: true,
            loads,
        };
        shares.tick(&tick);
    }
    shares
}

/// A share's part, however much.
fn part(share: &Share) -> f64 {
    share.mru_per_sec.unwrap_or(f64::INFINITY)
}

proptest! {
    #[test]
    fn shares_are_max_min_fair(
        demands in prop::collection::vec((0_u8..4, 1_u64..10, 1_000_u64..1_000_000), 1..40),
        served in 10_000_u64..5_000_000,
    ) {
        let loads: Vec<_> = demands.iter().zip(0..).map(|(&(tier, weight, mru), tenant)|
            load(tenant, Tier::ALL[usize::from(tier)], Some(weight), mru)).collect();
        let shares = shares(&loads, served);
        let capacity = shares.capacity().unwrap();
        let all: Vec<_> = shares.shares().collect();
        let given: f64 = all.iter().map(|(_, share)| share.demand_mru_per_sec.min(part(share))).sum();
        let asked: f64 = all.iter().map(|(_, share)| share.demand_mru_per_sec).sum();
        prop_assert!((given - asked.min(capacity * 1.1)).abs() < 1.0 + asked * 1e-6, "{} {} {}", given, asked, capacity);
        for (sharer, share) in &all {
            prop_assert_eq!(share.accepted < 1.0, share.demand_mru_per_sec > part(share));
            // Nobody has less by weight than another of the tier, or of one below, while they want more.
            for (other, their) in all.iter().filter(|_| share.accepted < 1.0) {
                if other.tier > sharer.tier {
                    prop_assert!(their.accepted == 0.0, "{:?}", other);
                } else if other.tier == sharer.tier {
                    let weight = |sharer: &Sharer| demands[sharer.tenant as usize].1 as f64;
                    let level = |share: &Share, of| share.demand_mru_per_sec.min(part(share)) / weight(of);
                    prop_assert!(level(their, other) <= level(share, sharer) * (1.0 + 1e-6));
                }
            }
        }
    }
}

#[test]
fn a_burst_is_no_excess() {
    // Half of its share on average, all of it once a second.
    let mut shares = FairShare::default();
    for tick in 0..100_u64 {
        let burst = if tick % 10 == 0 { 250_000 } else { 0 };
        let loads = [load(0, Tier::Standard, Some(1), burst), load(1, Tier::Standard, Some(1), 900_000)];
        let now = Nanos::from_millis(100 * tick);
        let interval = Nanos::from_millis(100);
        shares.tick(&Tick {
            now,
            interval,
            stood: true,
            answers: 100,
            served_mru: 100_000,
            queued_mru: 100_000,
            is_overloaded: true,
            loads: &loads,
        });
        let mut of = shares.shares().map(|(_, share)| share.accepted);
        assert!(of.next().unwrap() == 1.0 && of.next().unwrap() < 1.0, "{tick}: {shares:?}");
    }
}

#[test]
fn those_who_stop_are_forgotten() {
    let mut shares = FairShare::default();
    let interval = Nanos::from_millis(100);
    let mut tick = |loads: &[Load], now| {
        shares.tick(&Tick {
            now,
            interval,
            stood: false,
            answers: 0,
            served_mru: 0,
            queued_mru: 0,
            is_overloaded: true,
            loads,
        });
        shares.sharers.len()
    };
    let loads: Vec<_> = (0..1_000).map(|tenant| load(tenant, Tier::Batch, None, 10_000)).collect();
    assert_eq!(tick(&loads, interval), 1_000);
    assert_eq!((2..300).map(|n| tick(&[], Nanos(n * interval.0))).last(), Some(0));
}

#[test]
fn a_share_has_no_bound_where_there_is_enough_for_all() {
    let loads = [load(1, Tier::Critical, None, 10_000), load(2, Tier::BestEffort, None, 900_000)];
    let shares: BTreeMap<_, _> = shares(&loads, 100_000).shares().collect();
    let part = |place: usize| shares[&loads[place].sharer].mru_per_sec;
    assert_eq!(part(0), None);
    assert!(part(1).is_some_and(f64::is_finite));
}
