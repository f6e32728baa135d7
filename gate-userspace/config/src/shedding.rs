//! The observation of a service's store, and the shedding of tiers when it becomes slower.

use gate_common::units::{Fraction, Nanos};

use super::intercept::is_proxied;
use super::parsers::{number, one_of, time};
use super::raw::Section;
use super::units;
use super::values::Protocol;
use gate_policy::{Tier, latency_ratio, shedding};

/// When a service sheds, and whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Shedding {
    /// True if the service sheds. Never without a backend or a probe.
    pub enabled: bool,
    /// The latency ratio. Within the ranges of [`latency_ratio::LatencyRatio::of`].
    pub ratio: latency_ratio::Settings,
    /// The ladder. Within the ranges of [`shedding::Shedding::new`].
    pub ladder: shedding::Settings,
}

/// How a guarded service is asked how it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// How often; 1 ms to 10 s.
    pub every: Nanos,
    /// How long it may take to accept a connection or to answer; 1 ms to 60 s.
    pub timeout: Nanos,
}

/// Reads a service's probe, if it has one.
pub(super) fn probe(section: &mut Section<'_>, protocol: Protocol) -> Option<Probe> {
    if !section.has("probe") {
        // So that it is among the keys that are known.
        section.section("probe");
        return None;
    }
    if is_proxied(section) {
        section.fault(
            "probe",
            "means something only without backend: gate sees how long it takes what it passes on".to_owned(),
        );
    }
    if matches!(protocol, Protocol::Opaque | Protocol::Http) {
        section.fault(
            "probe",
            "gate cannot ask what is opaque; protocol = \"memcached\" or \"resp\" it can".to_owned(),
        );
    }
    let mut s = section.section("probe");
    let every = s.need("every", "\"10ms\"", time(EVERY_RANGE));
    let timeout = s.get("timeout", time(TIMEOUT_RANGE)).unwrap_or(Nanos::from_millis(500));
    s.finish();
    Some(Probe { every: every?, timeout })
}

/// Reads when a service sheds.
pub(super) fn shedding(section: &mut Section<'_>, probe: Option<Probe>) -> Shedding {
    let watched = is_proxied(section) || section.has("probe");
    if section.has("shedding") && !watched {
        section.fault("shedding", "means something only beside backend or probe".to_owned());
    }
    let mut s = section.section("shedding");
    let enabled = s.get("enabled", one_of(&[("on", true), ("off", false)])).unwrap_or(true);
    let ratio = ratio(&mut s, probe);
    let ladder = ladder(&mut s);
    s.finish();
    Shedding { enabled: enabled && watched, ratio, ladder }
}

fn ratio(s: &mut Section<'_>, probe: Option<Probe>) -> latency_ratio::Settings {
    let usual = latency_ratio::Settings::default();
    // With a probe only so many values come as it asks for.
    let shortest = probe.map_or(usual.short, |probe| usual.short.max(Nanos(probe.every.0 * PROBES)));
    let short = s.get("short", time(SHORT_RANGE)).unwrap_or(shortest);
    let longest = usual.long.max(Nanos(short.0 * LONG_TO_SHORT)).min(LONG_RANGE.1);
    let long = s.get("long", time(LONG_RANGE)).unwrap_or(longest);
    let in_half = probe.map(|probe| short.0 / 2 / probe.every.0);
    let enough = in_half.map_or(usual.min_samples, |probes| (probes / 2).clamp(1, usual.min_samples));
    let min_samples = s.get("min_samples", number(1, 1_000_000)).unwrap_or(enough);
    if s.is_sound() && long <= short {
        s.fault("long", format!("must be longer than short ({short})"));
    }
    if let Some(most) = in_half.filter(|&most| s.is_sound() && min_samples > most) {
        let key = if s.has("min_samples") { "min_samples" } else { "short" };
        s.fault(
            key,
            format!(
                "half of short ({short}) has {most} probes, fewer than min_samples ({min_samples}): \
                 nothing would ever be said"
            ),
        );
    }
    latency_ratio::Settings {
        short,
        long,
        min_samples,
        floor: s.get("floor", time(FLOOR_RANGE)).unwrap_or(usual.floor),
        learn_after: s.get("learn_after", time(LEARN_RANGE)).unwrap_or(usual.learn_after),
    }
}

fn ladder(s: &mut Section<'_>) -> shedding::Settings {
    let usual = shedding::Settings::default();
    let shed_below = shed_below(s.section("shed_below"), usual.shed_below);
    let highest = shed_below[Tier::BestEffort.index()];
    let restore_above = s.get("restore_above", share).unwrap_or(usual.restore_above);
    if s.is_sound() && !(highest < restore_above && restore_above < 1.0) {
        let highest = 100.0 * highest;
        s.fault("restore_above", format!("must be above all of shed_below ({highest:.1}%) and below 100%"));
    }
    let wait = s.get("wait", time(WAIT_RANGE)).unwrap_or(usual.wait);
    let longest_wait = s.get("longest_wait", time(WAIT_RANGE)).unwrap_or(usual.longest_wait.max(wait));
    if s.is_sound() && longest_wait < wait {
        s.fault("longest_wait", format!("must not be below wait ({wait})"));
    }
    let settle = s.get("settle", time(SETTLE_RANGE)).unwrap_or(usual.settle);
    shedding::Settings { shed_below, restore_above, settle, wait, longest_wait }
}

fn shed_below(mut s: Section<'_>, usual: [f64; 4]) -> [f64; 4] {
    let mut below = usual;
    for tier in Tier::ALL {
        below[tier.index()] = s.get(tier.name(), share).unwrap_or(below[tier.index()]);
    }
    for pair in Tier::ALL.windows(2) {
        let more = pair[0];
        let less = pair[1];
        if s.is_sound() && below[less.index()] < below[more.index()] {
            let key = if s.has(less.name()) { less.name() } else { more.name() };
            let most = 100.0 * below[more.index()];
            s.fault(
                key,
                format!("{} must not give way later than {} ({most:.1}%)", less.name(), more.name()),
            );
        }
    }
    s.finish();
    below
}

/// A share above 0.
fn share(text: &str) -> Result<f64, units::Wrong> {
    let share = units::percentage(text)?;
    if share == Fraction::ZERO {
        return Err("must be above 0%, e.g. \"50%\"".to_owned());
    }
    Ok(f64::from(share.steps()) / f64::from(Fraction::ONE.steps()))
}

const EVERY_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(10));
const TIMEOUT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(60));
const SHORT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(3_600));
const LONG_RANGE: (Nanos, Nanos) = (Nanos::from_millis(200), Nanos::from_secs(86_400));
const FLOOR_RANGE: (Nanos, Nanos) = (Nanos::from_micros(1), Nanos::from_secs(3_600));
const LEARN_RANGE: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(86_400));
const WAIT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(3_600));
const SETTLE_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(60));
/// How many probes the short-term window is made to hold at least.
const PROBES: u64 = 20;
/// The long-term window beside a short-term one that is longer than usual.
const LONG_TO_SHORT: u64 = 60;
