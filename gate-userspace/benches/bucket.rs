//! One decision of the token bucket on a shared word, beside `governor`: both GCRA on one atomic
//! word, both with a clock that costs one load.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gate_common::token_bucket::{Limits, Take, take_time};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};

fn main() {
    divan::main();
}

/// Decisions in one sample, so that a timer of 20 ns does not matter.
const BATCH: usize = 1_000;
/// A quota that no run exhausts, and one that the first request does.
const PER_SEC: [u32; 2] = [1_000_000_000, 1];

#[divan::bench(args = PER_SEC, sample_count = 1_000)]
fn gate(bencher: Bencher<'_, '_>, per_sec: u32) {
    let limits = Limits::new(per_sec.into(), 1_000_000_000);
    let word = AtomicU64::new(0);
    let clock = AtomicU64::new(1);
    let ask = || {
        let now_ns = clock.load(Ordering::Relaxed);
        let cost_ns = limits.rate.time_for(black_box(1));
        let mut tat = word.load(Ordering::Relaxed);
        loop {
            let Take::Admit { tat: next } =
                take_time(tat, now_ns, cost_ns, limits.burst_ns, limits.max_debt_ns)
            else {
                return false;
            };
            match word.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => tat = changed,
            }
        }
    };
    run(bencher, ask, || word.store(0, Ordering::Relaxed));
}

#[divan::bench(args = PER_SEC, sample_count = 1_000)]
fn governor(bencher: Bencher<'_, '_>, per_sec: u32) {
    let quota = Quota::per_second(NonZeroU32::new(per_sec).expect("above zero"));
    let clock = FakeRelativeClock::default();
    let limiter = RateLimiter::direct_with_clock(quota, clock.clone());
    let one = NonZeroU32::MIN;
    run(
        bencher,
        || matches!(limiter.check_n(black_box(one)), Ok(Ok(()))),
        || clock.advance(std::time::Duration::from_secs(2)),
    );
}

fn run(bencher: Bencher<'_, '_>, ask: impl Fn() -> bool + Sync, refill: impl Fn() + Sync) {
    bencher
        .counter(ItemsCount::new(BATCH))
        .with_inputs(refill)
        .bench_values(|()| (0..BATCH).filter(|_| ask()).count());
}
