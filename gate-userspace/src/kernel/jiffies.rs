//! How the kernel's coarse clock is measured, so that XDP and the daemon agree on the time.
//!
//! XDP reads jiffies, which cost 2 ns where `ktime_get_ns` costs 33. Their tick is 1 to 10 ms, their
//! origin is their own. Both are measured here, once, when the maps are made.

use gate_common::abi::Clock;
use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::{Error, Loaded, Result};
use crate::clock;

/// Measures the tick of jiffies and a moment at which they advanced. Takes under 100 ms, on a busy machine
/// somewhat more.
///
/// # Errors
///
/// [`Error::System`] if jiffies stand still, or the machine is too busy to see when they advance.
pub fn measure(loaded: &mut Loaded) -> Result<Clock> {
    let reading = loaded.clock_reading()?;
    let deadline = clock::monotonic().saturating_add(PATIENCE);
    let mut watch = Watch::default();
    let mut first = None;
    while clock::monotonic() < deadline {
        let (jiffies, ns) = loaded.read_clocks(&reading)?;
        let Some(edge) = watch.edge(jiffies, ns) else { continue };
        let (first_jiffies, first_ns) = *first.get_or_insert(edge);
        if ns - first_ns >= LONG_ENOUGH_NS {
            let tick_ns = nearest_tick((ns - first_ns) as f64 / (jiffies - first_jiffies) as f64);
            return Ok(Clock { tick_ns, origin_jiffies: jiffies, origin_ns: ns });
        }
    }
    let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
    Err(Error::System { what: "measuring jiffies, which stand still or were never seen to advance", source })
}

/// Watches readings for a moment at which jiffies advanced.
///
/// Whoever reads may be kept waiting between two readings and within one; an edge that is noticed
/// milliseconds late would make the clock run too fast or too slow. So only those count that are known
/// to within [`PRECISE_NS`].
#[derive(Debug, Default)]
struct Watch {
    /// The jiffies of the last reading, and the times of the last two, the older first.
    last: Option<(u64, [u64; 2])>,
}

impl Watch {
    /// Takes a reading, jiffies and then the time, and returns it if jiffies have just advanced: they had
    /// not at the last reading, which began after the one before it had ended, at most [`PRECISE_NS`] ago.
    fn edge(&mut self, jiffies: u64, ns: u64) -> Option<(u64, u64)> {
        let last = self.last.replace((jiffies, [self.last.map_or(0, |(_, [_, newer])| newer), ns]));
        let (before, [older, _]) = last?;
        (jiffies > before && ns - older <= PRECISE_NS).then_some((jiffies, ns))
    }
}

/// The tick of the configured frequency that is nearest to what was measured.
fn nearest_tick(measured_ns: f64) -> u64 {
    let nearest = FREQUENCIES
        .into_iter()
        .map(|hertz| NANOS_PER_SEC / hertz)
        .min_by(|a, b| (*a as f64 - measured_ns).abs().total_cmp(&(*b as f64 - measured_ns).abs()));
    match nearest {
        Some(tick) if (tick as f64 - measured_ns).abs() < tick as f64 * 0.05 => tick,
        _ => measured_ns.round() as u64,
    }
}

/// The frequencies that Linux can be configured for (`kernel/Kconfig.hz`, and some architectures' own).
const FREQUENCIES: [u64; 10] = [24, 32, 48, 64, 100, 128, 250, 256, 300, 1000];
const LONG_ENOUGH_NS: u64 = 40_000_000;
/// So that both ends of the measurement together are off by less than 1%.
const PRECISE_NS: u64 = 150_000;
const PATIENCE: Nanos = Nanos::from_millis(3_000);

#[cfg(test)]
mod tests {
    use super::{PRECISE_NS, Watch, nearest_tick};

    #[test]
    fn only_an_edge_that_is_seen_at_once_counts() {
        let long = PRECISE_NS + 1;
        // Readings of jiffies and of the time since the one before; the last is an edge or is not.
        for (readings, is_edge) in [
            (&[(7, 0), (7, 1_000), (8, 1_000)][..], true),
            (&[(7, 0), (7, long), (7, 1_000), (8, 1_000)], true),
            (&[(7, 0), (7, 1_000), (7, 1_000)], false),
            // Kept waiting between the last two.
            (&[(7, 0), (7, 1_000), (8, long)], false),
            // Kept waiting within the last but one: after its jiffies, before its time.
            (&[(7, 0), (7, long), (8, 1_000)], false),
            (&[(7, 0), (8, 1_000)], false),
            (&[(7, 0)], false),
        ] {
            let (mut watch, mut now) = (Watch::default(), 5_000_000_000);
            let edges = readings.iter().map(|&(jiffies, after)| {
                now += after;
                watch.edge(jiffies, now)
            });
            let last = edges.last().expect("there are readings");
            assert_eq!(last.is_some(), is_edge, "{readings:?}");
        }
    }

    #[test]
    fn a_measured_tick_is_that_of_a_configured_frequency() {
        for (measured, tick) in [
            (4_000_123.0, 4_000_000),
            (3_990_000.0, 4_000_000),
            (999_950.0, 1_000_000),
            (3_333_000.0, 3_333_333),
            (10_020_000.0, 10_000_000),
            (2_000_000.0, 2_000_000),
        ] {
            assert_eq!(nearest_tick(measured), tick, "{measured}");
        }
    }
}
