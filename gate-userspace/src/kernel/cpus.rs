//! The machine's CPUs, and which row of counters each of them has.
//!
//! Only CPUs that are online have rows of their own, and there are some for those that may come. Until the daemon has given it
//! one, a CPU counts in the shared row, atomically. A row whose CPU has gone offline is taken back when another CPU needs
//! one, and given away a tick later, when no packet can be counted there any more.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

use gate_common::abi::{Cpu, touched_words};

use super::error::{Error, Result};
use super::maps::Maps;

/// The CPUs that a machine may have, and those that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    possible: u32,
    numbers: u32,
    online: Vec<u32>,
}

impl Cpus {
    /// This machine's.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if `/sys` does not say.
    pub fn of_machine() -> Result<Self> {
        let read = |path| std::fs::read_to_string(path).map_err(failed);
        Self::parse(&read(POSSIBLE)?, &read(ONLINE)?).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    /// Those in two lists of ranges, as the kernel writes them, like `0-3,8-11`; `None` if they are no such lists.
    #[must_use]
    pub fn parse(possible: &str, online: &str) -> Option<Self> {
        let possible = numbers(possible)?;
        let numbers = possible.iter().max()?.checked_add(1)?;
        Some(Self { possible: possible.len() as u32, numbers, online: self::numbers(online)? })
    }

    /// One more than the highest number that a CPU may have. There may be fewer CPUs: the numbers can have holes.
    #[must_use]
    pub const fn numbers(&self) -> u32 {
        self.numbers
    }

    /// Rows of counters for them: one for each that is online, and for a quarter as many that may come.
    #[must_use]
    pub fn rows(&self) -> u32 {
        let online = self.online.len() as u32;
        online + self.possible.saturating_sub(online).min((online / 4).max(LEAST_SPARE))
    }

    /// The numbers of those that are online.
    #[must_use]
    pub fn online(&self) -> &[u32] {
        &self.online
    }
}

/// Rows for CPUs that may come, on a machine that has few.
const LEAST_SPARE: u32 = 2;
/// More CPUs than any kernel supports.
const MOST_CPUS: u32 = 1 << 16;
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

fn failed(source: io::Error) -> Error {
    Error::System { what: "counting the CPUs", source }
}

/// The numbers in a list of ranges.
fn numbers(ranges: &str) -> Option<Vec<u32>> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&number| number < MOST_CPUS);
    let mut numbers = Vec::new();
    for range in ranges.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(number(first)?..=number(last)?);
    }
    Some(numbers)
}

/// Gives rows to the CPUs that are online, as they come and go.
#[derive(Debug)]
pub struct CpuWatch {
    online: File,
    /// The list that rows were given by last, until then none.
    seen: Vec<u8>,
    /// True once somebody was told that there are too few rows.
    warned: bool,
}

impl CpuWatch {
    /// Watches this machine's CPUs.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn new() -> Result<Self> {
        Ok(Self { online: File::open(ONLINE).map_err(failed)?, seen: Vec::new(), warned: false })
    }

    /// Gives rows to CPUs that have come since. To be called once a tick by the owner of the maps.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn tick(&mut self, maps: &Maps) -> Result<()> {
        let mut list = [0; 4096];
        let length = self.online.read_at(&mut list, 0).map_err(failed)?;
        let list = &list[..length];
        if *list == self.seen {
            return Ok(());
        }
        let online = std::str::from_utf8(list).ok().and_then(numbers);
        let online = online.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        match maps.give_rows(&online) {
            // Rows that were taken back are free at the next tick.
            Rows::TakenBack => {}
            Rows::Given => self.seen = list.to_vec(),
            Rows::TooFew(without) => {
                self.seen = list.to_vec();
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::info!(
                        without,
                        "more CPUs than rows of counters: these count in one, more slowly, until gate is started anew"
                    );
                }
            }
        }
        Ok(())
    }
}

/// The result of giving rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every CPU has one.
    Given,
    /// Some were taken back from CPUs that are gone; they can be given at the next tick.
    TakenBack,
    /// So many CPUs have none of their own.
    TooFew(usize),
}

impl Maps {
    /// Gives a row to each of the CPUs that are `online` and have none; takes rows back from others where there are too
    /// few.
    pub fn give_rows(&self, online: &[u32]) -> Rows {
        let room = self.cpus.len() - 1;
        let wanting: Vec<usize> = online
            .iter()
            .map(|&cpu| cpu as usize)
            .filter(|&cpu| cpu < room && self.row_of(cpu) == 0)
            .collect();
        let mut free: Vec<usize> = (1..=self.cpu_rows()).collect();
        let used: Vec<usize> = (0..room).map(|cpu| self.row_of(cpu)).collect();
        free.retain(|row| !used.contains(row));
        for (&cpu, &row) in wanting.iter().zip(&free) {
            self.set_row(cpu, row);
        }
        // Which rare counters go with a row may have been decided otherwise by an older gate.
        (0..room).filter(|&cpu| used[cpu] != 0).for_each(|cpu| self.set_row(cpu, used[cpu]));
        let without = wanting.len().saturating_sub(free.len());
        if without == 0 {
            return Rows::Given;
        }
        let is_online = |cpu: usize| online.iter().any(|&online| online as usize == cpu);
        let gone: Vec<usize> =
            (0..room).filter(|&cpu| used[cpu] != 0 && !is_online(cpu)).take(without).collect();
        gone.iter().for_each(|&cpu| self.set_row(cpu, 0));
        if gone.is_empty() { Rows::TooFew(without) } else { Rows::TakenBack }
    }

    /// The row of counters in which a CPU counts; zero if that is the shared row.
    #[must_use]
    pub fn row_of(&self, cpu: usize) -> usize {
        let word = self.cpus.word(cpu, offset_of!(Cpu, first_line)).load(Ordering::Relaxed);
        word as u32 as usize / self.tenants.len()
    }

    /// Has a CPU count in this row from now on.
    pub fn set_row(&self, cpu: usize, row: usize) {
        let tenants = self.tenants.len() as u32;
        let first_line = row as u32 * tenants;
        let first_touched = row as u32 * touched_words(tenants);
        let first_rare = self.rare_row(row) as u64 * u64::from(tenants);
        self.cpus.word(cpu, offset_of!(Cpu, first_rare)).store(first_rare, Ordering::Relaxed);
        // Both in one word: whoever counts in a line sets the bit of that line.
        let word = u64::from(first_line) | u64::from(first_touched) << 32;
        self.cpus.word(cpu, offset_of!(Cpu, first_line)).store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Sizes;

    #[test]
    fn every_online_cpu_has_a_row_despite_holes_in_numbers() {
        for (possible, online, numbers, rows) in [
            ("0\n", "0\n", 1, 1),
            ("0-1\n", "0-1\n", 2, 2),
            ("0-3,8-11\n", "0-3,8-11\n", 12, 8),
            ("0,2,5\n", "0,5\n", 6, 3),
            ("0-63\n", "0-63\n", 64, 64),
            ("0-63\n", "0-1\n", 64, 4),
            ("0-239\n", "0-15,32-47\n", 240, 40),
        ] {
            let cpus = Cpus::parse(possible, online).unwrap();
            assert_eq!((cpus.numbers(), cpus.rows()), (numbers, rows), "{possible:?} {online:?}");
        }
        for list in ["\n", "0-x\n", "0-4294967295\n"] {
            assert_eq!(Cpus::parse(list, "0\n"), None, "{list:?}");
            assert_eq!(Cpus::parse("0\n", list), None, "{list:?}");
        }
    }

    fn maps(cpus: u32, cpu_rows: u32) -> Maps {
        Maps::private(&Sizes { cpus, cpu_rows, tenants: 600, ..Sizes::SMALL }).unwrap().0
    }

    fn rows(maps: &Maps) -> Vec<usize> {
        (0..maps.cpus.len() - 1).map(|cpu| maps.row_of(cpu)).collect()
    }

    #[test]
    fn no_two_cpus_have_the_same_row_of_their_own() {
        let maps = maps(12, 5);
        assert_eq!(maps.give_rows(&[0, 1, 9]), Rows::Given);
        assert_eq!(rows(&maps), [1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0]);
        assert_eq!(maps.give_rows(&[0, 1, 8, 9, 11]), Rows::Given);
        assert_eq!(rows(&maps), [1, 2, 0, 0, 0, 0, 0, 0, 4, 3, 0, 5]);
        // A number beyond those that there is room for counts in the shared row, as one without a row does.
        assert_eq!(maps.give_rows(&[0, 1, 8, 9, 11, 700]), Rows::Given);
        assert_eq!(maps.give_rows(&[0, 1, 2, 8, 9, 11]), Rows::TooFew(1));
    }

    #[test]
    fn rows_of_cpus_that_are_gone_are_given_away_a_tick_later() {
        let maps = maps(4, 2);
        assert_eq!(maps.give_rows(&[0, 1]), Rows::Given);
        assert_eq!(maps.give_rows(&[0, 2]), Rows::TakenBack);
        assert_eq!(rows(&maps), [1, 0, 0, 0]);
        assert_eq!(maps.give_rows(&[0, 2]), Rows::Given);
        assert_eq!(rows(&maps), [1, 0, 2, 0]);
        assert_eq!(maps.give_rows(&[0, 1, 2]), Rows::TooFew(1));
    }
}
