//! The decision on one request: its descriptors are charged all or none.
//!
//! A descriptor is a name (its request's domain, then its entries). If a `[[limit]]` fits it, that name's bucket is charged. Else, if
//! its one entry is `tenant=NAME`, the tenant's is. Anything else passes. Limits with a label have further buckets. A limit that the request itself brings has a bucket
//! beside those, so it can only lower.

use std::sync::{Arc, Mutex, PoisonError};

use gate_common::units::{MilliRu, Nanos};

use super::counters::{Counters, Event};
use super::descriptor::{Demand, name_of, override_of};
use super::status::{Verdict, status};
use super::wire::rls::RateLimitDescriptor;
use super::wire::rls::rate_limit_response::{Code, DescriptorStatus};
use super::wire::rls::{RateLimitRequest, RateLimitResponse};
use crate::dispatcher::{NamedTenants, TenantId};
use crate::limits::{Charge, Charged, Limits, Name, NameError, Standing, Table};

/// The quotas that requests are decided by.
#[derive(Debug)]
pub(super) struct Quotas {
    pub(super) table: Arc<Table>,
    tenants: Mutex<NamedTenants>,
    counters: Arc<Counters>,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// The domain is empty.
    #[error("the domain is empty")]
    Domain,
    /// There are none.
    #[error("there is no descriptor")]
    NoDescriptor,
    /// There are too many.
    #[error("there are more than {MAX_DESCRIPTORS} descriptors")]
    Descriptors,
    /// One is no name.
    #[error("descriptor {place} {error}")]
    Name {
        /// Its place, from 0.
        place: usize,
        /// The fault.
        error: NameError,
    },
    /// One brings a limit without a unit.
    #[error("descriptor {place} has a limit in a unit that is not known")]
    Unit {
        /// Its place, from 0.
        place: usize,
    },
}

/// One descriptor: who pays how much.
struct Plan {
    name: Name,
    /// Those of its limits with a label.
    labelled: Vec<Name>,
    tenant: Option<TenantId>,
    demand: Demand,
    lowered: Option<(Name, Limits)>,
}

impl Quotas {
    pub(super) fn new(table: Arc<Table>, tenants: NamedTenants, counters: Arc<Counters>) -> Self {
        Self { table, tenants: Mutex::new(tenants), counters }
    }

    /// The answer to a request, which is charged if it may pass. `now` is `CLOCK_MONOTONIC`.
    pub(super) fn decide(
        &self,
        request: &RateLimitRequest,
        now: Nanos,
    ) -> Result<RateLimitResponse, Invalid> {
        let decided = self.plan(request, now).map(|plans| (self.charge(&plans, now), plans));
        let event = match &decided {
            Err(_) => Event::Invalid,
            Ok((verdicts, _)) if verdicts.iter().any(Verdict::is_refused) => Event::OverLimit,
            Ok(_) => Event::Ok,
        };
        self.counters.count(event);
        let overall = if event == Event::OverLimit { Code::OverLimit } else { Code::Ok };
        let (verdicts, plans) = decided?;
        let of_plan = |(verdict, plan): (Verdict, &Plan)| status(verdict, plan.label(verdict.place));
        let statuses: Vec<DescriptorStatus> = verdicts.into_iter().zip(&plans).map(of_plan).collect();
        Ok(RateLimitResponse { overall_code: overall as i32, statuses })
    }

    /// True in shadow mode: everything is decided and counted, and nothing is refused.
    pub(super) fn is_shadowed(&self) -> bool {
        self.tenants().is_shadowed()
    }

    fn plan(&self, request: &RateLimitRequest, now: Nanos) -> Result<Vec<Plan>, Invalid> {
        match request.descriptors.len() {
            _ if request.domain.is_empty() => return Err(Invalid::Domain),
            0 => return Err(Invalid::NoDescriptor),
            1..=MAX_DESCRIPTORS => {}
            _ => return Err(Invalid::Descriptors),
        }
        let plan = |(place, descriptor)| self.plan_one(request, place, descriptor, now);
        request.descriptors.iter().enumerate().map(plan).collect()
    }

    fn plan_one(
        &self,
        request: &RateLimitRequest,
        place: usize,
        descriptor: &RateLimitDescriptor,
        now: Nanos,
    ) -> Result<Plan, Invalid> {
        let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        let rules = self.table.rules();
        let name_of = |label| {
            let named = name_of(&request.domain, entries.clone(), label, &rules);
            named.map_err(|error| Invalid::Name { place, error })
        };
        let (name, was_hashed) = name_of(None)?;
        let mut labelled = Vec::new();
        for label in rules.labels(&request.domain) {
            let (name, _) = name_of(Some(label))?;
            labelled.extend(rules.find(&name).is_some().then_some(name));
        }
        let lowered =
            descriptor.limit.map(|limit| override_of(limit).ok_or(Invalid::Unit { place })).transpose()?;
        let lowered = lowered.map(|(limits, what)| (name.with_override(what), limits));
        let is_named = !labelled.is_empty() || rules.find(&name).is_some();
        let tenant = match &descriptor.entries[..] {
            [entry] if entry.key == TENANT && !is_named => self.tenants().find(&entry.value, now),
            _ => None,
        };
        self.counters.count(match tenant {
            _ if is_named => Event::Named,
            Some(_) => Event::Tenant,
            None => Event::Unknown,
        });
        if was_hashed {
            self.counters.count(Event::Hashed);
        }
        Ok(Plan { name, labelled, tenant, demand: Demand::of(descriptor, request.hits_addend), lowered })
    }

    /// Charges all or none. Tenants come first: what they are charged can be given back before it is counted.
    fn charge(&self, plans: &[Plan], now: Nanos) -> Vec<Verdict> {
        let mut paid = Vec::new();
        let mut verdicts: Vec<Verdict> =
            plans.iter().map(|plan| self.charge_tenant(plan, &mut paid, now)).collect();
        let is_refused = verdicts.iter().any(Verdict::is_refused);
        self.charge_names(plans, &mut verdicts, is_refused, now);
        let is_refused = verdicts.iter().any(Verdict::is_refused);
        // Of one bucket nothing was taken by a request that it has refused.
        let has_one_bucket = matches!(plans, [plan] if plan.lowered.is_none() && plan.labelled.is_empty());
        let is_stale =
            |plan: &Plan| is_refused && !has_one_bucket || matches!(plan.demand, Demand::GiveBack(_));
        let mut tenants = self.tenants();
        for (tenant, charged) in paid {
            if is_refused { tenants.refund(tenant, charged) } else { tenants.count_passed(tenant, charged) }
        }
        for (plan, verdict) in plans.iter().zip(&mut verdicts) {
            if let (Demand::GiveBack(cost), false) = (plan.demand, is_refused) {
                match plan.tenant {
                    Some(tenant) => tenants.give_back(tenant, cost),
                    None => self.give_back(plan, cost, now),
                }
            }
            let level = plan.tenant.and_then(|tenant| tenants.level(tenant, now));
            if let Some(level) = level {
                verdict.narrow(Standing::of(level.limits.into(), level.reset), 0);
            } else if plan.tenant.is_none() && is_stale(plan) {
                // What was taken has been given back since.
                let later = plan.names().nth(verdict.place).and_then(|name| self.table.standing(name, now));
                verdict.replace(later);
            }
        }
        verdicts
    }

    fn charge_tenant(&self, plan: &Plan, paid: &mut Vec<(TenantId, MilliRu)>, now: Nanos) -> Verdict {
        let Some(tenant) = plan.tenant else { return Verdict::default() };
        let mut tenants = self.tenants();
        let result = match plan.demand {
            Demand::Take(cost) => {
                tenants.charge(tenant, cost, now).map(|charged| paid.push((tenant, charged)))
            }
            Demand::Ask(cost) => tenants.ask(tenant, cost, now),
            Demand::GiveBack(_) => Ok(()),
        };
        let wait = result.err().map(|refusal| refusal.retry_after);
        Verdict { refused: wait, ..Verdict::default() }
    }

    fn charge_names(&self, plans: &[Plan], verdicts: &mut [Verdict], only_ask: bool, now: Nanos) {
        let mut charges = Vec::new();
        let mut places = Vec::new();
        for (place, plan) in plans.iter().enumerate() {
            let (cost, is_question) = match plan.demand {
                Demand::Take(cost) => (cost, only_ask),
                Demand::Ask(cost) => (cost, true),
                Demand::GiveBack(_) => continue,
            };
            let named = plan.names().enumerate().map(|(which, name)| (which, name, None));
            let named = named.filter(|_| plan.tenant.is_none());
            let lowered = plan.lowered.as_ref().map(|(name, limits)| (0, name, Some(*limits)));
            for (which, name, limits) in named.chain(lowered) {
                charges.push(Charge { name, cost, is_question, limits });
                places.push((place, which));
            }
        }
        let charged = if self.is_shadowed() {
            self.table.charge_in_shadow(&charges, now)
        } else {
            self.table.charge(&charges, now)
        };
        for ((place, which), charged) in places.into_iter().zip(charged) {
            match charged {
                Charged::Unlimited | Charged::Untracked => {}
                Charged::Within(standing) => verdicts[place].narrow(standing, which),
                Charged::Shadowed(standing) => {
                    self.counters.count(Event::Shadowed);
                    verdicts[place].narrow(standing, which);
                }
                Charged::Refused(standing, refusal) => verdicts[place].refuse(standing, refusal, which),
            }
        }
    }

    fn give_back(&self, plan: &Plan, cost: MilliRu, now: Nanos) {
        plan.names().for_each(|name| self.table.give_back(name, cost, now));
        if let Some((lowered, _)) = &plan.lowered {
            self.table.give_back(lowered, cost, now);
        }
    }

    /// Nothing panics while they are held, and what is behind it are words that are changed one by one.
    fn tenants(&self) -> std::sync::MutexGuard<'_, NamedTenants> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    /// Its name, and those of its limits with a label.
    fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.name).chain(&self.labelled)
    }

    /// The label of one of them.
    fn label(&self, place: usize) -> Option<&str> {
        self.names().nth(place)?.label()
    }
}

/// The key of an entry that names a tenant.
const TENANT: &str = "tenant";
/// More than any route has.
const MAX_DESCRIPTORS: usize = 32;

#[cfg(test)]
mod ratelimit_cases;
#[cfg(test)]
mod tests;
