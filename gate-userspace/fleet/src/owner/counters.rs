//! Counters of an owner. All only grow.

use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::units::Nanos;

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A stream of a gate began.
    Connected,
    /// A report was charged.
    Report,
    /// A report came again, and was not charged again.
    Repeated,
    /// A peer was turned away: of another version, without a name that its certificate is for, or of the name of a gate that is
    /// connected.
    TurnedAway,
    /// A report was not decided: the lease was not known to be alive, or the gate knew of a newer revision.
    Undecided,
    /// A stream was ended because of what its gate said.
    Fault,
    /// A name was introduced that no rule fits.
    NameWithoutRule,
    /// A name was introduced for which there was no room.
    NameWithoutRoom,
    /// A connection was closed: its peer spoke plain text to an owner with a certificate, or TLS to one without, or showed none
    /// that is trusted, or did not trust the owner's.
    TlsFailed,
    /// A connection was closed on which no gate began to report in time.
    Silent,
    /// A connection was closed on which no gate reported, in favour of a new one.
    GaveWay,
    /// A connection was closed at once: there were as many as there may be.
    NoRoom,
    /// A connection was closed since its gate did not read what it was answered.
    Unread,
    /// A connection could not be accepted.
    CannotAccept,
    /// An account was reset by an operator.
    Reset,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Connected,
        Self::Report,
        Self::Repeated,
        Self::TurnedAway,
        Self::Undecided,
        Self::Fault,
        Self::NameWithoutRule,
        Self::NameWithoutRoom,
        Self::TlsFailed,
        Self::Silent,
        Self::GaveWay,
        Self::NoRoom,
        Self::Unread,
        Self::CannotAccept,
        Self::Reset,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Report => "report",
            Self::Repeated => "repeated",
            Self::TurnedAway => "turned-away",
            Self::Undecided => "undecided",
            Self::Fault => "fault",
            Self::NameWithoutRule => "name-without-rule",
            Self::NameWithoutRoom => "name-without-room",
            Self::TlsFailed => "tls-failed",
            Self::Silent => "silent",
            Self::GaveWay => "gave-way",
            Self::NoRoom => "no-room",
            Self::Unread => "unread",
            Self::CannotAccept => "cannot-accept",
            Self::Reset => "reset",
        }
    }
}

/// How often each event happened, and when it was last logged.
#[derive(Debug, Default)]
pub struct Counters([Counter; Event::ALL.len()]);

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    /// In nanoseconds; 0 if it never was.
    logged: AtomicU64,
}

impl Counters {
    /// Counts one.
    pub fn count(&self, event: Event) {
        self.0[event as usize].count.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it happened.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize].count.load(Ordering::Relaxed)
    }

    /// Counts one. True if it is to be logged: at most once in [`LOG_EVERY`], so that no peer fills a disk.
    pub(super) fn is_due(&self, event: Event, now: Nanos) -> bool {
        self.count(event);
        let logged = &self.0[event as usize].logged;
        let before = logged.load(Ordering::Relaxed);
        let is_due = before == 0 || now.saturating_sub(Nanos(before)) >= LOG_EVERY;
        is_due && logged.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

const LOG_EVERY: Nanos = Nanos::from_secs(1);
