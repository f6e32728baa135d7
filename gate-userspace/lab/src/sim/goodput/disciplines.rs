//! The ways to meet an overload that are compared: each is asked when a request arrives and when its turn comes.

use gate_common::units::Nanos;

use super::{Discipline, Setup};
use crate::sim::bouncer::Policy;
use gate_policy::Tier;
use gate_policy::admission::{Admission, QueryType, Request};
use gate_policy::codel::{Codel, Law, Verdict};
use gate_policy::range::OutOfRange;

/// A discipline at work.
pub(super) trait Guard {
    /// True if a request may join the queue; `draw` is uniform in `[0, 1)`.
    fn admits(&mut self, _query_type: u16, _now: Nanos, _draw: f64) -> bool {
        true
    }

    /// True if a request is served whose turn has come after it `waited`, with so many `behind`.
    fn serves(&mut self, _now: Nanos, _waited: Nanos, _behind: usize) -> bool {
        true
    }

    /// True while the newest goes first.
    fn is_newest_first(&self) -> bool {
        false
    }

    /// A request has joined the queue.
    fn enqueued(&mut self, _query_type: u16) {}

    /// A request has left the queue.
    fn dequeued(&mut self, _query_type: u16) {}

    /// The store has processed a request.
    fn completed(&mut self, _query_type: u16, _processing: Nanos, _now: Nanos) {}

    /// The last [`TICK`](super::engine::TICK).
    fn tick(&mut self, _seen: &Seen, _now: Nanos) {}
}

/// The events of a tick.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Requests that were admitted.
    pub(super) admitted: u64,
    /// Requests that have gone to the store.
    pub(super) sent: u64,
    /// Processes of the store that are idle at its end.
    pub(super) idle: usize,
    /// Requests that wait at its end.
    pub(super) queued: usize,
}

/// The guard for a discipline.
///
/// # Errors
///
/// [`OutOfRange`] for a scenario's parameter.
pub(super) fn guard(discipline: Discipline, setup: &Setup) -> Result<Box<dyn Guard>, OutOfRange> {
    let codel = || Codel::new(Law::Overload, CODEL_TARGET, CODEL_INTERVAL);
    let mut scenario = setup.scenario.clone();
    // gate tells its policies.
    scenario.policies.deadline = Some(setup.patience);
    let of = |policy: Policy| Ok::<_, OutOfRange>(Box::new(OfStudy(policy.build(&scenario)?)));
    Ok(match discipline {
        Discipline::Deadline => Box::new(Nothing),
        Discipline::Codel => Box::new(WithCodel { codel: codel()?, may_reverse: false }),
        Discipline::CodelLifo => Box::new(WithCodel { codel: codel()?, may_reverse: true }),
        Discipline::Pid => Box::<Pid>::default(),
        Discipline::Dagor => Box::<Dagor>::default(),
        Discipline::AcceptFraction => of(Policy::AcceptFraction)?,
        Discipline::MaxQueueWait => of(Policy::MaxQueueWait)?,
    })
}

struct Nothing;

impl Guard for Nothing {}

/// `CoDel`, as gate runs it; `may_reverse` makes it adaptive LIFO (Maurer, "Fail at Scale", ACM Queue 2015).
struct WithCodel {
    codel: Codel,
    may_reverse: bool,
}

impl Guard for WithCodel {
    fn serves(&mut self, now: Nanos, waited: Nanos, behind: usize) -> bool {
        self.codel.dequeue(now, waited, behind) == Verdict::Serve
    }

    fn is_newest_first(&self) -> bool {
        self.may_reverse && self.codel.is_dropping()
    }
}

/// A share of the arrivals is refused, which a controller sets once in [`Pid::EVERY`] (Thomsen and others, "PID Controller for
/// Cinnamon", Uber 2023). Its error is what came in beyond what went out and what the store had room for, as a share of
/// what went out: zero while the store is busy and the queue neither grows nor shrinks.
///
/// **Deviations.** There is one priority, so that a share is drawn where the source finds a threshold. The queue that stands when
/// the controller has found its share counts as come in, spread over [`Pid::DRAINED_IN`], or it would stand for good; the source bounds
/// how long requests wait instead. Where processes were idle whenever it looked, half of the share is given up, or the last of it would
/// outlast the overload by minutes. The gains are ours.
#[derive(Default)]
struct Pid {
    refused: f64,
    sum: f64,
    seen: Seen,
    ticks: u32,
    /// Ticks at whose end a process was idle.
    idle: u32,
}

impl Pid {
    const PROPORTIONAL: f64 = 0.2;
    const INTEGRAL: f64 = 0.2;
    /// In ticks: half a second.
    const EVERY: u32 = 5;
    /// In its steps.
    const DRAINED_IN: f64 = 4.0;
    const MOST: f64 = 0.95;
}

impl Guard for Pid {
    fn admits(&mut self, _query_type: u16, _now: Nanos, draw: f64) -> bool {
        draw >= self.refused
    }

    fn tick(&mut self, seen: &Seen, _now: Nanos) {
        self.seen.admitted += seen.admitted;
        self.seen.sent += seen.sent;
        self.ticks += 1;
        self.idle += u32::from(seen.idle > 0);
        if self.ticks < Self::EVERY {
            return;
        }
        let Seen { admitted, sent, .. } = std::mem::take(&mut self.seen);
        if self.idle == self.ticks {
            self.sum /= 2.0;
        }
        (self.ticks, self.idle) = (0, 0);
        let sent = sent.max(1) as f64;
        let out = sent + seen.idle as f64;
        let error = (admitted as f64 + seen.queued as f64 / Self::DRAINED_IN - out) / sent;
        self.sum = (self.sum + error * Self::INTEGRAL).clamp(0.0, Self::MOST);
        self.refused = (self.sum + error * Self::PROPORTIONAL).clamp(0.0, Self::MOST);
    }
}

/// Requests have a priority each, and those below a threshold are refused. It moves once in [`Dagor::WINDOW`] ticks, or after
/// [`Dagor::MOST`] requests: where requests wait longer than 20 ms on average, so that a twentieth less is admitted than was, else so
/// that a hundredth of what came is admitted more (Zhou and others, "Overload Control for Scaling WeChat Microservices", `SoCC`
/// 2018).
///
/// **Deviation.** Priorities are drawn for each request, where the source hashes users and the kind of business.
struct Dagor {
    /// Arrivals of the window by priority, the first served first.
    arrived: [u64; Self::LEVELS],
    admitted: u64,
    /// Those above are refused.
    level: usize,
    waited: Nanos,
    begun: u64,
    ticks: u32,
}

impl Dagor {
    const LEVELS: usize = 128;
    const WINDOW: u32 = 10;
    const MOST: u64 = 2_000;
    const SLOW: Nanos = Nanos::from_millis(20);

    fn end_window(&mut self) {
        let is_overloaded = self.waited.0 > Self::SLOW.0 * self.begun;
        let all: u64 = self.arrived.iter().sum();
        let wanted = if is_overloaded { self.admitted * 19 / 20 } else { self.admitted + all.div_ceil(100) };
        let mut sum = 0;
        let mut fits = |count: u64| {
            sum += count;
            sum <= wanted
        };
        self.level = self.arrived.iter().take_while(|count| fits(**count)).count();
        *self = Self { level: self.level, ..Self::default() };
    }
}

impl Default for Dagor {
    fn default() -> Self {
        let arrived = [0; Self::LEVELS];
        Self { arrived, admitted: 0, level: Self::LEVELS, waited: Nanos::ZERO, begun: 0, ticks: 0 }
    }
}

impl Guard for Dagor {
    fn admits(&mut self, _query_type: u16, _now: Nanos, draw: f64) -> bool {
        let priority = (draw * Self::LEVELS as f64) as usize;
        self.arrived[priority] += 1;
        let admits = priority < self.level;
        self.admitted += u64::from(admits);
        if self.arrived.iter().sum::<u64>() >= Self::MOST {
            self.end_window();
        }
        admits
    }

    fn serves(&mut self, _now: Nanos, waited: Nanos, _behind: usize) -> bool {
        self.waited = self.waited.saturating_add(waited);
        self.begun += 1;
        true
    }

    fn tick(&mut self, _seen: &Seen, _now: Nanos) {
        self.ticks += 1;
        if self.ticks >= Self::WINDOW {
            self.end_window();
        }
    }
}

/// An admission policy of the Bouncer study.
struct OfStudy(Box<dyn Admission>);

impl OfStudy {
    fn request(query_type: u16) -> Request {
        Request { tier: Tier::Standard, query_type: QueryType(query_type) }
    }
}

impl Guard for OfStudy {
    fn admits(&mut self, query_type: u16, now: Nanos, draw: f64) -> bool {
        self.0.decide(Self::request(query_type), now, draw).admits()
    }

    fn enqueued(&mut self, query_type: u16) {
        self.0.enqueued(Self::request(query_type));
    }

    fn dequeued(&mut self, query_type: u16) {
        self.0.dequeued(Self::request(query_type));
    }

    fn completed(&mut self, query_type: u16, processing: Nanos, now: Nanos) {
        self.0.completed(Self::request(query_type), processing, now);
    }

    fn tick(&mut self, _seen: &Seen, now: Nanos) {
        self.0.refresh(now);
    }
}

/// gate's, for objectives of which the slowest begins with 10 ms.
const CODEL_TARGET: Nanos = Nanos::from_millis(10);
const CODEL_INTERVAL: Nanos = Nanos::from_millis(100);
