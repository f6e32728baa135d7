//! Counters: per tenant in rows of [`CounterLine`]s, and per CPU.
//!
//! **Rows.** Row 0 is shared: every CPU without a row of its own counts there, atomically, and so do threads of a gate that
//! is draining. Then come [`Control::cpu_rows`](super::Control::cpu_rows) rows for CPUs, which the daemon gives to those that
//! are online, and a row for each of the dispatcher's threads. A row holds a line for each tenant, which its owner alone
//! writes. What is rarely counted is in [`RareCounters`], of which several rows share one, atomically.
//!
//! **Touched.** Each row has a bit for each tenant, which whoever counts in a line sets after counting, if it is not set.
//! The daemon clears the bits before it reads, once a tick. Whoever finds a bit set that is just being cleared may have a
//! count in its store buffer that the daemon does not see yet, so the daemon reads every line once more at the tick after.

use core::mem::{offset_of, size_of};

use super::{Event, OtherBucket, Reason};

/// The frequent counters of one tenant in one row, in one cache line. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CounterLine {
    /// See [`TenantCounters::passed`].
    pub passed: u64,
    /// See [`TenantCounters::charged_mru`].
    pub charged_mru: u64,
    /// See [`TenantCounters::passed_bytes`].
    pub passed_bytes: u64,
    /// Refusals for the usual [reasons](CounterLine::reasons).
    pub refused: [u64; 2],
    /// See [`TenantCounters::refused_mru`].
    pub refused_mru: u64,
    /// See [`TenantCounters::segments`].
    pub segments: u64,
    /// In the shared row and those of CPUs [`TenantCounters::bare`]; in those of threads, which see no bare packets,
    /// [`TenantCounters::asked_mru`].
    pub bare_or_asked: u64,
}

const _: () = assert!(size_of::<CounterLine>() == 64);

impl CounterLine {
    /// The reasons whose refusals a line counts: those of a flood of nobody's packets, or of a tenant's.
    #[must_use]
    #[inline(always)]
    pub const fn reasons(tenant: u32) -> [Reason; 2] {
        if tenant == 0 {
            [Reason::UnknownSource, Reason::SynRate]
        } else {
            [Reason::Quota, Reason::RejectedUntil]
        }
    }

    /// The place in [`CounterLine::refused`] of a reason for which a tenant was refused; `None` if it is a rare one.
    #[must_use]
    #[inline(always)]
    pub const fn place(tenant: u32, reason: Reason) -> Option<usize> {
        let [first, second] = Self::reasons(tenant);
        if reason as u8 == first as u8 {
            Some(0)
        } else if reason as u8 == second as u8 {
            Some(1)
        } else {
            None
        }
    }
}

/// The rare counters of one tenant. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RareCounters {
    /// Requests refused, by [`Reason`], but for those that a [`CounterLine`] counts.
    pub refused: [u64; Reason::COUNT],
    /// See [`TenantCounters::shadowed`].
    pub shadowed: [u64; Reason::COUNT],
    /// See [`TenantCounters::candidate_refused`].
    pub candidate_refused: u64,
    /// The part of [`TenantCounters::asked_mru`] that threads count that share a row.
    pub asked_mru: u64,
    /// See [`TenantCounters::replied`].
    pub replied: u64,
    /// See [`TenantCounters::quota_refused`].
    pub quota_refused: [u64; OtherBucket::COUNT],
}

const _: () = assert!(size_of::<RareCounters>() == 8 * (6 + 2 * Reason::COUNT));

impl RareCounters {
    /// How many rows of them there are at most.
    pub const MOST_ROWS: u32 = 4;
    /// The word of the first of [`RareCounters::refused`].
    pub const REFUSED: u32 = offset_of!(Self, refused) as u32 / 8;
    /// The word of the first of [`RareCounters::shadowed`].
    pub const SHADOWED: u32 = offset_of!(Self, shadowed) as u32 / 8;
    /// The word of [`RareCounters::candidate_refused`].
    pub const CANDIDATE_REFUSED: u32 = offset_of!(Self, candidate_refused) as u32 / 8;
    /// The word of the first of [`RareCounters::quota_refused`].
    pub const QUOTA_REFUSED: u32 = offset_of!(Self, quota_refused) as u32 / 8;
    /// The word of [`RareCounters::replied`].
    pub const REPLIED: u32 = offset_of!(Self, replied) as u32 / 8;
}

/// The words that hold a row's bits for `tenants`: whole cache lines, so that no two rows share one.
#[must_use]
pub const fn touched_words(tenants: u32) -> u32 {
    tenants.div_ceil(512) * 8
}

/// All counters of one tenant. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounters {
    /// Requests passed: datagrams, and requests that the daemon serves.
    pub passed: u64,
    /// TCP segments with payload passed, those to proxied services included; the daemon counts the requests in these.
    pub segments: u64,
    /// The charge of passed requests and segments, in thousandths of a request unit.
    pub charged_mru: u64,
    /// The price of refused requests, in thousandths of a request unit.
    pub refused_mru: u64,
    /// Refusals that were answered.
    pub replied: u64,
    /// Requests that the candidate quota would have refused.
    pub candidate_refused: u64,
    /// Packets that carry no request (bare ACK, FIN, RST, SYN), passed.
    pub bare: u64,
    /// Bytes of passed packets, from the Ethernet header on.
    pub passed_bytes: u64,
    /// The price of all requests to proxied services over established connections from the tenant's own sources, refused
    /// or not, without multipliers, in thousandths of a request unit. Only the daemon counts this.
    pub asked_mru: u64,
    /// Requests and TCP packets refused, by [`Reason`].
    pub refused: [u64; Reason::COUNT],
    /// The part of `refused` for [`Reason::Quota`] that another bucket than the tenant's own lacked, by [`OtherBucket`].
    pub quota_refused: [u64; OtherBucket::COUNT],
    /// Those that a shadowed rule would have refused, by [`Reason`]. They are among `passed` or, over TCP, among `segments`.
    pub shadowed: [u64; Reason::COUNT],
}

impl TenantCounters {
    /// Adds what a line of the shared row or of a CPU's holds; `tenant` is whose it is.
    pub const fn add_line(&mut self, tenant: u32, line: &CounterLine) {
        self.passed = self.passed.wrapping_add(line.passed);
        self.charged_mru = self.charged_mru.wrapping_add(line.charged_mru);
        self.passed_bytes = self.passed_bytes.wrapping_add(line.passed_bytes);
        let [first, second] = CounterLine::reasons(tenant);
        self.refused[first.index()] = self.refused[first.index()].wrapping_add(line.refused[0]);
        self.refused[second.index()] = self.refused[second.index()].wrapping_add(line.refused[1]);
        self.refused_mru = self.refused_mru.wrapping_add(line.refused_mru);
        self.segments = self.segments.wrapping_add(line.segments);
        self.bare = self.bare.wrapping_add(line.bare_or_asked);
    }

    /// Adds what a line of a thread's row holds.
    pub const fn add_thread_line(&mut self, tenant: u32, line: &CounterLine) {
        self.asked_mru = self.asked_mru.wrapping_add(line.bare_or_asked);
        self.add_line(tenant, &CounterLine { bare_or_asked: 0, ..*line });
    }

    /// Adds what is seldom counted.
    pub fn add_rare(&mut self, rare: &RareCounters) {
        add_each(&mut self.refused, &rare.refused);
        add_each(&mut self.shadowed, &rare.shadowed);
        add_each(&mut self.quota_refused, &rare.quota_refused);
        self.candidate_refused = self.candidate_refused.wrapping_add(rare.candidate_refused);
        self.asked_mru = self.asked_mru.wrapping_add(rare.asked_mru);
        self.replied = self.replied.wrapping_add(rare.replied);
    }

    /// How much more these are than they were.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            passed: self.passed.wrapping_sub(before.passed),
            segments: self.segments.wrapping_sub(before.segments),
            charged_mru: self.charged_mru.wrapping_sub(before.charged_mru),
            refused_mru: self.refused_mru.wrapping_sub(before.refused_mru),
            replied: self.replied.wrapping_sub(before.replied),
            candidate_refused: self.candidate_refused.wrapping_sub(before.candidate_refused),
            bare: self.bare.wrapping_sub(before.bare),
            passed_bytes: self.passed_bytes.wrapping_sub(before.passed_bytes),
            asked_mru: self.asked_mru.wrapping_sub(before.asked_mru),
            refused: each_since(&self.refused, &before.refused),
            quota_refused: each_since(&self.quota_refused, &before.quota_refused),
            shadowed: each_since(&self.shadowed, &before.shadowed),
        }
    }

    /// The same as a line of the shared row, and what that has no room for.
    #[must_use]
    pub const fn split(&self, tenant: u32) -> (CounterLine, RareCounters) {
        let [first, second] = CounterLine::reasons(tenant);
        let line = CounterLine {
            passed: self.passed,
            charged_mru: self.charged_mru,
            passed_bytes: self.passed_bytes,
            refused: [self.refused[first.index()], self.refused[second.index()]],
            refused_mru: self.refused_mru,
            segments: self.segments,
            bare_or_asked: self.bare,
        };
        let mut refused = self.refused;
        refused[first.index()] = 0;
        refused[second.index()] = 0;
        let rare = RareCounters {
            refused,
            shadowed: self.shadowed,
            candidate_refused: self.candidate_refused,
            asked_mru: self.asked_mru,
            replied: self.replied,
            quota_refused: self.quota_refused,
        };
        (line, rare)
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        let Self {
            passed,
            segments,
            charged_mru,
            refused_mru,
            replied,
            candidate_refused,
            bare,
            passed_bytes,
            asked_mru,
            refused,
            quota_refused,
            shadowed,
        } = self;
        *passed = passed.wrapping_add(other.passed);
        *segments = segments.wrapping_add(other.segments);
        *charged_mru = charged_mru.wrapping_add(other.charged_mru);
        *refused_mru = refused_mru.wrapping_add(other.refused_mru);
        *replied = replied.wrapping_add(other.replied);
        *candidate_refused = candidate_refused.wrapping_add(other.candidate_refused);
        *bare = bare.wrapping_add(other.bare);
        *passed_bytes = passed_bytes.wrapping_add(other.passed_bytes);
        *asked_mru = asked_mru.wrapping_add(other.asked_mru);
        add_each(refused, &other.refused);
        add_each(quota_refused, &other.quota_refused);
        add_each(shadowed, &other.shadowed);
    }

    /// Requests refused for [`Reason::Quota`] by the tenant's own bucket.
    #[must_use]
    pub fn refused_by_own_quota(&self) -> u64 {
        // Read one after the other, while both may grow.
        let others = self.quota_refused.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
        self.refused[Reason::Quota.index()].saturating_sub(others)
    }

    /// Requests refused, for whatever reason.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

fn each_since<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u64; N] {
    let mut more = *now;
    more.iter_mut().zip(before).for_each(|(more, before)| *more = more.wrapping_sub(*before));
    more
}

fn add_each<const N: usize>(sum: &mut [u64; N], other: &[u64; N]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum = sum.wrapping_add(*other);
    }
}

/// One CPU's own counters and scratch, and where it counts for tenants. All counters only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Cpu {
    /// Packets, by [`super::Exit`].
    pub exits: [u64; EXITS],
    /// The events on the way, by [`Event`].
    pub events: [u64; Event::COUNT],
    /// State of the generator of draws ([`super::draw::next`]); zero before the first.
    pub draw: u64,
    /// Requests until the next sample, that one included; zero before the first.
    pub until_sample: u64,
    /// Where its row of [`super::maps::COUNTERS`] begins; zero if it has none of its own, and counts in the shared row.
    pub first_line: u32,
    /// Where its row's bits in [`super::maps::TOUCHED`] begin.
    pub first_touched: u32,
    /// Where its row of [`super::maps::RARE_COUNTERS`] begins.
    pub first_rare: u32,
    /// Spelled out.
    pub _reserved: u32,
    /// Refusals until the next sample of one, that one included; zero before the first.
    pub until_refusal: u64,
    /// Spelled out: the next CPU starts a cache line.
    pub _reserved_end: [u32; 10],
}

const _: () = assert!(size_of::<Cpu>() == 448);
const _: () = assert!(offset_of!(Cpu, first_line).is_multiple_of(8));
const _: () = assert!(offset_of!(Cpu, first_touched) == offset_of!(Cpu, first_line) + 4);

impl Cpu {
    /// Nothing counted yet, and no row of its own.
    pub const EMPTY: Self = Self {
        exits: [0; EXITS],
        events: [0; Event::COUNT],
        draw: 0,
        until_sample: 0,
        first_line: 0,
        first_touched: 0,
        first_rare: 0,
        _reserved: 0,
        until_refusal: 0,
        _reserved_end: [0; 10],
    };

    /// Adds another CPU's counters.
    pub fn add(&mut self, other: &Self) {
        add_each(&mut self.exits, &other.exits);
        add_each(&mut self.events, &other.events);
    }
}

/// How many ways out of the program [`Cpu`] has room for.
pub const EXITS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_split_into_a_line_and_the_rest_add_up_again() {
        let numbers: [u64; Reason::COUNT] = core::array::from_fn(|place| place as u64 + 20);
        let counters = TenantCounters {
            passed: 1,
            segments: 9,
            charged_mru: 2,
            refused_mru: 3,
            replied: 4,
            candidate_refused: 5,
            bare: 6,
            passed_bytes: 7,
            asked_mru: 8,
            refused: numbers,
            quota_refused: [10, 11, 12],
            shadowed: numbers.map(|number| number + 100),
        };
        for tenant in [0, 1] {
            let (line, rare) = counters.split(tenant);
            assert!(CounterLine::reasons(tenant).iter().all(|reason| rare.refused[reason.index()] == 0));
            let mut sum = TenantCounters::default();
            sum.add_line(tenant, &line);
            sum.add_rare(&rare);
            assert_eq!(sum, counters, "of tenant {tenant}");
            assert_eq!(sum.since(&counters), TenantCounters::default());
        }
    }

    #[test]
    fn rows_of_bits_have_cache_lines_of_their_own() {
        for (tenants, words) in [(1, 8), (512, 8), (513, 16), (20_002, 320)] {
            assert_eq!(touched_words(tenants), words, "{tenants} tenants");
        }
    }
}
