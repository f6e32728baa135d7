//! Numbers, times and states as `gate queues` writes them.

use crate::admin::percentiles::Percentiles;
use crate::cli::print;
use crate::cli::table::Cell;

/// A number, or a dash if there is none.
pub(super) fn or_dash(number: Option<f64>, print: impl FnOnce(f64) -> String) -> Cell {
    Cell { text: number.map_or_else(|| "-".to_owned(), print), number }
}

/// Milliseconds with as many digits as mean something.
pub(super) fn time(ms: f64) -> String {
    match ms {
        0.0 => "0".to_owned(),
        ..0.095 => format!("{ms:.3}"),
        ..9.5 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

/// Times at p50, p90 and p99, sorted by the last; a dash if there are none.
pub(super) fn times(times: Option<Percentiles>) -> Cell {
    let shown = |Percentiles { p50, p90, p99, .. }| format!("{}/{}/{}", time(p50), time(p90), time(p99));
    Cell { text: times.map_or_else(|| "-".to_owned(), shown), number: times.map(|times| times.p99) }
}

/// The latency ratio of a store, and where its shedding stands.
pub(super) fn health(ratio: Option<f64>, shedding: Option<&String>) -> String {
    let ratio = ratio.map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.2}"));
    let shedding = shedding.map_or_else(String::new, |phase| format!(", {phase}"));
    format!("latency ratio {ratio}{shedding}")
}

/// How long something has been so, if that is known.
pub(super) fn lasting(for_s: Option<f64>) -> String {
    for_s.map_or_else(String::new, |for_s| format!(" for {}", print::age(for_s)))
}

/// The price or the refusal that a tier meets on a rung.
pub(super) fn met_by(rung: u32) -> String {
    match rung {
        REFUSED.. => "refused".to_owned(),
        rung => format!("x{}", 1 << rung),
    }
}

/// The rung at which a tier is refused.
pub(super) const REFUSED: u32 = gate_common::abi::Shed::REFUSED;
