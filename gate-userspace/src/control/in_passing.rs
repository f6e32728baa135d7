//! Guarded services, measured in passing: how many of their requests are noted, and what the measured answers say.
//!
//! The answers come from the program at egress. How often one in so many requests is noted follows from how many were:
//! at most [`MOST_PER_SEC`] a second of all services together, every request where there are few.
//!
//! **Invariants.** An answer counts for the service that listens at its port now, or for none. An error of the store is counted,
//! and its time is not: a store that fails at once is not fast.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gate_common::abi::{Measured, MeasuredShare, Protocol, QueryClass, Service, service_flags, view_flags};
use gate_common::units::Nanos;
use serde::Serialize;

use crate::kernel::Maps;
use crate::policy::latency_ratio::{Latencies, LatencyRatio, Settings};
use crate::policy::range::OutOfRange;

/// The measured answers of one service.
#[derive(Debug)]
pub struct InPassing {
    settings: Settings,
    ratio: LatencyRatio,
    latencies: Arc<Latencies>,
    counts: Counts,
    window: Window,
    pace: Pace,
    /// The ratio of the last tick.
    last: Option<f64>,
    /// The share of requests that is noted.
    share: MeasuredShare,
    /// [`Service::noted`] of its slots at the last tick.
    slots: Vec<(usize, u64)>,
}

/// Counts since the service is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that were noted.
    pub noted: u64,
    /// Answers to these that were measured.
    pub answered: u64,
    /// Measured answers that were errors of the store.
    pub failed: u64,
    /// Bytes of measured answers.
    pub bytes: u64,
}

/// The findings of the last tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InPassingReport {
    /// One request in so many is noted.
    pub every: Option<u32>,
    /// The share of the service's requests whose answers were measured lately.
    pub seen: Option<f64>,
    /// The recent median of answers of all classes, in microseconds; `None` while there are too few.
    pub p50_us: Option<u64>,
    /// The recent p95, likewise.
    pub p95_us: Option<u64>,
    /// Their latency ratio; `None` while nothing can be said.
    pub latency_ratio: Option<f64>,
    /// See there.
    pub counts: Counts,
    /// The median and the p95 by [`QueryClass`], in microseconds, where there are enough.
    pub classes: [Option<[u64; 2]>; QueryClass::COUNT],
}

/// The last second or so.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Nanos,
    requests: u64,
    answered: u64,
    seen: Option<f64>,
}

impl InPassing {
    /// Measures from `now` on.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for settings that the configuration should not have let through.
    pub fn new(settings: Settings, now: Nanos) -> Result<Self, OutOfRange> {
        let latencies = Arc::new(Latencies::new(QueryClass::COUNT));
        Ok(Self {
            settings,
            ratio: LatencyRatio::of(Arc::clone(&latencies), settings, now)?,
            latencies,
            counts: Counts::default(),
            window: Window { since: now, ..Window::default() },
            pace: Pace::default(),
            last: None,
            share: MeasuredShare::default(),
            slots: Vec::new(),
        })
    }

    /// The settings of its ratio.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn record(&mut self, answer: &Measured) {
        let class = usize::from(answer.class);
        self.counts.answered += 1;
        self.counts.bytes += u64::from(answer.bytes);
        self.window.answered += 1;
        if answer.failed != 0 {
            self.counts.failed += 1;
        } else if class < QueryClass::COUNT {
            self.latencies.record(class, Nanos(answer.took_ns));
        }
    }

    /// Reads how many requests were noted at its slots, which it keeps, and says how many are from now on; none if `is_on` is
    /// not set.
    fn pace(&mut self, slots: Vec<(usize, u64)>, is_on: bool, now: Nanos, interval: Nanos, most: u64) {
        let before =
            |slot: usize| self.slots.iter().find(|(before, _)| *before == slot).map_or(0, |seen| seen.1);
        // A slot that is used anew counts from zero.
        let noted: u64 =
            slots.iter().map(|&(slot, noted)| noted.checked_sub(before(slot)).unwrap_or(noted)).sum();
        self.slots = slots;
        self.counts.noted += noted;
        self.window.requests += noted << self.share.rate().unwrap_or(0);
        let next = self.pace.next(noted, now, interval, most);
        self.share = if is_on { next } else { MeasuredShare::default() };
    }

    /// The ratio at this tick; `None` if nothing can be said.
    pub(super) fn tick(&mut self, now: Nanos, overloaded: bool) -> Option<f64> {
        self.last = self.ratio.tick(now, overloaded);
        let age = now.saturating_sub(self.window.since);
        if age >= WINDOW {
            let Window { requests, answered, .. } = self.window;
            let seen = (requests > 0).then(|| (answered as f64 / requests as f64).min(1.0));
            self.window = Window { since: now, seen, ..Window::default() };
        }
        self.last
    }

    /// The findings of the last tick.
    #[must_use]
    pub fn report(&self) -> InPassingReport {
        let micros = |time: Nanos| time.0 / 1_000;
        let of_all = |share| self.ratio.recent(None, share).map(micros);
        let of_class = |class| {
            let recent = |share| self.ratio.recent(Some(class), share).map(micros);
            Some([recent(0.5)?, recent(0.95)?])
        };
        InPassingReport {
            every: self.share.rate().map(|rate| 1 << rate),
            seen: self.window.seen,
            p50_us: of_all(0.5),
            p95_us: of_all(0.95),
            latency_ratio: self.last,
            counts: self.counts,
            classes: std::array::from_fn(of_class),
        }
    }
}

/// Hands each answer to the service that listens at its port; `services` are in the order of the configuration, `None` where
/// nothing is measured.
pub(super) fn record(maps: &Maps, answers: &[Measured], services: &mut [Option<InPassing>]) {
    let view = maps.view();
    for answer in answers {
        let slot = answer.service;
        if slot.checked_sub(view.first_service).is_none_or(|place| place >= view.services) {
            continue;
        }
        let Service { id, port, .. } = maps.services.load(slot as usize);
        if port.to_be() == answer.port
            && let Some(Some(in_passing)) = services.get_mut(id as usize)
        {
            in_passing.record(answer);
        }
    }
}

/// Has the requests of these services noted from now on, or none if `is_on` is not set.
pub(super) fn pace(
    maps: &Maps,
    services: &mut [Option<InPassing>],
    is_on: bool,
    now: Nanos,
    interval: Nanos,
) {
    let view = maps.view();
    // Requests in fragments would pass unseen, with whatever id.
    let is_on = is_on && view.flags & view_flags::PASS_FRAGMENTS == 0;
    let in_use = view.first_service..view.first_service + view.services;
    let slots: Vec<(usize, Service)> =
        in_use.map(|slot| (slot as usize, maps.services.load(slot as usize))).collect();
    let measured = services.iter().flatten().count().max(1) as u64;
    for (id, in_passing) in services.iter_mut().enumerate() {
        let Some(in_passing) = in_passing else { continue };
        let own = || slots.iter().filter(|(_, service)| service.id as usize == id && is_measurable(service));
        let noted = own().map(|(slot, service)| (*slot, service.noted)).collect();
        in_passing.pace(noted, is_on, now, interval, MOST_PER_SEC / measured);
        for (slot, _) in own() {
            set_share(maps, *slot, in_passing.share);
        }
    }
}

/// True if XDP reads the requests of this slot and sees all of them.
#[must_use]
pub fn is_measurable(service: &Service) -> bool {
    service.protocol == Protocol::Memcached as u8
        && service.transport == UDP
        && service.flags & service_flags::PROXIED == 0
}

/// Only the owner of the maps writes here.
fn set_share(maps: &Maps, slot: usize, share: MeasuredShare) {
    let word = maps.services.word(slot, offset_of!(Service, id));
    let before = word.load(Ordering::Relaxed);
    let after = before & !(0xff << MEASURED_SHIFT) | u64::from(share.0) << MEASURED_SHIFT;
    if after != before {
        word.store(after, Ordering::Relaxed);
    }
}

/// How many requests are noted.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    rate: u8,
    turn: u8,
    /// When the turn began.
    turned: Nanos,
}

impl Pace {
    /// The share from now on, after `noted` requests in `interval`, of which at most so many a second should be.
    fn next(&mut self, noted: u64, now: Nanos, interval: Nanos, most_per_sec: u64) -> MeasuredShare {
        let per_sec = u128::from(noted) * 1_000_000_000 / u128::from(interval.0.max(1));
        let excess = per_sec / u128::from(most_per_sec.max(1));
        if interval == Nanos::ZERO {
            // The first tick: nothing follows from it.
        } else if excess > 0 {
            // At once: a jump of the load is noted for one tick.
            self.rate = (self.rate + excess.ilog2() as u8 + 1).min(MeasuredShare::MOST);
        } else if per_sec * 4 < u128::from(most_per_sec) {
            self.rate = self.rate.saturating_sub(1);
        }
        if now.saturating_sub(self.turned) >= TURN {
            self.turn = (self.turn + 1) % MeasuredShare::TURNS;
            self.turned = now;
        }
        MeasuredShare::new(self.rate, self.turn)
    }
}

/// The time after which other requests are noted: of a client that repeats its ids all are, or none.
const TURN: Nanos = Nanos::from_secs(10);
/// The time over which the share that was seen is counted.
const WINDOW: Nanos = Nanos::from_secs(1);
/// How many requests of all services are noted in a second.
pub const MOST_PER_SEC: u64 = 4_000;
/// The number of UDP in IP's header.
const UDP: u8 = 17;
/// The place of [`Service::measured`] in the word of [`Service::id`], in bits.
const MEASURED_SHIFT: usize = 8 * (offset_of!(Service, measured) - offset_of!(Service, id));
const _: () = assert!(cfg!(target_endian = "little") && MEASURED_SHIFT < 64);

#[cfg(test)]
mod tests;
