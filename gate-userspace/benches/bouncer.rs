//! One admission decision with sixteen query types, the clock included, alone and on two threads
//! that share the policy.

use divan::{Bencher, black_box};
use gate_common::units::Nanos;
use gate_userspace::clock;
use gate_userspace::policy::Tier;
use gate_userspace::policy::admission::{Admission, QueryType, QueueOrder, Request};
use gate_userspace::policy::baselines::{AcceptFraction, Averaging, MaxQueueLength, MaxQueueWait};
use gate_userspace::policy::bouncer::{Bouncer, Config, Fairness, Objective, Target};
use gate_userspace::sim::rng::Rng;

fn main() {
    divan::main();
}

/// The time of the clock alone.
#[divan::bench(threads = [1, 2], sample_count = 50, sample_size = 10_000)]
fn clock_only(bencher: Bencher<'_, '_>) {
    bencher.bench(|| black_box(clock::monotonic()));
}

/// One decision; the argument is the policy.
#[divan::bench(args = POLICIES, threads = [1, 2], sample_count = 50, sample_size = 10_000)]
fn decide(bencher: Bencher<'_, '_>, policy: &str) {
    let policy = build(policy);
    run(bencher, |request, draw| {
        black_box(policy.decide(request, clock::monotonic(), draw));
    });
}

/// All that one request costs if it is admitted: the decision, and being counted into the queue, out
/// of it, and as completed.
#[divan::bench(args = POLICIES, threads = [1, 2], sample_count = 50, sample_size = 10_000)]
fn whole_request(bencher: Bencher<'_, '_>, policy: &str) {
    let policy = build(policy);
    run(bencher, |request, draw| {
        let now = clock::monotonic();
        black_box(policy.decide(request, now, draw));
        policy.enqueued(request);
        policy.dequeued(request);
        policy.completed(request, Nanos(1_000_000 + (now.0 & 0xf_ffff)), now);
    });
}

const POLICIES: [&str; 7] =
    ["bouncer", "bouncer, 4 tiers", "bouncer+aa", "bouncer+hu", "maxql", "maxqwt", "accept-fraction"];
const TYPES: u16 = 16;

/// Hands `job` requests of random types and tiers, which are drawn beforehand.
fn run(bencher: Bencher<'_, '_>, job: impl Fn(Request, f64) + Sync) {
    let mut rng = Rng::new(1, 0);
    let mut request = || {
        let bits = rng.bits();
        let query_type = QueryType((bits % u64::from(TYPES)) as u16);
        (Request { tier: Tier::ALL[(bits >> 32) as usize % 4], query_type }, rng.unit())
    };
    let requests: Vec<_> = (0..1_024).map(|_| request()).collect();
    let turn = || {
        // Each thread goes round by itself: a shared counter would be all that is measured.
        thread_local!(static TURN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
        TURN.replace((TURN.get() + 1) % 1_024)
    };
    bencher.bench(|| {
        let (request, draw) = requests[turn()];
        job(request, draw);
    });
}

/// A policy that has seen processing times of every type and has requests of each queued, so that
/// under Bouncer some types have room and others have not.
fn build(name: &str) -> Box<dyn Admission> {
    let now = clock::monotonic();
    let ms = Nanos::from_millis;
    let targets = [(50.0, ms(18)), (90.0, ms(50))].map(|(percentile, limit)| Target { percentile, limit });
    let objective = Objective::new(targets.into()).expect("in range");
    let config = |fairness, order| Config {
        fairness,
        order,
        ..Config::new(100, usize::from(TYPES), objective.clone())
    };
    let bouncer = |fairness, order| {
        Box::new(Bouncer::new(config(fairness, order), now).expect("in range")) as Box<dyn Admission>
    };
    let fifo = QueueOrder::Fifo;
    let policy: Box<dyn Admission> = match name {
        "bouncer" => bouncer(Fairness::None, fifo),
        "bouncer, 4 tiers" => bouncer(Fairness::None, QueueOrder::ByTier),
        "bouncer+aa" => bouncer(Fairness::AcceptanceAllowance { allowance: 0.05 }, fifo),
        "bouncer+hu" => bouncer(Fairness::HelpingTheUnderserved { alpha: 1.0 }, fifo),
        "maxql" => Box::new(MaxQueueLength::new(400).expect("in range")),
        "maxqwt" => Box::new(MaxQueueWait::new(ms(15), 100, now).expect("in range")),
        "accept-fraction" => {
            Box::new(AcceptFraction::new(0.95, 100, Averaging::Covered, now).expect("in range"))
        }
        other => unreachable!("{other} is not among the policies"),
    };
    for query_type in (0..TYPES).map(QueryType) {
        let request = Request { tier: Tier::Standard, query_type };
        // 1 to 16 ms each, five of each queued: 6.8 ms of wait.
        (0..2_000).for_each(|_| policy.completed(request, ms(u64::from(query_type.0) + 1), now));
        (0..5).for_each(|_| policy.enqueued(request));
    }
    policy.refresh(now);
    policy
}
