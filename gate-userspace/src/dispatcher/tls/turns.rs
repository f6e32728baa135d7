//! The turns of clients' TLS handshakes in one thread.
//!
//! **Problem.** A handshake costs its client next to nothing, and gate up to some milliseconds for one signature. Whoever may
//! connect can ask for many. **Rule.** One step of one handshake is taken at a time, and between two steps everything else that
//! is ready has its turn. Tenants take turns, and of each tenant its sources: addresses, or networks of 64 bits of IPv6. The
//! steps of one tenant may take [`OF_TENANT`] of each round of [`ROUND`], and those of all [`OF_ALL`]; whoever is beyond waits
//! for the next round. A step that takes longer is owed in the rounds behind it. Unknown sources are as one tenant, and so are
//! trusted proxies, whose clients' tenants nobody knows yet.
//!
//! **Invariants.** [`TurnQueue`] is pure: durations are arguments. At most one turn is taken. A turn that nobody waits for any
//! longer goes to the next.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use foldhash::fast::RandomState;
use gate_common::units::Nanos;
use tokio::sync::{Notify, oneshot};

use crate::clock;
use crate::dispatcher::tenants::ledger::TenantId;

/// The turns of the handshakes in one thread, of all its services.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Rc<SharedTurns>);

#[derive(Debug, Default)]
struct SharedTurns {
    queue: RefCell<TurnQueue<oneshot::Sender<HandshakeTurn>>>,
    /// Told when somebody waits for the next round, or may.
    is_used: Notify,
}

/// The client of a handshake, as far as turns are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    /// `None` for a trusted proxy.
    tenant: Option<TenantId>,
    source: IpAddr,
}

/// The right to take one step, until it is dropped.
#[derive(Debug)]
pub(super) struct HandshakeTurn {
    turns: Turns,
    tenant: Option<TenantId>,
    used: Cell<Nanos>,
}

impl Party {
    /// A client at this address, of this tenant; a trusted proxy's client for none.
    pub(crate) fn new(tenant: Option<TenantId>, source: IpAddr) -> Self {
        let source = match source {
            IpAddr::V4(_) => source,
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        };
        Self { tenant, source }
    }
}

impl Turns {
    /// Waits for a turn; calls `on_pause` if it has to wait for the next round.
    pub(super) async fn next(&self, party: Party, on_pause: impl FnOnce()) -> HandshakeTurn {
        let wait = {
            let queue = &mut *self.0.queue.borrow_mut();
            if queue.take(party) {
                return self.turn(party.tenant);
            }
            if queue.is_spent(party.tenant) {
                on_pause();
            }
            let (sender, receiver) = oneshot::channel();
            queue.wait(party, sender);
            receiver
        };
        // It is never dropped unsent.
        wait.await.unwrap_or_else(|_| self.turn(party.tenant))
    }

    /// Begins a round every [`ROUND`] while there are handshakes, for ever.
    pub(crate) async fn run_rounds(self) {
        loop {
            if !self.0.queue.borrow().is_active() {
                self.0.is_used.notified().await;
            }
            tokio::time::sleep(ROUND).await;
            self.0.queue.borrow_mut().next_round();
            self.pass_on();
        }
    }

    fn turn(&self, tenant: Option<TenantId>) -> HandshakeTurn {
        HandshakeTurn { turns: self.clone(), tenant, used: Cell::default() }
    }

    /// Gives the turn to whoever is next, if it is free.
    fn pass_on(&self) {
        loop {
            let Some((tenant, waiting)) = self.0.queue.borrow_mut().next() else { return };
            if waiting.is_closed() {
                self.0.queue.borrow_mut().end(tenant, Nanos(0));
                continue;
            }
            // Another of this thread has it: nothing has happened since.
            drop(waiting.send(self.turn(tenant)));
            return;
        }
    }
}

impl HandshakeTurn {
    /// Takes a step, and notes how long it takes.
    pub(super) fn take<R>(&self, step: impl FnOnce() -> R) -> R {
        let begun = clock::monotonic();
        let result = step();
        let took = clock::monotonic().saturating_sub(begun);
        self.used.set(self.used.get().saturating_add(took));
        result
    }
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        self.turns.0.queue.borrow_mut().end(self.tenant, self.used.get());
        self.turns.pass_on();
        self.turns.0.is_used.notify_one();
    }
}

/// The holder of the turn, those who wait for it, and what has been used. `C` is somebody who waits.
#[derive(Debug)]
struct TurnQueue<C> {
    /// Tenants that have used something, or wait.
    tenants: HashMap<Option<TenantId>, TenantTurns<C>, RandomState>,
    /// Tenants that wait, in the order of their turns.
    order: VecDeque<Option<TenantId>>,
    used: Nanos,
    is_taken: bool,
}

#[derive(Debug)]
struct TenantTurns<C> {
    used: Nanos,
    waiting: HashMap<IpAddr, VecDeque<C>, RandomState>,
    /// Its sources that wait, in the order of their turns.
    order: VecDeque<IpAddr>,
}

impl<C> TurnQueue<C> {
    /// Takes the turn, if it is free and this one need not wait for the next round.
    fn take(&mut self, party: Party) -> bool {
        // Whoever waits cannot go on either.
        let may = !self.is_taken && !self.is_spent(party.tenant);
        self.is_taken |= may;
        may
    }

    /// True if a tenant has to wait for the next round.
    fn is_spent(&self, tenant: Option<TenantId>) -> bool {
        self.used >= OF_ALL || self.tenants.get(&tenant).is_some_and(|of| of.used >= OF_TENANT)
    }

    fn wait(&mut self, party: Party, client: C) {
        let of = self.tenants.entry(party.tenant).or_default();
        if of.order.is_empty() {
            self.order.push_back(party.tenant);
        }
        let of_source = of.waiting.entry(party.source).or_default();
        if of_source.is_empty() {
            of.order.push_back(party.source);
        }
        of_source.push_back(client);
    }

    /// Ends the turn, in which a tenant has used so much.
    fn end(&mut self, tenant: Option<TenantId>, used: Nanos) {
        self.is_taken = false;
        if used > Nanos(0) {
            self.used = self.used.saturating_add(used);
            let of = self.tenants.entry(tenant).or_default();
            of.used = of.used.saturating_add(used);
        }
    }

    /// Gives the turn to whoever is next, if it is free.
    fn next(&mut self) -> Option<(Option<TenantId>, C)> {
        if self.is_taken {
            return None;
        }
        let first = (0..self.order.len()).find(|&at| !self.is_spent(self.order[at]))?;
        self.order.rotate_left(first);
        let tenant = self.order.pop_front()?;
        let of = self.tenants.get_mut(&tenant)?;
        let client = of.next()?;
        if !of.order.is_empty() {
            self.order.push_back(tenant);
        }
        self.is_taken = true;
        Some((tenant, client))
    }

    /// True if a round makes a difference.
    fn is_active(&self) -> bool {
        !self.tenants.is_empty()
    }

    fn next_round(&mut self) {
        self.used = self.used.saturating_sub(OF_ALL);
        self.tenants.retain(|_, of| {
            of.used = of.used.saturating_sub(OF_TENANT);
            of.used > Nanos(0) || !of.order.is_empty()
        });
    }
}

impl<C> TenantTurns<C> {
    /// Its next, of the source whose turn it is.
    fn next(&mut self) -> Option<C> {
        let source = self.order.pop_front()?;
        let of_source = self.waiting.get_mut(&source)?;
        let client = of_source.pop_front();
        if of_source.is_empty() {
            self.waiting.remove(&source);
        } else {
            self.order.push_back(source);
        }
        client
    }
}

impl<C> Default for TurnQueue<C> {
    fn default() -> Self {
        Self { tenants: HashMap::default(), order: VecDeque::new(), used: Nanos(0), is_taken: false }
    }
}

impl<C> Default for TenantTurns<C> {
    fn default() -> Self {
        Self { used: Nanos(0), waiting: HashMap::default(), order: VecDeque::new() }
    }
}

const ROUND: Duration = Duration::from_millis(10);
/// The time that the steps of one tenant may take in a round: a quarter of it.
const OF_TENANT: Nanos = Nanos(2_500_000);
/// The time that all steps may take in a round: half of it.
const OF_ALL: Nanos = Nanos(5_000_000);
/// The bits of an IPv6 address that are its network's.
const NETWORK: u128 = !0 << 64;

#[cfg(test)]
mod tests;
