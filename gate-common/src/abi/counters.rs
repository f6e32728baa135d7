//! What XDP counts: per tenant and CPU, and per CPU.

use core::mem::size_of;

use super::Reason;

/// What one CPU did with one tenant's packets. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TenantCounters {
    /// Requests passed: datagrams, and TCP segments with payload.
    pub passed: u64,
    /// What passed requests were charged, in thousandths of a request unit.
    pub charged_mru: u64,
    /// What refused requests would have been charged, in thousandths of a request unit.
    pub refused_mru: u64,
    /// Refusals that were answered.
    pub replied: u64,
    /// Requests that the candidate quota would have refused.
    pub candidate_refused: u64,
    /// Packets that carry no request (bare ACK, FIN, RST, SYN), passed.
    pub bare: u64,
    /// Bytes of passed packets, from the Ethernet header on.
    pub passed_bytes: u64,
    /// What was asked of proxied services over established connections from the tenant's own sources, refused or
    /// not, at ordinary prices, in thousandths of a request unit. Only the daemon counts this.
    pub asked_mru: u64,
    /// Requests refused, by [`Reason`].
    pub refused: [u64; Reason::COUNT],
    /// Requests that a shadowed rule would have refused, by [`Reason`]. They are among `passed`.
    pub shadowed: [u64; Reason::COUNT],
}

const _: () = assert!(size_of::<TenantCounters>() == 8 * (8 + 2 * Reason::COUNT));

impl TenantCounters {
    /// Adds another CPU's.
    pub fn add(&mut self, other: &Self) {
        let Self {
            passed,
            charged_mru,
            refused_mru,
            replied,
            candidate_refused,
            bare,
            passed_bytes,
            asked_mru,
            refused,
            shadowed,
        } = self;
        *passed = passed.wrapping_add(other.passed);
        *charged_mru = charged_mru.wrapping_add(other.charged_mru);
        *refused_mru = refused_mru.wrapping_add(other.refused_mru);
        *replied = replied.wrapping_add(other.replied);
        *candidate_refused = candidate_refused.wrapping_add(other.candidate_refused);
        *bare = bare.wrapping_add(other.bare);
        *passed_bytes = passed_bytes.wrapping_add(other.passed_bytes);
        *asked_mru = asked_mru.wrapping_add(other.asked_mru);
        add_each(refused, &other.refused);
        add_each(shadowed, &other.shadowed);
    }

    /// Requests refused, for whatever reason.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

fn add_each<const N: usize>(sum: &mut [u64; N], other: &[u64; N]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum = sum.wrapping_add(*other);
    }
}

/// One CPU's own counters and scratch. All counters only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Cpu {
    /// Packets, by [`Exit`].
    pub exits: [u64; EXITS],
    /// What happened on the way, by [`Event`].
    pub events: [u64; Event::COUNT],
    /// State of the generator of draws ([`super::draw::next`]); zero before the first.
    pub draw: u64,
    /// Requests until the next sample, that one included; zero before the first.
    pub until_sample: u64,
}

const _: () = assert!(size_of::<Cpu>() == 8 * (EXITS + Event::COUNT + 2));

impl Cpu {
    /// Nothing counted yet.
    pub const EMPTY: Self = Self { exits: [0; EXITS], events: [0; Event::COUNT], draw: 0, until_sample: 0 };

    /// Adds another CPU's counters.
    pub fn add(&mut self, other: &Self) {
        add_each(&mut self.exits, &other.exits);
        add_each(&mut self.events, &other.events);
    }
}

/// How many ways out of the program [`Cpu`] has room for.
pub const EXITS: usize = 32;

/// The ways out of the XDP program: each packet leaves by exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Passed: neither IPv4 nor IPv6.
    NotIp = 0,
    /// Passed: neither UDP nor TCP.
    NotTransport = 1,
    /// Passed: no protected service listens there.
    NotOurs = 2,
    /// Passed: the daemon has not written its first plan.
    NotReady = 3,
    /// Passed: a later fragment, which shows no ports; a first one that the daemon judges when it is whole; or any, where
    /// configured so.
    Fragment = 4,
    /// Passed: the headers before the ports are cut off or contradict each other. The stack drops it.
    BadHeader = 5,
    /// Dropped: it is for a protected service, but its transport header or its request is malformed.
    Malformed = 6,
    /// Dropped: for a protected service, of a source that no rule names.
    UnknownSource = 7,
    /// Passed: TCP of a source that no rule names, where that is let through.
    UnknownPassed = 8,
    /// Passed: within its limits.
    Passed = 9,
    /// Passed: it would have been refused, but only shadowed rules say so.
    Shadowed = 10,
    /// Passed: a TCP segment without payload.
    Bare = 11,
    /// Refused and dropped.
    RefusedDropped = 12,
    /// Refused and answered.
    RefusedReplied = 13,
    /// Passed: the heartbeat is stale, and configured so.
    StalePassed = 14,
    /// Passed: an element that should be there is not.
    Missing = 15,
    /// Dropped: a first fragment too short to show its ports, for an address that a service listens at; or any for such
    /// an address, where configured so.
    FragmentDropped = 16,
    /// Dropped: more extension headers than are followed, for an address that a service listens at; or more VLAN tags.
    TooManyHeaders = 17,
    /// Dropped: one connection attempt more than its source may make.
    SynRate = 18,
}

impl Exit {
    /// Every exit, in the order of its number.
    pub const ALL: [Self; 19] = [
        Self::NotIp,
        Self::NotTransport,
        Self::NotOurs,
        Self::NotReady,
        Self::Fragment,
        Self::BadHeader,
        Self::Malformed,
        Self::UnknownSource,
        Self::UnknownPassed,
        Self::Passed,
        Self::Shadowed,
        Self::Bare,
        Self::RefusedDropped,
        Self::RefusedReplied,
        Self::StalePassed,
        Self::Missing,
        Self::FragmentDropped,
        Self::TooManyHeaders,
        Self::SynRate,
    ];

    /// Its index in [`Cpu::exits`].
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotIp => "not-ip",
            Self::NotTransport => "not-transport",
            Self::NotOurs => "not-ours",
            Self::NotReady => "not-ready",
            Self::Fragment => "fragment",
            Self::BadHeader => "bad-header",
            Self::Malformed => "malformed",
            Self::UnknownSource => "unknown-source",
            Self::UnknownPassed => "unknown-passed",
            Self::Passed => "passed",
            Self::Shadowed => "shadowed",
            Self::Bare => "bare",
            Self::RefusedDropped => "refused-dropped",
            Self::RefusedReplied => "refused-replied",
            Self::StalePassed => "stale-passed",
            Self::Missing => "missing",
            Self::FragmentDropped => "fragment-dropped",
            Self::TooManyHeaders => "too-many-headers",
            Self::SynRate => "syn-rate",
        }
    }
}

/// What happens on a packet's way, beside how it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Event {
    /// A key was sampled.
    Sampled = 0,
    /// A key was not sampled: the ring buffer is full.
    SampleLost = 1,
    /// A bucket was contended beyond the attempts allowed: refused.
    Contended = 2,
    /// The generation changed while state was copied: copied again.
    Retried = 3,
    /// The generation changed at every attempt: judged by the bank in force last.
    Torn = 4,
    /// A refusal went unanswered: the tenant's reply budget is spent.
    ReplyBudget = 5,
    /// A refusal went unanswered: the driver left no room for it to grow, or did not let the rest of the request be cut off.
    NoRoom = 6,
    /// A request was priced by its length: it could not be read whole.
    UpperBound = 7,
    /// The heartbeat was stale: pushed refusals were not applied.
    Stale = 8,
    /// A charged datagram could not be marked: the driver has no room for metadata.
    NoMetadata = 9,
}

impl Event {
    /// How many [`Cpu`] has room for.
    pub const COUNT: usize = 14;

    /// Every event, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Sampled,
        Self::SampleLost,
        Self::Contended,
        Self::Retried,
        Self::Torn,
        Self::ReplyBudget,
        Self::NoRoom,
        Self::UpperBound,
        Self::Stale,
        Self::NoMetadata,
    ];

    /// Its index in [`Cpu::events`].
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sampled => "sampled",
            Self::SampleLost => "sample-lost",
            Self::Contended => "contended",
            Self::Retried => "retried",
            Self::Torn => "torn",
            Self::ReplyBudget => "reply-budget",
            Self::NoRoom => "no-room",
            Self::UpperBound => "upper-bound",
            Self::Stale => "stale",
            Self::NoMetadata => "no-metadata",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_lists() {
        assert!(Exit::ALL.iter().enumerate().all(|(place, exit)| exit.index() == place));
        assert!(Event::ALL.iter().enumerate().all(|(place, event)| event.index() == place));
    }
}
