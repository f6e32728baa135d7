//! The guarded services whose answers are measured in passing, as they are shown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::board::ServiceReport;
use crate::control::in_passing::InPassingReport;
use crate::protocol::price_class::PriceClass;

/// A guarded service whose answers are measured as they leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InPassing {
    /// Its name.
    pub name: String,
    /// One request in so many is noted, so that its answer is measured; nothing while none is.
    pub every: Option<u32>,
    /// The share of its requests over UDP whose answers were measured in the last second.
    pub seen_percent: Option<f64>,
    /// Their own latency ratio; the lower of it and the probe's counts. Nothing while nothing can be said.
    pub latency_ratio: Option<f64>,
    /// The recent response time; nothing while there are too few.
    pub response: Option<Response>,
    /// The same by price class, where there are enough.
    pub classes: BTreeMap<Cow<'static, str>, Response>,
    /// Requests that were noted.
    pub noted: u64,
    /// Answers that were measured.
    pub answered: u64,
    /// Measured answers that were errors of the store.
    pub failed: u64,
}

/// A response time from the interface to the interface, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// The median.
    pub p50_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
}

impl InPassing {
    /// That of a service; `None` if it is not measured in passing.
    #[must_use]
    pub fn of(report: &ServiceReport) -> Option<Self> {
        let InPassingReport { every, seen, p50_us, p95_us, latency_ratio, counts, classes } =
            report.in_passing.as_ref()?;
        let of_class =
            |(name, times): (&'static str, &Option<_>)| Some((name.into(), Response::of((*times)?)));
        Some(Self {
            name: report.name.clone(),
            every: *every,
            seen_percent: seen.map(|share| share * 100.0),
            latency_ratio: *latency_ratio,
            response: p50_us.zip(*p95_us).map(|(p50, p95)| Response::of([p50, p95])),
            classes: PriceClass::OF_MEMCACHED.into_iter().zip(classes).filter_map(of_class).collect(),
            noted: counts.noted,
            answered: counts.answered,
            failed: counts.failed,
        })
    }
}

impl InPassing {
    /// For whoever asks about one request.
    #[must_use]
    pub fn in_words(&self) -> String {
        let seen = self.seen_percent.map_or_else(|| "none".to_owned(), |seen| format!("{seen:.1}%"));
        match self.response {
            Some(Response { p50_ms, p95_ms }) => format!(
                "answers are measured in passing: lately p50 {p50_ms:.2} ms and p95 {p95_ms:.2} ms, {seen} of the requests seen"
            ),
            None => format!("too few answers were measured in passing lately: {seen} of the requests seen"),
        }
    }
}

impl Response {
    fn of([p50_us, p95_us]: [u64; 2]) -> Self {
        Self { p50_ms: p50_us as f64 / 1e3, p95_ms: p95_us as f64 / 1e3 }
    }
}
