//! The arguments of a request, read out of its bytes.

use super::length::{self, Length};

/// A request's arguments, its name first.
#[derive(Clone, Debug)]
pub struct Args<'b> {
    bytes: &'b [u8],
    at: usize,
    left: u32,
}

impl<'b> Args<'b> {
    /// `count` arguments from `at` on.
    pub(super) const fn new(bytes: &'b [u8], at: usize, count: u32) -> Self {
        Self { bytes, at, left: count }
    }

    /// Where the next one begins.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// How many are left.
    pub(super) const fn left(&self) -> u32 {
        self.left
    }
}

impl<'b> Iterator for Args<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        self.left = self.left.checked_sub(1)?;
        let Length::Is(len, start) = length::read(self.bytes, self.at + 1) else { return None };
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        self.at = end + 2;
        self.bytes.get(start..end)
    }
}

/// Arguments at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Run {
    /// Where the first begins, in bytes.
    pub(super) at: u32,
    /// How many there are.
    pub(super) count: u32,
    /// How many arguments it is from one to the next; 0 if there is only one.
    pub(super) step: u8,
}

/// A request's keys.
#[derive(Clone, Debug)]
pub struct Keys<'b> {
    bytes: &'b [u8],
    runs: [Run; 2],
}

impl<'b> Keys<'b> {
    pub(super) const fn new(bytes: &'b [u8], runs: [Run; 2]) -> Self {
        Self { bytes, runs }
    }
}

impl<'b> Iterator for Keys<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        let run = self.runs.iter_mut().find(|run| run.count > 0)?;
        run.count -= 1;
        let mut args = Args::new(self.bytes, run.at as usize, u32::MAX);
        let key = args.next();
        if run.count > 0 {
            for _ in 1..run.step {
                args.next();
            }
            run.at = args.at() as u32;
        }
        key
    }
}
