//! Shares of the store in [admission](super): who is above theirs, and what follows for their requests.

use gate_common::units::Nanos;

use super::queueing::QueuedRequest;
use super::{Admission, ClientQueue};
use crate::dispatcher::queue::shares::{Seen, Standing};
use crate::dispatcher::queue::tier_queue::QueueKey;
use crate::dispatcher::request::Charged;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::Tier;
use crate::policy::fair_share::Sharer;
use crate::policy::rank::Rank;

impl<T> Admission<T> {
    /// A tenant's place among those who share the store; `None` while no shares are in force.
    #[inline]
    pub(super) fn standing(&self, tenant: TenantId, tier: Tier) -> Option<Standing> {
        self.shares.borrow().standing(Sharer { tier, tenant: tenant.0 })
    }

    /// The rank with which a request goes to the store.
    #[inline]
    pub(crate) fn rank(&self, charged: &Charged) -> Rank {
        self.rank_of(charged.tenant, charged.class.tier)
    }

    /// The rank with which a tenant's requests of a tier go to the store.
    #[inline]
    pub(crate) fn rank_of(&self, tenant: TenantId, tier: Tier) -> Rank {
        let waits_behind = self.standing(tenant, tier).is_some_and(|standing| standing.waits_behind);
        Rank { tier, waits_behind }
    }

    /// The request's place among those who share the store; `None` while no shares are in force.
    #[inline]
    fn standing_of(&self, charged: &Charged) -> Option<Standing> {
        self.standing(charged.tenant, charged.class.tier)
    }

    /// A request has left the queue of a tier after it `waited`, or passed it by; `behind` more wait on. Returns whether it is to be
    /// refused for that. Nobody is who is within their share: they wait before the queue that stands.
    #[inline]
    pub(super) fn note_wait(
        &self,
        charged: &Charged,
        (tier, waited, behind): (Tier, Nanos, usize),
        now: Nanos,
    ) -> bool {
        let mut delay = self.delay.borrow_mut();
        match self.standing_of(charged) {
            Some(Standing { is_above: false, .. }) => {
                delay.waited(tier, waited);
                false
            }
            Some(Standing { is_above: true, .. }) => {
                delay.left(tier, now, waited, behind) || self.is_beyond_share(waited)
            }
            None => delay.left(tier, now, waited, behind),
        }
    }

    /// True if a request that still waits will be refused whenever it leaves the queue of a tier.
    pub(super) fn has_expired(&self, charged: &Charged, tier: Tier, waited: Nanos) -> bool {
        let gives_up = || self.delay.borrow().has_expired(tier, waited);
        match self.standing_of(charged) {
            Some(Standing { is_above, .. }) => is_above && (gives_up() || self.is_beyond_share(waited)),
            None => gives_up(),
        }
    }

    /// True if a request that waits for another's to be answered may go on waiting: its tenant asks for no more than its share, as far as
    /// there are shares, and its deadline has not passed.
    pub(crate) fn may_wait_on(&self, charged: &Charged, now: Nanos) -> bool {
        let is_above = self.standing_of(charged).is_some_and(|standing| standing.is_above);
        let waited = now.saturating_sub(charged.at);
        !is_above && self.deadline.get().is_none_or(|deadline| waited <= deadline)
    }

    /// True if those above their share wait no longer than that.
    fn is_beyond_share(&self, waited: Nanos) -> bool {
        self.shares.borrow().longest_wait().is_some_and(|longest| waited > longest)
    }
}

impl<T: QueuedRequest> Admission<T> {
    /// Hands over what was seen of the store and of who asks for it, and takes over the shares that follow.
    pub(super) fn share(&self, decides: bool, now: Nanos) {
        let ledger = &mut *self.ledger.borrow_mut();
        let queue = &mut *self.queue.borrow_mut();
        let shares = &mut *self.shares.borrow_mut();
        let queues = Tier::ALL.iter().map(|&tier| self.metrics.queue(tier));
        let seen = Seen {
            answers: self.answers.take(),
            waiting: queue.len() as u64,
            stood: queue.take_stood(),
            is_refused: queues.clone().any(|queue| queue.stands),
            delay: queues.map(|queue| queue.delay).max().unwrap_or_default(),
        };
        let weight_of = |tenant| ledger.units_per_sec(TenantId(tenant));
        shares.tick(seen, decides, now, weight_of);
        let waits_behind = |tenant, tier| {
            shares.standing(Sharer { tier, tenant }).is_some_and(|standing| standing.waits_behind)
        };
        queue.follow_shares(waits_behind, |request, from, to| follow(request, from, to));
    }
}

/// The requests of its client that come later join the rank to which this one has moved, if the last one was there as well.
fn follow(request: &impl QueuedRequest, from: Rank, to: Rank) {
    let client = request.client_queue();
    let (waiting, last): ClientQueue = client.get();
    let moved = |last: QueueKey| QueueKey { rank: if last.rank == from { to } else { last.rank }, ..last };
    client.set((waiting, last.map(moved)));
}
