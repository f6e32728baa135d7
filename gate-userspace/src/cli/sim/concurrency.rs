//! `gate sim concurrency`: the number of requests at the store, measured, fixed or unlimited.

use std::path::PathBuf;
use std::process::ExitCode;

use gate_common::units::Nanos;

use crate::sim::concurrency::{Limit, Setup, Slice};
use crate::sim::plot::{Chart, Series, Stroke};

/// A minute before a store that becomes four times as slow from second 15 to 25, and is asked four times as much from second
/// 40 to 50: how many requests it gets at once, and what becomes of them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many requests the store gets at once: auto, a number, or off.
    #[arg(long, default_value = "auto", value_parser = limit)]
    limit: Limit,
    /// How many it works on at once.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// How long it works on one in the mean, in microseconds.
    #[arg(long, default_value_t = 1_000)]
    service_time_us: u64,
    /// Offered load, as a share of what the store can do.
    #[arg(long, default_value_t = 0.7)]
    load: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: an array of half seconds.
    #[arg(long)]
    json: bool,
    /// Draw limit, queue and response times against time.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "auto" => Ok(Limit::Auto),
        "off" => Ok(Limit::Off),
        text => match text.parse() {
            Ok(number @ 1..=100_000) => Ok(Limit::Fixed(number)),
            _ => Err("must be auto, off, or a whole number from 1 to 100000".to_owned()),
        },
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { limit, workers, load, seed, .. } = args;
    let service_time = Nanos(args.service_time_us.saturating_mul(1_000));
    let slices = match (Setup { limit, workers, service_time, load, seed }).run() {
        Ok(slices) => slices,
        Err(error) => return Ok(super::impossible(&error)),
    };
    if let Some(path) = &args.plot {
        super::write_plot(path, "A slower store, and a flood", &charts(&slices))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&slices)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("second: limit, waiting at the store, answered, refused, p50 / p99 ms");
    for slice in &slices {
        let limit = slice.limit.map_or("-".to_owned(), |limit| limit.to_string());
        let [p50, p99] = [slice.p50_ms, slice.p99_ms]
            .map(|value| value.map_or("-".to_owned(), |value| format!("{value:.1}")));
        println!(
            "{:>5.1}: {limit:>6} {:>7} {:>7} {:>7} {p50:>8} / {p99:>8}",
            slice.from_seconds, slice.waiting_at_store, slice.answered, slice.refused
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of a chart: its label, and its value in a slice.
type Line = (&'static str, fn(&Slice) -> f64);

fn charts(slices: &[Slice]) -> Vec<Chart> {
    let chart = |title: &str, y_label: &str, of: &[Line]| Chart {
        title: title.into(),
        x_label: "seconds".into(),
        y_label: y_label.into(),
        log_x: false,
        series: of
            .iter()
            .map(|(label, of)| Series {
                label: (*label).to_owned(),
                points: slices.iter().map(|slice| (slice.from_seconds, of(slice))).collect(),
                stroke: Stroke::Line,
            })
            .collect(),
    };
    vec![
        chart(
            "Requests at the store",
            "requests",
            &[
                ("limit", |slice| slice.limit.map_or(f64::NAN, f64::from)),
                ("waiting at the store", |slice| slice.waiting_at_store as f64),
            ],
        ),
        chart(
            "Response times",
            "ms",
            &[
                ("p50", |slice| slice.p50_ms.unwrap_or(f64::NAN)),
                ("p99", |slice| slice.p99_ms.unwrap_or(f64::NAN)),
            ],
        ),
    ]
}
