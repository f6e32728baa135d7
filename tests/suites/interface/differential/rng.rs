//! A seeded random number generator, the program's own.

use gate_common::abi::draw;

pub(crate) struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Neighbouring seeds differ in few bits at first.
        (0..8).for_each(|_| _ = rng.word());
        rng
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = draw::next(self.0);
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.word() >> 33) % bound
    }

    /// Once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// The first as a rule, one of the others once in `times`.
    pub(crate) fn mostly<T: Copy>(&mut self, times: u64, rule: T, others: &[T]) -> T {
        if self.once_in(times) { self.pick(others) } else { rule }
    }

    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}
