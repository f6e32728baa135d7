//! One tenant's requests, and when each is due. Pure: a seed in, requests out.
//!
//! The loop is open: when a request is due depends on no answer. Times are nanoseconds since the
//! start of the run.

use gate_common::units::{NANOS_PER_SEC, Nanos};
use rand_distr::Zipf;

use super::plan::{Arrivals, Bursts, HotKey, Keys, TenantLoad};
use crate::sim::rng::Rng;

/// The endless stream of one tenant's requests, in the order in which they are due.
pub(super) struct Workload {
    due: Due,
    name: String,
    keys: KeyDistribution,
    hot: Option<HotKey>,
    reads: f64,
    value_bytes: usize,
    rng: Rng,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Get { key: &'a str },
    Set { key: &'a str, value_bytes: usize },
}

impl Workload {
    /// The stream of the tenant with this number in this run.
    pub(super) fn new(tenant: &TenantLoad, seed: u64, number: usize) -> Self {
        let stream = 2 * number as u64;
        Self {
            due: Due::new(tenant, Rng::new(seed, stream)),
            name: tenant.name.clone(),
            keys: KeyDistribution::new(tenant.keys),
            hot: tenant.hot.clone(),
            reads: tenant.reads,
            value_bytes: tenant.value_bytes,
            rng: Rng::new(seed, stream + 1),
        }
    }

    /// When the next request is due.
    pub(super) fn due(&self) -> Nanos {
        self.due.next
    }

    /// Takes the next request; its key is written to `key`.
    pub(super) fn take<'k>(&mut self, key: &'k mut String) -> Request<'k> {
        self.due.advance();
        key.clear();
        match &self.hot {
            Some(hot) if self.rng.unit() < hot.share => key.push_str(&hot.key),
            _ => {
                let rank = self.keys.draw(&mut self.rng);
                key.push_str(&self.name);
                key.push(':');
                push_decimal(key, rank);
            }
        }
        if self.rng.unit() < self.reads {
            Request::Get { key }
        } else {
            Request::Set { key, value_bytes: self.value_bytes }
        }
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

/// Ranks from 0, the most frequent first.
enum KeyDistribution {
    Uniform(u64),
    Zipf(Zipf<f64>),
}

impl KeyDistribution {
    fn new(keys: Keys) -> Self {
        match keys {
            Keys::Uniform { count } => Self::Uniform(count),
            Keys::Zipf { count, exponent } => {
                Self::Zipf(Zipf::new(count as f64, exponent).expect("count and exponent are in range"))
            }
        }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            // The high half of the product is uniform, within one part in 2^64 / count.
            Self::Uniform(count) => ((u128::from(rng.bits()) * u128::from(*count)) >> 64) as u64,
            Self::Zipf(zipf) => rng.draw(zipf) as u64 - 1,
        }
    }
}

/// Appends a number; formatting it would cost more than everything else about a request.
fn push_decimal(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[start..].iter().map(|&digit| char::from(digit)));
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
            let read = matches!(workload.take(&mut key), Request::Get { .. });
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

    #[test]
    fn a_rank_is_written_in_decimal() {
        for number in [0, 7, 10, 1_234_567, u64::MAX] {
            let mut text = String::new();
            push_decimal(&mut text, number);
            assert_eq!(text, number.to_string());
        }
    }
}
