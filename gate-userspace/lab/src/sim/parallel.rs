//! Independent runs, on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// How much of a simulation is done, in whatever unit it counts. Shared between its threads and
/// whoever shows it.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    /// Adds what was done since the last call.
    pub fn add(&self, done: u64) {
        self.0.fetch_add(done, Ordering::Relaxed);
    }

    /// The progress so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `job` for every index below `jobs`, on all cores, and returns the results by index: the same
/// ones, in the same order, however many cores there are.
pub fn run<T: Send>(jobs: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                return results;
            }
            results.push((index, job(index)));
        }
    };
    let mut results: Vec<(usize, T)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // A panic in a job is a defect: pass it on as it is.
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    results.sort_unstable_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_jobs() {
        for jobs in [0, 1, 2, 100] {
            let progress = Progress::default();
            let results = run(jobs, |index| {
                progress.add(1);
                index * index
            });
            assert_eq!(results, (0..jobs).map(|index| index * index).collect::<Vec<_>>());
            assert_eq!(progress.done(), jobs as u64);
        }
    }
}
