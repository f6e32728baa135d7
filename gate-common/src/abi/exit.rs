//! The ways of a packet through the XDP program: its exit, and the events before that.

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
    /// Dropped: a segment with data that belongs to no connection, of a tenant that has spent half of what it may spend at once.
    NoConnection = 19,
}

impl Exit {
    /// Every exit, in the order of its number.
    pub const ALL: [Self; 20] = [
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
        Self::NoConnection,
    ];

    /// Its index in [`super::Cpu::exits`].
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
            Self::NoConnection => "no-connection",
        }
    }
}

/// The events on a packet's way, beside its exit.
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
    /// A segment that is priced by its lines was priced by its length: it could not be read whole.
    UpperBound = 7,
    /// The heartbeat was stale: pushed refusals were not applied.
    Stale = 8,
    /// A charged datagram could not be marked: the driver has no room for metadata.
    NoMetadata = 9,
    /// A refusal was sampled.
    RefusalSampled = 10,
    /// A refusal was not sampled: half of the ring buffer is taken, and the rest is for what passes.
    RefusalSampleLost = 11,
    /// A SYN beyond its rate passed: the kernel answers with a cookie where a listening socket's queue is full.
    SynBeyondRate = 12,
    /// A request or its answer was not measured: another CPU was at its slot, or half of the ring buffer is taken.
    MeasurementLost = 13,
}

impl Event {
    /// How many [`super::Cpu`] has room for.
    pub const COUNT: usize = 14;

    /// Every event, in the order of its number.
    pub const ALL: [Self; 14] = [
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
        Self::RefusalSampled,
        Self::RefusalSampleLost,
        Self::SynBeyondRate,
        Self::MeasurementLost,
    ];

    /// Its index in [`super::Cpu::events`].
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
            Self::RefusalSampled => "refusal-sampled",
            Self::RefusalSampleLost => "refusal-sample-lost",
            Self::SynBeyondRate => "syn-beyond-rate",
            Self::MeasurementLost => "measurement-lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions_in_the_lists() {
        assert!(Exit::ALL.iter().enumerate().all(|(place, exit)| exit.index() == place));
        assert!(Event::ALL.iter().enumerate().all(|(place, event)| event.index() == place));
    }
}
