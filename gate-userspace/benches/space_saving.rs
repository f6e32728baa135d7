//! One update of a sketch of the heaviest keys, beside the libraries that do the same job.
//!
//! Every sketch looks for the 1,000 heaviest of a million keys of 21 bytes. The sizes of the
//! `heavykeeper` variants are those of its own packet trace; `datasketches` gets the power of two
//! that has room for 1,000.

use datasketches::frequencies::FrequentItemsSketch;
use divan::Bencher;
use divan::counter::ItemsCount;
use gate_userspace::policy::space_saving::SpaceSaving;
use gate_userspace::sim::rng::Rng;
use heavykeeper::{BucketedTopK, CuckooTopK, TopK};
use rand_distr::Zipf;

fn main() {
    divan::main();
}

/// An update of a sketch that has seen the stream once, where every request counts as one: samples.
/// The argument is the exponent of Zipf's law.
#[divan::bench(
    types = [SpaceSaving, FrequentItemsSketch<Vec<u8>>, TopK<Vec<u8>>, BucketedTopK<Vec<u8>>, CuckooTopK<Vec<u8>>],
    args = [0.99, 0.6, 1.2],
    sample_count = 50,
)]
fn samples<S: Sketch>(bencher: Bencher<'_, '_>, exponent: f64) {
    run::<S>(bencher, exponent, 1);
}

/// The same for prices of up to 20 request units, in thousandths. `heavykeeper`, which counts a
/// weight one by one, would take milliseconds.
#[divan::bench(types = [SpaceSaving, FrequentItemsSketch<Vec<u8>>], args = [0.99, 0.6, 1.2], sample_count = 50)]
fn prices<S: Sketch>(bencher: Bencher<'_, '_>, exponent: f64) {
    run::<S>(bencher, exponent, 20_000);
}

fn run<S: Sketch>(bencher: Bencher<'_, '_>, exponent: f64, heaviest: u64) {
    let mut rng = Rng::new(1, 0);
    let zipf = Zipf::new(1e6, exponent).expect("valid parameters");
    let mut update = || {
        let key = format!("user:profile:{:08}", rng.draw(&zipf)).into_bytes();
        (key, 1 + rng.bits() % heaviest)
    };
    let updates: Vec<_> = (0..UPDATES).map(|_| update()).collect();
    let mut sketch = S::sketch();
    let mut pass = || updates.iter().for_each(|(key, weight)| sketch.add_weight(key, *weight));
    pass();
    bencher.counter(ItemsCount::new(UPDATES)).bench_local(pass);
}

const UPDATES: usize = 200_000;
const CAPACITY: usize = 1_000;

trait Sketch {
    fn sketch() -> Self;
    fn add_weight(&mut self, key: &[u8], weight: u64);
}

impl Sketch for SpaceSaving {
    fn sketch() -> Self {
        Self::new(CAPACITY, 1).expect("valid capacity")
    }
    fn add_weight(&mut self, key: &[u8], weight: u64) {
        self.update(0, key, weight);
    }
}

impl Sketch for FrequentItemsSketch<Vec<u8>> {
    fn sketch() -> Self {
        Self::new(2_048).expect("a power of two")
    }
    fn add_weight(&mut self, key: &[u8], weight: u64) {
        self.update_with_count_ref(key, weight);
    }
}

impl Sketch for TopK<Vec<u8>> {
    fn sketch() -> Self {
        Self::new(CAPACITY, 16_384, 2, 0.95)
    }
    fn add_weight(&mut self, key: &[u8], weight: u64) {
        self.add(key, weight);
    }
}

impl Sketch for BucketedTopK<Vec<u8>> {
    fn sketch() -> Self {
        Self::new(CAPACITY, 8_192, 4, 0.95)
    }
    fn add_weight(&mut self, key: &[u8], weight: u64) {
        self.add(key, weight);
    }
}

impl Sketch for CuckooTopK<Vec<u8>> {
    fn sketch() -> Self {
        Self::new(CAPACITY, 8_192, 4, 0.95)
    }
    fn add_weight(&mut self, key: &[u8], weight: u64) {
        self.add(key, weight);
    }
}
