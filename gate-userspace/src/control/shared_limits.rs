//! The limits that tenants share with other gates: what each tick has counted goes into the book, and what the owners of limits
//! said comes out of it.
//!
//! A request is charged to its tenant and to those that it is charged with, so each of their lines has it. A refusal counts in the
//! line of the bucket that refused. That is known by number only, so the price of all refusals is divided by their numbers.

use std::collections::HashMap;

use gate_common::abi::{OtherBucket, Reason, TenantCounters};
use gate_common::units::Nanos;

use super::decide::TenantSnapshot;
use super::demand::Demand;
use crate::fleet::gate::shared::SharedBook;
use crate::kernel::Maps;
use crate::limits::Name;

/// The tenants' lines in the book.
#[derive(Debug)]
pub(super) struct SharedLimits {
    book: SharedBook,
    /// In the order of the layout.
    tenants: Vec<Tenant>,
}

#[derive(Debug)]
struct Tenant {
    id: u32,
    /// `None` for a name that no limit can have.
    line: Option<u32>,
    /// The places of those that it is charged with.
    parents: [Option<usize>; 2],
    /// Refusals as of the last look.
    refusals: Refusals,
}

/// Refusals by number: for the quota of the tenant itself, of its two parents, and for anything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refusals {
    own: u64,
    parents: [u64; 2],
    others: u64,
}

impl SharedLimits {
    /// The lines of these tenants: id, name, and the ids of those that each is charged with.
    pub(super) fn new(book: SharedBook, maps: &Maps, tenants: &[(u32, String, [u32; 2])]) -> Self {
        let places: HashMap<u32, usize> =
            tenants.iter().enumerate().map(|(place, (id, ..))| (*id, place)).collect();
        let line = |name: &str| Some(book.lock().line(&Name::parse(name).ok()?));
        let tenants = tenants.iter().map(|(id, name, parents)| Tenant {
            id: *id,
            line: line(name),
            parents: parents.map(|parent| places.get(&parent).copied()),
            refusals: Refusals::of(&maps.tenant_counters(*id as usize)),
        });
        let tenants = tenants.collect();
        Self { book, tenants }
    }

    /// The book.
    pub(super) const fn book(&self) -> &SharedBook {
        &self.book
    }

    /// Brings what was counted into the book, and what may be given out from it to the snapshots.
    pub(super) fn exchange(
        &mut self,
        maps: &Maps,
        demand: &Demand,
        now: Nanos,
        snapshots: &mut [TenantSnapshot],
    ) {
        let book = &mut *self.book.lock();
        for place in 0..self.tenants.len() {
            let Tenant { id, line, parents, refusals } = &mut self.tenants[place];
            let since = demand.since(*id);
            let line = *line;
            let parents = *parents;
            let refused_mru = since.offered_mru.wrapping_sub(since.charged_mru);
            let refused = if refused_mru > 0 {
                let counted = Refusals::of(&maps.tenant_counters(*id as usize));
                counted.since(std::mem::replace(refusals, counted)).share(refused_mru)
            } else {
                [0; 3]
            };
            if since.offered_mru == 0 {
                continue;
            }
            let parents = parents.map(|parent| self.tenants[parent?].line);
            for (line, refused) in [line, parents[0], parents[1]].into_iter().zip(refused) {
                line.into_iter().for_each(|line| book.count(line, now, since.charged_mru, refused));
            }
        }
        for (tenant, snapshot) in self.tenants.iter().zip(snapshots) {
            snapshot.grant = tenant.line.and_then(|line| book.grant(line, now));
        }
    }
}

impl Refusals {
    fn of(counters: &TenantCounters) -> Self {
        let lacked = |bucket: OtherBucket| counters.quota_refused[bucket.index()];
        let parents = [OtherBucket::FirstParent, OtherBucket::SecondParent].map(lacked);
        let limit = lacked(OtherBucket::Limit);
        let [quota, until] =
            [Reason::Quota, Reason::RejectedUntil].map(|reason| counters.refused[reason.index()]);
        let own = quota.saturating_add(until).saturating_sub(parents[0] + parents[1] + limit);
        let all: u64 = counters.refused.iter().sum();
        Self { own, parents, others: all.saturating_sub(own + parents[0] + parents[1]) }
    }

    fn since(self, before: Self) -> Self {
        Self {
            own: self.own.saturating_sub(before.own),
            parents: [0, 1].map(|place| self.parents[place].saturating_sub(before.parents[place])),
            others: self.others.saturating_sub(before.others),
        }
    }

    /// The part of an amount that was refused for the tenant's own quota, and for those of its parents.
    fn share(self, amount: u64) -> [u64; 3] {
        let all = self.own + self.parents[0] + self.parents[1] + self.others;
        let part = |count: u64| {
            let part = u128::from(amount) * u128::from(count) / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        [self.own, self.parents[0], self.parents[1]].map(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_where_the_quota_was_that_refused() {
        let mut counters = TenantCounters::default();
        counters.refused[Reason::Quota.index()] = 60;
        counters.refused[Reason::RejectedUntil.index()] = 20;
        counters.refused[Reason::Slo.index()] = 20;
        counters.quota_refused[OtherBucket::FirstParent.index()] = 30;
        counters.quota_refused[OtherBucket::SecondParent.index()] = 5;
        counters.quota_refused[OtherBucket::Limit.index()] = 5;
        let refusals = Refusals::of(&counters);
        assert_eq!(refusals, Refusals { own: 40, parents: [30, 5], others: 25 });
        assert_eq!(refusals.share(1_000), [400, 300, 50]);
        assert_eq!(refusals.since(refusals).share(1_000), [0; 3]);
    }
}
