//! Why a request was refused: a closed list.

/// Why a request was refused or dropped. The number is its index in the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The tenant's token bucket does not hold its price.
    Quota = 0,
    /// The tenant is in debt, and told to stay away until a point in time.
    RejectedUntil = 1,
    /// The share of requests that the rejection-rate algorithm refuses.
    RejectionRate = 2,
    /// The tenant's tier is being shed, or its multiplier makes the request dearer than its buckets ever admit.
    Penalty = 3,
    /// A hard limit of gate's own.
    Limit = 4,
    /// The request would miss its latency objective.
    Slo = 5,
    /// The request waited too long in the queue.
    QueueDelay = 6,
    /// The queue is full.
    QueueFull = 7,
    /// Its deadline has passed.
    Deadline = 8,
    /// A hot key's own limit.
    HotKey = 9,
    /// The store does not answer.
    StoreDown = 10,
    /// No rule names its source.
    UnknownSource = 11,
    /// The request would leave more debt than the bucket allows.
    TooLarge = 12,
    /// A command that gate, or the tenant's rules, do not let through.
    Unsupported = 13,
    /// A fragment, where fragments are not let through.
    Fragment = 14,
    /// The request does not follow its protocol.
    Malformed = 15,
    /// More connection attempts a second than its source may make.
    SynRate = 16,
    /// The segment belongs to no connection, and its tenant has spent half of what it may spend at once.
    NoConnection = 17,
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = 18;

    /// Every reason, in the order of its number.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Quota,
        Self::RejectedUntil,
        Self::RejectionRate,
        Self::Penalty,
        Self::Limit,
        Self::Slo,
        Self::QueueDelay,
        Self::QueueFull,
        Self::Deadline,
        Self::HotKey,
        Self::StoreDown,
        Self::UnknownSource,
        Self::TooLarge,
        Self::Unsupported,
        Self::Fragment,
        Self::Malformed,
        Self::SynRate,
        Self::NoConnection,
    ];

    /// Its index in the counters.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in replies, output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::RejectedUntil => "rejected-until",
            Self::RejectionRate => "rejection-rate",
            Self::Penalty => "penalty",
            Self::Limit => "limit",
            Self::Slo => "slo",
            Self::QueueDelay => "queue-delay",
            Self::QueueFull => "queue-full",
            Self::Deadline => "deadline",
            Self::HotKey => "hot-key",
            Self::StoreDown => "store-down",
            Self::UnknownSource => "unknown-source",
            Self::TooLarge => "too-large",
            Self::Unsupported => "unsupported",
            Self::Fragment => "fragment",
            Self::Malformed => "malformed",
            Self::SynRate => "syn-rate",
            Self::NoConnection => "no-connection",
        }
    }
}

/// The buckets beside a tenant's own that a refusal for [`Reason::Quota`] may lack. The number is its index in the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OtherBucket {
    /// That of the first of [`super::TenantState::parents`].
    FirstParent = 0,
    /// That of the second.
    SecondParent = 1,
    /// That of a limit by what is asked, which only the daemon knows.
    Limit = 2,
}

impl OtherBucket {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// Its index in the counters.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn numbers_are_positions_in_the_list() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), place, "{}", reason.name());
        }
    }
}
