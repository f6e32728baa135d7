//! How long the store takes: a few servers and one queue before them. Pure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gate_common::units::Nanos;

use crate::sim::rng::Rng;

/// How service times are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All the same.
    Fixed,
    /// Exponential: many short, a few long.
    Exponential,
}

/// Servers that each do one thing at a time, in the order in which it came.
pub(super) struct Servers {
    /// When each will be free.
    free: BinaryHeap<Reverse<Nanos>>,
    spread: Spread,
    rng: Rng,
}

impl Servers {
    pub(super) fn new(servers: usize, spread: Spread, seed: u64) -> Self {
        Self { free: vec![Reverse(Nanos::ZERO); servers.max(1)].into(), spread, rng: Rng::new(seed, 0) }
    }

    /// When work that came at `now`, and may begin at `ready` at the earliest, will be done.
    pub(super) fn done(&mut self, now: Nanos, ready: Nanos, mean: Nanos) -> Nanos {
        if mean == Nanos::ZERO {
            return now.max(ready);
        }
        let takes = match self.spread {
            Spread::Fixed => mean,
            Spread::Exponential => Nanos((mean.0 as f64 * self.rng.exponential()) as u64),
        };
        let Some(mut server) = self.free.peek_mut() else { return now };
        server.0 = now.max(ready).max(server.0).saturating_add(takes);
        server.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_free_server_and_for_its_turn() {
        let mut servers = Servers::new(2, Spread::Fixed, 0);
        let mut done = |now, ready| servers.done(Nanos(now), Nanos(ready), Nanos(10)).0;
        assert_eq!([done(100, 0), done(100, 0), done(100, 0), done(101, 0)], [110, 110, 120, 120]);
        assert_eq!([done(200, 0), done(200, 230)], [210, 240]);
        assert_eq!(servers.done(Nanos(300), Nanos::ZERO, Nanos::ZERO), Nanos(300));
    }

    #[test]
    fn exponential_times_have_their_mean() {
        let mut servers = Servers::new(1, Spread::Exponential, 1);
        let mut now = Nanos::ZERO;
        for _ in 0..100_000 {
            now = servers.done(now, now, Nanos(50_000));
        }
        assert!((now.0 as f64 / 100_000.0 - 50_000.0).abs() < 500.0);
    }
}
