//! The counters of the server that Envoys ask.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request that may pass.
    Ok,
    /// A request that a limit refuses.
    OverLimit,
    /// A descriptor that a named limit would refuse, if gate were not in shadow mode.
    Shadowed,
    /// A request or a report that breaks a rule, and was answered with an error.
    Invalid,
    /// A descriptor of a named limit.
    Named,
    /// A descriptor of a tenant.
    Tenant,
    /// A descriptor that nothing limits.
    Unknown,
    /// A descriptor whose values were too long for a name, and were hashed.
    Hashed,
    /// A usage report of one bucket.
    Report,
    /// An assignment that was sent.
    Assignment,
    /// A bucket that was abandoned.
    Abandoned,
    /// A bucket that was one too many for its stream.
    BucketRefused,
    /// A stream that was one too many.
    StreamRefused,
    /// A stream that was ended since nobody reads its assignments.
    Unread,
    /// A stream that was ended since nothing was reported.
    Idle,
    /// A connection that was closed since it did not begin as HTTP/2.
    Silent,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Ok,
        Self::OverLimit,
        Self::Shadowed,
        Self::Invalid,
        Self::Named,
        Self::Tenant,
        Self::Unknown,
        Self::Hashed,
        Self::Report,
        Self::Assignment,
        Self::Abandoned,
        Self::BucketRefused,
        Self::StreamRefused,
        Self::Unread,
        Self::Idle,
        Self::Silent,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over-limit",
            Self::Shadowed => "shadowed",
            Self::Invalid => "invalid",
            Self::Named => "named",
            Self::Tenant => "tenant",
            Self::Unknown => "unknown",
            Self::Hashed => "hashed",
            Self::Report => "report",
            Self::Assignment => "assignment",
            Self::Abandoned => "abandoned",
            Self::BucketRefused => "bucket-refused",
            Self::StreamRefused => "stream-refused",
            Self::Unread => "unread",
            Self::Idle => "idle",
            Self::Silent => "silent",
        }
    }
}

/// Counters of all events, and the connections and streams that are open.
#[derive(Debug, Default)]
pub struct Counters {
    events: [AtomicU64; Event::ALL.len()],
    /// Open connections.
    pub(super) connections: AtomicU64,
    /// Open streams of usage reports.
    pub(super) streams: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often something has happened.
    #[must_use]
    pub fn of(&self, event: Event) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Open streams of usage reports.
    #[must_use]
    pub fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }
}
