//! How many queries a core simulates in a second, by policy: the published study at 1.2 times the
//! capacity.

use divan::Bencher;
use divan::counter::ItemsCount;
use gate_userspace::sim::bouncer::{Policy, Study};
use gate_userspace::sim::parallel::Progress;
use gate_userspace::sim::scenario::Scenario;

fn main() {
    divan::main();
}

/// One run, which takes one core.
#[divan::bench(args = Policy::ALL.map(Policy::name), sample_count = 10, sample_size = 1)]
fn bouncer(bencher: Bencher<'_, '_>, name: &str) {
    let policy = Policy::ALL.into_iter().find(|policy| policy.name() == name).expect("one of them");
    let scenario = Scenario { loads: vec![1.2], ..Scenario::study() };
    let study = Study { scenario, policies: vec![policy], queries: 850_000, runs: 1, seed: 1 };
    let queries = ItemsCount::new(study.total_queries());
    bencher.counter(queries).bench(|| study.run(&Progress::default()).expect("in range"));
}
