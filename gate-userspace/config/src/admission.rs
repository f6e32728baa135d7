//! How many requests the store of a proxied service gets at once, and which wait or are refused.

use gate_common::units::{Fraction, Nanos};

use super::intercept::is_proxied;
use super::parsers::{number, one_of, time};
use super::raw::Section;
use super::units::{self, Wrong};
use gate_policy::Tier;
use gate_policy::bouncer::HistogramKind;
use gate_policy::codel::Law;
use gate_policy::gradient;

/// The queue before a store, and who may join it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Requests that may be with the store at once, all threads together.
    pub parallelism: Parallelism,
    /// True if objectives bind: they, an admission policy, `codel` or a number of requests is configured.
    pub has_objectives: bool,
    /// Which requests may join the queue: those that each of these admits, in this order; all that find room, if
    /// there is none.
    pub policies: Vec<AdmissionPolicy>,
    /// The objective of each query type, by their places: its own, or the default.
    pub objectives: Vec<Objective>,
    /// The objective while nothing is known of a type.
    pub default_objective: Objective,
    /// Requests that may wait, all threads together; 1 to 10,000,000.
    pub queue_limit: usize,
    /// The memory of queued requests, in bytes; 64 KiB to 64 GiB.
    pub queue_memory: usize,
    /// How long a request may take before it is of no use any more; 1 ms to 1 h.
    pub deadline: Option<Nanos>,
    /// When a request has waited too long; `None` if only the deadline says so.
    pub codel: Option<Codel>,
}

/// How many requests may be with the store at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// As many as measurement says. See [`gate_policy::gradient`].
    Auto,
    /// So many; 1 to 100,000.
    Fixed(u32),
}

impl Parallelism {
    /// The number at the start.
    #[must_use]
    pub fn at_start(self) -> u32 {
        match self {
            Self::Auto => gradient::Config::default().initial,
            Self::Fixed(number) => number,
        }
    }
}

/// When a queue stands, so that those in it are refused. See [`gate_policy::codel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    /// Which are refused then.
    pub law: Law,
    /// By tier: a wait that is fine. At most the interval, and no lower tier's is longer.
    pub targets: [Nanos; Tier::ALL.len()],
    /// How long even the shortest wait must have been longer.
    pub interval: Nanos,
}

/// Response times at percentiles, the lowest first; never empty, and no higher percentile is faster.
pub type Objective = Vec<(u8, Nanos)>;

/// How long requests may be expected to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// Of each query type, by their places: its own, or the default.
    pub types: Vec<Nanos>,
    /// Of all others.
    pub default: Nanos,
}

/// Which requests may join the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionPolicy {
    /// Those that can be expected to keep their objective, and a share of each type. The last is how many values a
    /// histogram needs.
    Bouncer(Fairness, HistogramKind, u32),
    /// Those that find at most so many waiting.
    MaxQueueLength(u64),
    /// Those that can be expected to wait no longer.
    MaxQueueWait(WaitLimits),
    /// As many as make up at most this share of the store's capacity.
    AcceptFraction(Fraction),
}

/// The strategy against starvation of a query type whose objective cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// Nothing.
    None,
    /// Each type may have this share of its requests accepted, from 0 to 1.
    AcceptanceAllowance(Fraction),
    /// Types that are accepted less than the average are helped, scaled by this factor, above 0, at most 1.
    HelpingTheUnderserved(Fraction),
}

/// The keys about the queue. They and [`objective_keys`] mean nothing with `parallelism = "off"`.
const OF_THE_QUEUE: [&str; 3] = ["queue_memory", "queue_limit", "deadline"];

/// Reads it, unless `parallelism` is `off`; `names` are the query types'.
pub(super) fn read<'d>(section: &mut Section<'d>, names: &[&'d str]) -> Option<Admission> {
    let parallelism = section.get("parallelism", parallelism).unwrap_or(Some(Parallelism::Auto));
    for key in OF_THE_QUEUE.into_iter().chain(objective_keys()).filter(|key| section.has(key)) {
        if !is_proxied(section) && !section.has("parallelism") {
            section.fault(key, "means something only beside backend".to_owned());
        } else if parallelism.is_none() {
            section.fault(key, "means nothing beside parallelism = \"off\"".to_owned());
        }
    }
    let is_fixed = matches!(parallelism, Some(Parallelism::Fixed(_)));
    let has_objectives = is_fixed || objective_keys().any(|key| section.has(key));
    let policies = policies(section, names, has_objectives);
    let (default_objective, objectives) = objectives(section.section("objectives"), names);
    let most_waiting = if is_fixed { 10_000 } else { AUTO_QUEUE_LIMIT };
    let queue_limit = section.get("queue_limit", number(1, 10_000_000)).unwrap_or(most_waiting);
    let queue_memory = section.get("queue_memory", |text| units::size(text, 64 << 10, 64 << 30));
    let deadline = section.get("deadline", time(DEADLINE_RANGE));
    let slowest = objectives.iter().chain([&default_objective]).map(|objective| objective[0].1).max();
    let codel = codel(section.section("codel"), slowest.unwrap_or(DEFAULT_P50)).filter(|_| has_objectives);
    Some(Admission {
        parallelism: parallelism?,
        has_objectives,
        policies,
        objectives,
        default_objective,
        queue_limit: queue_limit as usize,
        queue_memory: queue_memory.unwrap_or(64 << 20) as usize,
        deadline,
        codel,
    })
}

/// A number, `auto`, or nothing for `off`.
fn parallelism(text: &str) -> Result<Option<Parallelism>, Wrong> {
    match text {
        "auto" => Ok(Some(Parallelism::Auto)),
        "off" => Ok(None),
        text => match number(1, 100_000)(text) {
            Ok(number) => Ok(Some(Parallelism::Fixed(number as u32))),
            Err(wrong) => Err(format!("{wrong}, auto or off")),
        },
    }
}

/// One policy, or a list of them, in the order in which they are asked. Unless objectives bind there is none.
fn policies<'d>(section: &mut Section<'d>, names: &[&'d str], has_objectives: bool) -> Vec<AdmissionPolicy> {
    let items = section.list("admission", one_of(&PolicyName::ALL.map(|name| (name.name(), name))));
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().any(|before| before.value == item.value) {
            item.fault("is in the list already");
        } else if item.value == PolicyName::Off && items.len() > 1 {
            item.fault("stands alone; leave it out, or the others");
        }
    }
    let mut chosen: Vec<PolicyName> = items.iter().map(|item| item.value).collect();
    if chosen.is_empty() {
        chosen.push(if has_objectives { PolicyName::Bouncer } else { PolicyName::Off });
    }
    let fairness = fairness(section);
    let histogram = section.get("histogram", one_of(&HISTOGRAMS)).unwrap_or(HistogramKind::Swap);
    let values = section.get("histogram_values", number(1, 1_000_000)).unwrap_or(DEFAULT_HISTOGRAM_VALUES);
    let length = section.get("max_queue_length", number(1, 10_000_000));
    let wait = wait_limits(section, names);
    let fraction = section.get("accept_fraction", units::percentage);
    for name in PolicyName::ALL.into_iter().filter(|name| !chosen.contains(name)) {
        for key in name.keys().iter().filter(|key| section.has(key)) {
            section.fault(key, format!("means something only beside admission = \"{}\"", name.name()));
        }
    }
    let policy = |name| match name {
        PolicyName::Off => None,
        PolicyName::Bouncer => Some(AdmissionPolicy::Bouncer(fairness, histogram, values as u32)),
        PolicyName::MaxQueueLength => Some(AdmissionPolicy::MaxQueueLength(length.unwrap_or(400))),
        PolicyName::MaxQueueWait => Some(AdmissionPolicy::MaxQueueWait(wait.clone())),
        PolicyName::AcceptFraction => {
            Some(AdmissionPolicy::AcceptFraction(fraction.unwrap_or(Fraction::of(95, 100))))
        }
    };
    chosen.into_iter().filter_map(policy).collect()
}

/// The values of `admission`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyName {
    Off,
    Bouncer,
    MaxQueueLength,
    MaxQueueWait,
    AcceptFraction,
}

impl PolicyName {
    const ALL: [Self; 5] =
        [Self::Bouncer, Self::MaxQueueLength, Self::MaxQueueWait, Self::AcceptFraction, Self::Off];

    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Bouncer => "bouncer",
            Self::MaxQueueLength => "max-queue-length",
            Self::MaxQueueWait => "max-queue-wait",
            Self::AcceptFraction => "accept-fraction",
        }
    }

    /// The keys that mean something only beside it.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Off => &[],
            Self::Bouncer => &["fairness", "allowance", "alpha", "histogram", "histogram_values"],
            Self::MaxQueueLength => &["max_queue_length"],
            Self::MaxQueueWait => &["max_queue_wait"],
            Self::AcceptFraction => &["accept_fraction"],
        }
    }
}

/// One time, or a table of them by query type, where `default` is that of the others.
fn wait_limits<'d>(section: &mut Section<'d>, names: &[&'d str]) -> WaitLimits {
    if !section.has_table("max_queue_wait") {
        let default = section.get("max_queue_wait", time(DEADLINE_RANGE)).unwrap_or(DEFAULT_WAIT);
        return WaitLimits { types: vec![default; names.len()], default };
    }
    let mut table = section.section("max_queue_wait");
    let default = table.get("default", time(DEADLINE_RANGE)).unwrap_or(DEFAULT_WAIT);
    let of_type = |name: &&'d str| table.get(name, time(DEADLINE_RANGE)).unwrap_or(default);
    let types = names.iter().map(of_type).collect();
    table.finish();
    WaitLimits { types, default }
}

/// The strategy against starvation and its parameter.
fn fairness(section: &mut Section<'_>) -> Fairness {
    let names = FairnessName::ALL.map(|name| (name.name(), name));
    let chosen = section.get("fairness", one_of(&names)).unwrap_or(FairnessName::AcceptanceAllowance);
    let allowance = section.get("allowance", units::share).unwrap_or(DEFAULT_ALLOWANCE);
    let alpha = section.get("alpha", units::share);
    if alpha == Some(Fraction::ZERO) {
        section.fault("alpha", "must be above 0, at most 1, e.g. \"1\"".to_owned());
    }
    for name in FairnessName::ALL.into_iter().filter(|name| *name != chosen) {
        if let Some(key) = name.key().filter(|key| section.has(key)) {
            section.fault(key, format!("means something only beside fairness = \"{}\"", name.name()));
        }
    }
    match chosen {
        FairnessName::None => Fairness::None,
        FairnessName::HelpingTheUnderserved => {
            Fairness::HelpingTheUnderserved(alpha.unwrap_or(Fraction::ONE))
        }
        FairnessName::AcceptanceAllowance => Fairness::AcceptanceAllowance(allowance),
    }
}

/// The values of `fairness`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FairnessName {
    None,
    AcceptanceAllowance,
    HelpingTheUnderserved,
}

impl FairnessName {
    const ALL: [Self; 3] = [Self::AcceptanceAllowance, Self::HelpingTheUnderserved, Self::None];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::AcceptanceAllowance => "acceptance-allowance",
            Self::HelpingTheUnderserved => "helping-the-underserved",
        }
    }

    /// The key that means something only beside it.
    const fn key(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::AcceptanceAllowance => Some("allowance"),
            Self::HelpingTheUnderserved => Some("alpha"),
        }
    }
}

/// By default a wait is fine that keeps the `slowest` objective: what the admission policy lets in on purpose is
/// not refused later.
fn codel(mut section: Section<'_>, slowest: Nanos) -> Option<Codel> {
    let law = section.get("law", one_of(&LAWS)).unwrap_or(Some(Law::Overload));
    let range = time(CODEL_RANGE);
    let target = section.get("target", &range).unwrap_or(slowest.clamp(CODEL_RANGE.0, CODEL_RANGE.1));
    let mut targets = [target; Tier::ALL.len()];
    let mut above = ("target", target);
    for tier in &Tier::ALL[1..] {
        let own = section.get(tier.name(), &range).unwrap_or(above.1);
        if own > above.1 {
            section.fault(tier.name(), format!("must not be above {} ({})", above.0, above.1));
        }
        targets[tier.index()] = own;
        above = (tier.name(), own);
    }
    let interval = section.get("interval", &range).unwrap_or(target.max(DEFAULT_INTERVAL));
    if interval < target && section.is_sound() {
        let key = if section.has("interval") { "interval" } else { "target" };
        section.fault(key, format!("interval ({interval}) must be at least the target ({target})"));
    }
    section.finish();
    law.map(|law| Codel { law, targets, interval })
}

/// The default objective, and that of each query type.
fn objectives<'d>(mut section: Section<'d>, names: &[&'d str]) -> (Objective, Vec<Objective>) {
    let default = objective(section.section("default"));
    let default = if default.is_empty() { vec![(50, DEFAULT_P50), (90, DEFAULT_P90)] } else { default };
    let of_type = |name: &&'d str| {
        let own = objective(section.section(name));
        if own.is_empty() { default.clone() } else { own }
    };
    let objectives = names.iter().map(of_type).collect();
    section.finish();
    (default, objectives)
}

fn objective(mut section: Section<'_>) -> Objective {
    let mut objective = Objective::new();
    for (key, percentile) in PERCENTILES {
        let Some(limit) = section.get(key, time(DEADLINE_RANGE_FINE)) else { continue };
        match objective.last() {
            Some(&(before, lower)) if lower > limit => {
                section.fault(key, format!("must not be below p{before} ({lower})"));
            }
            _ => objective.push((percentile, limit)),
        }
    }
    section.finish();
    objective
}

/// The keys that say what responses are to be like: with `parallelism = "auto"`, nothing else makes objectives bind.
fn objective_keys() -> impl Iterator<Item = &'static str> {
    let of_policies = PolicyName::ALL.into_iter().flat_map(PolicyName::keys).copied();
    ["admission", "codel", "objectives"].into_iter().chain(of_policies)
}

/// Nobody is refused for a queue that a store works off in a second; `queue_memory` bounds its size.
const AUTO_QUEUE_LIMIT: u64 = 100_000;
const HISTOGRAMS: [(&str, HistogramKind); 2] =
    [("swap", HistogramKind::Swap), ("sliding", HistogramKind::Sliding)];
const LAWS: [(&str, Option<Law>); 3] =
    [("overload", Some(Law::Overload)), ("rfc8289", Some(Law::Rfc8289)), ("off", None)];
const PERCENTILES: [(&str, u8); 4] = [("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)];
const DEADLINE_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(3_600));
const DEADLINE_RANGE_FINE: (Nanos, Nanos) = (Nanos::from_micros(10), Nanos::from_secs(3_600));
const CODEL_RANGE: (Nanos, Nanos) = (Nanos::from_micros(100), Nanos::from_secs(60));
/// The RFC's value: longer than a burst that is worth waiting for.
const DEFAULT_INTERVAL: Nanos = Nanos::from_millis(100);
/// The value that reproduces the published study: see `gate sim bouncer`.
const DEFAULT_HISTOGRAM_VALUES: u64 = 3_000;
/// The study's, like the allowance of its Table 2.
const DEFAULT_WAIT: Nanos = Nanos::from_millis(15);
const DEFAULT_ALLOWANCE: Fraction = Fraction::of(5, 100);
/// Generous for a store in memory: what it is held to unless one says better.
const DEFAULT_P50: Nanos = Nanos::from_millis(10);
const DEFAULT_P90: Nanos = Nanos::from_millis(50);
