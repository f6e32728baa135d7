//! Refusals: why a request is not passed on, whose fault that is, and when to try again.

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use crate::number;

/// A request that gate refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When it is worth another try; answered in milliseconds, rounded up.
    pub retry_after: Nanos,
    /// The store may have done what it was asked: the request was sent, and its answer is lost.
    pub uncertain: bool,
    /// The tenant's limit by what is asked that refuses it, if one does.
    pub limit: Option<&'static str>,
    /// The tenant whose quota refuses it, if one does.
    pub bucket: Option<&'static str>,
    /// The rule of the configuration that denies it, if one does.
    pub rule: Option<Rule>,
    /// The read that is too large, if that is why.
    pub read: Option<LargeRead>,
}

/// A read that is refused for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeRead {
    /// The rows that it would read.
    pub rows: u32,
    /// Its price.
    pub price: MilliRu,
}

/// A rule of the configuration that denies requests, however often they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `deny` or `deny_scripts` of the tenant: the command.
    Deny,
    /// `keys = "own"` of the tenant: a key of another one, or keys that nobody can tell.
    Keys,
    /// `backends` of the service: no store alone can answer.
    Backends,
    /// `cluster` of the service: its keys are in several slots.
    CrossSlot,
    /// `cluster` of the service: no node alone can answer.
    Cluster,
    /// `max_request` of the service: the length.
    Size,
    /// `max_rows` of the service: the rows that it would read.
    MaxRows,
    /// `burst` and `max_debt` of the tenant: a price that its bucket can never hold.
    Burst,
    /// `users` of tenants: the client has not logged in, or would become another tenant's inside a transaction.
    Users,
    /// `tenant_header` of the service: the field is missing.
    TenantHeader,
}

impl Rule {
    /// The word for clients.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Keys => "keys",
            Self::Backends => "backends",
            Self::CrossSlot => "crossslot",
            Self::Cluster => "cluster",
            Self::Size => "size",
            Self::MaxRows => "max_rows",
            Self::Burst => "burst",
            Self::Users => "users",
            Self::TenantHeader => "tenant_header",
        }
    }
}

/// The cause of a refusal, and whether the request ran: the first word of the client's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The tenant asks for more than it may.
    Throttled,
    /// The store has too much to do.
    Overloaded,
    /// The store is down, and was not asked.
    Unavailable,
    /// The store was asked, and its answer is lost.
    Uncertain,
    /// The request is not allowed, however often it is tried.
    Denied,
}

impl Blame {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Throttled, Self::Overloaded, Self::Unavailable, Self::Uncertain, Self::Denied];

    /// The word for memcached's clients.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Uncertain => "uncertain",
            Self::Denied => "denied",
        }
    }

    /// The word for Redis' clients.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Throttled => "THROTTLED",
            Self::Overloaded => "OVERLOADED",
            Self::Unavailable => "UNAVAILABLE",
            Self::Uncertain => "UNCERTAIN",
            Self::Denied => "DENIED",
        }
    }
}

impl Refusal {
    /// One whose reason alone says when to come again.
    #[must_use]
    pub const fn of(reason: Reason) -> Self {
        Self::after(reason, wait_for(reason))
    }

    /// One with a time at which it is worth another try.
    #[must_use]
    pub const fn after(reason: Reason, retry_after: Nanos) -> Self {
        Self { reason, retry_after, uncertain: false, limit: None, bucket: None, rule: None, read: None }
    }

    /// One that a rule of the configuration demands.
    #[must_use]
    pub const fn by(reason: Reason, rule: Rule) -> Self {
        Self { rule: Some(rule), ..Self::of(reason) }
    }

    /// That of a request whose answer is lost: it may have run.
    #[must_use]
    pub const fn uncertain() -> Self {
        Self { uncertain: true, ..Self::after(Reason::StoreDown, Nanos::ZERO) }
    }

    /// One of a read that is too large.
    #[must_use]
    pub const fn too_many_rows(read: LargeRead) -> Self {
        Self { read: Some(read), ..Self::by(Reason::TooLarge, Rule::MaxRows) }
    }

    /// The cause of the refusal.
    #[must_use]
    pub const fn blame(self) -> Blame {
        match self.reason {
            Reason::Quota
            | Reason::RejectedUntil
            | Reason::RejectionRate
            | Reason::Limit
            | Reason::HotKey => Blame::Throttled,
            Reason::Penalty | Reason::Slo | Reason::QueueDelay | Reason::QueueFull | Reason::Deadline => {
                Blame::Overloaded
            }
            Reason::StoreDown if self.uncertain => Blame::Uncertain,
            Reason::StoreDown => Blame::Unavailable,
            Reason::UnknownSource
            | Reason::TooLarge
            | Reason::Unsupported
            | Reason::Fragment
            | Reason::Malformed
            | Reason::SynRate
            | Reason::NoConnection => Blame::Denied,
        }
    }

    /// `retry_after_ms=<n> reason=<r>` at the end of `out`, with the name of the bucket, limit or rule that refuses it, and the read
    /// that is too large. The time is at
    /// least 1, and is left out where another try helps nothing, or the request may have run.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self.blame() {
            Blame::Uncertain | Blame::Denied => {}
            Blame::Throttled | Blame::Overloaded | Blame::Unavailable => {
                out.extend_from_slice(b"retry_after_ms=");
                number::write(self.retry_after.0.div_ceil(1_000_000).max(1), out);
                out.push(b' ');
            }
        }
        out.extend_from_slice(b"reason=");
        out.extend_from_slice(self.reason.name().as_bytes());
        let rule = self.rule.map(Rule::word);
        for (word, name) in [(&b" bucket="[..], self.bucket), (b" limit=", self.limit), (b" rule=", rule)] {
            if let Some(name) = name {
                out.extend_from_slice(word);
                out.extend_from_slice(name.as_bytes());
            }
        }
        if let Some(LargeRead { rows, price }) = self.read {
            out.extend_from_slice(b" rows=");
            number::write(rows.into(), out);
            out.extend_from_slice(b" price_ru=");
            number::write_thousandths(price.0.into(), out);
        }
    }
}

/// When another try is worth it, as far as the reason alone can tell.
const fn wait_for(reason: Reason) -> Nanos {
    match reason {
        // What is decided is decided at every tick, which is this long unless configured otherwise.
        Reason::RejectedUntil | Reason::RejectionRate | Reason::Penalty => Nanos::from_millis(100),
        // The shortest pause after which a store that has failed is tried again.
        Reason::StoreDown => Nanos::from_millis(20),
        // As long as a few requests take.
        Reason::Quota
        | Reason::Limit
        | Reason::HotKey
        | Reason::Slo
        | Reason::QueueDelay
        | Reason::QueueFull
        | Reason::Deadline => Nanos::from_millis(10),
        // Another try helps nothing.
        Reason::UnknownSource
        | Reason::TooLarge
        | Reason::Unsupported
        | Reason::Fragment
        | Reason::Malformed
        | Reason::SynRate
        | Reason::NoConnection => Nanos::ZERO,
    }
}
