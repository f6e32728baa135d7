//! How a refusal is answered over HTTP.

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use crate::{Blame, Refusal, Rule};

/// The status of a refusal; `overload` is that of the store's own excess.
#[must_use]
pub const fn status(refusal: Refusal, overload: u16) -> u16 {
    match refusal.blame() {
        Blame::Throttled => 429,
        Blame::Overloaded | Blame::Unavailable => overload,
        Blame::Uncertain => 502,
        Blame::Denied => match refusal.rule {
            Some(Rule::TenantHeader | Rule::Users) => 401,
            // The request is not too long, but too dear for its tenant.
            Some(Rule::Burst) => 429,
            Some(Rule::Size | Rule::MaxRows) => 413,
            Some(Rule::Deny | Rule::Keys | Rule::Backends | Rule::CrossSlot | Rule::Cluster) => 403,
            None => match refusal.reason {
                Reason::TooLarge => 413,
                Reason::Malformed => 400,
                Reason::Quota
                | Reason::RejectedUntil
                | Reason::RejectionRate
                | Reason::Penalty
                | Reason::Limit
                | Reason::Slo
                | Reason::QueueDelay
                | Reason::QueueFull
                | Reason::Deadline
                | Reason::HotKey
                | Reason::StoreDown
                | Reason::UnknownSource
                | Reason::Unsupported
                | Reason::Fragment
                | Reason::SynRate
                | Reason::NoConnection => 403,
            },
        },
    }
}

/// The status of a refusal to a client of gRPC: `RESOURCE_EXHAUSTED` (8) for the tenant's excess and what is too long,
/// `UNAVAILABLE` (14) for the store's, else as gRPC names the status over HTTP.
#[must_use]
pub const fn grpc_status(refusal: Refusal, status: u16) -> u8 {
    match (refusal.blame(), status) {
        (Blame::Throttled, _) | (Blame::Denied, 413 | 429) => 8,
        (Blame::Overloaded | Blame::Unavailable | Blame::Uncertain, _) => 14,
        (Blame::Denied, 401) => 16,
        (Blame::Denied, 403) => 7,
        (Blame::Denied, 408) => 4,
        (Blame::Denied, 417) => 12,
        (Blame::Denied, _) => 13,
    }
}

/// When the request is worth another try; `None` where that helps nothing, or could do it twice.
#[must_use]
pub fn retry_after(refusal: Refusal) -> Option<RetryAfter> {
    let may_help = !matches!(refusal.blame(), Blame::Uncertain | Blame::Denied);
    may_help.then(|| RetryAfter::of(refusal.retry_after))
}

/// A time to wait, as the two fields have it: rounded up, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// `Retry-After`, in seconds.
    pub seconds: u64,
    /// `Gate-Retry-After-Ms`.
    pub millis: u64,
}

impl RetryAfter {
    fn of(wait: Nanos) -> Self {
        Self { seconds: wait.0.div_ceil(1_000_000_000).max(1), millis: wait.0.div_ceil(1_000_000).max(1) }
    }
}

/// The text of a refusal for people, a line: the words that clients of the other protocols get, and the name of the field that is
/// missing.
#[must_use]
pub fn text(refusal: Refusal, field: Option<&str>) -> Vec<u8> {
    let mut text = refusal.blame().word().as_bytes().to_vec();
    text.push(b' ');
    refusal.write(&mut text);
    if let Some(field) = field {
        text.extend_from_slice(b" field=");
        text.extend_from_slice(field.as_bytes());
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_tells_tenant_store_and_request_apart() {
        for reason in Reason::ALL {
            let expected = match reason {
                Reason::Quota
                | Reason::RejectedUntil
                | Reason::RejectionRate
                | Reason::Limit
                | Reason::HotKey => 429,
                Reason::Penalty
                | Reason::Slo
                | Reason::QueueDelay
                | Reason::QueueFull
                | Reason::Deadline
                | Reason::StoreDown => 529,
                Reason::TooLarge => 413,
                Reason::Malformed => 400,
                Reason::UnknownSource
                | Reason::Unsupported
                | Reason::Fragment
                | Reason::SynRate
                | Reason::NoConnection => 403,
            };
            let refusal = Refusal::of(reason);
            assert_eq!(status(refusal, 529), expected, "{}", reason.name());
            assert_eq!(retry_after(refusal).is_some(), matches!(expected, 429 | 529), "{}", reason.name());
        }
        for (reason, rule, expected) in [
            (Reason::TooLarge, Rule::Size, 413),
            (Reason::TooLarge, Rule::Burst, 429),
            (Reason::UnknownSource, Rule::TenantHeader, 401),
            (Reason::Unsupported, Rule::Keys, 403),
        ] {
            let refusal = Refusal::by(reason, rule);
            assert_eq!((status(refusal, 503), retry_after(refusal)), (expected, None), "{}", rule.word());
        }
        assert_eq!((status(Refusal::uncertain(), 503), retry_after(Refusal::uncertain())), (502, None));
    }

    #[test]
    fn clients_of_grpc_are_told_tenant_and_store_apart() {
        for reason in Reason::ALL {
            let refusal = Refusal::of(reason);
            let expected = match status(refusal, 529) {
                429 | 413 => 8,
                529 => 14,
                400 => 13,
                _ => 7,
            };
            // The status of the store's own excess says nothing of whose it is.
            assert_eq!(grpc_status(refusal, status(refusal, 529)), expected, "{}", reason.name());
            assert_eq!(grpc_status(refusal, status(refusal, 429)), expected, "{}", reason.name());
        }
        assert_eq!(grpc_status(Refusal::uncertain(), 504), 14);
        let unnamed = Refusal::by(Reason::UnknownSource, Rule::TenantHeader);
        assert_eq!(grpc_status(unnamed, 401), 16);
    }

    #[test]
    fn waits_are_rounded_up_and_never_nothing() {
        for (wait, seconds, millis) in [(0, 1, 1), (1, 1, 1), (10_000_000, 1, 10), (1_500_000_001, 2, 1_501)]
        {
            let after = retry_after(Refusal::after(Reason::Quota, Nanos(wait)));
            assert_eq!(after, Some(RetryAfter { seconds, millis }));
        }
        assert_eq!(
            text(Refusal::after(Reason::Quota, Nanos(1)), None),
            b"throttled retry_after_ms=1 reason=quota\n"
        );
        let missing = Refusal::by(Reason::UnknownSource, Rule::TenantHeader);
        assert_eq!(
            text(missing, Some("x-api-key")),
            b"denied reason=unknown-source rule=tenant_header field=x-api-key\n"
        );
    }
}
