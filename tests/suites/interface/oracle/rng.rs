//! A seeded generator of draws.

use gate_common::abi::draw;

/// The same seed gives the same draws.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Neighbouring seeds differ in few bits at first.
        for _ in 0..8 {
            rng.next();
        }
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = draw::next(self.0);
        self.0
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// `rule`, but once in `times` one of the others.
    pub(crate) fn mostly<T: Copy>(&mut self, times: usize, rule: T, others: &[T]) -> T {
        if self.once_in(times) { self.pick(others) } else { rule }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
