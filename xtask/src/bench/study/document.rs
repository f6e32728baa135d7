//! The parts of docs/STUDY.md that a run writes, one for each store.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::bench::machine::Machine;
use crate::study::{PARALLELISM, RATES, Row, Study};

/// The figures of one store: its types, a table for each of the published figures, the claims, and the plot.
pub(super) fn part(
    machine: &Machine,
    study: &Study,
    each: Duration,
    rows: &[Row],
    plot: &str,
    verdicts: &[String],
) -> String {
    let Machine { date, kernel, cpus, load, .. } = machine;
    let [p50, p90] = study.objective_ms;
    let mut text = format!(
        "{}\n\nMeasured on {date} on {}: {cpus} processors, Linux {kernel}, a load of {load:.1} before the run. `cargo xtask bench study \
         --store {} --each {}`{}: each policy at each rate for {} s, after 8 s unmeasured.\n\n\
         The capacity is {:.0} requests a second, {PARALLELISM} at the store at once; the objective of every type is {p50} ms at p50 and \
         {p90} ms at p90.\n\n{}",
        study.about(),
        machine.state(),
        study.name,
        each.as_millis(),
        Machine::build(),
        each.as_secs_f64(),
        study.capacity,
        types(study),
    );
    let dearest = study.dearest;
    let tables: [(String, Cell); 3] = [
        ("Refused, in all and of the dearest type".to_owned(), refused),
        (format!("Response time of `{dearest}` for its client, p50 and p90, in ms"), response),
        (
            format!("`{dearest}` from its admission to its answer, and of that at the store, p50, in ms"),
            at_gate,
        ),
    ];
    for (title, cell) in tables {
        let _ = write!(text, "\n{title}:\n\n{}", table(study, rows, cell));
    }
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    let offered: u64 = rows.iter().map(|row| row.offered).sum();
    let _ = write!(text, "\nOf {offered} requests {failed} were neither answered nor refused.\n\n");
    verdicts.iter().for_each(|verdict| text += &format!("- {verdict}\n"));
    text + &format!("\n![Refusals and response times against the rate, a line for each policy]({plot})\n")
}

/// A cell of a table, of what one policy did at one rate.
type Cell = fn(&Row) -> String;

fn types(study: &Study) -> String {
    let mut text = "| type | share | mean time, ms |\n|---|---|---|\n".to_owned();
    let weights: u32 = study.types.iter().map(|of| of.weight).sum();
    for (of, micros) in study.types.iter().zip(&study.mean_us) {
        let share = 100.0 * f64::from(of.weight) / f64::from(weights);
        let _ = writeln!(text, "| `{}` | {share:.2} % | {:.3} |", of.name, micros / 1e3);
    }
    text
}

/// A row for each policy, a column for each rate.
fn table(study: &Study, rows: &[Row], cell: Cell) -> String {
    let rates: String = RATES.iter().map(|rate| format!(" {rate} |")).collect();
    let mut text = format!("| policy |{rates}\n|---|{}\n", "---|".repeat(RATES.len()));
    for policy in &study.policies {
        let cells: String = RATES
            .iter()
            .map(|rate| {
                let found = rows.iter().find(|row| row.policy == policy.name && row.rate == *rate);
                format!(" {} |", found.map_or_else(|| "not measured".to_owned(), cell))
            })
            .collect();
        let _ = writeln!(text, "| {} |{cells}", policy.name);
    }
    text
}

fn refused(row: &Row) -> String {
    format!("{:.1} %, {:.1} %", 100.0 * row.refused, 100.0 * row.dearest_refused)
}

fn response(row: &Row) -> String {
    let [p50, p90] = row.dearest_response_ms;
    format!("{p50:.1}, {p90:.1}")
}

fn at_gate(row: &Row) -> String {
    format!("{:.1}, {:.1}", row.dearest_at_gate_ms, row.dearest_processing_ms)
}

/// The document with another part of this name.
///
/// # Errors
///
/// If it has none.
pub(super) fn with_part(text: &str, name: &str, part: &str) -> Result<String> {
    let begin = format!("<!-- begin: {name} -->\n");
    let end = format!("<!-- end: {name} -->");
    let (before, rest) = text.split_once(&begin).with_context(|| format!("there is no {begin:?}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("there is no {end:?}"))?;
    Ok(format!("{before}{begin}\n{part}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::embedded;

    #[test]
    fn a_part_takes_the_place_of_the_one_before_it() {
        let text = "a\n<!-- begin: x -->\nold\n<!-- end: x -->\n<!-- begin: y -->\n<!-- end: y -->\n";
        let once = with_part(text, "x", "new").unwrap();
        assert_eq!(
            once,
            "a\n<!-- begin: x -->\n\nnew\n<!-- end: x -->\n<!-- begin: y -->\n<!-- end: y -->\n"
        );
        assert_eq!(with_part(&once, "x", "new").unwrap(), once);
        assert!(with_part(text, "z", "new").is_err());
    }

    #[test]
    fn the_document_has_a_part_for_each_store() {
        let text = include_str!("../../../../docs/STUDY.md");
        assert!(["embedded", "redis"].iter().all(|name| with_part(text, name, "").is_ok()));
    }

    #[test]
    fn each_policy_has_a_row_and_each_rate_a_column() {
        let study = embedded::study();
        let row = |policy: &'static str, rate: f64| Row {
            store: study.name,
            policy,
            rate,
            offered: 10,
            failed: 1,
            refused: 0.25,
            dearest_refused: 0.5,
            dearest_response_ms: [1.0, 2.0],
            dearest_processing_ms: 0.5,
            dearest_at_gate_ms: 0.75,
        };
        let table = table(&study, &[row("bouncer", 0.7), row("max-queue-wait", 1.5)], refused);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 2 + study.policies.len());
        assert!(lines[2].starts_with("| bouncer | 25.0 %, 50.0 % | not measured |"), "{table}");
        assert!(lines.iter().all(|line| line.matches('|').count() == RATES.len() + 2), "{table}");
    }
}
