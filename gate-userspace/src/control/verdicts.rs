//! Sampled verdicts: the last ones, and who is refused or unknown most.
//!
//! **Bounds.** The last `LAST` verdicts are kept, and `COUNTED` pairs of source and reason for each of two sketches
//! ([`SpaceSaving`]): of refusals of tenants, and of sources that no rule names. Addresses are cheap, where they are forged or
//! IPv6; so a tenant with a quarter of the counters displaces sources of its own alone.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use crate::dispatcher::VerdictSample;
use crate::policy::hot_key::Decay;
use crate::policy::range::OutOfRange;
use crate::policy::space_saving::{Entry, Estimate, SpaceSaving};

/// The verdicts of a running gate, for the thread that counts and for those that show them.
#[derive(Clone, Debug)]
pub struct Verdicts(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The last ones, the oldest first.
    last: VecDeque<VerdictSample>,
    /// The number of the next one.
    next: u64,
    refused: SpaceSaving,
    unknown: SpaceSaving,
    decay: Decay,
}

/// A source, and what it is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedSource {
    /// Its address.
    pub source: IpAddr,
    /// The place of the service among those that are proxied.
    pub service: usize,
    /// The tenant that was charged most; zero is nobody.
    pub tenant: u32,
    /// The reason.
    pub reason: Reason,
    /// The number of refusals, and how far it may be too high.
    pub weight: Estimate,
}

impl Verdicts {
    /// None so far; counts decay at every `tick`. The seed keeps clients from choosing addresses that collide.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the tick is zero or over 60 s.
    pub fn new(tick: Nanos, seed: u64) -> Result<Self, OutOfRange> {
        let state = State {
            last: VecDeque::with_capacity(LAST),
            next: 0,
            refused: SpaceSaving::with_shares(COUNTED, seed)?,
            unknown: SpaceSaving::new(COUNTED, seed)?,
            decay: Decay::new(HALF_LIFE.min(Nanos(tick.0.saturating_mul(MAX_TICKS))), tick)?,
        };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Adds samples.
    pub fn record(&self, samples: impl Iterator<Item = VerdictSample>) {
        let state = &mut *self.lock();
        for sample in samples {
            state.record(sample);
        }
    }

    /// Lets older counts weigh less. To be called at every tick.
    pub fn tick(&self) {
        let state = &mut *self.lock();
        let keep = state.decay.keep();
        state.refused.decay(keep);
        state.unknown.decay(keep);
    }

    /// The sources that are refused most, or those of nobody; the most first.
    #[must_use]
    pub fn sources(&self, unknown: bool, most: usize) -> Vec<RefusedSource> {
        let state = self.lock();
        let counts = if unknown { &state.unknown } else { &state.refused };
        counts.top(most).iter().filter_map(refused_source).collect()
    }

    /// The verdicts from number `from` on that are still kept, and the number of the next one.
    #[must_use]
    pub fn since(&self, from: u64) -> (Vec<VerdictSample>, u64) {
        let state = self.lock();
        let kept = state.last.len() as u64;
        let skipped = from.saturating_sub(state.next - kept).min(kept);
        (state.last.iter().skip(skipped as usize).copied().collect(), state.next)
    }

    /// The last refusals among the verdicts that are still kept, the newest first.
    #[must_use]
    pub fn last_refused(&self, most: usize) -> Vec<VerdictSample> {
        let state = self.lock();
        let refused = state.last.iter().rev().filter(|sample| sample.reason.is_some());
        refused.take(most).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, sample: VerdictSample) {
        let VerdictSample { source, service, tenant, weight, reason, .. } = sample;
        if let Some(reason) = reason {
            let counts = if tenant == 0 { &mut self.unknown } else { &mut self.refused };
            counts.update_from(tenant, service as u32, &key(source, reason), weight.into());
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(sample);
        self.next += 1;
    }
}

/// The key of a sketch: the address, IPv4 as `::ffff:a.b.c.d`, and the reason.
fn key(source: IpAddr, reason: Reason) -> [u8; 17] {
    let address = match source {
        IpAddr::V4(source) => source.to_ipv6_mapped(),
        IpAddr::V6(source) => source,
    };
    let mut key = [reason as u8; 17];
    key[..16].copy_from_slice(&address.octets());
    key
}

fn refused_source(entry: &Entry<'_>) -> Option<RefusedSource> {
    let (reason, address) = entry.key.split_last()?;
    let address: [u8; 16] = address.try_into().ok()?;
    Some(RefusedSource {
        source: IpAddr::V6(Ipv6Addr::from(address)).to_canonical(),
        service: entry.scope as usize,
        tenant: entry.tenant,
        reason: *Reason::ALL.get(usize::from(*reason))?,
        weight: entry.weight,
    })
}

/// Verdicts that are kept.
const LAST: usize = 4_096;
/// Pairs of source and reason that are counted; some 400 bytes each.
const COUNTED: usize = 1_024;
/// A source that has left is gone in a few minutes.
const HALF_LIFE: Nanos = Nanos::from_secs(60);
/// The longest half-life in ticks that counts can have: with a short tick it is this long.
const MAX_TICKS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::admission::QueryType;

    fn verdicts() -> Verdicts {
        Verdicts::new(Nanos::from_millis(100), 7).unwrap()
    }

    fn sample(source: [u8; 4], tenant: u32, reason: Option<Reason>) -> VerdictSample {
        let at = Nanos(1);
        let query_type = QueryType(0);
        VerdictSample {
            at,
            source: source.into(),
            service: 0,
            tenant,
            weight: 3,
            query_type,
            reason,
            limit: None,
        }
    }

    #[test]
    fn every_tick_that_may_be_configured_will_do() {
        for tick in [10, 50, 100, 10_000] {
            assert!(Verdicts::new(Nanos::from_millis(tick), 7).is_ok(), "{tick} ms");
        }
    }

    #[test]
    fn the_heaviest_unknown_source_is_named_within_its_bound() {
        let verdicts = verdicts();
        // The planted one comes in between, and three times as many others as there are counters.
        for round in 0..3_000_u32 {
            let [_, _, high, low] = round.to_be_bytes();
            let other = sample([10, 0, high, low], 0, Some(Reason::UnknownSource));
            let planted = sample([192, 0, 2, 1], 0, Some(Reason::UnknownSource));
            verdicts.record([other, planted].into_iter().take(1 + usize::from(round % 5 == 0)));
        }
        let first = verdicts.sources(true, 10)[0];
        assert_eq!((first.source, first.reason), ([192, 0, 2, 1].into(), Reason::UnknownSource));
        assert!(first.weight.count >= 1_800 && first.weight.count - first.weight.error <= 1_800, "{first:?}");
        assert!(verdicts.sources(false, 10).is_empty(), "a tenant's sources are counted apart");
    }

    #[test]
    fn reasons_are_counted_apart_and_passes_are_no_refusals() {
        let verdicts = verdicts();
        let of = |reason| sample([10, 0, 0, 1], 4, reason);
        verdicts
            .record([None, Some(Reason::Quota), Some(Reason::Slo), Some(Reason::Quota)].map(of).into_iter());
        let found: Vec<_> =
            verdicts.sources(false, 10).iter().map(|found| (found.reason, found.weight.count)).collect();
        assert_eq!(found, [(Reason::Quota, 6), (Reason::Slo, 3)]);
        (0..10_000).for_each(|_| verdicts.tick());
        assert!(verdicts.sources(false, 10).is_empty(), "old counts fade");
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_the_oldest_go_first() {
        let verdicts = verdicts();
        let of = |low| sample([10, 0, 0, low], 1, None);
        verdicts.record((0..10).map(of));
        let (read, next) = verdicts.since(0);
        assert_eq!((read.len(), next), (10, 10));
        verdicts.record((10..12).map(of));
        assert_eq!(verdicts.since(next), (vec![of(10), of(11)], 12));
        assert_eq!(verdicts.since(99), (Vec::new(), 12));
        (0..LAST).for_each(|_| verdicts.record(std::iter::once(of(99))));
        let (read, next) = verdicts.since(0);
        assert_eq!((read.len(), next, read[0]), (LAST, 12 + LAST as u64, of(99)));
    }
}
