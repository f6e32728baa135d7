//! The decision of a tick: the state that the next generation enforces.
//!
//! **Problem.** XDP must refuse without asking anyone, so what it refuses is decided ahead, from what it
//! counted and from how the stores are doing. **Source.** The batch reporting of Databricks' rate limiter: no
//! request waits for a decision from elsewhere; it passes unless the gate already knows that it must not.
//!
//! **Tenants.** A tenant whose bucket is in debt (a request dearer than its burst, a settlement, a
//! lowered burst) is told to stay away until the debt is paid: XDP then refuses it before it prices
//! anything. Under the rejection-rate algorithm, the share of the last ticks' requests that was over the
//! quota is refused by a draw; the bucket stays on beneath. The estimate is what the last tick counted: it
//! covers the time since the tick before exactly, so nothing has to be made up for its edges.
//!
//! A tenant that goes on asking over its connections for far more than its quota is
//! [deep in debt](crate::policy::deep_debt), and what is configured for that befalls its TCP. Only the daemon's
//! counts of requests over established connections bring that about: forged datagrams and segments can spend a
//! tenant's quota, but never cost it its connections. Whoever only uses guarded services is never deep.
//!
//! **Limits that gates share.** A tenant is held to what this gate may give out of its limit ([`fleet_share`](crate::policy::fleet_share)),
//! where that is less than its quota.
//!
//! **Members.** A tenant with members is told nothing ahead: its counts are sums over all of them, its bucket that of those who have
//! none of their own, and neither says anything of the next member that asks.
//!
//! **By hand.** A multiplier and a penalty that the operator has given a tenant are in its state before any decision,
//! and stay: nothing that is decided here makes it cheaper or lets it in. Whoever is refused by hand is told
//! nothing else, so that its refusals read `penalty` whatever its bucket says. What a service sheds comes on top.
//!
//! **Services.** The [latency ratio](crate::policy::latency_ratio) moves each one's
//! [ladder](crate::policy::shedding), at most one rung in a tick. A queue that stands (`CoDel`: even the shortest
//! wait was too long) is a signal as well, also where latencies are too short or too few for a ratio: the
//! ratio then counts as just low enough for the lowest tier. It cannot fall further by itself, so a queue alone
//! never costs more than that tier. Where tenants' [shares](crate::policy::fair_share) of a proxied store bind, they decide who
//! gives way, and by how much: the ladder counts the time as calm in which they refuse somebody something. While the store cannot be reached its ladder stays where it is: nobody can
//! tell what shedding would do.
//!
//! Where a service's prices [are learned](crate::policy::pricing), they learn from what the tick found, unless it was
//! an overload by any sign: something is shed, the ratio is so low that the lowest tier would give way, the queue
//! stands, or the store cannot be reached.
//!
//! **Invariants.** Pure: the same memory and snapshot give the same plan. `reject_until` never refuses what
//! the bucket would admit. From a step in latency to the first rung it is at most two ticks.

use gate_common::abi::{ServiceState, Shed, TcpAction, TenantState, tenant_flags};
use gate_common::token_bucket::debt_ns;
use gate_common::units::{Fraction, Nanos};

use crate::fleet::gate::grant::Grant;
use crate::limits::Limits;
use crate::policy::Tier;
use crate::policy::deep_debt::DeepDebt;
use crate::policy::pricing::{self, CostSamples, Pricing};
use crate::policy::rejection_rate::share_over;
use crate::policy::shedding::{Settings, Shedding, Transition, Treatment};

/// One tenant as a tick found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantSnapshot {
    /// Its bucket's word.
    pub quota_tat: u64,
    /// The sum of charges and refused prices since the last tick, in thousandths of a request unit.
    pub offered_mru: u64,
    /// The price of its requests over connections from its own sources since the last tick, refused or not, in
    /// thousandths of a request unit.
    pub asked_mru: u64,
    /// True if each of its members has a bucket of its own.
    pub has_members: bool,
    /// Its part of a limit that it shares with other gates; `None` if it shares none, or its owner is lost.
    pub grant: Option<Grant>,
}

/// One service's store as a tick found it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceSnapshot {
    /// Its latency ratio, if there is enough to say.
    pub ratio: Option<f64>,
    /// True if the queue before it stands.
    pub queue_stands: bool,
    /// True while shares of it cut: what it cannot do is refused to tenants that ask for more than theirs.
    pub shares_cut: bool,
    /// False while it is known to be out of reach.
    pub store_up: bool,
    /// The cost samples of its answers.
    pub cost_samples: CostSamples,
}

/// The input of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// On gate's clock.
    pub now: Nanos,
    /// Since the last snapshot.
    pub interval: Nanos,
    /// In the order of the layout.
    pub tenants: &'a [TenantSnapshot],
    /// In the order of the configuration. Services that are missing at the end stay as they are.
    pub services: &'a [ServiceSnapshot],
}

/// The rules that a decision follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The action on new connections, or all, of a tenant that is deep in debt.
    pub tcp_in_debt: TcpAction,
    /// How deep that is, beyond its burst: the time that its quota takes to pay it off.
    pub deep_debt: Nanos,
    /// Refuse a share of what is offered over the quota, rather than leave it to the bucket.
    pub rejection_rate: bool,
    /// By service, in the order of the configuration: when it sheds; `None` if it does not.
    pub shedding: Vec<Option<Settings>>,
    /// By service, in the order of the configuration, and tier: true if requests may have it.
    pub tiers: Vec<[bool; 4]>,
    /// By service, in the order of the configuration: how its prices learn; `None` if they stay as configured.
    pub learning: Vec<Option<Learning>>,
}

/// How a service's prices learn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learning {
    /// From where, how fast and how far.
    pub pricing: pricing::Settings,
    /// A latency ratio below this is an overload, whether anything is shed then or not.
    pub slow_below: f64,
    /// True if requests that turn out to have cost more than they were charged are charged the difference.
    pub settles: bool,
}

/// The state that one decision leaves for the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// By tenant, in the order of the layout.
    pub debts: Vec<DeepDebt>,
    /// By service, in the order of the configuration.
    pub shedding: Vec<Option<Shedding>>,
    /// By service, in the order of the configuration.
    pub pricing: Vec<Option<Pricing>>,
}

impl Default for Rules {
    /// Only the buckets.
    fn default() -> Self {
        let tcp_in_debt = TcpAction::None;
        let deep_debt = Nanos::from_secs(10);
        let (shedding, tiers, learning) = Default::default();
        Self { tcp_in_debt, deep_debt, rejection_rate: false, shedding, tiers, learning }
    }
}

/// Decides every tenant's state: `states` holds it before any decision, in the order of the snapshot. What each
/// service sheds and charges is then in `memory`, see [`Memory::state`]; returns what changed about what is shed, by
/// service.
pub fn decide(
    rules: &Rules,
    snapshot: &Snapshot<'_>,
    memory: &mut Memory,
    states: &mut [TenantState],
) -> Vec<(usize, Transition)> {
    for ((state, tenant), debt) in states.iter_mut().zip(snapshot.tenants).zip(&mut memory.debts) {
        if tenant.has_members {
            state.tcp_action = TcpAction::None as u8;
            continue;
        }
        // By its own quota, of which a part may be next to nothing for a moment.
        let requested = state.quota.rate.time_for(u32::try_from(tenant.asked_mru).unwrap_or(u32::MAX));
        let depth = rules.deep_debt.saturating_add(Nanos(state.quota.burst_ns));
        let is_deep = debt.tick(Nanos(requested), snapshot.interval, depth);
        state.tcp_action = if is_deep { rules.tcp_in_debt } else { TcpAction::None } as u8;
    }
    for (state, tenant) in states.iter_mut().zip(snapshot.tenants) {
        let reject_for = tenant.grant.map_or(Nanos::ZERO, |grant| hold_to(state, &grant));
        if state.flags & tenant_flags::PENALTY != 0 || tenant.has_members {
            (state.reject_until_ns, state.rejection_rate) = (0, 0);
            continue;
        }
        let debt = debt_ns(tenant.quota_tat, snapshot.now.0, state.quota.burst_ns).max(reject_for.0);
        state.reject_until_ns = if debt > 0 { snapshot.now.0.saturating_add(debt) } else { 0 };
        state.rejection_rate = if rules.rejection_rate {
            rejection_rate(tenant.offered_mru, state, snapshot.interval).steps()
        } else {
            0
        };
    }
    let mut changes = Vec::new();
    for (place, (shedding, service)) in memory.shedding.iter_mut().zip(snapshot.services).enumerate() {
        let Some(shedding) = shedding.as_mut().filter(|_| service.store_up) else { continue };
        let signal = shedding.settings().signal(service.ratio, service.queue_stands);
        let ratio = signal.filter(|_| !service.shares_cut);
        changes.extend(shedding.tick(snapshot.now, ratio).map(|change| (place, change)));
    }
    for (place, (learning, service)) in rules.learning.iter().zip(snapshot.services).enumerate() {
        let overloaded = memory.is_overloaded(place);
        let (Some(learning), Some(Some(pricing))) = (learning, memory.pricing.get_mut(place)) else {
            continue;
        };
        let is_slow = service.ratio.is_some_and(|ratio| ratio < learning.slow_below);
        let overloaded =
            overloaded || is_slow || service.queue_stands || service.shares_cut || !service.store_up;
        pricing.tick(snapshot.now, &service.cost_samples, overloaded);
    }
    changes
}

impl Memory {
    /// The state of a service's slots in the next generation; `base` is that of the configuration.
    #[must_use]
    pub fn state(&self, service: usize, base: ServiceState) -> ServiceState {
        let priced = self.pricing(service).map_or(base, |pricing| pricing.put_into(base));
        ServiceState { shed: self.shed(service), ..priced }
    }

    /// A service's prices, if they are learned.
    #[must_use]
    pub fn pricing(&self, service: usize) -> Option<&Pricing> {
        self.pricing.get(service)?.as_ref()
    }

    /// The shedding of each tier of a service.
    #[must_use]
    pub fn shed(&self, service: usize) -> Shed {
        let Some(Some(shedding)) = self.shedding.get(service) else { return Shed::default() };
        Tier::ALL
            .into_iter()
            .fold(Shed::default(), |shed, tier| shed.with(tier as u8, rung(shedding.treatment(tier))))
    }

    /// True while a service sheds anything.
    #[must_use]
    pub fn is_overloaded(&self, service: usize) -> bool {
        matches!(self.shedding.get(service), Some(Some(shedding)) if shedding.is_overloaded())
    }
}

fn rung(treatment: Treatment) -> u32 {
    match treatment {
        Treatment::Normal => 0,
        Treatment::Dearer(doublings) => u32::from(doublings),
        Treatment::Refused => Shed::REFUSED,
    }
}

/// Holds a tenant to what gate may give out of a limit that it shares, if that is less than its own quota. Returns for how long it
/// is nothing.
fn hold_to(state: &mut TenantState, grant: &Grant) -> Nanos {
    let own = Limits::from(state.quota);
    let held = grant.within(own);
    let quota = if held == own { state.quota } else { held.to_kernel() };
    if quota != state.quota {
        state.quota = quota;
        state.flags &= !tenant_flags::UNLIMITED;
    }
    grant.reject_for
}

/// The share of what the last interval offered that was over the quota.
fn rejection_rate(offered_mru: u64, state: &TenantState, interval: Nanos) -> Fraction {
    let Some(per_sec) = state.quota.rate.units_per_sec() else { return Fraction::ZERO };
    let limit = u128::from(per_sec) * u128::from(interval.0) / 1_000_000_000;
    share_over(u64::try_from(limit).unwrap_or(u64::MAX), offered_mru)
}

#[cfg(test)]
mod tests;
