//! How the kernel's coarse clock is measured, so that XDP and the daemon agree on the time.
//!
//! XDP reads jiffies, which cost 2 ns where `ktime_get_ns` costs 33. Their tick is 1 to 10 ms, their
//! origin is their own. Both are measured here, once, when the maps are made.

use gate_common::abi::Clock;
use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::{Error, Loaded, Result};
use crate::clock;

/// Measures the tick of jiffies and a moment at which they advanced. Takes under 100 ms.
///
/// # Errors
///
/// [`Error::System`] if jiffies stand still.
pub fn measure(loaded: &mut Loaded) -> Result<Clock> {
    let reading = loaded.clock_reading()?;
    let (first_jiffies, first_ns) = next_edge(loaded, &reading)?;
    let (mut jiffies, mut ns) = (first_jiffies, first_ns);
    while ns - first_ns < LONG_ENOUGH_NS {
        (jiffies, ns) = next_edge(loaded, &reading)?;
    }
    let tick_ns = nearest_tick((ns - first_ns) as f64 / (jiffies - first_jiffies) as f64);
    Ok(Clock { tick_ns, origin_jiffies: jiffies, origin_ns: ns })
}

/// Spins until jiffies advance; returns them and the time just after.
fn next_edge(loaded: &mut Loaded, reading: &super::Mapped<[u64; 2]>) -> Result<(u64, u64)> {
    let (start, _) = loaded.read_clocks(reading)?;
    let deadline = clock::monotonic().saturating_add(STANDSTILL);
    loop {
        let (jiffies, ns) = loaded.read_clocks(reading)?;
        if jiffies != start {
            return Ok((jiffies, ns));
        }
        if clock::monotonic() > deadline {
            let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(Error::System { what: "measuring jiffies, which stand still", source });
        }
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
const STANDSTILL: Nanos = Nanos::from_millis(500);

#[cfg(test)]
mod tests {
    use super::nearest_tick;

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
