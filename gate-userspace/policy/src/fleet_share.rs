//! Fleet shares: which part of one limit each of several gates may give out by itself.
//!
//! **Problem.** Several gates share one limit, and none may wait for a counter before it answers. Each reports what it used once
//! in an interval. If the only answer is a time until which everything is refused, all gates let everything through at once when
//! that has passed, the more of them the worse.
//!
//! **Source.** "High performance rate limiting at Databricks": an owner for each limit, reports in batches, a token bucket that goes
//! into debt and remembers it, `reject_until`.
//!
//! **Rule.** The owner's bucket takes debts up to the limit's `max_debt`, as a gate's own does; at least [`CORRECTION`] and one request
//! for each gate, so that what gates gave out too much within an interval is paid back, and otherwise at most [`LONGEST_DEBT`]. What is beyond that is forgiven. While it is half full nobody is held back. Once a report leaves less in it than that
//! (beside what comes in within the time of the report), or a gate comes that another owner held back, and until [`HELD_BACK`] after the last
//! such report and the last refusal, a gate may give out its proportion of
//!
//! ```text
//! (limit + level / CORRECTION) * boost      (level: what is left in the bucket, below zero in debt)
//! ```
//!
//! by itself, as the rate of a bucket that holds its proportion of the limit's burst, and at least [`LEAST_BURST`]. The limit is divided by
//! demand, max-min fair: a gate that is asked for less than an equal part has its proportion by that, and the others divide the rest equally.
//! A demand is what a gate was asked for per second, refusals included, up to the limit: no report of a gate takes more than an equal part
//! from others. It rises at once, and halves in [`HALF_LIFE`] when less is asked for. What gates give out too much or too little moves the level, and that corrects it. A debt that makes the
//! sum zero is waited for. What the gates have been granted together is never more than all of it: one that is asked for more gets
//! it as others report that they are asked for less.
//!
//! A part that holds less than one request comes one request at a time: each gate has its turn when its part has come in, and nothing in
//! between. Turns are spread evenly over the gates from the beginning. If each had a bucket of one request that fills slowly, all would be
//! empty at once after a burst, and full at once when their rates had brought in one request each.
//!
//! Small parts waste some of the limit: requests come by chance, and a bucket of one request gives out less than its rate. So as long
//! as requests are refused while the owner's bucket is half full, `boost` rises, up to [`MOST_BOOST`]; else it falls to 1.
//!
//! **Deviations.** The source answers a report with `reject_until`, or with a rejection rate; here the former is for deep debt alone.
//!
//! **Invariants.** Pure. A report costs about the same however many gates there are. The level is within the burst, and `max_debt` below zero.
//! Any time and any count is safe.

use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use self::turn::{ONE, Turn};
use crate::rate::Rate;

mod turn;

/// The part of a limit that a gate may give out until it has another answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The whole limit: nobody is held back.
    Whole,
    /// Its part.
    Part {
        /// Nothing before this point in time.
        reject_until: Nanos,
        /// At least a thousandth of a request unit per second, and of a slower limit [`Rate::SLOWEST`]. Of a part that holds less than one
        /// request that, or one request within an interval when it is the gate's turn.
        rate: Rate,
        /// The most that is given out at once, in thousandths of a request unit; at least [`LEAST_BURST`].
        burst: u64,
    },
}

/// The owner's account of one limit. See the [module](self).
#[derive(Clone, Debug)]
pub struct FleetShares {
    /// At least [`Rate::SLOWEST`].
    rate: Rate,
    /// The size of a full bucket, as the time that it takes to refill.
    burst: Nanos,
    /// The deepest debt, as the time that it takes to pay.
    max_debt: Nanos,
    /// The moment at which the bucket will be full again, by [`FleetShares::clock`].
    full_at: Nanos,
    /// True if nothing comes in with time: the bucket is full after [`FleetShares::reset`].
    is_window: bool,
    /// Gates are held back before this.
    held_until: Nanos,
    boost: f64,
    /// The last report.
    reported: Nanos,
    /// The last one of a refusal.
    refused: Nanos,
    division: Division,
    /// The sum of what gates have been granted.
    granted: f64,
    /// In ascending order of their numbers.
    gates: Vec<Gate>,
}

/// The owner's account of one gate.
#[derive(Clone, Copy, Debug)]
struct Gate {
    number: u32,
    demand: Demand,
    /// The proportion of the limit that it has been granted.
    granted: f64,
    turn: Turn,
}

/// The rate that is asked for, in thousandths of a request unit per second, as of some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Demand {
    per_sec: f64,
    as_of: Nanos,
}

/// The division of the limit by demand, as of some report.
#[derive(Clone, Copy, Debug, Default)]
struct Division {
    /// The most that counts of a gate's demand: an equal part of what those with less leave. In thousandths of a request unit per second.
    most: f64,
    /// The sum of all demands, each up to `most`.
    total: f64,
    /// Reports until it is made anew.
    due: usize,
}

/// One gate's report: what it did with one limit since its last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The time since the last report. A shorter one than [`SHORTEST`] counts as that.
    pub within: Nanos,
    /// Charged, in thousandths of a request unit.
    pub charged: u64,
    /// Refused for this limit's sake, in thousandths of a request unit.
    pub refused: u64,
}

impl Demand {
    fn at(self, now: Nanos) -> f64 {
        self.per_sec * (-fraction(now.saturating_sub(self.as_of), HALF_LIFE)).exp2()
    }
}

impl FleetShares {
    /// A full bucket of this rate, at least [`Rate::SLOWEST`], that fills in `burst`, with debts that are paid in
    /// `max_debt`, and nobody who asks.
    #[must_use]
    pub fn new(rate: Rate, burst: Nanos, max_debt: Nanos) -> Self {
        Self {
            rate: rate.max(Rate::SLOWEST),
            burst,
            max_debt,
            full_at: Nanos::ZERO,
            is_window: false,
            held_until: Nanos::ZERO,
            boost: 1.0,
            reported: Nanos::ZERO,
            refused: Nanos::ZERO,
            division: Division::default(),
            granted: 0.0,
            gates: Vec::new(),
        }
    }

    /// Has the bucket fill with time, or at once when a window begins ([`FleetShares::reset`]). What has been taken out of it is still out.
    pub fn set_window(&mut self, now: Nanos, is_window: bool) {
        let out = self.full_in(now);
        self.is_window = is_window;
        self.full_at = self.clock(now).saturating_add(out);
    }

    /// The clock of the bucket: that of a window stands still.
    fn clock(&self, now: Nanos) -> Nanos {
        if self.is_window { Nanos::ZERO } else { now }
    }

    /// Changes the limit. What has been taken out of the bucket is still out.
    pub fn change(&mut self, now: Nanos, rate: Rate, burst: Nanos, max_debt: Nanos) {
        let rate = rate.max(Rate::SLOWEST);
        let out = u128::from(self.full_in(now).0) * u128::from(self.rate.nano()) / u128::from(rate.nano());
        (self.rate, self.burst, self.max_debt) = (rate, burst, max_debt);
        self.division.due = 0;
        self.fill(now, self.clock(now).saturating_add(Nanos(u64::try_from(out).unwrap_or(u64::MAX))));
    }

    /// Fills the bucket, forgives any debt, and holds nobody back. Demands and grants stay: gates go on by what they were told last.
    pub fn reset(&mut self) {
        (self.full_at, self.held_until, self.refused) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        self.boost = 1.0;
    }

    /// Puts back into the bucket what somebody took and did not use; it is never fuller than full.
    pub fn give_back(&mut self, now: Nanos, amount: u64) {
        let out = self.full_in(now).saturating_sub(self.time_for(amount));
        self.full_at = self.full_at.min(self.clock(now).saturating_add(out));
    }

    /// The time until the bucket is full.
    #[must_use]
    pub fn full_in(&self, now: Nanos) -> Nanos {
        self.full_at.saturating_sub(self.clock(now))
    }

    /// Takes in what somebody else knows: it is at least so long until the bucket is full.
    pub fn add_debt(&mut self, now: Nanos, full_in: Nanos) {
        self.fill(now, self.full_at.max(self.clock(now).saturating_add(full_in)));
    }

    /// Holds gates back, as after a report that leaves little in the bucket: somebody else did.
    pub fn hold_back(&mut self, now: Nanos) {
        self.held_until = self.held_until.max(now.saturating_add(HELD_BACK));
    }

    /// Sets when the bucket is full: then, or as late as may be.
    fn fill(&mut self, now: Nanos, full_at: Nanos) {
        let each = u64::from(LEAST_BURST.0).saturating_mul(self.gates.len().max(1) as u64);
        let debt = self.max_debt.min(LONGEST_DEBT).max(CORRECTION).max(self.time_for(each));
        self.full_at = full_at.min(self.clock(now).saturating_add(self.burst).saturating_add(debt));
    }

    /// The content of the bucket in thousandths of a request unit, below zero in debt.
    #[must_use]
    pub fn left(&self, now: Nanos) -> i64 {
        (self.level(now) * self.per_sec() / NANOS_PER_SEC as f64) as i64
    }

    /// True while gates are held back.
    #[must_use]
    pub fn is_held_back(&self, now: Nanos) -> bool {
        now < self.held_until
    }

    /// True if it holds nothing that a new one would not.
    #[must_use]
    pub fn is_idle(&self, now: Nanos) -> bool {
        self.full_in(now) == Nanos::ZERO && !self.is_held_back(now) && self.granted == 0.0
    }

    /// The gates that it knows, in the order of their numbers: what each is asked for a second, and the proportion that it has
    /// been granted.
    pub fn gates(&self, now: Nanos) -> impl Iterator<Item = (u32, u64, f64)> {
        self.gates.iter().map(move |gate| (gate.number, gate.demand.at(now) as u64, gate.granted))
    }

    /// The rate that all gates together are asked for, in thousandths of a request unit per second.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> u64 {
        self.gates.iter().map(|gate| gate.demand.at(now)).sum::<f64>() as u64
    }

    /// Forgets a gate, which gives out nothing any more that it has been granted.
    pub fn release(&mut self, gate: u32) {
        if let Ok(place) = self.place(gate) {
            self.granted = (self.granted - self.gates.remove(place).granted).max(0.0);
            self.division.due = 0;
        }
        if self.gates.is_empty() {
            self.granted = 0.0;
        }
    }

    /// Forgets all gates, which report elsewhere.
    pub fn release_all(&mut self) {
        self.gates.clear();
        (self.granted, self.division) = (0.0, Division::default());
    }

    /// True if it knows no gate.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.gates.is_empty()
    }

    fn place(&self, gate: u32) -> Result<usize, usize> {
        self.gates.binary_search_by_key(&gate, |gate| gate.number)
    }

    /// Takes in the report of the gate with this number.
    pub fn report(&mut self, gate: u32, now: Nanos, used: Used) {
        // Used at any time since the last report, perhaps only just now. As of its beginning, what came in since would be credited
        // although the bucket may have been full; as of now, it would be lost although it may have been used.
        let credited = Nanos(used.within.min(Nanos::from_secs(1)).0 / CREDITED);
        let start = self.full_at.max(self.clock(now).saturating_sub(credited));
        self.fill(now, start.saturating_add(self.time_for(used.charged)));
        self.count_demand(gate, now, used);

        let level = self.level(now);
        let is_scarce = level < self.burst.0 as f64 / 2.0;
        // What a report brings at once has been used over some time.
        let in_report = used.within.saturating_sub(credited).0 as f64;
        if level + in_report < self.burst.0 as f64 / 2.0 || used.refused > 0 && now < self.held_until {
            self.hold_back(now);
        }
        if used.refused > 0 {
            self.refused = self.refused.max(now);
        }
        let are_refused = now < self.refused.saturating_add(LATELY);
        let passed = now.saturating_sub(self.reported);
        self.reported = self.reported.max(now);
        let factor = match (is_scarce, are_refused) {
            (true, _) => (-fraction(passed, BOOST_FALLS)).exp2(),
            // Before the first report, and while nothing was asked for, nothing was refused either.
            (false, true) => fraction(passed.min(used.within), BOOST_RISES).exp2(),
            (false, false) => (-fraction(passed, BOOST_RISES)).exp2(),
        };
        self.boost = (self.boost * factor).clamp(1.0, MOST_BOOST);
    }

    fn count_demand(&mut self, gate: u32, now: Nanos, used: Used) {
        let within = used.within.max(SHORTEST).0 as f64 / NANOS_PER_SEC as f64;
        let asked_for = used.charged.saturating_add(used.refused) as f64 / within;
        let place = self.place(gate).unwrap_or_else(|place| {
            self.gates.insert(
                place,
                Gate { number: gate, demand: Demand::default(), granted: 0.0, turn: Turn::of(gate, now) },
            );
            place
        });
        let most = self.per_sec();
        self.gates[place].turn.interval = used.within.max(SHORTEST);
        let demand = &mut self.gates[place].demand;
        let as_of = now.max(demand.as_of);
        *demand = Demand { per_sec: asked_for.min(most).max(demand.at(as_of)), as_of };
    }

    /// The share of a gate that has just reported, until its next report.
    #[must_use]
    pub fn share(&mut self, gate: u32, now: Nanos) -> Share {
        if now >= self.held_until {
            self.grant(gate, 0.0);
            return Share::Whole;
        }
        let Division { most, total, .. } = self.divide(now);
        let demand = self.place(gate).map_or(0.0, |place| self.gates[place].demand.at(now)).min(most);
        let proportion = self.grant(gate, if demand < total { demand / total } else { 1.0 });
        let level = self.level(now);
        let factor = 1.0 + level / CORRECTION.0 as f64;
        let nano = self.rate.nano() as f64 * proportion * factor.max(0.0) * self.boost;
        let burst = self.per_sec() * proportion * fraction(self.burst, Nanos::from_secs(1));
        let rate = match self.place(gate) {
            Ok(place) if burst < ONE => self.gates[place].turn.take(now, nano / 1e6).unwrap_or(Rate::SLOWEST),
            Ok(_) | Err(_) => Rate::from_nano(nano as u64),
        };
        Share::Part {
            reject_until: reject_until(now.saturating_add(self.full_in(now)), self.burst),
            rate: rate.max(self.slowest_share()),
            burst: (burst as u64).max(LEAST_BURST.0.into()),
        }
    }

    /// The division of the limit. Where there are many gates it is made anew once a part of them has reported.
    fn divide(&mut self, now: Nanos) -> Division {
        if let Some(due) = self.division.due.checked_sub(1) {
            self.division.due = due;
            return self.division;
        }
        let limit = self.per_sec();
        let mut most = limit / self.gates.len().max(1) as f64;
        for _ in 0..MOST_ROUNDS {
            let mut less = 0.0;
            let mut others = 0;
            for demand in self.gates.iter().map(|gate| gate.demand.at(now)) {
                if demand < most { less += demand } else { others += 1 }
            }
            let part = if others == 0 { limit } else { (limit - less) / f64::from(others) };
            if part <= most * 1.001 {
                break;
            }
            most = part;
        }
        let total = self.gates.iter().map(|gate| gate.demand.at(now).min(most)).sum();
        self.division = Division { most, total, due: self.gates.len() / DIVIDED_BY };
        self.division
    }

    /// Grants a gate this proportion of the limit, or what the others leave of it. Returns the proportion.
    fn grant(&mut self, gate: u32, proportion: f64) -> f64 {
        let Ok(place) = self.place(gate) else { return 0.0 };
        let gate = &mut self.gates[place];
        let others = (self.granted - gate.granted).max(0.0);
        gate.granted = proportion.min(1.0 - others).max(0.0);
        self.granted = others + gate.granted;
        gate.granted
    }

    /// The content of the bucket, below zero in debt, as the time in which it comes in, in nanoseconds.
    fn level(&self, now: Nanos) -> f64 {
        self.burst.0 as f64 - self.full_in(now).0 as f64
    }

    /// The time in which so many thousandths of a request unit come in.
    fn time_for(&self, cost: u64) -> Nanos {
        Nanos(self.rate.time_for(cost))
    }

    /// The slowest share. Times of amounts at a much slower rate than the limit's would not fit, and debts be cut short with them.
    fn slowest_share(&self) -> Rate {
        let kernel = Rate::per_sec(1);
        if self.rate < kernel { Rate::SLOWEST } else { kernel }
    }

    /// Thousandths of a request unit per second.
    fn per_sec(&self) -> f64 {
        self.rate.nano() as f64 / 1e6
    }
}

/// The moment before which a gate with a part gives out nothing, as its rate would be zero, by when a bucket of this burst is full.
#[must_use]
pub fn reject_until(full_at: Nanos, burst: Nanos) -> Nanos {
    full_at.saturating_sub(burst.saturating_add(CORRECTION))
}

fn fraction(part: Nanos, of: Nanos) -> f64 {
    part.0 as f64 / of.0 as f64
}

/// The longest time in which a debt is paid, whatever a limit's `max_debt` is. What would take longer is forgiven: a gate that reports nonsense
/// once must not take the limit from all of them for good.
pub const LONGEST_DEBT: Nanos = Nanos::from_secs(3_600);
/// The time in which a demand that is no longer there halves.
pub const HALF_LIFE: Nanos = Nanos::from_millis(500);
/// The time in which what is left in the bucket, or owed, is given out, or held back.
pub const CORRECTION: Nanos = Nanos::from_millis(200);
/// How long gates are held back after the bucket was last less than half full, or a request refused. Longer than most pauses of
/// a load that comes and goes: whatever comes in while nobody is held back passes at all gates at once.
pub const HELD_BACK: Nanos = Nanos::from_secs(10);
/// The least that a gate may give out at once: what one request usually costs.
pub const LEAST_BURST: MilliRu = MilliRu::ONE_RU;
/// The most that parts together are larger than the limit for, beside what is in the bucket.
pub const MOST_BOOST: f64 = 32.0;
/// The time in which the boost doubles, while requests are refused that need not be; or halves, while none are.
pub const BOOST_RISES: Nanos = Nanos::from_millis(500);
/// The time in which the boost halves, while the bucket is less than half full.
pub const BOOST_FALLS: Nanos = Nanos::from_millis(100);
/// A refusal that was reported longer ago says nothing of the present.
pub const LATELY: Nanos = Nanos::from_millis(50);
/// Rounds in which the division is found, each of which costs a look at every gate; later ones change little.
const MOST_ROUNDS: usize = 8;
/// The division is made anew after the reports of one gate in so many: of few gates, at each report.
const DIVIDED_BY: usize = 16;
/// The part of the time between two reports after which a full bucket counts as used at once: one in so many.
const CREDITED: u64 = 4;
/// The shortest time between two reports of a gate that counts as such.
pub const SHORTEST: Nanos = Nanos::from_millis(1);

#[cfg(test)]
mod tests;
