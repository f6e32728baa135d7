//! `--stress N`: the same tests N times in an order that a seed gives, beside two busy loops and a disk writer.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use super::cases::TestCase;
use super::queue::Outcome;
use crate::paths;

/// All cases, `times` each, shuffled within their places.
pub(super) fn repeated(cases: &[TestCase], times: u32, seed: u64) -> Vec<TestCase> {
    let mut random = Random(seed);
    let mut all: Vec<TestCase> = (0..times).flat_map(|_| cases.iter().cloned()).collect();
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last + 1));
    }
    all.sort_by_key(|case| case.slot);
    all
}

/// A seed that differs from run to run.
pub(super) fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() ^ u64::from(process::id()) << 32
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Two busy loops and a disk writer, until it is dropped.
pub(super) struct Load {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    file: PathBuf,
}

const BUSY_LOOPS: usize = 2;
/// The disk writer's file is written anew once it has this length.
const PIECES: usize = 64;
const PIECE: usize = 1 << 20;

impl Load {
    pub(super) fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let file = paths::target().join(format!("stress-{}", process::id()));
        let mut threads = Vec::new();
        for _ in 0..BUSY_LOOPS {
            let ends = Arc::clone(&ends);
            threads.push(thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }));
        }
        let writer = (Arc::clone(&ends), file.clone());
        threads.push(thread::spawn(move || write_until(&writer.0, &writer.1)));
        Self { ends, threads, file }
    }
}

fn write_until(ends: &AtomicBool, path: &PathBuf) {
    let piece = vec![0x5a; PIECE];
    while !ends.load(Ordering::Relaxed) {
        // A full disk is a load as well.
        let Ok(mut file) = File::create(path) else { return };
        for _ in 0..PIECES {
            if ends.load(Ordering::Relaxed) || file.write_all(&piece).is_err() || file.sync_data().is_err() {
                break;
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The threads do not panic.
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// The number of runs and failures by test.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<String, (u32, u32)>,
}

impl Table {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        let row = self.rows.entry(outcome.name.clone()).or_default();
        row.0 += 1;
        row.1 += u32::from(outcome.failure.is_some());
    }

    /// A line for each test that failed, and one for all.
    pub(super) fn lines(&self) -> Vec<String> {
        let failing = self.rows.iter().filter(|(_, (_, failed))| *failed > 0);
        let mut lines: Vec<String> =
            failing.map(|(name, (runs, failed))| format!("failed {failed} of {runs}: {name}")).collect();
        let runs: u32 = self.rows.values().map(|(runs, _)| runs).sum();
        let failed: u32 = self.rows.values().map(|(_, failed)| failed).sum();
        lines.push(format!("{} tests, {runs} runs, {failed} of them failed", self.rows.len()));
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::test::cases::Slot;

    fn case(name: &str, slot: Slot) -> TestCase {
        TestCase { name: name.to_owned(), program: PathBuf::new(), slot }
    }

    #[test]
    fn a_seed_gives_one_order_with_places_kept() {
        let cases: Vec<_> = (0..20).map(|n| case(&n.to_string(), Slot::Shared)).collect();
        let cases = [cases, vec![case("long", Slot::Early), case("timed", Slot::Exclusive)]].concat();
        let once = repeated(&cases, 3, 7);
        assert_eq!(once, repeated(&cases, 3, 7));
        assert_ne!(once, repeated(&cases, 3, 8));
        assert_eq!(once.len(), 66);
        assert!(once[..3].iter().all(|case| case.name == "long"));
        assert!(once[63..].iter().all(|case| case.name == "timed"));
        for wanted in &cases {
            assert_eq!(once.iter().filter(|case| *case == wanted).count(), 3);
        }
    }

    #[test]
    fn a_table_says_how_often_a_test_failed() {
        let mut table = Table::default();
        for (name, failure) in [("a", None), ("b", Some("failed")), ("a", None), ("b", None)] {
            let failure = failure.map(str::to_owned);
            let took = Duration::ZERO;
            table.add(&Outcome { name: name.to_owned(), took, failure, output: String::new() });
        }
        assert_eq!(table.lines(), ["failed 1 of 2: b", "2 tests, 4 runs, 1 of them failed"]);
    }
}
