//! Counters of an owner. All only grow.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// A stream was ended because of what its gate said.
    Fault,
    /// A name was introduced that no rule fits.
    NameWithoutRule,
    /// A name was introduced for which there was no room.
    NameWithoutRoom,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Connected,
        Self::Report,
        Self::Repeated,
        Self::TurnedAway,
        Self::Fault,
        Self::NameWithoutRule,
        Self::NameWithoutRoom,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Report => "report",
            Self::Repeated => "repeated",
            Self::TurnedAway => "turned-away",
            Self::Fault => "fault",
            Self::NameWithoutRule => "name-without-rule",
            Self::NameWithoutRoom => "name-without-room",
        }
    }
}

/// How often each event happened.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; Event::ALL.len()]);

impl Counters {
    /// Counts one.
    pub fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it happened.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}
