//! `gate sim overload`: a store that becomes slow for a while, and who gives way.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{CellAlignment, Table, presets};
use gate_common::units::Nanos;
use serde::Serialize;

use crate::policy::Tier;
use crate::policy::codel::Law;
use crate::sim::overload::{ByTier, Report, Scenario, Setup, TracePoint};
use crate::sim::plot::{Chart, Series, Stroke};

/// Show the results of four tiers' requests when the store becomes slow, without the gate's mechanisms,
/// with each, and with both.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The change of the store.
    #[arg(long, default_value = "capacity-drop", value_parser = scenario_parser())]
    scenario: Scenario,
    /// How many requests the store works on at once.
    #[arg(long, default_value_t = 100)]
    workers: u32,
    /// The store's capacity in a capacity drop, as a share of what is offered.
    #[arg(long, default_value_t = 0.6)]
    drop_to: f64,
    /// The critical tier's share of what is offered.
    #[arg(long, default_value_t = 0.4)]
    critical: f64,
    /// When it happens.
    #[arg(long, default_value = "60s", value_parser = super::super::duration)]
    begins: Nanos,
    /// How long it lasts. [default: 60s; for latency-step 330s]
    #[arg(long, value_parser = super::super::duration)]
    lasts: Option<Nanos>,
    /// How long is simulated after that.
    #[arg(long, default_value = "60s", value_parser = super::super::duration)]
    after: Nanos,
    /// The law by which `CoDel` drops.
    #[arg(long, default_value = "overload", value_parser = law_parser())]
    law: Law,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw goodput, latency ratio and multipliers over time.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// The JSON output.
#[derive(Serialize)]
struct Output<'a> {
    scenario: Scenario,
    workers: u32,
    drop_to: f64,
    critical: f64,
    law: Law,
    seed: u64,
    runs: &'a [Report],
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Long enough for a step to become the new normal.
    let usual = if args.scenario == Scenario::LatencyStep { 330 } else { 60 };
    let setup = Setup {
        scenario: args.scenario,
        workers: args.workers,
        drop_to: args.drop_to,
        critical: args.critical,
        begins: args.begins,
        lasts: args.lasts.unwrap_or(Nanos::from_secs(usual)),
        after: args.after,
        law: args.law,
        seed: args.seed,
    };
    if let Err(error) = setup.check() {
        return Ok(super::impossible(&error));
    }
    let reports = super::with_progress(setup.work(), |progress| setup.run(progress))?;
    if let Some(path) = &args.plot {
        super::write_plot(path, &title(&setup), &charts(&reports))?;
    }
    if args.json {
        let Setup { scenario, workers, drop_to, critical, law, seed, .. } = setup;
        let output = Output { scenario, workers, drop_to, critical, law, seed, runs: &reports };
        println!("{}", serde_json::to_string_pretty(&output)?);
    } else {
        println!("{}\n\n{}", title(&setup), table(&reports));
    }
    Ok(ExitCode::SUCCESS)
}

fn scenario_parser() -> impl TypedValueParser<Value = Scenario> {
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::name))
        .try_map(|name| Scenario::ALL.into_iter().find(|of| of.name() == name).ok_or("no such scenario"))
}

fn law_parser() -> impl TypedValueParser<Value = Law> {
    PossibleValuesParser::new(Law::ALL.map(Law::name))
        .try_map(|name| Law::ALL.into_iter().find(|of| of.name() == name).ok_or("no such law"))
}

fn title(setup: &Setup) -> String {
    let Setup { scenario, begins, lasts, seed, .. } = setup;
    let what = match scenario {
        Scenario::CapacityDrop => format!(" to {} of the offered load for {lasts}", setup.drop_to),
        _ => String::new(),
    };
    format!("{}{what} at {begins}, seed {seed}", scenario.name())
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut header = vec!["mechanisms".to_owned()];
    header.extend(Tier::ALL.map(|tier| format!("{} %", tier.name())));
    header.extend(["lowest ratio", "longest shed s", "restored after s"].map(str::to_owned));
    table.set_header(header);
    for report in reports {
        let goodput =
            [report.goodput_percent_before, report.goodput_percent_during, report.goodput_percent_after];
        let mut row = vec![report.mechanisms.to_owned()];
        row.extend(Tier::ALL.map(|tier| goodput.map(|of| format!("{:.1}", of.get(tier))).join(" / ")));
        let longest = Tier::ALL.into_iter().map(|tier| report.shed_seconds.get(tier)).fold(0.0, f64::max);
        row.push(report.lowest_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
        row.push(format!("{longest:.1}"));
        row.push(report.restored_after_seconds.map_or("never".into(), |seconds| format!("{seconds:.1}")));
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn charts(reports: &[Report]) -> Vec<Chart> {
    let chart = |title: String, y_label: &str, series| Chart {
        title,
        x_label: "s".into(),
        y_label: y_label.into(),
        log_x: false,
        series,
    };
    let goodput = reports.iter().map(|report| {
        let title = format!("Answered in time, {}", report.mechanisms);
        chart(title, "% of offered", by_tier(report, |at| at.goodput_percent))
    });
    let ratios = reports.iter().map(|report| Series {
        label: report.mechanisms.to_owned(),
        points: averages(report, |at| at.ratio.unwrap_or(f64::NAN)),
        stroke: Stroke::Line,
    });
    let multipliers = reports.iter().filter(|report| !report.transitions.is_empty()).map(|report| {
        chart(format!("Multipliers, {}", report.mechanisms), "times", by_tier(report, |at| at.multipliers))
    });
    goodput.chain([chart("Latency ratio".into(), "ratio", ratios.collect())]).chain(multipliers).collect()
}

fn by_tier(report: &Report, number: impl Fn(&TracePoint) -> ByTier) -> Vec<Series> {
    let line = |tier: Tier| Series {
        label: tier.name().to_owned(),
        points: averages(report, |at| number(at).get(tier)),
        stroke: Stroke::Line,
    };
    Tier::ALL.map(line).into()
}

/// Averages over each second.
fn averages(report: &Report, number: impl Fn(&TracePoint) -> f64) -> Vec<(f64, f64)> {
    let average = |second: &[TracePoint]| {
        let sum: f64 = second.iter().map(&number).sum();
        (second[0].seconds, sum / second.len() as f64)
    };
    report.trace.chunks(10).map(average).collect()
}
