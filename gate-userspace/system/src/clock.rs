//! The only reader of the clock and of entropy.

use gate_common::units::Nanos;
use nix::time::{ClockId, clock_getres, clock_gettime};

/// A number that nobody can foresee.
#[must_use]
pub fn entropy() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(monotonic())
}

/// Bytes that nobody can foresee, by the system's generator.
///
/// # Panics
///
/// Never: Linux has had one since 3.17.
#[must_use]
pub fn secret() -> [u8; 16] {
    let mut secret = [0; 16];
    let generator = rustls::crypto::ring::default_provider().secure_random;
    generator.fill(&mut secret).expect("Linux has a generator");
    secret
}

/// `CLOCK_MONOTONIC`, which gate's clock is derived from.
///
/// # Panics
///
/// Never: Linux always has this clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn monotonic() -> Nanos {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has a monotonic clock");
    Nanos(now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// `CLOCK_BOOTTIME`: as `CLOCK_MONOTONIC`, but goes on while the machine sleeps.
///
/// # Panics
///
/// Never: Linux always has this clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn boottime() -> Nanos {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    Nanos(now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// `CLOCK_REALTIME`, in seconds: only for what others say in it.
///
/// # Panics
///
/// Never: Linux always has this clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn unix_secs() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux has a clock");
    now.tv_sec().max(0).cast_unsigned()
}

/// `CLOCK_REALTIME`, in milliseconds: only for people.
///
/// # Panics
///
/// Never: Linux always has this clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn unix_millis() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux has a clock");
    now.tv_sec().max(0).cast_unsigned() * 1_000 + now.tv_nsec().cast_unsigned() / 1_000_000
}

/// `CLOCK_REALTIME`: only for what HTTP says in it.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn realtime() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

/// How long a tick of jiffies is: the kernel's coarse clocks go by them.
///
/// # Panics
///
/// Never: Linux always has these clocks.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn tick() -> Nanos {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).expect("Linux has a coarse clock");
    Nanos(tick.tv_sec().cast_unsigned() * 1_000_000_000 + tick.tv_nsec().cast_unsigned())
}
