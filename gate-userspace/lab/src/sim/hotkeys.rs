//! How well the heaviest keys are found: by skew, memory and sampling.
//!
//! Keys are drawn by Zipf's law. Some of the requests are sampled, at random, and each sample stands
//! for as many requests as there are to a sample. What the sketch then holds to be the heaviest keys
//! is compared with what all requests say.

use serde::Serialize;

use super::parallel::{self, Progress};
use super::rng::Rng;
use gate_policy::range::{OutOfRange, ensure};
use gate_policy::space_saving::SpaceSaving;

/// The parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Different keys. From 1 to 100,000,000.
    pub keys: u32,
    /// Requests, from 1 to 100,000,000,000.
    pub requests: u64,
    /// Exponents of Zipf's law, each from 0 to 3. At least one.
    pub exponents: Vec<f64>,
    /// Sketches that see each stream. At least one.
    pub sketches: Vec<Sketch>,
    /// How many of the heaviest keys are reported. At least 1, at most the keys and any capacity.
    pub top: usize,
    /// The same seed gives the same report.
    pub seed: u64,
}

/// A sketch, and what it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sketch {
    /// Keys that it counts. From 1 to 65,536.
    pub capacity: usize,
    /// One in this many requests is sampled. From 1 to 1,000,000.
    pub sample_every: u32,
}

/// How well one sketch did on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Exponent of Zipf's law.
    pub exponent: f64,
    /// The sketch, and what it saw.
    #[serde(flatten)]
    pub sketch: Sketch,
    /// The memory that the sketch takes.
    pub memory_bytes: usize,
    /// Requests that it saw.
    pub samples: u64,
    /// The share of the keys it holds to be the heaviest that are.
    pub precision: f64,
    /// The share of the heaviest keys that it counts at all.
    pub recall: f64,
    /// By how much it is wrong about the weight of the heaviest keys that it found, on average, as a
    /// share of the weight.
    pub mean_error: f64,
    /// Keys whose weight, in the stream that it saw, is outside of its bounds. There must be none.
    pub out_of_bounds: usize,
}

impl Setup {
    /// Fails if something is impossible.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`], naming the field.
    pub fn check(&self) -> Result<(), OutOfRange> {
        ensure((1..=100_000_000).contains(&self.keys), "keys", self.keys, "from 1 to 100000000")?;
        let requests = (1..=100_000_000_000).contains(&self.requests);
        ensure(requests, "requests", self.requests, "from 1 to 100000000000")?;
        ensure(!self.exponents.is_empty(), "exponents", "none", "at least one")?;
        for (nth, exponent) in self.exponents.iter().enumerate() {
            let field = format!("exponents[{nth}]");
            ensure((0.0..=3.0).contains(exponent), &field, exponent, "from 0 to 3")?;
        }
        ensure(!self.sketches.is_empty(), "sketches", "none", "at least one")?;
        ensure(self.top >= 1, "top", self.top, "at least 1")?;
        ensure(self.top <= self.keys as usize, "top", self.top, "at most the number of keys")?;
        for (nth, sketch) in self.sketches.iter().enumerate() {
            let Sketch { capacity, sample_every } = sketch;
            let sampled = (1..=1_000_000).contains(sample_every);
            ensure(sampled, &format!("sketches[{nth}].sample_every"), sample_every, "from 1 to 1000000")?;
            let fits = (self.top..=SpaceSaving::MAX_CAPACITY).contains(capacity);
            ensure(fits, &format!("sketches[{nth}].capacity"), capacity, "from the keys asked for to 65536")?;
        }
        Ok(())
    }

    /// The total that [`Self::run`] reports as progress.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.requests.saturating_mul(self.exponents.len() as u64)
    }

    /// Draws a stream for each exponent, on all cores: a report for each sketch and exponent.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if something is impossible.
    pub fn run(&self, progress: &Progress) -> Result<Vec<Report>, OutOfRange> {
        self.check()?;
        let reports = parallel::run(self.exponents.len(), |nth| {
            let mut stream = Stream::new(self, nth);
            stream.draw(self.requests, progress);
            stream.reports(self.top)
        });
        Ok(reports.into_iter().flatten().collect())
    }
}

/// One stream and the sketches that see it.
struct Stream {
    exponent: f64,
    zipf: rand_distr::Zipf<f64>,
    rng: Rng,
    /// Requests by key.
    truth: Vec<u32>,
    seen: Vec<Seen>,
}

/// A sketch and what it saw.
struct Seen {
    setup: Sketch,
    sketch: SpaceSaving,
    /// Samples by key.
    truth: Vec<u32>,
    samples: u64,
    /// Requests up to the next sample.
    skip: u64,
    rng: Rng,
}

impl Stream {
    /// For a possible `setup`, the stream of its exponent number `nth`.
    fn new(setup: &Setup, nth: usize) -> Self {
        let exponent = setup.exponents[nth];
        let seen = setup.sketches.iter().zip(1..).map(|(&of, stream)| {
            let mut seen = Seen {
                setup: of,
                sketch: SpaceSaving::new(of.capacity, setup.seed).expect("a possible setup"),
                truth: vec![0; setup.keys as usize],
                samples: 0,
                skip: 0,
                rng: Rng::new(setup.seed, stream),
            };
            seen.skip = seen.gap();
            seen
        });
        Self {
            exponent,
            zipf: rand_distr::Zipf::new(f64::from(setup.keys), exponent).expect("a possible setup"),
            rng: Rng::new(setup.seed, 0),
            truth: vec![0; setup.keys as usize],
            seen: seen.collect(),
        }
    }

    fn draw(&mut self, requests: u64, progress: &Progress) {
        for request in 1..=requests {
            let key = self.rng.draw(&self.zipf) as usize - 1;
            self.truth[key] = self.truth[key].saturating_add(1);
            for seen in &mut self.seen {
                seen.skip -= 1;
                if seen.skip == 0 {
                    seen.sample(key);
                }
            }
            if request % PROGRESS_STEP == 0 {
                progress.add(PROGRESS_STEP);
            }
        }
        progress.add(requests % PROGRESS_STEP);
    }

    fn reports(&self, top: usize) -> Vec<Report> {
        let mut ranks: Vec<u32> = (0..self.truth.len() as u32).collect();
        let weight = |key: &u32| std::cmp::Reverse(self.truth[*key as usize]);
        ranks.select_nth_unstable_by_key(top - 1, weight);
        let heaviest = &ranks[..top];
        // Whatever is as heavy as the last of them is right, too.
        let least = heaviest.iter().map(|&key| self.truth[key as usize]).min().unwrap_or(0);
        self.seen.iter().map(|seen| seen.report(self, heaviest, least)).collect()
    }
}

impl Seen {
    /// Requests up to the next sample: each is one by the same chance, whatever came before.
    fn gap(&mut self) -> u64 {
        let every = f64::from(self.setup.sample_every);
        if self.setup.sample_every == 1 {
            return 1;
        }
        1 + (self.rng.exponential() / -(1.0 - 1.0 / every).ln()) as u64
    }

    fn sample(&mut self, key: usize) {
        self.samples += 1;
        self.truth[key] += 1;
        self.sketch.update(0, &key_bytes(key), u64::from(self.setup.sample_every));
        self.skip = self.gap();
    }

    fn report(&self, stream: &Stream, heaviest: &[u32], least: u32) -> Report {
        let found: Vec<_> = self.sketch.top(heaviest.len());
        let of = |key: &[u8]| stream.truth[key_number(key)];
        let right = found.iter().filter(|entry| of(entry.key) >= least);
        let counted =
            heaviest.iter().filter(|&&key| self.sketch.estimate(0, &key_bytes(key as usize)).is_some());
        let wrong = right.clone().map(|entry| {
            let truth = f64::from(of(entry.key));
            (entry.weight.count as f64 - truth).abs() / truth.max(1.0)
        });
        let right_count = right.clone().count();
        let share = |part: usize| part as f64 / heaviest.len() as f64;
        Report {
            exponent: stream.exponent,
            sketch: self.setup,
            memory_bytes: self.sketch.memory_bytes(),
            samples: self.samples,
            precision: share(right_count),
            recall: share(counted.count()),
            mean_error: wrong.sum::<f64>() / right_count.max(1) as f64,
            out_of_bounds: self.out_of_bounds(),
        }
    }

    /// Keys whose weight, in what the sketch saw, is outside of its bounds.
    fn out_of_bounds(&self) -> usize {
        let floor = self.sketch.floor();
        let is_out = |(key, &samples): (usize, &u32)| {
            let truth = u64::from(samples) * u64::from(self.setup.sample_every);
            match self.sketch.estimate(0, &key_bytes(key)) {
                Some(weight) => !(weight.at_least()..=weight.count).contains(&truth),
                None => truth > floor,
            }
        };
        self.truth.iter().enumerate().filter(|&of| is_out(of)).count()
    }
}

fn key_bytes(key: usize) -> [u8; 4] {
    (key as u32).to_be_bytes()
}

fn key_number(key: &[u8]) -> usize {
    key.try_into().map_or(usize::MAX, |bytes| u32::from_be_bytes(bytes) as usize)
}

/// How many requests pass between two signs of progress.
const PROGRESS_STEP: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            keys: 10_000,
            requests: 300_000,
            exponents: vec![0.99],
            sketches: vec![Sketch { capacity: 500, sample_every: 1 }],
            top: 20,
            seed: 1,
        }
    }

    fn run(setup: &Setup) -> Vec<Report> {
        setup.run(&Progress::default()).unwrap()
    }

    #[test]
    fn a_full_view_finds_the_heaviest_within_its_bounds() {
        let exponents = vec![0.8, 0.99, 1.3];
        for report in run(&Setup { exponents, ..setup() }) {
            assert_eq!((report.samples, report.out_of_bounds), (300_000, 0));
            assert!(report.precision >= 0.95 && report.recall >= 0.95, "{report:?}");
            assert!(report.mean_error < 0.2, "{report:?}");
        }
    }

    #[test]
    fn fewer_samples_and_less_memory_find_fewer() {
        let sketches = [(500, 1), (500, 100), (500, 10_000), (20, 100)]
            .map(|(capacity, sample_every)| Sketch { capacity, sample_every });
        let reports = run(&Setup { sketches: sketches.to_vec(), ..setup() });
        let precision: Vec<_> = reports.iter().map(|report| report.precision).collect();
        assert!(precision[0] > precision[2] && precision[1] > precision[3], "{precision:?}");
        // One in a hundred, by chance.
        assert!((2_800..=3_200).contains(&reports[1].samples), "{}", reports[1].samples);
        assert!(reports.iter().all(|report| report.out_of_bounds == 0));
    }

    #[test]
    fn the_same_seed_gives_the_same_report() {
        let setup = Setup { sketches: vec![Sketch { capacity: 500, sample_every: 100 }], ..setup() };
        assert_eq!(run(&setup), run(&setup));
        assert_ne!(run(&setup), run(&Setup { seed: 2, ..setup }));
    }

    #[test]
    fn impossible_setups_are_refused() {
        let sketch = |capacity, sample_every| vec![Sketch { capacity, sample_every }];
        for (setup, field) in [
            (Setup { keys: 0, ..setup() }, "keys"),
            (Setup { requests: 0, ..setup() }, "requests"),
            (Setup { exponents: vec![], ..setup() }, "exponents"),
            (Setup { exponents: vec![1.0, -0.1], ..setup() }, "exponents[1]"),
            (Setup { exponents: vec![f64::NAN], ..setup() }, "exponents[0]"),
            (Setup { sketches: vec![], ..setup() }, "sketches"),
            (Setup { sketches: sketch(19, 1), ..setup() }, "sketches[0].capacity"),
            (Setup { sketches: sketch(65_537, 1), ..setup() }, "sketches[0].capacity"),
            (Setup { sketches: sketch(20, 0), ..setup() }, "sketches[0].sample_every"),
            (Setup { top: 0, ..setup() }, "top"),
            (Setup { top: 10_001, ..setup() }, "top"),
        ] {
            assert_eq!(setup.run(&Progress::default()).unwrap_err().field, field);
        }
    }
}
