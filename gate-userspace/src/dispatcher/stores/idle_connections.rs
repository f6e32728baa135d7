//! Idle connections to the store that are set up for one client each, and the right to make new ones.
//!
//! A connection that has answered what it was made for is used again: `RESET` makes it as it was at first. So clients that
//! come, log in and go cost the store no connections but gate's own. `RESET` is sent when the connection is used again and
//! not when it is put by: Redis treats it from then on as one that was made at that moment, and a password may have been set
//! or removed in between.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::dedicated::{DedicatedConnection, in_time};
use super::error::StoreError;
use super::health::Health;
use crate::clock;
use crate::dispatcher::identity::Identity;
use crate::dispatcher::metrics::store_state::StoreState;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::NodeId;

/// Connections that wait to be used again, and the permits to make new ones.
///
/// **A hung store** accepts connections and says nothing. So a new one counts as being made until the store has
/// answered something on it. At most [`MOST_MAKING`] are made at a time; clients that come meanwhile wait for one of them.
/// When one fails everyone is refused for a pause, as on shared connections ([`Health`]).
///
/// **One is ready** for the identity that was asked for last: set up, with nothing left to send. So a request that
/// needs a dedicated connection is sent at once, and no later request of another client overtakes it.
#[derive(Debug)]
pub(crate) struct IdleConnections {
    /// The store that they lead to.
    node: NodeId,
    kept: RefCell<Vec<Idle>>,
    /// The identity that was asked for last.
    wanted: RefCell<Identity>,
    /// Raised when kept connections are forgotten.
    generation: Cell<u64>,
    health: RefCell<Health>,
    /// Permits to make a connection now.
    making: Semaphore,
    /// Clients that wait for a connection, or make one.
    waiting: Cell<usize>,
    /// True while one is made ready.
    preparing: Cell<bool>,
    /// When the next one may be made ready: later after a failure.
    prepare_at: Cell<Nanos>,
    /// The store's state as all threads know it.
    shared: Arc<StoreState>,
    /// True if a connection that is used again is logged out by `RESET` first: the store has users.
    resets: bool,
}

/// A connection that no client has.
#[derive(Debug)]
struct Idle {
    connection: DedicatedConnection,
    /// The identity that it is set up for; `None` if it is still set up for the client that had it last.
    ready_for: Option<Identity>,
}

impl IdleConnections {
    /// None yet, to one of the stores, which have users or not.
    pub(crate) fn new(node: NodeId, has_users: bool, shared: Arc<StoreState>) -> Self {
        Self {
            node,
            shared,
            kept: RefCell::default(),
            wanted: RefCell::default(),
            generation: Cell::new(0),
            health: RefCell::new(Health::new()),
            making: Semaphore::new(MOST_MAKING),
            waiting: Cell::new(0),
            preparing: Cell::new(false),
            prepare_at: Cell::new(Nanos::ZERO),
            resets: has_users,
        }
    }

    /// A connection to be the client's for long, as [`IdleConnections::take`]. Does not wait if one is ready.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`].
    pub(crate) async fn take_dedicated(
        &self,
        settings: &Settings,
        identity: &Identity,
    ) -> Result<DedicatedConnection, StoreError> {
        if !self.wanted.borrow().is_same(identity) {
            self.wanted.borrow_mut().clone_from(identity);
        }
        let ready = self.take_ready(identity);
        if let Some(connection) = ready.filter(|connection| connection.is_to_current_address(settings)) {
            self.check()?;
            return Ok(connection);
        }
        self.take(settings, Some(identity)).await
    }

    /// A connection for a client that is `identity`, for one change of that or one long request; with `None` for one login, which
    /// begins as a new client does.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`].
    pub(crate) async fn take(
        &self,
        settings: &Settings,
        identity: Option<&Identity>,
    ) -> Result<DedicatedConnection, StoreError> {
        let generation = self.generation.get();
        let mut connection = self
            .admit(in_time(settings, self.node, async {
                let kept = {
                    let kept = &mut *self.kept.borrow_mut();
                    let used = kept.iter().rposition(|idle| idle.ready_for.is_none());
                    used.map(|index| kept.swap_remove(index).connection)
                };
                if let Some(connection) = kept {
                    let again = async {
                        match self.resets {
                            true => connection.anew(settings, identity).await,
                            false => connection.again(settings, identity).await,
                        }
                    };
                    // One that the network has lost leaves time for a new one.
                    let share = Duration::from(settings.store_timeout()) / 2;
                    match timeout(share, again).await {
                        Ok(Ok(connection)) => return Ok(connection),
                        // Another attempt would be another failed login.
                        Ok(Err(StoreError::Refused(words))) => return Err(StoreError::Refused(words)),
                        Ok(Err(_)) | Err(_) => {}
                    }
                }
                // Whatever else was wrong with the kept one, a new connection shows whether the store can be used. One that is closed
                // while it is set up may be one of many (`CLIENT KILL`).
                for _ in 1..MOST_TRIED {
                    match DedicatedConnection::open_answering(settings, self.node, identity).await {
                        Err(error) if error.is_cut_off() => {}
                        opened => return opened,
                    }
                }
                DedicatedConnection::open_answering(settings, self.node, identity).await
            }))
            .await?;
        connection.generation = generation;
        Ok(connection)
    }

    /// A connection that is set up for `identity`.
    fn take_ready(&self, identity: &Identity) -> Option<DedicatedConnection> {
        let is_ready = |idle: &Idle| idle.ready_for.as_ref().is_some_and(|ready| ready.is_same(identity));
        let kept = &mut *self.kept.borrow_mut();
        while let Some(index) = kept.iter().rposition(is_ready) {
            let connection = kept.swap_remove(index).connection;
            if connection.is_silent() {
                return Some(connection);
            }
        }
        None
    }

    /// True if no connection is ready for the identity that was asked for last, and the store takes new ones.
    pub(crate) fn wants_ready(&self) -> bool {
        if self.preparing.get() || clock::monotonic() < self.prepare_at.get() {
            return false;
        }
        let kept = &mut *self.kept.borrow_mut();
        kept.retain(|idle| idle.ready_for.is_none() || idle.connection.is_silent());
        let wanted = self.wanted.borrow();
        let is_ready = |idle: &Idle| idle.ready_for.as_ref().is_some_and(|ready| ready.is_same(&wanted));
        kept.len() < MOST_KEPT && !kept.iter().any(is_ready) && self.check().is_ok()
    }

    /// Makes a connection ready.
    pub(crate) async fn prepare(&self, settings: &Settings) {
        self.preparing.set(true);
        let wanted = self.wanted.borrow().clone();
        let generation = self.generation.get();
        match self.admit(DedicatedConnection::open_answering(settings, self.node, Some(&wanted))).await {
            Ok(mut connection) => {
                connection.generation = generation;
                self.give_back(connection, wanted);
            }
            Err(error) => {
                self.prepare_at.set(clock::monotonic().saturating_add(PREPARE_AGAIN));
                // Its login may have changed.
                if let StoreError::Refused(_) = error {
                    *self.wanted.borrow_mut() = Identity::default();
                }
            }
        }
        self.preparing.set(false);
    }

    /// Keeps a connection of `identity` that has nothing outstanding, and keeps no state.
    pub(crate) fn give_back(&self, connection: DedicatedConnection, identity: Identity) {
        let kept = &mut *self.kept.borrow_mut();
        let is_current = connection.generation == self.generation.get();
        if is_current && kept.len() < MOST_KEPT && connection.is_silent() {
            kept.push(Idle { connection, ready_for: Some(identity) });
        }
    }

    /// Notes that the store has not answered in time over one of them.
    pub(crate) fn failed(&self) {
        self.health.borrow_mut().failed(clock::monotonic());
    }

    /// Awaits `attempt`, a question to the store on a dedicated connection, under one of the permits to make one. The store's
    /// health follows from its result.
    ///
    /// # Errors
    ///
    /// Those of `attempt`; [`StoreError::Down`] where the store has just failed.
    pub(crate) async fn admit<T>(
        &self,
        attempt: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.check()?;
        let _waits = Waits::new(&self.waiting);
        // The semaphore is never closed.
        let _makes = self.making.acquire().await.map_err(|_| StoreError::Closed)?;
        // The store may have failed for those that were admitted meanwhile.
        self.check()?;
        let result = attempt.await;
        let health = &mut *self.health.borrow_mut();
        match &result {
            Ok(_) => {
                health.connected(clock::monotonic());
                health.answered();
            }
            Err(error @ StoreError::Io(_)) if error.is_cut_off() => {}
            Err(StoreError::Io(_) | StoreError::TimedOut) => {
                health.failed(clock::monotonic());
            }
            // A client can cause the others: they say nothing of the store's health.
            Err(_) => {}
        }
        result
    }

    /// Checks that the store may be tried once more.
    ///
    /// # Errors
    ///
    /// [`StoreError::Down`] where it has just failed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let now = clock::monotonic();
        self.check_silence()?;
        let health = &mut *self.health.borrow_mut();
        if self.waiting.get() == 0 {
            health.idle(now);
        }
        if health.may_be_tried(now) {
            health.retry();
            health.connected(now);
        }
        health.accepts(self.waiting.get(), now).map_err(|retry_after| StoreError::Down { retry_after })
    }

    /// The result of [`IdleConnections::check`], which tries nothing.
    pub(crate) fn peek(&self, now: Nanos) -> Result<(), StoreError> {
        self.check_silence()?;
        let health = self.health.borrow();
        if health.may_be_tried(now) {
            return Ok(());
        }
        health.accepts(self.waiting.get(), now).map_err(|retry_after| StoreError::Down { retry_after })
    }

    /// A silent store is tried by gate's own probes alone, on the shared connections.
    fn check_silence(&self) -> Result<(), StoreError> {
        match self.shared.silent_since() {
            None => Ok(()),
            Some(_) => Err(StoreError::Down { retry_after: SILENT_FOR }),
        }
    }

    /// Closes the connections that are kept: the store may not accept them any more.
    pub(crate) fn clear(&self) {
        self.generation.set(self.generation.get() + 1);
        self.kept.borrow_mut().clear();
    }

    /// Keeps a connection whose replies have all been read, for any identity.
    pub(crate) fn keep(&self, connection: DedicatedConnection) {
        let kept = &mut *self.kept.borrow_mut();
        if kept.len() < MOST_KEPT && connection.has_nothing_unread() {
            kept.push(Idle { connection, ready_for: None });
        }
    }
}

/// One more client that waits, for as long as this is there.
struct Waits<'l>(&'l Cell<usize>);

impl<'l> Waits<'l> {
    fn new(count: &'l Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// After this time it may be worth a try whether a store still is silent.
const SILENT_FOR: Nanos = Nanos::from_millis(100);
/// Attempts to set up one connection, if the store closes it meanwhile.
const MOST_TRIED: usize = 3;
/// Connections of a thread that are being made at once: enough for any store that answers.
const MOST_MAKING: usize = 16;
/// The pause after a connection could not be made ready.
const PREPARE_AGAIN: Nanos = Nanos::from_secs(1);
/// More at a time are rare: each is used for a moment, unless its client sends slowly.
const MOST_KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::sync::Notify;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(future))
    }

    #[test]
    fn a_store_that_has_just_failed_is_not_asked() {
        run(async {
            let connections = IdleConnections::new(NodeId::FIRST, true, Arc::default());
            // The more in a row, the longer the pause.
            (0..20).for_each(|_| connections.failed());
            let attempts = Cell::new(false);
            let refused = connections
                .admit(async {
                    attempts.set(true);
                    Ok(())
                })
                .await;
            assert!(matches!(refused, Err(StoreError::Down { .. })), "{refused:?}");
            assert!(!attempts.get());
        });
    }

    #[test]
    fn only_the_first_clients_wait_for_a_hung_store() {
        run(async {
            let connections = Rc::new(IdleConnections::new(NodeId::FIRST, true, Arc::default()));
            let attempts = Rc::new(Cell::new(0));
            let gives_up = Rc::new(Notify::new());
            let is_hung = Rc::new(Cell::new(true));
            let client = |_| {
                let connections = Rc::clone(&connections);
                let attempts = Rc::clone(&attempts);
                let gives_up = Rc::clone(&gives_up);
                let is_hung = Rc::clone(&is_hung);
                spawn_local(async move {
                    let attempt = async {
                        attempts.set(attempts.get() + 1);
                        if is_hung.get() {
                            gives_up.notified().await;
                        }
                        Err::<(), _>(StoreError::TimedOut)
                    };
                    connections.admit(attempt).await
                })
            };
            let clients: Vec<_> = (0..10 * MOST_MAKING).map(client).collect();
            while attempts.get() < MOST_MAKING {
                yield_now().await;
            }
            is_hung.set(false);
            gives_up.notify_waiters();
            let mut timed_out = 0;
            for client in clients {
                match client.await.unwrap() {
                    Err(StoreError::TimedOut) => timed_out += 1,
                    refused => assert!(matches!(refused, Err(StoreError::Down { .. })), "{refused:?}"),
                }
            }
            assert_eq!((attempts.get(), timed_out), (MOST_MAKING, MOST_MAKING));
        });
    }
}
