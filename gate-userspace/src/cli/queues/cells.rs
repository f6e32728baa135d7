//! Numbers and times in the tables of `gate queues`.

use crate::admin::percentiles::Percentiles;
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
    let shown = |Percentiles { p50, p90, p99 }| format!("{}/{}/{}", time(p50), time(p90), time(p99));
    Cell { text: times.map_or_else(|| "-".to_owned(), shown), number: times.map(|times| times.p99) }
}
