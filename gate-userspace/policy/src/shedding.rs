//! Load shedding: the lower tiers give way, one after the other, and come back.
//!
//! **Problem.** When a store cannot do all that it is asked for, someone must give way, and it should
//! be the least important, as little as possible, and not longer than necessary.
//!
//! **How.** All that can be done is one ladder. The prices of the lowest tier double, rung by rung, up
//! to 64 times; then it is refused, with reason `penalty`; then the next tier follows. `critical`
//! comes last and least: its prices rise to four times, and it is never refused. The
//! [latency ratio](super::latency_ratio) moves the level, at most one rung in a tick:
//!
//! - Up, while the ratio is below the threshold of the tier that is next. A tier begins only if the
//!   ratio went on falling while the one below it was refused: what has been shed takes time to show,
//!   and a store that is slow but holds its own (a lasting step in latency, a queue that `CoDel` keeps
//!   short) does not become faster by more of it.
//! - Down, when the ratio has been back above `restore_above` for a while. Nobody can know whether the
//!   store has recovered or only sheds, so this is a probe. The rungs that give back little
//!   (from 64 times to 32) follow each other with every tick, those that give back much (from twice
//!   to once) are watched for longer. When a probe fails, only the last rung is taken again at once,
//!   and the next probe waits twice as long.
//! - In between, it stays.
//!
//! **Deviations.** The ladder, the probe and its pace are gate's: the published descriptions say that
//! multipliers come back "with hysteresis", not how.
//!
//! **Invariants.** A tier gives way only while all lower ones are refused. `critical` is never refused.
//! One rung a tick at most. At a ratio that stays above `restore_above`, everything is back within
//! `longest_wait`, a tick for each of 23 rungs, and 7 times `settle`: 10 s by default. No ratio, no
//! samples: as if calm, since a store that is asked for nothing is not overloaded. A clock that goes
//! back stands still.

use gate_common::units::{Multiplier, Nanos};

use super::Tier;
use super::range::{OutOfRange, ensure};

/// When tiers give way. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The ratio below which a tier gives way, in the order of [`Tier::ALL`]: rising, above 0.
    pub shed_below: [f64; 4],
    /// The ratio above which the store is taken for healthy. Above all of `shed_below`, below 1.
    pub restore_above: f64,
    /// How long a change takes to show: a tier is refused for so long before the next one begins
    /// (`critical`: ten times as long), and the rung that gives back half of a tier is watched for so
    /// long.
    pub settle: Nanos,
    /// How long the store is healthy before the first probe. Above 0.
    pub wait: Nanos,
    /// The longest wait after failed probes. At least `wait`.
    pub longest_wait: Nanos,
}

impl Default for Settings {
    /// Back within ten seconds of recovery, at ticks of 100 ms.
    fn default() -> Self {
        Self {
            shed_below: [0.2, 0.3, 0.4, 0.5],
            restore_above: 0.8,
            settle: Nanos::from_millis(500),
            wait: Nanos::from_secs(1),
            longest_wait: Nanos::from_secs(4),
        }
    }
}

impl Settings {
    /// The ratio that the ladder is shown where the latency ratio is `ratio`: a queue that stands counts as just low
    /// enough for the lowest tier.
    #[must_use]
    pub fn signal(&self, ratio: Option<f64>, queue_stands: bool) -> Option<f64> {
        if !queue_stands {
            return ratio;
        }
        let low = self.shed_below[Tier::BestEffort.index()].next_down();
        Some(ratio.map_or(low, |ratio| ratio.min(low)))
    }
}

/// The treatment of a tier's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Treatment {
    /// Prices as they are.
    #[default]
    Normal,
    /// Prices times two to this power, 1 to 6.
    Dearer(u8),
    /// Refusal, with reason `penalty`.
    Refused,
}

impl Treatment {
    /// The factor on prices. What is refused has the highest.
    #[must_use]
    pub const fn multiplier(self) -> Multiplier {
        match self {
            Self::Normal => Multiplier::ONE,
            Self::Dearer(doublings) => Multiplier::from_int(1 << doublings),
            Self::Refused => Multiplier::from_int(1 << DOUBLINGS),
        }
    }
}

/// Where shedding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is shed.
    Steady,
    /// Tiers give way, or stay as they are.
    Shedding,
    /// Rungs are given back, and may have to be taken again.
    Restoring,
}

impl Phase {
    /// Its name in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Shedding => "shedding",
            Self::Restoring => "restoring",
        }
    }
}

/// Why a tier is treated differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The ratio is below the tier's threshold.
    RatioLow,
    /// The ratio went on falling while the tier below was refused.
    RatioFalling,
    /// The ratio stayed low in a relapse, although the last rung has had time to show.
    RatioStuck,
    /// The ratio fell as rungs were given back.
    Relapse,
    /// The ratio has been high for long enough to try.
    Probe,
    /// The ratio is high, and the last rung has had time to show.
    Calm,
}

/// One rung, up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The tier that is treated differently from now on.
    pub tier: Tier,
    /// How the tier was treated.
    pub from: Treatment,
    /// How it is from now on.
    pub to: Treatment,
    /// Where shedding stands from now on.
    pub phase: Phase,
    /// Why.
    pub cause: Cause,
}

impl Transition {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.from, self.to) {
            (_, Treatment::Refused) => "refuse",
            (Treatment::Refused, _) => "readmit",
            (Treatment::Normal, _) => "shed",
            (_, Treatment::Normal) => "restore",
            (Treatment::Dearer(from), Treatment::Dearer(to)) => {
                if from < to {
                    "raise"
                } else {
                    "lower"
                }
            }
        }
    }
}

impl Cause {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RatioLow => "ratio-low",
            Self::RatioFalling => "ratio-falling",
            Self::RatioStuck => "ratio-stuck",
            Self::Relapse => "relapse",
            Self::Probe => "probe",
            Self::Calm => "calm",
        }
    }
}

/// Decides who gives way. See the [module](self).
#[derive(Clone, Debug)]
pub struct Shedding {
    settings: Settings,
    /// Rungs taken, up to [`RUNGS`].
    level: u8,
    phase: Phase,
    now: Nanos,
    /// When the level last changed.
    since: Nanos,
    /// The ratio then.
    ratio_then: f64,
    /// How long the last rung down is watched.
    watch: Nanos,
    /// True if a rung up waits for the effect of the one before: in a relapse, in which the rung before was enough.
    paced: bool,
    /// Since when the ratio has been high.
    calm_since: Option<Nanos>,
    /// How long it must be before the next probe.
    wait: Nanos,
    /// By tier: when it last began to be dearer, refused, or treated as usual.
    treated_since: [Nanos; 4],
}

impl Shedding {
    /// Sheds nothing at first.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if a field of `settings` is.
    pub fn new(settings: Settings) -> Result<Self, OutOfRange> {
        let Settings { shed_below, restore_above, settle: _, wait, longest_wait } = settings;
        let mut least = 0.0;
        for (tier, threshold) in Tier::ALL.into_iter().zip(shed_below) {
            let field = format!("shed_below.{}", tier.name());
            let rises = threshold > 0.0 && threshold >= least;
            ensure(rises, &field, threshold, "above 0, and not below that of a more critical tier")?;
            least = threshold;
        }
        let fits = restore_above > least && restore_above < 1.0;
        ensure(fits, "restore_above", restore_above, "above all thresholds, below 1")?;
        ensure(wait > Nanos::ZERO, "wait", wait, "above 0")?;
        ensure(longest_wait >= wait, "longest_wait", longest_wait, "at least wait")?;
        Ok(Self {
            settings,
            level: 0,
            phase: Phase::Steady,
            now: Nanos::ZERO,
            since: Nanos::ZERO,
            ratio_then: 1.0,
            watch: Nanos::ZERO,
            paced: false,
            calm_since: None,
            wait,
            treated_since: [Nanos::ZERO; 4],
        })
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes in the latency ratio of a tick, and says what changes.
    pub fn tick(&mut self, now: Nanos, ratio: Option<f64>) -> Option<Transition> {
        self.now = self.now.max(now);
        let ratio = ratio.filter(|ratio| !ratio.is_nan()).unwrap_or(1.0);
        if ratio >= self.settings.restore_above {
            let calm_since = *self.calm_since.get_or_insert(self.now);
            return self.give_back(calm_since);
        }
        self.calm_since = None;
        self.take(ratio)
    }

    /// How a tier is treated now.
    #[must_use]
    pub fn treatment(&self, tier: Tier) -> Treatment {
        let below = first_rung(tier);
        match self.level.saturating_sub(below).min(rungs(tier)) {
            0 => Treatment::Normal,
            rung if rung > DOUBLINGS => Treatment::Refused,
            rung => Treatment::Dearer(rung),
        }
    }

    /// How long a tier has been dearer, by whatever factor, or refused; `None` while it is neither.
    #[must_use]
    pub fn treated_for(&self, tier: Tier) -> Option<Nanos> {
        let since = self.treated_since[tier.index()];
        (self.treatment(tier) != Treatment::Normal).then(|| self.now.saturating_sub(since))
    }

    /// Where shedding stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// True if anything is shed: an overload, from which nothing is to be learned.
    #[must_use]
    pub const fn is_overloaded(&self) -> bool {
        self.level > 0
    }

    /// Up one rung, if the ratio is low enough for the tier that it concerns.
    fn take(&mut self, ratio: f64) -> Option<Transition> {
        if self.level >= RUNGS {
            return None;
        }
        let tier = tier_of(self.level);
        if ratio >= self.settings.shed_below[tier.index()] {
            return None;
        }
        let cause = match self.phase {
            // Steady => Shedding: an overload, or the last one again.
            Phase::Steady => {
                self.paced = self.wait > self.settings.wait && self.passed() < FORGIVEN;
                if !self.paced {
                    self.wait = self.settings.wait;
                }
                Cause::RatioLow
            }
            // Restoring => Shedding: the store has not recovered.
            Phase::Restoring => {
                self.paced = true;
                self.wait = Nanos(self.wait.0.saturating_mul(2)).min(self.settings.longest_wait);
                Cause::Relapse
            }
            Phase::Shedding => self.next_rung(tier, ratio)?,
        };
        self.ratio_then = ratio;
        Some(self.step(self.level + 1, Phase::Shedding, cause))
    }

    /// The cause for another rung, which concerns `tier`, if it is time for one.
    fn next_rung(&self, tier: Tier, ratio: f64) -> Option<Cause> {
        let has_shown = |times| self.passed().0 / times >= self.settings.settle.0;
        if self.level == first_rung(tier) {
            let falls = ratio < self.ratio_then * STILL_FALLING;
            let patience = if tier == Tier::Critical { 10 } else { 1 };
            return (falls && has_shown(patience)).then_some(Cause::RatioFalling);
        }
        if self.paced {
            return has_shown(1).then_some(Cause::RatioStuck);
        }
        Some(Cause::RatioLow)
    }

    /// Down one rung, if its time has come.
    fn give_back(&mut self, calm_since: Nanos) -> Option<Transition> {
        let cause = match self.phase {
            // Shedding => Restoring: calm for long enough to try.
            Phase::Shedding if self.now.saturating_sub(calm_since) >= self.wait => Cause::Probe,
            Phase::Restoring if self.passed() >= self.watch => Cause::Calm,
            Phase::Steady | Phase::Shedding | Phase::Restoring => return None,
        };
        // Restoring => Steady: the last rung.
        let phase = if self.level == 1 { Phase::Steady } else { Phase::Restoring };
        let transition = self.step(self.level - 1, phase, cause);
        let settle = self.settings.settle.0;
        self.watch = Nanos(match transition.to {
            Treatment::Normal => settle,
            Treatment::Dearer(1) => settle / 2,
            Treatment::Dearer(2) => settle / 4,
            Treatment::Dearer(_) | Treatment::Refused => 0,
        });
        Some(transition)
    }

    /// How long ago the level changed.
    fn passed(&self) -> Nanos {
        self.now.saturating_sub(self.since)
    }

    fn step(&mut self, level: u8, phase: Phase, cause: Cause) -> Transition {
        let tier = tier_of(level.min(self.level));
        let from = self.treatment(tier);
        (self.level, self.phase, self.since) = (level, phase, self.now);
        let to = self.treatment(tier);
        if std::mem::discriminant(&from) != std::mem::discriminant(&to) {
            self.treated_since[tier.index()] = self.now;
        }
        Transition { tier, from, to, phase, cause }
    }
}

/// Doublings of a price: up to 64 times.
const DOUBLINGS: u8 = 6;
/// Those of `critical`: up to 4 times.
const CRITICAL_DOUBLINGS: u8 = 2;
/// All tiers' rungs.
const RUNGS: u8 = 3 * (DOUBLINGS + 1) + CRITICAL_DOUBLINGS;
/// A ratio below this share of what it was is falling, and not just noisy: latency has grown by 43%.
const STILL_FALLING: f64 = 0.7;
/// How long nothing must be shed for failed probes to be forgotten.
const FORGIVEN: Nanos = Nanos::from_secs(60);

const fn rungs(tier: Tier) -> u8 {
    match tier {
        Tier::Critical => CRITICAL_DOUBLINGS,
        Tier::Standard | Tier::Batch | Tier::BestEffort => DOUBLINGS + 1,
    }
}

/// How many rungs are below the first of `tier`.
const fn first_rung(tier: Tier) -> u8 {
    (DOUBLINGS + 1) * (Tier::BestEffort.index() - tier.index()) as u8
}

/// The tier that the rung above `level` (below [`RUNGS`]) concerns.
const fn tier_of(level: u8) -> Tier {
    Tier::ALL[Tier::BestEffort.index() - (level / (DOUBLINGS + 1)) as usize]
}

#[cfg(test)]
mod tests;
