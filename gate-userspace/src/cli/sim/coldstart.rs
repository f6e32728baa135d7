//! `gate sim coldstart`: what a policy does before it knows anything, and after a lull.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::sim::bouncer::{ByName, Policy};
use crate::sim::coldstart::{Setup, Slice};
use crate::sim::plot::{Chart, Series, Stroke};
use crate::sim::scenario::Scenario;

/// Show an admission policy's decisions in each half second of a minute: while it knows nothing yet, and when the slowest
/// type comes back, which nobody asks for from second 20 to second 40.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The admission policy.
    #[arg(long, default_value = "bouncer", value_parser = super::bouncer::policy_parser())]
    policy: Policy,
    /// Offered load, times what keeps all processes busy.
    #[arg(long, default_value_t = 1.2)]
    load: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: an array of half seconds.
    #[arg(long)]
    json: bool,
    /// Draw rejections and response times against time.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let setup = Setup { scenario: Scenario::study(), policy: args.policy, load: args.load, seed: args.seed };
    let slices = match setup.run() {
        Ok(slices) => slices,
        Err(error) => return Ok(super::impossible(&error)),
    };
    if let Some(path) = &args.plot {
        let title = format!("{}: cold start and lull at load {}", setup.policy.name(), setup.load);
        super::write_plot(path, &title, &charts(&setup, &slices))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&slices)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("second: rejected % / p50 ms of {}", names(&setup).collect::<Vec<_>>().join(", "));
    for slice in &slices {
        let of = |name| {
            let [rejected, p50] =
                [&slice.rejected_percent, &slice.p50_ms].map(|of| of.get(name).copied().flatten());
            let [rejected, p50] =
                [rejected, p50].map(|value| value.map_or("-".to_owned(), |value| format!("{value:.1}")));
            format!("{rejected:>5} / {p50:>5}")
        };
        println!("{:>5.1}: {}", slice.from_seconds, names(&setup).map(of).collect::<Vec<_>>().join("   "));
    }
    Ok(ExitCode::SUCCESS)
}

fn names(setup: &Setup) -> impl Iterator<Item = &str> {
    setup.scenario.types.iter().map(|of| of.name.as_str())
}

fn charts(setup: &Setup, slices: &[Slice]) -> Vec<Chart> {
    let chart = |title: &str, y_label: &str, of: fn(&Slice) -> &ByName<Option<f64>>| Chart {
        title: title.into(),
        x_label: "seconds".into(),
        y_label: y_label.into(),
        log_x: false,
        series: names(setup)
            .map(|name| Series {
                label: name.to_owned(),
                points: slices
                    .iter()
                    .map(|slice| {
                        (slice.from_seconds, of(slice).get(name).copied().flatten().unwrap_or(f64::NAN))
                    })
                    .collect(),
                stroke: Stroke::Line,
            })
            .collect(),
    };
    vec![
        chart("Rejected queries", "%", |slice| &slice.rejected_percent),
        chart("Response time, median", "ms", |slice| &slice.p50_ms),
    ]
}
