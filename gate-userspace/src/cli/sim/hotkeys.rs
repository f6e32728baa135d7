//! `gate sim hotkeys`: how well the heaviest keys are found.

use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};

use crate::sim::hotkeys::{Report, Setup, Sketch};
use crate::sim::plot::{Chart, Series, Stroke};

/// How well the heaviest keys are found, by skew, memory and sampling.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Different keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u32,
    /// Requests.
    #[arg(long, default_value_t = 100_000_000)]
    requests: u64,
    /// Exponents of Zipf's law, by which keys are drawn.
    #[arg(long, value_delimiter = ',', default_value = "0.8,0.99,1.2")]
    exponent: Vec<f64>,
    /// Keys that a sketch counts.
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    capacity: Vec<usize>,
    /// One in this many requests is sampled.
    #[arg(long, value_delimiter = ',', default_value = "100")]
    sample: Vec<u32>,
    /// How many of the heaviest keys are asked for.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: an array of one object for each exponent, capacity and sampling.
    #[arg(long)]
    json: bool,
    /// Draw precision and recall by memory and by sampling.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let requested = grid(&args.capacity, &args.sample);
    let mut setup = Setup {
        keys: args.keys,
        requests: args.requests,
        exponents: args.exponent,
        sketches: requested.clone(),
        top: args.top,
        seed: args.seed,
    };
    if let Err(error) = setup.check() {
        return Ok(super::impossible(&error));
    }
    // The sketches that only the picture needs see the same streams.
    let drawn = if args.plot.is_some() { sweeps(requested[0], args.top) } else { Vec::new() };
    setup.sketches.extend(&drawn);
    let mut reports = super::with_progress(setup.work(), |progress| setup.run(progress))?;
    if let Some(path) = &args.plot {
        super::write_plot(path, &title(&setup), &charts(&setup, requested[0], &reports))?;
    }
    let of_exponent = setup.sketches.len();
    reports = reports.chunks(of_exponent).flat_map(|chunk| &chunk[..requested.len()]).copied().collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        println!("{}\n\n{}", title(&setup), table(&reports));
    }
    Ok(ExitCode::SUCCESS)
}

fn grid(capacities: &[usize], samples: &[u32]) -> Vec<Sketch> {
    let sketch = |capacity| samples.iter().map(move |&sample_every| Sketch { capacity, sample_every });
    capacities.iter().flat_map(|&capacity| sketch(capacity)).collect()
}

/// The sketches around `requested` that the picture compares.
fn sweeps(requested: Sketch, top: usize) -> Vec<Sketch> {
    let capacities = [50, 100, 200, 500, 1_000, 2_000, 5_000].into_iter().filter(|&capacity| capacity >= top);
    let by_memory = capacities.map(|capacity| Sketch { capacity, ..requested });
    let by_sampling =
        [10, 30, 100, 300, 1_000, 3_000, 10_000].map(|sample_every| Sketch { sample_every, ..requested });
    by_memory.chain(by_sampling).filter(|&sketch| sketch != requested).collect()
}

fn title(setup: &Setup) -> String {
    format!(
        "The {} heaviest of {} keys in {} requests, seed {}",
        setup.top, setup.keys, setup.requests, setup.seed
    )
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "exponent",
        "counters",
        "memory",
        "sampled",
        "precision",
        "recall",
        "mean error",
        "out of bounds",
    ]);
    for report in reports {
        table.add_row([
            report.exponent.to_string(),
            report.sketch.capacity.to_string(),
            format!("{} KiB", report.memory_bytes / 1_024),
            format!("1 in {}", report.sketch.sample_every),
            format!("{:.3}", report.precision),
            format!("{:.3}", report.recall),
            format!("{:.1} %", report.mean_error * 100.0),
            report.out_of_bounds.to_string(),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn charts(setup: &Setup, requested: Sketch, reports: &[Report]) -> Vec<Chart> {
    let memory = |report: &Report| {
        (report.sketch.sample_every == requested.sample_every).then(|| report.memory_bytes as f64 / 1_024.0)
    };
    let sampling = |report: &Report| {
        (report.sketch.capacity == requested.capacity).then(|| f64::from(report.sketch.sample_every))
    };
    let precision = |report: &Report| report.precision;
    let recall = |report: &Report| report.recall;
    let chart =
        |title: &str, x_label: &str, x: &dyn Fn(&Report) -> Option<f64>, y: fn(&Report) -> f64| Chart {
            title: title.into(),
            x_label: x_label.into(),
            y_label: "share".into(),
            log_x: true,
            series: setup.exponents.iter().map(|&exponent| line(reports, exponent, x, y)).collect(),
        };
    let by_memory = "memory, KiB";
    let by_sampling = "requests to a sample";
    vec![
        chart("Reported keys that are among the heaviest (precision)", by_memory, &memory, precision),
        chart("Heaviest keys that are counted (recall)", by_memory, &memory, recall),
        chart("Reported keys that are among the heaviest (precision)", by_sampling, &sampling, precision),
        chart("Heaviest keys that are counted (recall)", by_sampling, &sampling, recall),
    ]
}

/// The reports of one exponent that have an `x`, from left to right.
fn line(
    reports: &[Report],
    exponent: f64,
    x: &dyn Fn(&Report) -> Option<f64>,
    y: fn(&Report) -> f64,
) -> Series {
    let of_exponent = reports.iter().filter(|report| report.exponent == exponent);
    let mut points: Vec<_> = of_exponent.filter_map(|report| Some((x(report)?, y(report)))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Series { label: format!("exponent {exponent}"), points, stroke: Stroke::Dots }
}
