//! One tenant's requests, and when each is due. Pure: a seed in, requests out.
//!
//! The loop is open: when a request is due depends on no answer. Times are nanoseconds since the
//! start of the run.

use std::sync::Arc;

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::keys::{KeyDistribution, push_key};
use super::mix::{Entry, Mix};
use super::plan::{Arrivals, Bursts, HotKey, TenantLoad};
use crate::sim::rng::Rng;

/// The endless stream of one tenant's requests, in the order in which they are due.
pub(super) struct Workload {
    due: Due,
    mix: Arc<Mix>,
    /// Of each entry of the mix, with what its keys begin with.
    keys: Vec<(String, KeyDistribution)>,
    total_weight: u64,
    hot: Option<HotKey>,
    rng: Rng,
}

impl Workload {
    /// The stream of the tenant with this number in this run.
    pub(super) fn new(tenant: &TenantLoad, seed: u64, number: usize) -> Self {
        let stream = 2 * number as u64;
        let entries = &tenant.mix.entries;
        let keys = |entry: &Entry| (entry.prefix(&tenant.name), KeyDistribution::new(entry.keys));
        Self {
            due: Due::new(tenant, Rng::new(seed, stream)),
            mix: Arc::clone(&tenant.mix),
            keys: entries.iter().map(keys).collect(),
            total_weight: entries.iter().map(|entry| u64::from(entry.weight)).sum(),
            hot: tenant.hot.clone(),
            rng: Rng::new(seed, stream + 1),
        }
    }

    /// When the next request is due.
    pub(super) fn due(&self) -> Nanos {
        self.due.next
    }

    /// Takes the next request: an entry of the mix. Its keys are written to `keys`, with blanks between them.
    pub(super) fn take(&mut self, keys: &mut String) -> usize {
        self.due.advance();
        keys.clear();
        let number = self.draw_entry();
        let entry = &self.mix.entries[number];
        match &self.hot {
            Some(hot) if self.rng.unit() < hot.share => keys.push_str(&hot.key),
            _ => {
                let (prefix, distribution) = &self.keys[number];
                for key in 0..entry.keys_each() {
                    if key > 0 {
                        keys.push(' ');
                    }
                    push_key(keys, prefix, distribution.draw(&mut self.rng));
                }
            }
        }
        number
    }

    fn draw_entry(&mut self) -> usize {
        let mut left = (self.rng.unit() * self.total_weight as f64) as u64;
        for (number, entry) in self.mix.entries.iter().enumerate() {
            match left.checked_sub(u64::from(entry.weight)) {
                Some(rest) => left = rest,
                None => return number,
            }
        }
        self.mix.entries.len() - 1
    }
}

/// When requests are due.
struct Due {
    next: Nanos,
    /// The next due time, counting only the time in which the tenant sends.
    active: Nanos,
    taken: u64,
    milli_per_sec: u64,
    arrivals: Arrivals,
    bursts: Option<Bursts>,
    rng: Rng,
}

impl Due {
    fn new(tenant: &TenantLoad, rng: Rng) -> Self {
        let mut due = Self {
            next: Nanos::ZERO,
            active: Nanos::ZERO,
            taken: 0,
            milli_per_sec: tenant.milli_per_sec,
            arrivals: tenant.arrivals,
            bursts: tenant.bursts,
            rng,
        };
        due.advance();
        due
    }

    fn advance(&mut self) {
        self.taken += 1;
        self.active = match self.arrivals {
            Arrivals::Poisson => {
                self.active.saturating_add(self.rng.poisson_gap(self.milli_per_sec as f64 / 1e3))
            }
            // From the start each time: gaps that were rounded would add up.
            Arrivals::Constant => {
                let nanos = u128::from(self.taken) * u128::from(NANOS_PER_SEC) * 1_000
                    / u128::from(self.milli_per_sec);
                Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        };
        self.next = match self.bursts {
            None => self.active,
            Some(Bursts { on, period }) => {
                let bursts = self.active.0 / on.0;
                let within = self.active.0 % on.0;
                Nanos(bursts.saturating_mul(period.0).saturating_add(within))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn stream(tenant: &str, seed: u64, count: usize) -> Vec<(Nanos, bool, String)> {
        let mut workload = Workload::new(&tenant.parse().unwrap(), seed, 0);
        let mut key = String::new();
        let mut next = || {
            let due = workload.due();
            let read = workload.take(&mut key) == 0;
            (due, read, key.clone())
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn the_same_seed_asks_the_same_at_the_same_time() {
        let tenant = "name=a,rate=1000/s,keys=zipf:100:1.1,reads=50%";
        assert_eq!(stream(tenant, 1, 1_000), stream(tenant, 1, 1_000));
        assert_ne!(stream(tenant, 1, 1_000), stream(tenant, 2, 1_000));
    }

    #[test]
    fn arrivals_keep_their_rate() {
        for arrivals in ["poisson", "constant"] {
            let sent = stream(&format!("name=a,rate=150000/s,arrivals={arrivals}"), 3, 300_000);
            let last = sent.last().unwrap().0.0 as f64 / 1e9;
            assert!((last - 2.0).abs() < 0.02, "{arrivals}: {last} s");
            assert!(sent.is_sorted_by_key(|(due, ..)| *due));
        }
        let constant = stream("name=a,rate=3/s,arrivals=constant", 3, 6);
        assert_eq!(constant[5].0, Nanos::from_secs(2));
    }

    #[test]
    fn bursts_send_only_while_they_last() {
        let sent = stream("name=a,rate=1000/s,bursts=200ms/1s", 4, 10_000);
        assert!(sent.iter().all(|(due, ..)| due.0 % 1_000_000_000 < 200_000_000));
        let last = sent.last().unwrap().0.0 as f64 / 1e9;
        assert!((last - 50.0).abs() < 2.0, "{last} s");
    }

    #[test]
    fn keys_reads_and_the_hot_key_have_their_share() {
        let sent = stream("name=a,rate=1000/s,keys=zipf:100:1.0,reads=90%,hot=trend:20%", 5, 100_000);
        let mut counts: HashMap<&str, f64> = HashMap::new();
        for (_, _, key) in &sent {
            *counts.entry(key).or_default() += 1e-5;
        }
        assert_eq!(counts.len(), 101);
        assert!((counts["trend"] - 0.2).abs() < 0.01);
        // The first of 100 by Zipf with exponent 1: 1 / 5.187 of the other four fifths.
        assert!((counts["a:0"] - 0.8 / 5.187).abs() < 0.01);
        let reads = sent.iter().filter(|(_, read, _)| *read).count() as f64 / 1e5;
        assert!((reads - 0.9).abs() < 0.01);
    }
}
