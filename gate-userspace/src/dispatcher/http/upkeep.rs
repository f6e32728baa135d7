//! The periodic work of an HTTP service, and the tasks that do it.

use std::cmp::Reverse;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::connection::Connection;
use super::service::HttpService;
use super::websocket_state::WebSocketState;
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::memory_budget::MemoryLimits;
use crate::dispatcher::hot_restart::{Phase, wait_for_phase};
use crate::dispatcher::questions::PendingQuestion;

/// Starts the tasks of a service in its thread.
pub(crate) fn start(
    service: &Rc<HttpService>,
    asked: Option<mpsc::Receiver<PendingQuestion>>,
    phase: &watch::Receiver<Phase>,
) {
    if let Some(asked) = asked {
        tokio::task::spawn_local(Rc::clone(service).answer_questions(asked));
    }
    tokio::task::spawn_local(drain(Rc::clone(service), phase.clone()));
    tokio::task::spawn_local(end_websockets(Rc::clone(service), phase.clone()));
    tokio::task::spawn_local(receive_permits(Rc::clone(service)));
    tokio::task::spawn_local(work(Rc::clone(service)));
}

/// Has clients go elsewhere once this gate accepts no more: each connection ends with the answers that are due.
async fn drain(service: Rc<HttpService>, mut phase: watch::Receiver<Phase>) {
    wait_for_phase(&mut phase, Phase::NotAccepting).await;
    loop {
        service.connections().for_each(|connection| connection.drain());
        tokio::time::sleep(OFTEN).await;
    }
}

/// Ends WebSockets once clients that stay are to leave.
async fn end_websockets(service: Rc<HttpService>, mut phase: watch::Receiver<Phase>) {
    wait_for_phase(&mut phase, Phase::ClosingIdle).await;
    loop {
        service.websockets().for_each(|websocket| websocket.restart());
        tokio::time::sleep(OFTEN).await;
    }
}

/// Lets requests go that wait here whenever another thread leaves a permit to this one, for ever.
async fn receive_permits(service: Rc<HttpService>) {
    loop {
        let woken = service.admission.woken();
        woken.await;
        service.dispatch(clock::monotonic());
        service.admission.return_permits();
    }
}

async fn work(service: Rc<HttpService>) {
    let mut often = tokio::time::interval(OFTEN);
    often.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0_u32;
    loop {
        often.tick().await;
        let now = clock::monotonic();
        service.check_calls(now);
        service.expire(now);
        service.memory.poll();
        service.may_close_idle.set(true);
        service.close_idle_over_budget();
        service.begin_round();
        service.dispatch(now);
        service.admission.return_permits();
        count = count.wrapping_add(1);
        if count.is_multiple_of(TICK) {
            service.tick(now);
        }
        if count.is_multiple_of(LOOK_AT_TENANTS) {
            service.websockets().for_each(|websocket| websocket.look_at_tenant());
        }
        if count.is_multiple_of(RELEASE) {
            service.store.release(now);
            service.upstreams.release(now);
            service.memory.release();
        }
    }
}

impl HttpService {
    /// Looks at all requests under way: which of them take too long, and whose permits others may have.
    fn check_calls(&self, now: Nanos) {
        let limits = self.limits.get();
        self.calls.borrow_mut().retain(|call| {
            let call = call.upgrade();
            call.inspect(|call| {
                if call.check(&limits, now) {
                    self.lend_permit(call);
                }
            })
            .is_some()
        });
    }

    /// Refuses requests that have waited too long while no permit became free.
    fn expire(&self, now: Nanos) {
        while let Some(expired) = self.admission.expire(now) {
            expired.request.end_wait(expired.result);
            self.admission.recycle(expired.bytes);
        }
    }

    /// The work of every tick.
    fn tick(&self, now: Nanos) {
        self.admission.tick(self.is_first, now);
        let change = self.follower.last();
        let limits = *self.settings.limits.borrow();
        let before = self.limits.replace(limits);
        self.admission.set_limits(&limits, &before);
        *self.types.borrow_mut() = self.settings.types.borrow().clone();
        self.refresh_tenants();
        self.memory.set_limits(MemoryLimits::of(&limits, self.tenants.borrow().are_several()));
        self.follower.has_taken_over(change);
        self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
        self.connections().for_each(|connection| connection.check_timeout(&limits, now));
        self.websockets.borrow_mut().retain(|websocket| websocket.strong_count() > 0);
        self.websockets().for_each(|websocket| websocket.check_timeout(&limits, now));
    }

    /// Ends idle connections if all clients hold more memory than they may, or those of a tenant more than its share: those of
    /// the tenant that holds most before others, and of one tenant's those that have been idle for longest. Looks at all
    /// connections, so once a round.
    pub(super) fn close_idle_over_budget(&self) {
        if !self.memory.is_exceeded() || !self.may_close_idle.replace(false) {
            return;
        }
        let tenants = self.memory.tenant_excesses();
        let all = self.memory.excess();
        if tenants.is_empty() && all == 0 {
            return;
        }
        let mut idle: Vec<_> = self.connections().filter(|connection| connection.is_idle()).collect();
        idle.sort_by_key(|connection| {
            (Reverse(connection.memory.of_tenant()), connection.tenant.get().0, connection.idle_since())
        });
        let mut closed = 0;
        for (tenant, excess) in tenants {
            closed += close_for(excess, idle.iter().filter(|connection| connection.tenant.get() == tenant));
        }
        closed += close_for(all, idle.iter());
        if closed > 0 {
            let service = &self.settings.name;
            tracing::warn!(
                service,
                closed,
                "clients held more than client_memory or tenant_memory allows, and some that were idle are closed"
            );
        }
    }

    /// Takes over what has changed about tenants. A connection may be another's from now on.
    fn refresh_tenants(&self) {
        let tenants = self.settings.tenants.borrow().clone();
        if Arc::ptr_eq(&tenants, &self.tenants.borrow()) {
            return;
        }
        self.admission.set_tenants(&tenants);
        *self.tenants.borrow_mut() = tenants;
        for connection in self.connections() {
            let tenant = {
                let mut ledger = self.ledger.borrow_mut();
                ledger.refresh();
                ledger.tenant_of(connection.source, self.settings.service)
            };
            connection.memory.charge_to(tenant);
            if tenant != connection.tenant.replace(tenant) && !self.acquire_slot(&connection) {
                connection.end(CloseCause::ClientLeft);
            }
        }
    }

    fn websockets(&self) -> impl Iterator<Item = Rc<WebSocketState>> {
        let websockets: Vec<_> = self.websockets.borrow().iter().filter_map(Weak::upgrade).collect();
        websockets.into_iter()
    }

    fn connections(&self) -> impl Iterator<Item = Rc<Connection>> {
        let connections: Vec<_> = self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        connections.into_iter()
    }
}

/// Ends so many of these connections, the first first, that so many bytes are freed. Returns how many.
fn close_for<'c>(bytes: usize, connections: impl Iterator<Item = &'c Rc<Connection>>) -> usize {
    let mut left = bytes;
    let mut closed = 0;
    for connection in connections.filter(|connection| connection.memory.bytes() > 0) {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(connection.memory.bytes());
        connection.end_for_memory();
        closed += 1;
    }
    closed
}

/// The precision of timeouts.
const OFTEN: Duration = Duration::from_millis(10);
/// Of [`OFTEN`]: the policies' tick.
const TICK: u32 = 10;
/// The time between two looks for the tenants of WebSockets, in units of [`OFTEN`].
const LOOK_AT_TENANTS: u32 = 50;
/// Of [`OFTEN`]: how often idle store connections are looked at.
const RELEASE: u32 = 200;
