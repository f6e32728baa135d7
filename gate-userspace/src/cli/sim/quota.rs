//! `gate sim quota`: how exact each rate-limiting scheme is.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::{CellAlignment, Table, presets};
use gate_common::units::Nanos;
use serde::Serialize;

use crate::policy::range::OutOfRange;
use crate::sim::parallel::Progress;
use crate::sim::plot::{Chart, Series, Stroke};
use crate::sim::quota::{Algorithm, Pattern, Report, Setup};

/// How far above and below its limit each rate-limiting scheme lets a tenant go.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How the limit is kept.
    #[arg(long, default_value = "token-bucket", value_parser = algorithm_parser())]
    algorithm: Algorithm,
    /// Each tenant's limit, in requests in the time `--per`.
    #[arg(long, default_value_t = 1_000)]
    limit: u64,
    /// The time of the limit, from a second to an hour.
    #[arg(long, default_value = "1s", value_parser = super::super::duration)]
    per: Nanos,
    /// The average rate that a tenant offers, in requests a second.
    #[arg(long, default_value_t = 3_000)]
    offered: u64,
    /// Time between two reports of a gate to the counter that the gates share.
    #[arg(long, default_value = "100ms", value_parser = super::super::duration)]
    report_interval: Nanos,
    /// Gates that share each limit.
    #[arg(long, default_value_t = 1)]
    gates: u32,
    /// Tenants, of whom the worst is reported.
    #[arg(long, default_value_t = 1)]
    tenants: u32,
    /// When a tenant sends; `zipf`: steadily, but the first tenants most.
    #[arg(long, default_value = "steady", value_parser = pattern_parser())]
    pattern: Pattern,
    /// Exponent of Zipf's law under the pattern `zipf`.
    #[arg(long, default_value_t = 1.0)]
    skew: f64,
    /// The size of a full bucket, as the time that it takes to refill.
    #[arg(long, default_value = "100ms", value_parser = super::super::duration)]
    burst: Nanos,
    /// Compare shares of the limit, which a fleet of gates gets, with the schemes that were not taken. What happens in the first
    /// 10 seconds does not count as above the limit.
    #[arg(long, conflicts_with_all = ["algorithm", "no_local_bucket", "plot"])]
    shares: bool,
    /// Do without the bucket that each gate has of its own.
    #[arg(long)]
    no_local_bucket: bool,
    /// How long is simulated.
    #[arg(long = "for", default_value = "60s", value_parser = super::super::duration)]
    length: Nanos,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw the first ten seconds, and every scheme's overshoot by report interval, number of tenants
    /// and skew.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let setup = Setup {
        algorithm: args.algorithm,
        limit: args.limit,
        per: args.per,
        offered: args.offered,
        report_interval: args.report_interval,
        gates: args.gates,
        tenants: args.tenants,
        pattern: args.pattern,
        skew: args.skew,
        burst: args.burst,
        local_bucket: !args.no_local_bucket,
        length: args.length,
        settling: Nanos::ZERO,
        seed: args.seed,
    };
    if args.shares {
        return compare(&setup, args.json);
    }
    if let Err(error) = setup.check() {
        return Ok(super::impossible(&error));
    }
    let report = super::with_progress(setup.requests(), |progress| setup.run(progress))?;
    if let Some(path) = &args.plot {
        let charts = super::with_progress(0, |progress| charts(&setup, progress))?;
        super::write_plot(path, "How exact is the limit?", &charts)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&Output::new(&setup, &report))?);
    } else {
        println!("{}\n\n{}", title(&setup), table(&setup, &report));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what each scheme of a fleet does under `setup`.
fn compare(setup: &Setup, json: bool) -> anyhow::Result<ExitCode> {
    let settling = Nanos(SETTLING.0.min(setup.length.0 / 2));
    let setups = FLEET_SCHEMES.map(|algorithm| Setup { algorithm, settling, ..*setup });
    if let Some(error) = setups.iter().find_map(|setup| setup.check().err()) {
        return Ok(super::impossible(&error));
    }
    let requests = setups.iter().map(Setup::requests).sum();
    let reports = super::with_progress(requests, |progress| {
        setups.iter().map(|setup| setup.run(progress)).collect::<Result<Vec<_>, _>>()
    })?;
    if json {
        let outputs: Vec<_> =
            setups.iter().zip(&reports).map(|(setup, report)| Output::new(setup, report)).collect();
        println!("{}", serde_json::to_string_pretty(&outputs)?);
    } else {
        let Setup { limit, per, offered, report_interval, gates, tenants, .. } = setup;
        println!(
            "{limit} in {per} of {offered}/s {}, tenants {tenants}, gates {gates}, reports every {report_interval}\n",
            setup.pattern.name(),
        );
        println!("{}", comparison(&reports));
    }
    Ok(ExitCode::SUCCESS)
}

/// A row for each scheme.
fn comparison(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "scheme",
        "above the limit: worst second",
        "worst 10 seconds",
        "overall",
        "below an exact counter",
        "added latency",
    ]);
    let percent = |value: f64| format!("{value:.1} %");
    for report in reports {
        let above = &report.above_limit_percent;
        table.add_row([
            report.algorithm.name().to_owned(),
            percent(above.worst_second),
            percent(above.worst_10_seconds),
            percent(above.overall),
            percent(report.below_exact_percent.overall),
            format!("{:.0} us", report.added_latency_us),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The scheme of a fleet, `reject_until` alone, and what was not taken.
const FLEET_SCHEMES: [Algorithm; 5] = [
    Algorithm::Shares,
    Algorithm::TokenBucket,
    Algorithm::RemoteCall,
    Algorithm::PrefetchedTokens,
    Algorithm::Sampling,
];
/// The time before which nothing counts as above the limit, where the run is twice as long.
const SETTLING: Nanos = Nanos::from_secs(10);

/// A report with what it is about.
#[derive(Serialize)]
struct Output<'a> {
    limit: u64,
    per_ms: f64,
    offered: u64,
    report_interval_ms: f64,
    gates: u32,
    tenants: u32,
    skew: f64,
    burst_ms: f64,
    seconds: f64,
    seed: u64,
    #[serde(flatten)]
    report: &'a Report,
}

impl<'a> Output<'a> {
    fn new(setup: &Setup, report: &'a Report) -> Self {
        let millis = |time: Nanos| time.0 as f64 / 1e6;
        let &Setup { limit, offered, gates, tenants, skew, seed, .. } = setup;
        Self {
            limit,
            per_ms: millis(setup.per),
            offered,
            report_interval_ms: millis(setup.report_interval),
            gates,
            tenants,
            skew,
            burst_ms: millis(setup.burst),
            seconds: millis(setup.length) / 1e3,
            seed,
            report,
        }
    }
}

fn algorithm_parser() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .try_map(|name| Algorithm::ALL.into_iter().find(|of| of.name() == name).ok_or("no such algorithm"))
}

fn pattern_parser() -> impl TypedValueParser<Value = Pattern> {
    PossibleValuesParser::new(Pattern::ALL.map(Pattern::name))
        .try_map(|name| Pattern::ALL.into_iter().find(|of| of.name() == name).ok_or("no such pattern"))
}

fn title(setup: &Setup) -> String {
    let Setup { limit, per, offered, report_interval, gates, tenants, .. } = setup;
    format!(
        "{} {} local bucket, {limit} in {per} of {offered}/s {}, tenants {tenants}, gates {gates}, reports every {report_interval}",
        setup.algorithm.name(),
        if setup.local_bucket { "with" } else { "without" },
        setup.pattern.name(),
    )
}

fn table(setup: &Setup, report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "worst second", "worst 10 seconds", "overall"]);
    let percent = |value: f64| format!("{value:.1} %");
    let above = &report.above_limit_percent;
    let below = &report.below_exact_percent;
    let label = |of: &str| if setup.tenants > 1 { format!("{of}, worst tenant") } else { of.to_owned() };
    table.add_row([
        label("above the limit"),
        percent(above.worst_second),
        percent(above.worst_10_seconds),
        percent(above.overall),
    ]);
    table.add_row([
        label("below an exact shared counter"),
        percent(below.worst_second),
        "-".to_owned(),
        percent(below.overall),
    ]);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The schemes that charts compare: each without the local bucket, and the one that has it.
const SCHEMES: [(Algorithm, bool); 4] = [
    (Algorithm::TokenBucket, true),
    (Algorithm::TokenBucket, false),
    (Algorithm::FixedWindow, false),
    (Algorithm::RejectionRate, false),
];

fn charts(setup: &Setup, progress: &Progress) -> Result<Vec<Chart>, OutOfRange> {
    let trace = trace(setup)?;
    let setup = &Setup { length: setup.length.min(SWEPT), ..*setup };
    let intervals = [10, 20, 50, 100, 200, 500, 1_000].map(|millis| {
        (f64::from(millis as u32), Setup { report_interval: Nanos::from_millis(millis), ..*setup })
    });
    let tenants = [1, 2, 5, 10, 20, 50, 100].map(|tenants| (f64::from(tenants), Setup { tenants, ..*setup }));
    let skews = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5].map(|skew| {
        (skew, Setup { pattern: Pattern::Zipf, skew, tenants: setup.tenants.max(SKEWED_TENANTS), ..*setup })
    });
    Ok(vec![
        trace,
        sweep("by report interval", "report interval, ms", true, &intervals, progress)?,
        sweep("by number of tenants, the worst", "tenants", true, &tenants, progress)?,
        sweep("by skew, the worst tenant", "exponent of Zipf's law", false, &skews, progress)?,
    ])
}

/// The load offered and passed in each tenth of a second.
fn trace(setup: &Setup) -> Result<Chart, OutOfRange> {
    let trace = setup.trace(100)?;
    let line = |label: &str, counts: &[u32], stroke| Series {
        label: label.to_owned(),
        points: counts
            .iter()
            .enumerate()
            .map(|(tenth, &count)| (tenth as f64 / 10.0, f64::from(count) * 10.0))
            .collect(),
        stroke,
    };
    let limit = Series {
        label: "limit".to_owned(),
        points: vec![(0.0, setup.limit as f64), (9.9, setup.limit as f64)],
        stroke: Stroke::Reference,
    };
    Ok(Chart {
        title: format!("The first tenant: {}", title(setup)),
        x_label: "s".into(),
        y_label: "requests a second".into(),
        log_x: false,
        series: vec![
            line("offered", &trace.offered, Stroke::Line),
            line("passed", &trace.admitted, Stroke::Line),
            line("passed an exact counter", &trace.exact, Stroke::Line),
            limit,
        ],
    })
}

/// The worst second of every scheme over some setups.
fn sweep(
    title: &str,
    x_label: &str,
    log_x: bool,
    setups: &[(f64, Setup)],
    progress: &Progress,
) -> Result<Chart, OutOfRange> {
    let series = SCHEMES.map(|(algorithm, local_bucket)| {
        let points = setups.iter().filter_map(|&(x, setup)| {
            // Points that are impossible for a scheme (an interval too short for one request) are left out.
            let report = Setup { algorithm, local_bucket, ..setup }.run(progress).ok()?;
            Some((x, report.above_limit_percent.worst_second))
        });
        let with = if local_bucket { ", local bucket" } else { "" };
        Series {
            label: format!("{}{with}", algorithm.name()),
            points: points.collect(),
            stroke: Stroke::Dots,
        }
    });
    Ok(Chart {
        title: format!("Worst second above the limit, {title}"),
        x_label: x_label.into(),
        y_label: "% of the limit".into(),
        log_x,
        series: series.into(),
    })
}

/// How long each point of a sweep is simulated, at most.
const SWEPT: Nanos = Nanos::from_secs(20);
/// Fewer could not differ much.
const SKEWED_TENANTS: u32 = 20;
