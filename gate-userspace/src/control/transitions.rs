//! Changes of what a service sheds, in words for the log.

use gate_common::units::Nanos;

use super::board::ServiceReport;
use crate::policy::shedding::{Cause, Transition, Treatment};

/// A change of what `service` sheds in one sentence; `seen` is what was observed of the service in the same tick.
#[must_use]
pub fn in_words(service: &str, change: &Transition, seen: Option<&ServiceReport>) -> String {
    let tier = change.tier.name();
    let what = match (change.from, change.to) {
        (_, Treatment::Refused) => "is refused".to_owned(),
        (Treatment::Refused, Treatment::Dearer(doublings)) => {
            format!("is served again, at {} times its price", 1_u32 << doublings)
        }
        (_, Treatment::Dearer(doublings)) => format!("pays {} times its price", 1_u32 << doublings),
        (_, Treatment::Normal) => "is served as usual".to_owned(),
    };
    let why = match change.cause {
        Cause::RatioLow | Cause::RatioFalling | Cause::RatioStuck | Cause::Relapse => {
            seen.and_then(slowest).unwrap_or_else(|| "its queue stands".to_owned())
        }
        Cause::Probe => "to see if the store bears it".to_owned(),
        Cause::Calm => "the store is calm".to_owned(),
    };
    format!("{tier} of {service} {what}: {why}")
}

/// The latency of the query type that has grown most, beside its usual one; `None` if none has, so that its queue is the sign.
fn slowest(seen: &ServiceReport) -> Option<String> {
    let known = seen.types.iter().filter_map(|of_type| Some((of_type.latency_ratio?, of_type)));
    let (ratio, of_type) = known.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    if ratio >= 1.0 {
        return None;
    }
    let usual = of_type.p95_us as f64 * ratio;
    let of = if seen.types.len() > 1 { format!("{} ", of_type.name) } else { String::new() };
    Some(format!("{of}p95 {}, usually {}", millis(of_type.p95_us as f64), millis(usual)))
}

/// Milliseconds from microseconds: whole ones from 10 on.
fn millis(micros: f64) -> String {
    let millis = micros / 1e3;
    let time = Nanos::from_micros(micros as u64);
    match time {
        time if time >= Nanos::from_millis(10) => format!("{millis:.0} ms"),
        _ => format!("{millis:.1} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::board::TypeReport;
    use crate::policy::Tier;
    use crate::policy::shedding::Phase;

    fn of_type(name: &str, p95_us: u64, ratio: f64) -> TypeReport {
        TypeReport { name: name.to_owned(), latency_ratio: Some(ratio), p95_us }
    }

    #[test]
    fn a_change_says_who_is_treated_how_and_why() {
        let seen = ServiceReport { types: vec![of_type("get", 210_000, 0.181)], ..ServiceReport::default() };
        let two = vec![of_type("get", 9_000, 0.9), of_type("mget", 50_000, 0.5)];
        let two = ServiceReport { types: two, ..ServiceReport::default() };
        let idle = ServiceReport { types: vec![of_type("get", 1_000, 1.0)], ..ServiceReport::default() };
        use Treatment::{Dearer, Normal, Refused};
        for (from, to, cause, seen, expected) in [
            (Dearer(6), Refused, Cause::RatioLow, Some(&seen), "is refused: p95 210 ms, usually 38 ms"),
            (
                Normal,
                Dearer(1),
                Cause::RatioLow,
                Some(&two),
                "pays 2 times its price: mget p95 50 ms, usually 25 ms",
            ),
            (Dearer(1), Dearer(2), Cause::Relapse, Some(&idle), "pays 4 times its price: its queue stands"),
            (Dearer(1), Dearer(2), Cause::RatioStuck, None, "pays 4 times its price: its queue stands"),
            (
                Refused,
                Dearer(6),
                Cause::Probe,
                None,
                "is served again, at 64 times its price: to see if the store bears it",
            ),
            (Dearer(1), Normal, Cause::Calm, None, "is served as usual: the store is calm"),
        ] {
            let change = Transition { tier: Tier::BestEffort, from, to, phase: Phase::Shedding, cause };
            assert_eq!(in_words("slow", &change, seen), format!("best-effort of slow {expected}"));
        }
    }
}
