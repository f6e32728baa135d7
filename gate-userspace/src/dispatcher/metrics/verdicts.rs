//! Sampled verdicts: one request in so many, with its client and its result.
//!
//! Threads send them to the daemon, and rather lose one than wait. Neither key nor value is among them.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use crate::kernel::Layer;
use crate::policy::admission::QueryType;

/// The verdict on one request, which stands for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictSample {
    /// When, by the monotonic clock.
    pub at: Nanos,
    /// The client's address.
    pub source: IpAddr,
    /// Where it was decided.
    pub layer: Layer,
    /// The place of its service: among those that are proxied, or behind those.
    pub service: usize,
    /// The number of the tenant that is charged; zero is nobody.
    pub tenant: u32,
    /// The number of requests that it stands for.
    pub weight: u32,
    /// The place of the query type; `None` at the interface, which reads no further than it has to.
    pub query_type: Option<QueryType>,
    /// The reason of a refusal.
    pub reason: Option<Reason>,
    /// The bucket that refuses it, if one does.
    pub bucket: Option<RefusingBucket>,
}

/// The bucket that lacks the price of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusingBucket {
    /// That of a tenant or a limit of this name.
    Named(&'static str),
    /// That of the tenant with this number.
    Tenant(u32),
}

/// A way for verdicts, on which they are rather lost than waited for.
pub(crate) fn verdicts() -> (SyncSender<VerdictSample>, Receiver<VerdictSample>) {
    sync_channel(MOST_SAMPLES)
}

/// One thread's share of the verdicts on one service.
#[derive(Debug)]
pub(crate) struct VerdictSampler {
    to: SyncSender<VerdictSample>,
    service: usize,
    countdown: Countdown,
}

impl VerdictSampler {
    /// That of the service at this place among those that are proxied.
    pub(crate) fn new(to: SyncSender<VerdictSample>, service: usize) -> Self {
        Self { to, service, countdown: Countdown::default() }
    }

    /// True if the next verdict is a sample, one in `every` on average.
    #[inline]
    pub(crate) fn is_due(&self, every: impl FnOnce() -> (u32, f64)) -> bool {
        self.countdown.is_due(every)
    }

    /// Sends one, as one of its service.
    pub(crate) fn send(&self, sample: VerdictSample) {
        // Full: one sample of many.
        let _ = self.to.try_send(VerdictSample { service: self.service, ..sample });
    }
}

/// The number of events until the next sample.
#[derive(Debug, Default)]
pub(crate) struct Countdown(Cell<u32>);

impl Countdown {
    /// True for one call in `every` on average; `every` and a draw from `[0, 1)` are only asked for then. At equal distances, of
    /// events in turn only some would ever be seen.
    #[inline]
    pub(crate) fn is_due(&self, every: impl FnOnce() -> (u32, f64)) -> bool {
        if let Some(left) = self.0.get().checked_sub(1) {
            self.0.set(left);
            return false;
        }
        // As many as twice `every`, less one, are as likely as one.
        let (every, draw) = every();
        let distances = every.saturating_mul(2).saturating_sub(1);
        self.0.set((draw * f64::from(distances)) as u32);
        every > 0
    }
}

/// The samples between two looks of the daemon, every 20 ms.
const MOST_SAMPLES: usize = 8_192;
