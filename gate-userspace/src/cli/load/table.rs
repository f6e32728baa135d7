//! Results of `gate load` as tables.

use comfy_table::{CellAlignment, Table, presets};

use crate::load::compare::{Comparison, Ratios};
use crate::load::counters::RequestSummary;
use crate::load::{Quantiles, Summary, TenantSummary};

/// One row for each tenant, and below it one for each kind of request of its mix.
pub(super) fn summary(summary: &Summary) -> String {
    let mut table = new([
        "tenant", "offered", "sent", "answered", "refused", "failed", "lost", "unsent", "p50", "p90", "p99",
        "p99.9", "max", "lag p99",
    ]);
    for tenant in &summary.tenants {
        table.add_row(tenant_row(tenant));
        for request in &tenant.requests {
            table.add_row(request_row(request));
        }
    }
    finish(table)
}

fn tenant_row(tenant: &TenantSummary) -> Vec<String> {
    let reasons: Vec<_> =
        tenant.refused_by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let refused = if reasons.is_empty() {
        "0".to_owned()
    } else {
        format!("{} ({})", tenant.refused, reasons.join(", "))
    };
    let mut row = vec![
        tenant.name.clone(),
        tenant.offered.to_string(),
        tenant.sent.to_string(),
        tenant.answered.to_string(),
        refused,
        tenant.failed.to_string(),
        tenant.lost.to_string(),
        tenant.unsent.to_string(),
    ];
    row.extend(times(tenant.answered, &tenant.latency_ns));
    row.push(micros(tenant.lag_ns.p99));
    row
}

fn request_row(request: &RequestSummary) -> Vec<String> {
    let mut row = vec![
        format!("  {}", request.name),
        request.offered.to_string(),
        String::new(),
        request.answered.to_string(),
        request.refused.to_string(),
        request.failed.to_string(),
        String::new(),
        String::new(),
    ];
    row.extend(times(request.answered, &request.latency_ns));
    row.push(String::new());
    row
}

/// Both targets' rows, and their ratios.
pub(super) fn comparison(compared: &Comparison) -> String {
    let mut table =
        new(["tenant", "target", "offered", "answered", "refused", "failed", "p50", "p90", "p99"]);
    let tenants = compared.first.tenants.iter().zip(&compared.second.tenants).zip(&compared.ratios);
    for ((first, second), ratios) in tenants {
        table.add_row(target_row(&compared.first.target, first));
        table.add_row(target_row(&compared.second.target, second));
        table.add_row(ratio_row(ratios));
    }
    finish(table)
}

fn target_row(target: &str, tenant: &TenantSummary) -> Vec<String> {
    let failed = tenant.failed + tenant.lost + tenant.unsent;
    let counts = [tenant.offered, tenant.answered, tenant.refused, failed];
    let mut row = vec![tenant.name.clone(), target.to_owned()];
    row.extend(counts.map(|count| count.to_string()));
    row.extend(times(tenant.answered, &tenant.latency_ns).into_iter().take(3));
    row
}

fn ratio_row(ratios: &Ratios) -> Vec<String> {
    let shown = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("x{ratio:.2}"));
    let [answered, refused] = [ratios.answered, ratios.refused].map(shown);
    let mut row = vec![
        ratios.name.clone(),
        "second / first".to_owned(),
        String::new(),
        answered,
        refused,
        String::new(),
    ];
    row.extend([ratios.p50, ratios.p90, ratios.p99].map(shown));
    row
}

fn new<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Numbers are on the right.
fn finish(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn times(answered: u64, times: &Quantiles) -> [String; 5] {
    let time = |ns: u64| if answered == 0 { "-".to_owned() } else { micros(ns) };
    [times.p50, times.p90, times.p99, times.p999, times.max].map(time)
}

/// As people read it: 870µs, 1.2ms.
fn micros(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{}µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.2}s", ns as f64 / 1e9),
    }
}
