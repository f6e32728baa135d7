//! Records of the tracing variant of the XDP program: one for each step of the packets of one source.
//!
//! Its maps are not pinned and belong to the process that loaded it, so they are not part of what one version of gate leaves to
//! another.

use core::mem::size_of;

/// A step of a packet on its way from its headers to its exit. The comments say what [`TraceRecord::values`] holds; what is not
/// named is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// The headers up to UDP's or TCP's were found. The transport's number; 1 for IPv6; 0 for a whole packet, 1 for a first
    /// fragment, 2 for a later one, 3 for too many headers; the offset of the transport header.
    Headers = 0,
    /// The headers lie outside the frame's linear part, and are read again.
    ReadAgain = 1,
    /// The destination port was looked up. The port; 1 if a service listens at it.
    Port = 2,
    /// The payload was found. Its offset; its length; TCP's flags; 0 if it is whole, 1 in a first fragment, 2 if malformed.
    Payload = 3,
    /// The service was found. Its slot; the generation.
    Service = 4,
    /// The tenant was found. Its index, zero for nobody.
    Tenant = 5,
    /// The request was priced. 0 by its length, 1 as a single get, 2 by its commands; the price in thousandths of a request
    /// unit; the same with multipliers; 1 if the heartbeat is stale.
    Price = 6,
    /// Refusals that the daemon pushed were looked at. Zero, or the refusal's reason plus one.
    Pushed = 7,
    /// The connection of a segment was looked at. 0 if it is open or cannot be known, 1 if it is closed, 2 if there is none.
    Connection = 8,
    /// A bucket was charged. A [`TracedBucket`] in the lowest eight bits, a [`TracedCharge`] above; then, in nanoseconds of the
    /// bucket's rate: what it lacks to be full after that, the charge, and the burst.
    Bucket = 9,
    /// The request is refused. The reason; 1 if only counted; the number of the [`super::OtherBucket`] or any higher one.
    Refusal = 10,
    /// The refusal was to be answered. A [`TracedReply`].
    Reply = 11,
    /// A datagram that was charged was marked for the daemon.
    Mark = 12,
    /// The packet's exit. An [`super::Exit`]; the XDP action.
    Exit = 13,
}

impl Step {
    /// Every step, in the order of its number.
    pub const ALL: [Self; 14] = [
        Self::Headers,
        Self::ReadAgain,
        Self::Port,
        Self::Payload,
        Self::Service,
        Self::Tenant,
        Self::Price,
        Self::Pushed,
        Self::Connection,
        Self::Bucket,
        Self::Refusal,
        Self::Reply,
        Self::Mark,
        Self::Exit,
    ];

    /// Its name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::ReadAgain => "read-again",
            Self::Port => "port",
            Self::Payload => "payload",
            Self::Service => "service",
            Self::Tenant => "tenant",
            Self::Price => "price",
            Self::Pushed => "pushed",
            Self::Connection => "connection",
            Self::Bucket => "bucket",
            Self::Refusal => "refusal",
            Self::Reply => "reply",
            Self::Mark => "mark",
            Self::Exit => "exit",
        }
    }
}

/// The buckets that a packet may be charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TracedBucket {
    /// The tenant's quota.
    Quota = 0,
    /// The quota of the first of [`super::TenantState::parents`].
    FirstParent = 1,
    /// That of the second.
    SecondParent = 2,
    /// The candidate quota, which only counts.
    Candidate = 3,
    /// Bytes over TCP to a proxied service.
    Tcp = 4,
    /// Bytes of replies.
    Reply = 5,
    /// Connection attempts of the tenant.
    Syn = 6,
    /// Connection attempts of unknown sources.
    UnknownSyn = 7,
    /// A hot key.
    Key = 8,
}

impl TracedBucket {
    /// Every bucket, in the order of its number.
    pub const ALL: [Self; 9] = [
        Self::Quota,
        Self::FirstParent,
        Self::SecondParent,
        Self::Candidate,
        Self::Tcp,
        Self::Reply,
        Self::Syn,
        Self::UnknownSyn,
        Self::Key,
    ];
}

/// The results of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TracedCharge {
    /// The bucket was charged.
    Charged = 0,
    /// The bucket lacks the price.
    Lacks = 1,
    /// The bucket can never hold the price.
    TooLarge = 2,
    /// The price was given back.
    GivenBack = 3,
}

impl TracedCharge {
    /// Every result, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Charged, Self::Lacks, Self::TooLarge, Self::GivenBack];
}

/// The answers to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TracedReply {
    /// The packet holds the answer.
    Written = 0,
    /// The tenant or the packet's source gets none.
    NotAllowed = 1,
    /// The tenant's budget for replies is spent.
    NoBudget = 2,
    /// The driver left no room for it.
    NoRoom = 3,
}

impl TracedReply {
    /// Every result, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Written, Self::NotAllowed, Self::NoBudget, Self::NoRoom];
}

/// One step of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TraceRecord {
    /// When, on `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The packet's number, from one.
    pub packet: u64,
    /// The packet's source; IPv4 as `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// A [`Step`].
    pub step: u64,
    /// See [`Step`].
    pub values: [u64; 4],
}

const _: () = assert!(size_of::<TraceRecord>() == 72);

/// The sources that are traced, and a count of what was not for want of room. One element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tracing {
    /// A source is traced if these of its bits ...
    pub mask: [u64; 2],
    /// ... are the same as these, in memory order; IPv4 as `::ffff:a.b.c.d`.
    pub network: [u64; 2],
    /// The number of the packet that was traced last.
    pub packets: u64,
    /// The second of `CLOCK_MONOTONIC` that [`Tracing::in_second`] is for.
    pub second: u64,
    /// Packets of the source in that second.
    pub in_second: u64,
    /// Packets that were not traced: there were more than [`Tracing::PACKETS_PER_SEC`].
    pub skipped: u64,
    /// Steps that were lost: nobody has read those before in time.
    pub lost: u64,
}

impl Tracing {
    /// The most packets that are traced in a second: what a person may still read, and a daemon does not notice.
    pub const PACKETS_PER_SEC: u64 = 100;
}

const _: () = assert!(size_of::<Tracing>() == 72);

/// The names of the maps of the tracing variant.
pub mod trace_maps {
    /// [`super::TraceRecord`]s, a ring buffer.
    pub const TRACES: &str = "TRACES";
    /// One [`super::Tracing`].
    pub const TRACING: &str = "TRACING";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions_in_the_lists() {
        assert!(Step::ALL.iter().enumerate().all(|(place, &step)| step as usize == place));
        assert!(TracedBucket::ALL.iter().enumerate().all(|(place, &bucket)| bucket as usize == place));
        assert!(TracedCharge::ALL.iter().enumerate().all(|(place, &charge)| charge as usize == place));
        assert!(TracedReply::ALL.iter().enumerate().all(|(place, &reply)| reply as usize == place));
    }
}
