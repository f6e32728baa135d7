//! A seeded random number generator, with the numbers of the XDP program's own.

use gate_common::abi::draw;

/// The same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed, of any value.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Neighbouring seeds differ in few bits at first.
        (0..8).for_each(|_| _ = rng.word());
        rng
    }

    /// 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = draw::next(self.0);
        self.0
    }

    /// A number below `bound`, which is above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.word() >> 33) % bound
    }

    /// An index into `len` things, of which there is at least one.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// The first as a rule, one of the others once in `times`.
    pub fn mostly<T: Copy>(&mut self, times: u64, rule: T, others: &[T]) -> T {
        if self.once_in(times) { self.pick(others) } else { rule }
    }

    /// Any bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// A value of a store: every byte occurs in long ones.
    pub fn value(&mut self, len: usize) -> Vec<u8> {
        let first = self.below(256) as u8;
        let next = |byte: &u8| Some(byte.wrapping_mul(5).wrapping_add(113));
        std::iter::successors(Some(first), next).take(len).collect()
    }
}
