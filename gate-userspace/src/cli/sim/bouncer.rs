//! `gate sim bouncer`: the published study of admission policies.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::clock;
use crate::policy::range::{OutOfRange, ensure};
use crate::sim::bouncer::{Percentiles, Policy, Report, Study};
use crate::sim::plot::{Chart, Series, Stroke};
use crate::sim::scenario::{MAX_QUERIES, RawScenario, Scenario, check_load};

/// Reproduce the published study of admission policies: who is rejected, and how long the others
/// take, under one or several loads.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The admission policy; several with commas: a query is admitted if each admits it, and each is asked about
    /// what those before it admit.
    #[arg(long, default_value = "bouncer", value_delimiter = ',', value_parser = policy_parser())]
    policy: Vec<Policy>,
    /// Offered load, times what keeps all processes busy; several with commas. [default: the scenario's]
    #[arg(long, value_delimiter = ',', value_parser = |arg: &str| number(arg, |load| check_load("load", load)))]
    load: Vec<f64>,
    /// Of `bouncer+aa`: the acceptance allowance A, from 0 to 1. [default: 0.05]
    #[arg(long, value_parser = |arg: &str| number(arg, |share| ensure((0.0..=1.0).contains(&share), "allowance", share, "from 0 to 1")))]
    allowance: Option<f64>,
    /// Of `bouncer+hu`: the scaling factor of its help, above 0, at most 1. [default: 1]
    #[arg(long, value_parser = |arg: &str| number(arg, |alpha| ensure(alpha > 0.0 && alpha <= 1.0, "alpha", alpha, "above 0, at most 1")))]
    alpha: Option<f64>,
    /// Queries per run, those that warm up aside.
    #[arg(long, default_value_t = 1_500_000, value_parser = clap::value_parser!(u64).range(1..=MAX_QUERIES))]
    queries: u64,
    /// Runs per load, whose results are averaged.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    runs: u64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Types, mixes, distributions, objectives, loads and the policies' parameters, in TOML.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print JSON: an object, or an array of them if there are several loads.
    #[arg(long)]
    json: bool,
    /// Draw rejections, response times and utilization against the load.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// A report with how fast it came about: the only figure that the seed does not fix.
#[derive(Serialize)]
struct Timed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    queries_per_second_simulated: f64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let study = study(&args)?;
    let started = clock::monotonic();
    let reports = super::with_progress(study.total_queries(), |progress| study.run(progress))?;
    let took = clock::monotonic().saturating_sub(started);
    let queries_per_second_simulated = study.total_queries() as f64 * 1e9 / took.0.max(1) as f64;
    if let Some(path) = &args.plot {
        super::write_plot(path, &title(&study), &charts(&study, &reports))?;
    }
    if args.json {
        let timed: Vec<_> =
            reports.iter().map(|report| Timed { report, queries_per_second_simulated }).collect();
        let json = match &timed[..] {
            [only] => serde_json::to_string_pretty(only),
            all => serde_json::to_string_pretty(all),
        };
        println!("{}", json?);
    } else {
        println!("{}\n\n{}", title(&study), table(&study, &reports));
        eprintln!("{:.1} million queries simulated per second", queries_per_second_simulated / 1e6);
    }
    Ok(ExitCode::SUCCESS)
}

fn study(args: &Args) -> anyhow::Result<Study> {
    let mut scenario = match &args.scenario {
        Some(path) => read_scenario(path)?,
        None => Scenario::study(),
    };
    if !args.load.is_empty() {
        scenario.loads.clone_from(&args.load);
    }
    scenario.policies.allowance = args.allowance.unwrap_or(scenario.policies.allowance);
    scenario.policies.alpha = args.alpha.unwrap_or(scenario.policies.alpha);
    let policies = args.policy.clone();
    Ok(Study { scenario, policies, queries: args.queries, runs: args.runs, seed: args.seed })
}

pub(super) fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let read = || -> anyhow::Result<Scenario> {
        let raw: RawScenario = toml::from_str(&std::fs::read_to_string(path)?)?;
        Ok(Scenario::try_from(raw)?)
    };
    read().with_context(|| path.display().to_string())
}

pub(super) fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .try_map(|name| Policy::ALL.into_iter().find(|policy| policy.name() == name).ok_or("no such policy"))
}

fn number(arg: &str, check: impl FnOnce(f64) -> Result<(), OutOfRange>) -> Result<f64, String> {
    let value: f64 = arg.parse().map_err(|_| "must be a number".to_owned())?;
    check(value).map_err(|error| error.to_string())?;
    Ok(value)
}

fn title(study: &Study) -> String {
    let Study { queries, runs, seed, .. } = study;
    format!("{}: {runs} runs of {queries} queries, seed {seed}", study.name())
}

fn table(study: &Study, reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut header = vec!["load".to_owned()];
    let names = || study.scenario.types.iter().map(|of| &of.name);
    header.extend(names().map(|name| format!("rejected % {name}")));
    header.push("all".into());
    header.extend(names().map(|name| format!("p50/p90/p99 ms {name}")));
    header.push("utilization".into());
    table.set_header(header);
    let number = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    for report in reports {
        let mut row = vec![report.load.to_string()];
        row.extend(report.rejected_percent.0.iter().map(|&(_, percent)| number(percent, 2)));
        row.extend(
            report
                .rt_ms
                .0
                .iter()
                .map(|(_, Percentiles { p50, p90, p99 })| [p50, p90, p99].map(|&ms| number(ms, 1)).join("/")),
        );
        row.push(format!("{:.3}", report.utilization));
        table.add_row(row);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn charts(study: &Study, reports: &[Report]) -> Vec<Chart> {
    let line = |label: &str, value: &dyn Fn(&Report) -> Option<f64>| Series {
        label: label.to_owned(),
        points: reports.iter().map(|report| (report.load, value(report).unwrap_or(f64::NAN))).collect(),
        stroke: Stroke::Dots,
    };
    let names = || study.scenario.types.iter().map(|of| of.name.as_str());
    let chart = |title: &str, y_label: &str, series| Chart {
        title: title.into(),
        x_label: "offered load / capacity".into(),
        y_label: y_label.into(),
        log_x: false,
        series,
    };
    let rejected = |name: &str| line(name, &|report| report.rejected_percent.get(name).copied().flatten());
    let responses = |of: fn(&Percentiles) -> Option<f64>, percentile| {
        let response = |name: &str| line(name, &|report| report.rt_ms.get(name).and_then(of));
        let lines = names().map(response);
        lines.chain(objectives(study, percentile)).collect()
    };
    let utilization = line("utilization", &|report| Some(report.utilization));
    vec![
        chart("Rejected queries", "%", names().chain(["all"]).map(rejected).collect()),
        chart("Response time, median", "ms", responses(|of| of.p50, 50.0)),
        chart("Response time, p90", "ms", responses(|of| of.p90, 90.0)),
        chart("Utilization of the store", "share", vec![utilization]),
    ]
}

/// A line for each different limit that the types' objectives set at `percentile`.
fn objectives(study: &Study, percentile: f64) -> impl Iterator<Item = Series> {
    let targets = study.scenario.types.iter().flat_map(|of| of.objective.targets());
    let limits: BTreeSet<u64> =
        targets.filter(|target| target.percentile == percentile).map(|target| target.limit.0).collect();
    limits.into_iter().map(|limit| {
        let limit_ms = limit as f64 / 1e6;
        Series {
            label: format!("objective {limit_ms} ms"),
            points: study.scenario.loads.iter().map(|&load| (load, limit_ms)).collect(),
            stroke: Stroke::Reference,
        }
    })
}
