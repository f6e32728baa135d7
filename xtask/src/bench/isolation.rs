//! The table of docs/ISOLATION.md: a polite tenant, beside each behaviour of a neighbour.
//!
//! For each behaviour and round, one after the other: the polite tenant through gate without a neighbour, beside the
//! behaviour directly at a store of the same kind, and beside it through gate. So whatever else the machine does harms
//! all three alike. Errors are those of all rounds; of p99 the median of the rounds is shown. What is above its limit is
//! measured again, twice as often, and the median of all rounds counts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::Args;
use super::machine::Machine;
use crate::isolation::{Behaviour, Measured, Seen, Site, Store, Target, behaviours, limit};
use crate::setup::{self, Purpose};
use crate::{paths, run};

mod document;

/// Measures, prints a line for each behaviour, and writes the document if all were measured.
pub(super) fn run(args: &Args) -> Result<()> {
    setup::setup(Purpose::Test)?;
    run::build_gate()?;
    let machine = Machine::now()?;
    let only = args.only.as_deref().unwrap_or_default();
    let is_meant = |behaviour: &Behaviour| {
        [behaviour.name, behaviour.store.name(), behaviour.group.name()]
            .iter()
            .any(|name| name.contains(only))
    };
    let chosen: Vec<_> = behaviours().into_iter().filter(is_meant).collect();
    ensure!(!chosen.is_empty() && args.rounds > 0, "no behaviour has {only:?} in its name");
    let each = args.each();
    let site = Site::make()?;
    let progress = bar(chosen.len() * args.rounds)?;
    let mut rows = Vec::new();
    let mut failed = 0;
    for behaviour in &chosen {
        progress.set_message(behaviour.name);
        let rounds: Result<Vec<_>> = (0..args.rounds)
            .map(|_| {
                progress.inc(1);
                measure(&site, behaviour, each)
            })
            .collect();
        let rounds = match rounds {
            Ok(rounds) => rounds,
            Err(error) => {
                progress.suspend(|| eprintln!("{}: {error:#}", behaviour.name));
                failed += 1;
                continue;
            }
        };
        let row = Row::new(behaviour, rounds);
        progress.suspend(|| println!("{}", row.line()));
        rows.push(row);
    }
    judge(&mut rows);
    let above = |row: &&mut Row| row.verdict != Verdict::Kept && row.through.errors == 0;
    progress.inc_length((rows.iter_mut().filter(above).count() * args.rounds * 2) as u64);
    for row in rows.iter_mut().filter(above) {
        progress.set_message(row.behaviour);
        for _ in 0..args.rounds * 2 {
            progress.inc(1);
            row.rounds.push(measure(&site, &row.about, each).with_context(|| row.behaviour.to_owned())?);
        }
        *row = Row::new(&row.about, std::mem::take(&mut row.rounds));
        progress.suspend(|| println!("again: {}", row.line()));
    }
    progress.finish_and_clear();
    judge(&mut rows);
    for row in rows.iter().filter(|row| row.verdict == Verdict::NotKept) {
        println!(
            "not kept: {}, p99 {}, limit {}",
            row.behaviour,
            millis(row.through.p99_us),
            millis(row.limit_us)
        );
    }
    println!(
        "{} of {} kept, {} unclear",
        count(&rows, Verdict::Kept),
        rows.len(),
        count(&rows, Verdict::Unclear)
    );
    if let Some(file) = &args.json {
        write(file, &serde_json::to_string_pretty(&rows)?)?;
    }
    ensure!(failed == 0, "{failed} behaviours could not be measured");
    if args.only.is_none() {
        let file = paths::workspace().join("docs/ISOLATION.md");
        write(&file, &document::render(&machine, each, args.rounds, &rows))?;
        println!("{}", file.display());
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}

fn bar(length: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4} left  {msg}")?;
    Ok(ProgressBar::new(length as u64).with_style(style))
}

/// One round of a behaviour: directly, if that can be, and through gate.
#[derive(Debug)]
struct Round {
    directly: Option<Measured>,
    through: Measured,
}

fn measure(site: &Site, behaviour: &Behaviour, each: Duration) -> Result<Round> {
    let directly =
        behaviour.directly.then(|| site.measure(behaviour, Target::Directly, None, each)).transpose();
    let directly = directly.context("directly")?;
    let through = site.measure(behaviour, Target::ThroughGate, Some(each), each).context("through gate")?;
    Ok(Round { directly, through })
}

/// One behaviour's results.
#[derive(Debug, Serialize)]
struct Row {
    behaviour: &'static str,
    #[serde(skip)]
    about: Behaviour,
    #[serde(skip)]
    rounds: Vec<Round>,
    store: &'static str,
    #[serde(rename = "alone")]
    baseline: Summary,
    directly: Option<Summary>,
    through: Summary,
    limit_us: u64,
    verdict: Verdict,
}

/// The polite tenant's view of all rounds.
#[derive(Clone, Debug, Serialize)]
struct Summary {
    requests: u64,
    errors: u64,
    first_error: Option<String>,
    p50_us: u64,
    p99_us: u64,
}

impl Summary {
    fn new<'s>(rounds: impl Iterator<Item = &'s Seen>) -> Option<Self> {
        let rounds: Vec<_> = rounds.collect();
        let median = |of: fn(&Seen) -> Duration| {
            let mut values: Vec<_> = rounds.iter().map(|seen| of(seen)).collect();
            values.sort_unstable();
            values.get(values.len() / 2).map(|value| value.as_micros() as u64)
        };
        Some(Self {
            requests: rounds.iter().map(|seen| seen.requests).sum(),
            errors: rounds.iter().map(|seen| seen.errors).sum(),
            first_error: rounds.iter().find_map(|seen| seen.first_error.clone()),
            p50_us: median(|seen| seen.p50)?,
            p99_us: median(|seen| seen.p99)?,
        })
    }

    fn error_rate(&self) -> f64 {
        100.0 * self.errors as f64 / self.requests.max(1) as f64
    }

    fn cells(&self) -> String {
        format!("{:>5.1} % {:>9}", self.error_rate(), millis(self.p99_us))
    }
}

impl Row {
    fn new(about: &Behaviour, rounds: Vec<Round>) -> Self {
        let baseline = Summary::new(rounds.iter().filter_map(|round| round.through.baseline.as_ref()));
        let directly =
            Summary::new(rounds.iter().filter_map(|round| Some(&round.directly.as_ref()?.with_neighbour)));
        let through = Summary::new(rounds.iter().map(|round| &round.through.with_neighbour));
        let (baseline, through) = baseline.zip(through).expect("there is a round");
        let behaviour = about.name;
        let store = about.store.name();
        Self {
            behaviour,
            about: *about,
            rounds,
            store,
            baseline,
            directly,
            through,
            limit_us: 0,
            verdict: Verdict::Unclear,
        }
    }

    fn line(&self) -> String {
        let directly = self.directly.as_ref().map_or_else(|| format!("{:>17}", "-"), Summary::cells);
        format!(
            "{:<44} {:<9} alone {:>9}  directly {directly}  through gate {}",
            self.behaviour,
            self.store,
            millis(self.baseline.p99_us),
            self.through.cells()
        ) + &self.through.first_error.as_ref().map(|error| format!("  {error}")).unwrap_or_default()
    }
}

/// The verdict on a behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// No error, and a p99 within the limit.
    Kept,
    /// A p99 above the limit, for which the machine alone suffices.
    Unclear,
    /// Errors, or a p99 above the limit.
    NotKept,
}

fn count(rows: &[Row], verdict: Verdict) -> usize {
    rows.iter().filter(|row| row.verdict == verdict).count()
}

/// Decides which behaviours are kept.
///
/// The polite tenant without a neighbour is the same measurement in all rows of a store. Whatever raises it in one of them is
/// the machine's: the lowest gives the limit, and the highest but a tenth the machine's noise.
fn judge(rows: &mut [Row]) {
    for store in [Store::Redis, Store::Memcached] {
        let of_store = |row: &&mut Row| row.about.store == store;
        let mut baseline: Vec<_> = rows.iter_mut().filter(of_store).map(|row| row.baseline.p99_us).collect();
        baseline.sort_unstable();
        let Some(&lowest) = baseline.first() else { continue };
        let noise_us = baseline[baseline.len() * 9 / 10];
        let limit_us = limit(Duration::from_micros(lowest)).as_micros() as u64;
        for row in rows.iter_mut().filter(of_store) {
            row.limit_us = limit_us;
            row.verdict = match row.through.p99_us {
                _ if row.through.errors > 0 => Verdict::NotKept,
                _ if row.about.may_wait => Verdict::Kept,
                p99_us if p99_us <= limit_us => Verdict::Kept,
                p99_us if p99_us <= noise_us && row.about.not_kept().is_none() => Verdict::Unclear,
                _ => Verdict::NotKept,
            };
        }
    }
}

/// Milliseconds, as many digits as say something.
fn millis(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{:.2} ms", micros as f64 / 1e3),
        10_000..100_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.0} ms", micros as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::millis;

    #[test]
    fn times_have_three_digits() {
        assert_eq!(
            [millis(85), millis(1_234), millis(12_345), millis(123_456)],
            ["0.09 ms", "1.23 ms", "12.3 ms", "123 ms"]
        );
    }
}
