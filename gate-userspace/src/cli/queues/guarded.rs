//! Guarded services in `gate queues`: what their probe finds, and what answers say that were measured in passing.

use super::cells::{health, lasting, met_by, time};
use crate::admin::in_passing::{InPassing, Response};
use crate::admin::queues::Probed;
use crate::cli::print;
use crate::policy::Tier;

/// A guarded service in one line.
pub(super) fn probed(service: &Probed) -> String {
    let Probed { name, up, latency_ratio, p95_ms, failures, shedding, rungs, rungs_for_s, overrides } =
        service;
    let set = if overrides.is_empty() {
        String::new()
    } else {
        format!("; set since the start: {}", print::settings(overrides))
    };
    let p95 =
        p95_ms.map_or_else(String::new, |p95| format!(", probes answered within {} ms (p95)", time(p95)));
    let met = Tier::ALL.into_iter().zip(rungs.iter().zip(rungs_for_s)).filter(|(_, (rung, _))| **rung > 0);
    let met =
        met.map(|(tier, (&rung, &time))| format!(", {} {}{}", tier.name(), met_by(rung), lasting(time)));
    let met: String = met.collect();
    let state = if *up { "guarded" } else { "guarded, does not answer" };
    format!(
        "{name}: {state}, {}{met}{p95}, {} failed{set}",
        health(*latency_ratio, shedding.as_ref()),
        print::count(*failures)
    )
}

/// The measured answers of a guarded service in one line.
pub(super) fn in_passing(service: &InPassing) -> String {
    let InPassing { name, every, seen_percent, latency_ratio, response, classes, failed, .. } = service;
    let of =
        |Response { p50_ms, p95_ms }: &Response| format!("{} ms, p95 {} ms", time(*p50_ms), time(*p95_ms));
    let Some(every) = every else { return format!("{name}: no answers are measured in passing") };
    let seen = seen_percent.map_or_else(|| "none seen".to_owned(), |seen| format!("{seen:.1}% seen"));
    let asked = if *every == 1 { "all requests".to_owned() } else { format!("one request in {every}") };
    let times = match response {
        Some(response) => format!("p50 {}", of(response)),
        None => "too few to tell".to_owned(),
    };
    let by_class: Vec<_> = classes.iter().map(|(class, times)| format!("{class} {}", of(times))).collect();
    let by_class = if by_class.len() > 1 { format!(" ({})", by_class.join("; ")) } else { String::new() };
    let ratio = latency_ratio.map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
    let failed = print::count(*failed);
    format!(
        "{name}: answers in passing: {times}{by_class}, of {asked} ({seen}){ratio}, {failed} errors of the store"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn measured_answers_are_one_line() {
        let response = |p50_ms, p95_ms| Response { p50_ms, p95_ms };
        let service = InPassing {
            name: "cache".to_owned(),
            every: Some(8),
            seen_percent: Some(12.4),
            latency_ratio: Some(0.987),
            response: Some(response(0.1234, 20.6)),
            classes: [("get".into(), response(0.1, 0.2)), ("set".into(), response(1.0, 30.0))].into(),
            noted: 1_000,
            answered: 990,
            failed: 3,
        };
        assert_eq!(
            in_passing(&service),
            "cache: answers in passing: p50 0.1 ms, p95 21 ms (get 0.1 ms, p95 0.2 ms; set 1.0 ms, p95 30 ms), \
             of one request in 8 (12.4% seen), ratio 0.99, 3 errors of the store"
        );
        let idle = InPassing {
            every: Some(1),
            seen_percent: None,
            latency_ratio: None,
            response: None,
            classes: BTreeMap::new(),
            failed: 0,
            ..service.clone()
        };
        let expected =
            "cache: answers in passing: too few to tell, of all requests (none seen), 0 errors of the store";
        assert_eq!(in_passing(&idle), expected);
        assert_eq!(
            in_passing(&InPassing { every: None, ..service }),
            "cache: no answers are measured in passing"
        );
    }

    #[test]
    fn a_guarded_service_is_one_line() {
        let service = Probed {
            name: "cache".to_owned(),
            up: true,
            latency_ratio: Some(0.123),
            p95_ms: Some(20.6),
            failures: 3,
            shedding: Some("shedding".to_owned()),
            rungs: [0, 0, 2, 7],
            rungs_for_s: [None, None, Some(3.4), Some(130.0)],
            overrides: [("price.row".to_owned(), "2 RU".to_owned())].into(),
        };
        assert_eq!(
            probed(&service),
            "cache: guarded, latency ratio 0.12, shedding, batch x4 for 3 s, best-effort refused for 2 min 10 s, \
             probes answered within 21 ms (p95), 3 failed; \
             set since the start: price.row = \"2 RU\""
        );
        let rungs = [0; 4];
        let overrides = BTreeMap::new();
        let service = Probed {
            up: false,
            latency_ratio: None,
            p95_ms: None,
            shedding: None,
            rungs,
            rungs_for_s: [None; 4],
            overrides,
            ..service
        };
        assert_eq!(probed(&service), "cache: guarded, does not answer, latency ratio unknown, 3 failed");
    }
}
