//! The study of admission policies, in full.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::Args;
use super::machine::Machine;
use crate::study::{self, POLICIES, RATES, Row, Study, embedded, redis};
use crate::{paths, run};

mod document;

/// The stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Chosen {
    /// One after the other.
    #[default]
    Both,
    /// `gate store`, with the published mix.
    Embedded,
    /// Redis, with five commands.
    Redis,
}

/// Measures, prints a line for each rate and policy and what of the claims holds, and writes the document if all policies
/// were measured.
pub(super) fn run(args: &Args) -> Result<()> {
    run::build_gate()?;
    let machine = Machine::now()?;
    let only = args.only.as_deref().unwrap_or_default();
    ensure!(POLICIES.iter().any(|name| name.contains(only)), "no policy has {only:?} in its name");
    let mut all = Vec::new();
    for store in [Chosen::Embedded, Chosen::Redis] {
        if args.store != Chosen::Both && args.store != store {
            continue;
        }
        let study = if store == Chosen::Redis { redis::study()? } else { embedded::study() };
        println!(
            "{}: {:.0} requests a second, objective {:?} ms",
            study.name, study.capacity, study.objective_ms
        );
        let rows = measure(&study, only, args.each())?;
        verdicts(&study, &rows).into_iter().for_each(|verdict| println!("{verdict}"));
        if only.is_empty() {
            write(&machine, &study, args.each(), &rows)?;
        }
        all.extend(rows);
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_string_pretty(&all)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn measure(study: &Study, only: &str, each: Duration) -> Result<Vec<Row>> {
    let policies = || study.policies.iter().filter(|policy| policy.name.contains(only));
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4} left  {msg}")?;
    let progress = ProgressBar::new((policies().count() * RATES.len()) as u64).with_style(style);
    let mut rows = Vec::new();
    // By rate, so that what else the machine does harms all policies alike.
    for rate in RATES {
        for policy in policies() {
            progress.set_message(format!("{} at {rate}", policy.name));
            let row = study.run(policy, rate, WARM_UP, each)?;
            progress.inc(1);
            progress.suspend(|| println!("{}", line(study, &row)));
            rows.push(row);
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// Writes the store's part of the document, and its plot.
fn write(machine: &Machine, study: &Study, each: Duration, rows: &[Row]) -> Result<()> {
    let docs = paths::workspace().join("docs");
    let plot = format!("study-{}.svg", study.name);
    study::draw(&docs.join(&plot), study, rows)?;
    let file = docs.join("STUDY.md");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let part = document::part(machine, study, each, rows, &plot, &verdicts(study, rows));
    let text = document::with_part(&text, study.name, &part).with_context(|| file.display().to_string())?;
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    println!("{} and {plot} are written", file.display());
    Ok(())
}

fn line(study: &Study, row: &Row) -> String {
    let [p50, p90] = row.dearest_response_ms;
    format!(
        "{:.1} {:<24} refused {:>5.1} %, of {} {:>5.1} %; its response p50 {p50:>6.1} ms, p90 {p90:>6.1} ms; at gate p50 {:>6.1} ms, at the \
         store {:>5.1} ms",
        row.rate,
        row.policy,
        100.0 * row.refused,
        study.dearest,
        100.0 * row.dearest_refused,
        row.dearest_at_gate_ms,
        row.dearest_processing_ms,
    )
}

/// The claims, and whether these rows keep them.
fn verdicts(study: &Study, rows: &[Row]) -> Vec<String> {
    let mut said = Vec::new();
    for (policy, within) in
        [("bouncer", 1.1), ("acceptance-allowance", 1.1), ("helping-the-underserved", 1.3)]
    {
        let of_policy = rows.iter().filter(|row| row.policy == policy);
        let worst = of_policy.map(|row| row.dearest_response_ms[0] / study.objective_ms[0]).reduce(f64::max);
        let Some(worst) = worst else { continue };
        let verdict = if worst <= within { "kept" } else { "missed" };
        said.push(format!(
            "{policy}: the dearest type's p50 is at most {worst:.2} of its objective; {within}: {verdict}"
        ));
    }
    for rate in &RATES[RATES.len() - 2..] {
        let refused = |policy: &str| {
            let found = rows.iter().find(|row| row.policy == policy && row.rate == *rate);
            found.map(|row| row.refused)
        };
        for policy in ["bouncer", "acceptance-allowance", "helping-the-underserved"] {
            for other in ["max-queue-length", "max-queue-wait", "accept-fraction"] {
                let (Some(one), Some(other_refused)) = (refused(policy), refused(other)) else { continue };
                let fewer = 100.0 * (1.0 - one / other_refused);
                let verdict = if fewer >= 15.0 { "reached" } else { "missed" };
                said.push(format!(
                    "at {rate}: {policy} refuses {fewer:.0} % fewer than {other}; 15 %: {verdict}"
                ));
            }
        }
    }
    said
}

/// Long enough for a few histograms of the dearest type at the lowest rate.
const WARM_UP: Duration = Duration::from_secs(8);
