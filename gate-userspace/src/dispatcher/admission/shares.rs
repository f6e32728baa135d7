//! Shares of the store in [admission](super): who is above theirs, and what follows for their requests.

use gate_common::units::Nanos;

use super::queueing::QueuedRequest;
use super::{Admission, ClientQueue};
use crate::dispatcher::queue::permits::Rank;
use crate::dispatcher::queue::shares::{Seen, Standing};
use crate::dispatcher::queue::tier_queue::QueueKey;
use crate::dispatcher::request::Charged;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::Tier;
use crate::policy::fair_share::Sharer;

impl<T> Admission<T> {
    /// A tenant's place among those who share the store; `None` while no shares are in force.
    #[inline]
    pub(super) fn standing(&self, tenant: TenantId, tier: Tier) -> Option<Standing> {
        self.shares.borrow().standing(Sharer { tier, tenant: tenant.0 })
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
        if shares.tick(seen, decides, now, weight_of) {
            // Requests that wait already were put in line before anyone knew whose they are.
            let waits_behind = |tenant, tier| {
                shares.standing(Sharer { tier, tenant }).is_some_and(|standing| standing.waits_behind)
            };
            queue.fall_behind(waits_behind, |request, rank| fall_behind(request, rank));
        }
    }
}

/// The requests of its client that come later join the rank that this one has from now on.
fn fall_behind(request: &impl QueuedRequest, rank: Rank) {
    let client = request.client_queue();
    let (waiting, last): ClientQueue = client.get();
    client.set((waiting, last.map(|last| QueueKey { rank: last.rank.max(rank), ..last })));
}
