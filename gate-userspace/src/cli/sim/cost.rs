//! `gate sim cost`: a limit on requests beside a limit on request units.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use gate_common::units::Nanos;

use crate::sim::cost::{Caller, Report, Setup};
use crate::sim::plot::{Chart, Series, Stroke};

/// Two callers send equally many requests a second; one reads a single row each time, the other many. What each sees
/// under limits on requests, and under a limit in RU.
///
/// Example: gate sim cost --rows 1000 --per-sec 2000
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Requests a second of each caller.
    #[arg(long, default_value_t = Setup::default().per_sec)]
    per_sec: u32,
    /// Rows that the second caller reads with each request.
    #[arg(long, default_value_t = Setup::default().rows)]
    rows: u32,
    /// How many requests the store works on at once.
    #[arg(long, default_value_t = Setup::default().workers)]
    workers: u32,
    /// How long is simulated.
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = super::super::duration)]
    lasts: Nanos,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: an array of limits.
    #[arg(long)]
    json: bool,
    /// Draw the small reads' p99 against the rows of a large one, under each kind of limit.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { per_sec, rows, workers, lasts, seed, .. } = args;
    let setup = Setup { per_sec, rows, workers, lasts, seed };
    if let Err(error) = setup.check() {
        return Ok(super::impossible(&error));
    }
    let reports = super::with_progress(setup.work(), |progress| setup.run(progress))?;
    if let Some(path) = &args.plot {
        super::write_plot(path, &title(&setup), &[chart(&setup)?])?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        println!("{}\n\n{}", title(&setup), table(&reports));
    }
    Ok(ExitCode::SUCCESS)
}

fn title(setup: &Setup) -> String {
    let Setup { per_sec, rows, workers, seed, .. } = setup;
    format!("two callers, {per_sec} requests/s each, of 1 row and of {rows}; {workers} workers, seed {seed}")
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let of = |caller: &str| ["refused %", "p50 ms", "p99 ms"].map(|name| format!("{caller}: {name}"));
    let header = ["limit of each caller".to_owned()].into_iter().chain(of("small")).chain(of("large"));
    table.set_header(header.chain(["store busy %".to_owned()]));
    for report in reports {
        let mut row = vec![report.limit.clone()];
        row.extend(cells(&report.small_reads).into_iter().chain(cells(&report.large_reads)));
        row.push(format!("{:.1}", report.utilization_percent));
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn cells(caller: &Caller) -> [String; 3] {
    let ms = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    let refused = caller.p50_ms.map_or("-".to_owned(), |_| format!("{:.1}", caller.refused_percent));
    [refused, ms(caller.p50_ms), ms(caller.p99_ms)]
}

/// The same run for large reads of ten times as many rows from one to the next.
fn chart(setup: &Setup) -> anyhow::Result<Chart> {
    let mut lines: [Vec<(f64, f64)>; 4] = Default::default();
    let mut rows = 1;
    while rows <= setup.rows {
        let reports = Setup { rows, ..*setup }.run(&Default::default())?;
        let shown = [&reports[0], &reports[2], &reports[3], &reports[4]];
        for (line, report) in lines.iter_mut().zip(shown) {
            line.push((f64::from(rows), report.small_reads.p99_ms.unwrap_or(f64::NAN).log10()));
        }
        rows *= 10;
    }
    let labels = ["alone", "requests, wide", "requests, narrow", "RU"];
    let series = labels.into_iter().zip(lines).map(|(label, points)| Series {
        label: label.to_owned(),
        points,
        stroke: if label == "alone" { Stroke::Reference } else { Stroke::Dots },
    });
    Ok(Chart {
        title: "p99 of reads of one row".into(),
        x_label: "rows of a large read".into(),
        y_label: "log10 of ms".into(),
        log_x: true,
        series: series.collect(),
    })
}
