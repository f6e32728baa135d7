//! How fast clients are read whose requests are refused.
//!
//! **Problem.** A refusal costs its tenant nothing, and gate processor time. A tenant that sends far more than its quota, as
//! fast as it can, would keep a thread busy with refusals while other tenants' requests wait. **Rule.** In each round of
//! 10 ms the refusals of a tenant may take four times the work of its other requests, and an equal part of a fixed sum, some
//! 5 % of a thread, which all such tenants share. The clients of a tenant beyond that are not read until the next round. Their
//! requests wait in their own sockets, and nothing is lost.
//!
//! A tenant at up to five times its quota is never held so, and one beyond keeps its quota: what is admitted is counted
//! first.
//!
//! **Invariants.** Pure. A client waits at most once. Of those that wait each has its turn: whoever had none in a round comes before
//! those who had one. [`WOKEN`] are woken in a round at most, or one of each tenant if that is more.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::dispatcher::tenants::ledger::TenantId;

/// The key that refusals are counted together by: a tenant, or one of its members, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PaceKey {
    pub(crate) tenant: TenantId,
    pub(crate) member: Option<u64>,
}

/// The refusals of one service's tenants in one thread, and the clients that wait for the next round. `C` is a client.
#[derive(Debug)]
pub(crate) struct RefusalPace<C> {
    /// Tenants with refusals in this round or the last, or with clients that wait.
    tenants: HashMap<PaceKey, TenantPace<C>, RandomState>,
    round: u32,
}

#[derive(Debug)]
struct TenantPace<C> {
    work: Work,
    /// In the order in which they have their turns.
    waiting: VecDeque<C>,
    /// Those that were woken in this round, in that order, and had no turn.
    passed_over: Vec<C>,
}

/// Work of one tenant in one round, in units of about 0.5 us by estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// For requests that were admitted, or refused for the store's sake.
    served: u32,
    /// For requests that were refused for the tenant's.
    refused: u32,
}

impl Work {
    /// Counts a request, or a part of one, of so many bytes.
    #[inline]
    pub(crate) fn count(&mut self, is_refused: bool, bytes: usize) {
        let sum = if is_refused { &mut self.refused } else { &mut self.served };
        *sum = sum.saturating_add(1 + u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX - 1));
    }

    /// True if nothing was refused.
    #[inline]
    pub(crate) fn has_no_refusals(self) -> bool {
        self.refused == 0
    }

    fn add(&mut self, Self { served, refused }: Self) {
        self.served = self.served.saturating_add(served);
        self.refused = self.refused.saturating_add(refused);
    }

    /// With the work of one read from a socket and one write to it.
    fn with_system_calls(self) -> Self {
        match self.served {
            0 => Self { refused: self.refused.saturating_add(SYSTEM_CALLS), ..self },
            served => Self { served: served.saturating_add(SYSTEM_CALLS), ..self },
        }
    }
}

impl<C> RefusalPace<C> {
    /// The present round; the number of a later one is another.
    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    /// Counts what was decoded of one read from a client of `tenant`.
    #[inline]
    pub(crate) fn count(&mut self, tenant: PaceKey, work: Work) {
        // Nearly always: nobody is refused.
        if work.has_no_refusals() && self.tenants.is_empty() {
            return;
        }
        self.count_of(tenant, work);
    }

    #[cold]
    fn count_of(&mut self, tenant: PaceKey, work: Work) {
        if work.has_no_refusals() && !self.tenants.contains_key(&tenant) {
            return;
        }
        self.tenants.entry(tenant).or_default().work.add(work.with_system_calls());
    }

    /// True if the refusals of a tenant have taken what they may.
    #[inline]
    pub(crate) fn is_spent(&self, tenant: PaceKey) -> bool {
        let part = || FOR_ALL / self.tenants.len() as u32;
        let limit = |served: u32| served.saturating_mul(REFUSED_PER_SERVED).saturating_add(part());
        self.tenants.get(&tenant).is_some_and(|of| of.work.refused > limit(of.work.served))
    }

    /// Has a client of `tenant` wait for the next round; `had_turn` if it has been read in this one.
    pub(crate) fn wait(&mut self, tenant: PaceKey, client: C, had_turn: bool) {
        let of = self.tenants.entry(tenant).or_default();
        if had_turn {
            of.waiting.push_back(client);
        } else {
            of.passed_over.push(client);
        }
    }

    /// Begins a round. Calls `wake` for the clients that may be read in it.
    pub(crate) fn next_round(&mut self, mut wake: impl FnMut(C)) {
        if self.tenants.is_empty() {
            return;
        }
        self.round = self.round.wrapping_add(1);
        let count = WOKEN.div_ceil(self.tenants.len());
        self.tenants.retain(|_, of| {
            of.passed_over.drain(..).rev().for_each(|client| of.waiting.push_front(client));
            let is_active = of.work != Work::default() || !of.waiting.is_empty();
            of.work = Work::default();
            let count = count.min(of.waiting.len());
            of.waiting.drain(..count).for_each(&mut wake);
            is_active
        });
    }
}

impl<C> Default for RefusalPace<C> {
    fn default() -> Self {
        Self { tenants: HashMap::default(), round: 0 }
    }
}

impl<C> Default for TenantPace<C> {
    fn default() -> Self {
        Self { work: Work::default(), waiting: VecDeque::new(), passed_over: Vec::new() }
    }
}

/// The bytes of a request that are a unit of work.
const UNIT_BYTES: usize = 256;
/// The units of work of a read and a write.
const SYSTEM_CALLS: u32 = 16;
/// The work for refusals that is free for each unit for other requests of the same tenant.
const REFUSED_PER_SERVED: u32 = 4;
/// The work for refusals in a round that all tenants share, beyond that.
const FOR_ALL: u32 = 1_000;
/// The clients that are woken in a round.
const WOKEN: usize = 1_024;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const FLOOD: PaceKey = PaceKey { tenant: TenantId(1), member: None };
    const OTHER: PaceKey = PaceKey { tenant: TenantId(1), member: Some(2) };

    fn work(served: usize, refused: usize) -> Work {
        let mut work = Work::default();
        (0..served).for_each(|_| work.count(false, 30));
        (0..refused).for_each(|_| work.count(true, 30));
        work
    }

    fn pace() -> RefusalPace<u32> {
        RefusalPace::default()
    }

    /// How many reads of a tenant it takes until its refusals are spent.
    fn reads_until_spent(pace: &mut RefusalPace<u32>, of_read: Work) -> usize {
        (1..10_000)
            .find(|_| {
                pace.count(FLOOD, of_read);
                pace.is_spent(FLOOD)
            })
            .unwrap_or(usize::MAX)
    }

    #[test]
    fn refusals_are_spent_by_requests_reads_and_bytes() {
        let large = {
            let mut work = Work::default();
            work.count(true, 256 << 10);
            work
        };
        for (of_read, expected) in [(work(0, 1), 59), (work(0, 100), 9), (work(0, 984), 2), (large, 1)] {
            assert_eq!(reads_until_spent(&mut pace(), of_read), expected, "{of_read:?}");
        }
    }

    #[test]
    fn a_tenant_at_up_to_five_times_its_quota_is_never_held() {
        for of_read in [work(1, 0), work(1, 4), work(20, 80), work(1, 60)] {
            assert_eq!(reads_until_spent(&mut pace(), of_read), usize::MAX, "{of_read:?}");
        }
        assert!(reads_until_spent(&mut pace(), work(20, 200)) < 20);
    }

    #[test]
    fn tenants_share_what_is_free() {
        let mut pace = pace();
        pace.count(OTHER, work(0, 1));
        assert_eq!(reads_until_spent(&mut pace, work(0, 1)), 30, "half of 1,000 units");
        assert!(!pace.is_spent(OTHER), "it has refused one");
        assert!(!pace.is_spent(PaceKey { tenant: TenantId(3), member: None }));
    }

    #[test]
    fn a_round_begins_anew_and_is_forgotten() {
        let mut pace = pace();
        reads_until_spent(&mut pace, work(0, 1));
        let before = pace.round();
        pace.wait(FLOOD, 7, true);
        let mut woken = Vec::new();
        pace.next_round(|client| woken.push(client));
        assert_eq!(woken, [7]);
        assert!(!pace.is_spent(FLOOD) && pace.round() != before);
        pace.next_round(|_| panic!("nobody waits"));
        assert!(pace.tenants.is_empty());
    }

    #[test]
    fn work_without_refusals_is_counted_only_beside_refusals() {
        let mut pace = pace();
        pace.count(FLOOD, work(1, 0));
        assert!(pace.tenants.is_empty());
        pace.count(OTHER, work(0, 1));
        pace.count(FLOOD, work(1, 0));
        assert_eq!(pace.tenants.len(), 1);
    }

    /// Each of so many clients that send without end; the number of reads that each had.
    fn flood(clients: u32, rounds: usize, of_read: Work) -> BTreeMap<u32, usize> {
        let mut pace = pace();
        let mut reads = BTreeMap::new();
        let mut last_read = BTreeMap::new();
        let mut ready: Vec<_> = (0..clients).collect();
        for _ in 0..rounds {
            // The runtime polls tasks in the order in which they were woken; one that may go on is polled again.
            while !ready.is_empty() {
                for client in std::mem::take(&mut ready) {
                    if pace.is_spent(FLOOD) {
                        pace.wait(FLOOD, client, last_read.get(&client) == Some(&pace.round()));
                    } else {
                        pace.count(FLOOD, of_read);
                        *reads.entry(client).or_default() += 1;
                        last_read.insert(client, pace.round());
                        ready.push(client);
                    }
                }
            }
            pace.next_round(|client| ready.push(client));
        }
        reads
    }

    #[test]
    fn every_client_that_waits_has_its_turn() {
        for (clients, rounds) in [(3, 100), (100, 100), (3_000, 900)] {
            let reads = flood(clients, rounds, work(0, 128));
            assert_eq!(reads.len(), clients as usize, "{clients}");
            let fewest = *reads.values().min().unwrap();
            let most = *reads.values().max().unwrap();
            assert!(most <= 2 * fewest, "{clients}: {fewest} to {most}");
        }
    }

    #[test]
    fn so_many_are_woken_in_a_round() {
        let mut pace = pace();
        for tenant in 1..=4 {
            (0..2_000).for_each(|client| {
                pace.wait(PaceKey { tenant: TenantId(tenant), member: None }, client, true)
            });
        }
        let mut woken = 0;
        pace.next_round(|_| woken += 1);
        assert_eq!(woken, WOKEN);
    }
}
