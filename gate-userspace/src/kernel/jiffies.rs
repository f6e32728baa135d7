//! How XDP and the daemon agree on the time.
//!
//! XDP reads jiffies, which cost 2 ns where `ktime_get_ns` costs 33. Their tick is 1 to 10 ms, which the kernel says;
//! their origin is their own, and measured here, once, when the maps are made.

use gate_common::abi::Clock;
use gate_common::units::Nanos;

use super::error::{Error, Result};
use super::load::Loaded;
use crate::clock;

/// Measures when jiffies advance. Takes a few ticks; how late this thread is given a CPU does not matter much, since a
/// reading can only be later than the advance before it: the earliest is nearest.
///
/// # Errors
///
/// [`Error::System`] if jiffies stand still.
pub fn measure(loaded: &mut Loaded) -> Result<Clock> {
    let reading = loaded.clock_reading()?;
    let tick_ns = clock::tick().0;
    let deadline = clock::monotonic().saturating_add(STANDSTILL);
    let (origin_jiffies, origin_ns) = loaded.read_clocks(&reading)?;
    let mut clock = Clock { tick_ns, origin_jiffies, origin_ns };
    loop {
        let (jiffies, ns) = loaded.read_clocks(&reading)?;
        clock = nearer(clock, jiffies, ns);
        if jiffies - origin_jiffies >= TICKS {
            return Ok(clock);
        }
        if jiffies == origin_jiffies && clock::monotonic() > deadline {
            let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(Error::System { what: "measuring jiffies, which stand still", source });
        }
    }
}

/// The same clock, with what this reading says of when jiffies had its origin.
fn nearer(clock: Clock, jiffies: u64, ns: u64) -> Clock {
    let ticks = jiffies - clock.origin_jiffies;
    Clock { origin_ns: clock.origin_ns.min(ns - ticks * clock.tick_ns), ..clock }
}

/// Of which one at least is met at once.
const TICKS: u64 = 10;
const STANDSTILL: Nanos = Nanos::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_undisturbed_advance_is_enough_to_find_the_origin() {
        // In truth jiffies became 100 at 8 ms, and the tick is 4.
        let readings = [(100, 11_900_000), (103, 23_000_000), (104, 24_000_100), (109, 45_000_000)];
        let clock = Clock { tick_ns: 4_000_000, origin_jiffies: 100, origin_ns: 10_000_000 };
        let clock = readings.into_iter().fold(clock, |clock, (jiffies, ns)| nearer(clock, jiffies, ns));
        assert_eq!(clock.origin_ns, 8_000_100);
    }
}
