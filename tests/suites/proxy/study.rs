//! The study of admission policies at reduced size. How fast the store is depends on what else the machine does, which
//! harms both policies alike.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::study::{Row, embedded};

/// More than the store can do, however slow the machine makes it.
const RATE: f64 = 1.5;

fn run(policy: &str) -> Result<Row> {
    let study = embedded::study();
    let policy = study.policies.iter().find(|known| known.name == policy).context("no such policy")?;
    let row = study.run(policy, RATE, Duration::from_secs(5), Duration::from_secs(5))?;
    println!("{row:?}");
    // An answer is lost after 10 s: far beyond every limit of the policies.
    ensure!(row.offered > 500 && row.failed * 20 < row.offered, "{row:?}");
    ensure!(row.refused > 0.1, "the store was not overloaded: {row:?}");
    Ok(row)
}

#[test]
fn bouncer_spares_the_dearest_type_the_queue_and_cheap_ones() -> Result<()> {
    let bouncer = run("acceptance-allowance")?;
    let longest_queue = run("max-queue-length")?;
    // A full queue takes five times the objective.
    ensure!(2.0 * bouncer.dearest_at_gate_ms < longest_queue.dearest_at_gate_ms);
    // Refused is who cannot keep the objective: the dearest type before the others; by the length of the queue, all alike.
    ensure!(bouncer.dearest_refused > bouncer.refused);
    ensure!((longest_queue.dearest_refused - longest_queue.refused).abs() < 0.1);
    Ok(())
}
