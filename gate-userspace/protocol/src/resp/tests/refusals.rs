//! Refusals: words, times and rules as Redis' clients read them.

use crate::resp::*;

#[test]
fn refusals_read_as_documented() {
    use crate::{LargeRead, Refusal, Rule};
    use gate_common::abi::Reason;
    use gate_common::units::{MilliRu, Nanos};
    for (refusal, text) in [
        (Refusal::after(Reason::Quota, Nanos(1_000_001)), "-THROTTLED retry_after_ms=2 reason=quota\r\n"),
        (Refusal::after(Reason::Limit, Nanos::ZERO), "-THROTTLED retry_after_ms=1 reason=limit\r\n"),
        (Refusal::after(Reason::QueueFull, Nanos(1)), "-OVERLOADED retry_after_ms=1 reason=queue-full\r\n"),
        (Refusal::after(Reason::StoreDown, Nanos(1)), "-UNAVAILABLE retry_after_ms=1 reason=store-down\r\n"),
        (Refusal::uncertain(), "-UNCERTAIN reason=store-down\r\n"),
        (Refusal::of(Reason::Unsupported), "-DENIED reason=unsupported\r\n"),
        (Refusal::by(Reason::Unsupported, Rule::Deny), "-DENIED reason=unsupported rule=deny\r\n"),
        (
            Refusal::too_many_rows(LargeRead { rows: 200_000, price: MilliRu(100_000_500) }),
            "-DENIED reason=too-large rule=max_rows rows=200000 price_ru=100000.5\r\n",
        ),
        (
            Refusal::by(Reason::UnknownSource, Rule::Users),
            "-NOAUTH Authentication required. reason=unknown-source rule=users\r\n",
        ),
    ] {
        let mut out = Vec::new();
        refuse(refusal, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), text);
    }
}

#[test]
fn commands_in_place_of_denied_ones_are_whole_requests() {
    use crate::Rule;
    let rules = [Rule::Deny, Rule::Keys, Rule::Size, Rule::MaxRows, Rule::Burst].map(Some);
    for rule in std::iter::once(None).chain(rules) {
        let bytes = unknown_command(rule);
        let mut decoder = Decoder::new(Limits::default());
        let Step::Request { request, len } = decoder.next(bytes) else { panic!("{rule:?}") };
        assert_eq!((len, request.args), (bytes.len(), 1), "{rule:?}");
    }
}

#[test]
fn every_reason_has_its_blame_and_its_retry_time() {
    use crate::{Blame, Refusal};
    use gate_common::abi::Reason;
    for reason in Reason::ALL {
        let refusal = Refusal::of(reason);
        let blame = match reason.name() {
            "quota" | "rejected-until" | "rejection-rate" | "limit" | "hot-key" => Blame::Throttled,
            "penalty" | "slo" | "queue-delay" | "queue-full" | "deadline" => Blame::Overloaded,
            "store-down" => Blame::Unavailable,
            _ => Blame::Denied,
        };
        assert_eq!(refusal.blame(), blame, "{}", reason.name());
        assert_eq!(refusal.retry_after.0 > 0, blame != Blame::Denied, "{}", reason.name());
    }
}
