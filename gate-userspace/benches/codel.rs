//! One decision of `CoDel`: when a request leaves the queue.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gate_common::units::Nanos;
use gate_userspace::policy::Tier;
use gate_userspace::policy::codel::{Law, TierCodels};

fn main() {
    divan::main();
}

/// Decisions in one sample, so that a timer of 20 ns does not matter.
const BATCH: u64 = 1_000;
/// A request every 10 microseconds.
const STEP: Nanos = Nanos::from_micros(10);

/// Waits in milliseconds: below the target, and far above it, where the law has to be applied.
#[divan::bench(args = [1, 20], sample_count = 1_000)]
fn rfc8289(bencher: Bencher<'_, '_>, waited_ms: u64) {
    dequeue(bencher, Law::Rfc8289, waited_ms);
}

#[divan::bench(args = [1, 20], sample_count = 1_000)]
fn overload(bencher: Bencher<'_, '_>, waited_ms: u64) {
    dequeue(bencher, Law::Overload, waited_ms);
}

fn dequeue(bencher: Bencher<'_, '_>, law: Law, waited_ms: u64) {
    let targets = [20, 10, 5, 5].map(Nanos::from_millis);
    let mut codels = TierCodels::new(law, targets, Nanos::from_millis(100)).expect("valid targets");
    let mut now = Nanos::ZERO;
    let waited = Nanos::from_millis(waited_ms);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for nth in 0..BATCH as usize {
            now = now.saturating_add(STEP);
            black_box(codels.dequeue(Tier::ALL[nth % 4], now, black_box(waited), 1));
        }
    });
}
