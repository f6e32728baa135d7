//! `gate sim goodput`: overloads without objectives.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{CellAlignment, Table, presets};
use gate_common::units::Nanos;

use crate::sim::goodput::{Discipline, Report, Setup};
use crate::sim::plot::{Chart, Series, Stroke};
use crate::sim::scenario::Scenario;

/// Compare what a store does for clients that still wait, in an overload that is dropped, refused or reordered in several ways, where
/// nobody has said how long a response may take.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How the overload is met; several with commas. [default: all]
    #[arg(long, value_delimiter = ',', value_parser = discipline_parser())]
    discipline: Vec<Discipline>,
    /// Offered load in the overload, times what the store can do; several with commas.
    #[arg(long, value_delimiter = ',', default_value = "1.1,1.5,2,4")]
    load: Vec<f64>,
    /// How long a client waits for its answer, in milliseconds.
    #[arg(long, default_value_t = 200)]
    patience_ms: u64,
    /// How long the overload lasts, and the lulls before and after it, in seconds.
    #[arg(long, default_value_t = 60)]
    part_s: u64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Types, mix and processes in TOML, as for `gate sim bouncer`. [default: the Bouncer study's]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print JSON: an array of reports.
    #[arg(long)]
    json: bool,
    /// Draw goodput and response times against the load.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn discipline_parser() -> impl TypedValueParser<Value = Discipline> {
    PossibleValuesParser::new(Discipline::ALL.map(Discipline::name)).try_map(|name| {
        Discipline::ALL.into_iter().find(|discipline| discipline.name() == name).ok_or("no such discipline")
    })
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scenario = match &args.scenario {
        Some(path) => super::bouncer::read_scenario(path)?,
        None => Scenario::study(),
    };
    let disciplines =
        if args.discipline.is_empty() { Discipline::ALL.to_vec() } else { args.discipline.clone() };
    let total = disciplines.len() * args.load.len();
    let setup = Setup {
        scenario,
        disciplines,
        loads: args.load.clone(),
        patience: Nanos(args.patience_ms.saturating_mul(1_000_000)),
        part: Nanos(args.part_s.saturating_mul(1_000_000_000)),
        seed: args.seed,
    };
    let reports = match super::with_progress(total as u64, |progress| setup.run(progress)) {
        Ok(reports) => reports,
        Err(error) => return Ok(super::impossible(&error)),
    };
    if let Some(path) = &args.plot {
        super::write_plot(path, "Goodput in an overload", &charts(&setup, &reports))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        println!("{}", table(&reports));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "load",
        "discipline",
        "goodput %",
        "wasted %",
        "refused %",
        "p50 ms",
        "p99 ms",
        "well after s",
    ]);
    for report in reports {
        table.add_row([
            report.load.to_string(),
            report.discipline.to_owned(),
            format!("{:.1}", report.goodput_percent),
            format!("{:.1}", report.wasted_percent),
            format!("{:.1}", report.refused_percent),
            format!("{:.1}", report.p50_ms),
            format!("{:.1}", report.p99_ms),
            report.recovered_after_s.map_or("never".to_owned(), |seconds| seconds.to_string()),
        ]);
    }
    for column in table.column_iter_mut().filter(|column| column.index != 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn charts(setup: &Setup, reports: &[Report]) -> Vec<Chart> {
    let chart = |title: &str, y_label: &str, of: fn(&Report) -> f64| Chart {
        title: title.to_owned(),
        x_label: "offered load, times what the store can do".to_owned(),
        y_label: y_label.to_owned(),
        log_x: false,
        series: setup
            .disciplines
            .iter()
            .map(|discipline| Series {
                label: discipline.name().to_owned(),
                points: reports
                    .iter()
                    .filter(|report| report.discipline == discipline.name())
                    .map(|report| (report.load, of(report)))
                    .collect(),
                stroke: Stroke::Dots,
            })
            .collect(),
    };
    vec![
        chart("Work done in time", "% of what the store can do", |report| report.goodput_percent),
        chart("Response times, 99th percentile", "ms", |report| report.p99_ms),
    ]
}
