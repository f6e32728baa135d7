//! Sampled verdicts: the last ones, and who is refused or unknown most.
//!
//! **Bounds.** The last `LAST` verdicts are kept, and `COUNTED` pairs of source and reason for each of two sketches
//! ([`SpaceSaving`]): of refusals of tenants, and of sources that no rule names. Addresses are cheap, where they are forged or
//! IPv6; so a tenant with a quarter of the counters displaces sources of its own alone. A flood that is refused at the interface
//! displaces few of the last verdicts: at most `MOST_SHOWN` of it are kept each time that samples are read.
//!
//! **Services.** Those that are proxied come first, in the order that they had at the start; others follow as they are first
//! configured, by name. So a reload gives no place to another.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::abi::{Reason, SampleHead};
use gate_common::units::Nanos;

use crate::dispatcher::{RefusingBucket, VerdictSample};
use crate::kernel::Layer;
use crate::policy::hot_key::Decay;
use crate::policy::range::OutOfRange;
use crate::policy::space_saving::{Entry, Estimate, SpaceSaving};

/// The verdicts of a running gate, for the thread that counts and for those that show them.
#[derive(Clone, Debug)]
pub struct Verdicts(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The names of services, by their places.
    services: Vec<String>,
    /// By the number in samples of the XDP program: the place of the service.
    places: Vec<usize>,
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
    /// The place of the service.
    pub service: usize,
    /// The tenant that was charged most; zero is nobody.
    pub tenant: u32,
    /// The reason.
    pub reason: Reason,
    /// The number of refusals, and how far it may be too high.
    pub weight: Estimate,
}

impl Verdicts {
    /// None so far; counts decay at every `tick`. The seed keeps clients from choosing addresses that collide. The names are
    /// those of the proxied services.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the tick is zero or over 60 s.
    pub fn new(
        tick: Nanos,
        seed: u64,
        proxied: impl IntoIterator<Item = String>,
    ) -> Result<Self, OutOfRange> {
        let state = State {
            services: proxied.into_iter().collect(),
            places: Vec::new(),
            last: VecDeque::with_capacity(LAST),
            next: 0,
            refused: SpaceSaving::with_shares(COUNTED, seed)?,
            unknown: SpaceSaving::new(COUNTED, seed)?,
            decay: Decay::new(HALF_LIFE.min(Nanos(tick.0.saturating_mul(MAX_TICKS))), tick)?,
        };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// From now on these are the services, in the order of the configuration.
    pub fn follow<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        let state = &mut *self.lock();
        state.places.clear();
        for name in names {
            let place = state.services.iter().position(|known| known == name).unwrap_or_else(|| {
                state.services.push(name.to_owned());
                state.services.len() - 1
            });
            state.places.push(place);
        }
    }

    /// The name of the service at a place.
    #[must_use]
    pub fn service(&self, place: usize) -> Option<String> {
        self.lock().services.get(place).cloned()
    }

    /// Adds samples of the XDP program, which were read at `now`; `parents` are the tenants that are charged with a tenant.
    pub fn record_packets(&self, samples: &[SampleHead], now: Nanos, parents: impl Fn(u32) -> [u32; 2]) {
        if samples.is_empty() {
            return;
        }
        let state = &mut *self.lock();
        let mut refused = 0;
        for head in samples {
            let Some(&service) = state.places.get(head.service as usize) else { continue };
            let sample = of_packet(head, service, now, &parents);
            refused += usize::from(sample.reason.is_some());
            state.count(&sample);
            if sample.reason.is_none() || refused <= MOST_SHOWN {
                state.keep(sample);
            }
        }
    }

    /// Adds samples.
    pub fn record(&self, samples: impl Iterator<Item = VerdictSample>) {
        let state = &mut *self.lock();
        for sample in samples {
            state.count(&sample);
            state.keep(sample);
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
    fn count(&mut self, sample: &VerdictSample) {
        let VerdictSample { source, service, tenant, weight, reason, .. } = *sample;
        if let Some(reason) = reason {
            let counts = if tenant == 0 { &mut self.unknown } else { &mut self.refused };
            counts.update_from(tenant, service as u32, &key(source, reason), weight.into());
        }
    }

    fn keep(&mut self, sample: VerdictSample) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(sample);
        self.next += 1;
    }
}

/// The verdict on a packet.
fn of_packet(
    head: &SampleHead,
    service: usize,
    at: Nanos,
    parents: &impl Fn(u32) -> [u32; 2],
) -> VerdictSample {
    let reason = head.reason();
    let bucket = (reason == Some(Reason::Quota)).then(|| match head.bucket {
        0 => head.tenant,
        other => parents(head.tenant)[usize::from(other != 1)],
    });
    VerdictSample {
        at,
        source: IpAddr::V6(Ipv6Addr::from(head.source)).to_canonical(),
        layer: Layer::Xdp,
        service,
        tenant: head.tenant,
        weight: head.weight,
        query_type: None,
        reason,
        bucket: bucket.map(RefusingBucket::Tenant),
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

/// Refusals of packets that are kept of those that are read at once, every 20 ms.
const MOST_SHOWN: usize = 64;
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
    use std::net::Ipv4Addr;

    use super::*;
    use crate::policy::admission::QueryType;

    fn verdicts() -> Verdicts {
        Verdicts::new(Nanos::from_millis(100), 7, ["proxied".to_owned()]).unwrap()
    }

    fn sample(source: [u8; 4], tenant: u32, reason: Option<Reason>) -> VerdictSample {
        let at = Nanos(1);
        let query_type = Some(QueryType(0));
        VerdictSample {
            at,
            source: source.into(),
            layer: Layer::Proxy,
            service: 0,
            tenant,
            weight: 3,
            query_type,
            reason,
            bucket: None,
        }
    }

    #[test]
    fn every_tick_that_may_be_configured_will_do() {
        for tick in [10, 50, 100, 10_000] {
            assert!(Verdicts::new(Nanos::from_millis(tick), 7, []).is_ok(), "{tick} ms");
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
    fn packets_keep_their_service_and_bucket_over_a_reload() {
        let verdicts = verdicts();
        let head = |service, refused, bucket| SampleHead {
            service,
            tenant: 4,
            weight: 64,
            source: Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets(),
            refused,
            bucket,
            ..SampleHead::default()
        };
        let quota = Reason::Quota as u8 + 1;
        let record =
            |heads: &[SampleHead]| verdicts.record_packets(heads, Nanos(5), |tenant| [tenant + 10, 20]);
        verdicts.follow(["guarded", "proxied"]);
        record(&[head(0, 0, 0), head(0, quota, 0), head(1, quota, 1)]);
        verdicts.follow(["proxied", "other", "guarded"]);
        record(&[head(2, quota, 2), head(3, quota, 0)]);
        let (kept, _) = verdicts.since(0);
        let named = |kept: &VerdictSample| (verdicts.service(kept.service).unwrap(), kept.bucket);
        let tenant = |tenant| Some(RefusingBucket::Tenant(tenant));
        let expected =
            [("guarded", None), ("guarded", tenant(4)), ("proxied", tenant(14)), ("guarded", tenant(20))];
        let expected = expected.map(|(name, bucket)| (name.to_owned(), bucket));
        assert_eq!(kept.iter().map(named).collect::<Vec<_>>(), expected, "that of no service is left out");
        assert!(kept.iter().all(|kept| kept.source == IpAddr::from([10, 0, 0, 9])), "{kept:?}");
        let found = verdicts.sources(false, 10);
        let found: Vec<_> = found.iter().map(|found| (found.service, found.weight.count)).collect();
        assert_eq!(found, [(1, 128), (0, 64)]);
    }

    #[test]
    fn a_flood_at_the_interface_leaves_other_verdicts_readable() {
        let verdicts = verdicts();
        verdicts.follow(["guarded"]);
        verdicts.record(std::iter::once(sample([10, 0, 0, 1], 1, None)));
        let flood =
            SampleHead { weight: 64, refused: Reason::UnknownSource as u8 + 1, ..SampleHead::default() };
        (0..10).for_each(|_| verdicts.record_packets(&[flood; 8_192], Nanos(5), |_| [0; 2]));
        assert_eq!(verdicts.since(0).0.len(), 1 + 10 * MOST_SHOWN);
        assert_eq!(verdicts.sources(true, 1)[0].weight.count, 10 * 8_192 * 64, "all are counted");
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
