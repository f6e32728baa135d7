//! The state of a WebSocket that its tunnel and the upkeep share: what ends it.
//!
//! **Ends.** A client that reads nothing for `client_timeout` is closed like any other; the rest is here: nothing has passed for
//! `idle_timeout`, the store takes nothing for `slow_timeout`, one side has ended and the other has not for `client_timeout`, a
//! KiB has waited for the quota for `client_timeout`, the tenant is not there any more, or gate ends: it goes on while gate drains.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use gate_common::abi::Reason;
use gate_common::units::Nanos;

use super::connection::Connection;
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::settings::Limits;

/// The state of a WebSocket.
#[derive(Debug)]
pub(super) struct WebSocketState {
    pub(super) client: Rc<Connection>,
    last_passed: Cell<Nanos>,
    /// Directions that wait for the quota.
    paying: Cell<u32>,
    store_takes_nothing_since: Cell<Option<Nanos>>,
    half_closed_since: Cell<Option<Nanos>>,
    /// True if it is to be checked whether its tenant is still there.
    must_look: Cell<bool>,
    stop: Cell<Option<Stop>>,
    waker: RefCell<Option<Waker>>,
}

/// Why a WebSocket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Both sides have ended it.
    Ended,
    /// The client's connection has broken, or has been ended.
    Client(CloseCause),
    /// The store's connection has broken.
    Store,
    /// The store has taken nothing for too long.
    StoreStalled,
    /// Nothing has passed for too long.
    Idle,
    /// Its tenant stays far above its quota.
    OverQuota,
    /// Its tenant is not there any more.
    NotAllowed,
    /// gate ends, or another takes over from it.
    Restart,
}

impl WebSocketState {
    /// That of one which begins at `now`.
    pub(super) fn new(client: &Rc<Connection>, now: Nanos) -> Self {
        Self {
            client: Rc::clone(client),
            last_passed: Cell::new(now),
            paying: Cell::new(0),
            store_takes_nothing_since: Cell::new(None),
            half_closed_since: Cell::new(None),
            must_look: Cell::new(false),
            stop: Cell::new(None),
            waker: RefCell::default(),
        }
    }

    /// Notes that one more direction waits for the quota, or one less.
    pub(super) fn pays(&self, waits: bool) {
        let paying = self.paying.get();
        self.paying.set(if waits { paying + 1 } else { paying - 1 });
    }

    /// Notes that bytes have passed.
    pub(super) fn passed(&self) {
        self.last_passed.set(clock::monotonic());
    }

    /// Notes whether the store keeps what is to pass to it waiting.
    pub(super) fn store_keeps_waiting(&self, waits: bool) {
        self.store_takes_nothing_since.set(waits.then(clock::monotonic));
    }

    /// Notes that one side has ended.
    pub(super) fn half_closed(&self) {
        self.half_closed_since.set(Some(clock::monotonic()));
    }

    /// Ends it if it has taken too long for something, or its client's connection has ended. To be called every tick.
    pub(super) fn check_timeout(&self, limits: &Limits, now: Nanos) {
        if let Some(cause) = self.client.ended() {
            self.stop(Stop::Client(cause));
        }
        let is_longer =
            |since: Option<Nanos>, most| since.is_some_and(|since| now.saturating_sub(since) > most);
        if is_longer(self.half_closed_since.get(), limits.client_timeout) {
            self.stop(Stop::Ended);
        }
        if is_longer(self.store_takes_nothing_since.get(), limits.slow_timeout) {
            self.stop(Stop::StoreStalled);
        }
        let idle_since = (self.paying.get() == 0).then(|| self.last_passed.get());
        if is_longer(idle_since, limits.idle_timeout.unwrap_or(IDLE)) {
            self.stop(Stop::Idle);
        }
    }

    /// Has its task check whether its tenant is still there.
    pub(super) fn look_at_tenant(&self) {
        self.must_look.set(true);
        self.wake();
    }

    /// True if that is to be checked; once.
    pub(super) fn must_look_at_tenant(&self) -> bool {
        self.must_look.replace(false)
    }

    /// Ends it because gate does.
    pub(super) fn restart(&self) {
        self.stop(Stop::Restart);
    }

    fn stop(&self, why: Stop) {
        if self.stop.get().is_none() {
            self.stop.set(Some(why));
            self.wake();
        }
    }

    fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Why it ends, if it does; else its task is woken when it does.
    pub(super) fn poll_stop(&self, cx: &Context<'_>) -> Option<Stop> {
        let stop = self.client.ended().map(Stop::Client).or_else(|| self.stop.get());
        if stop.is_none() {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        stop
    }
}

impl Stop {
    /// The refusal that it is for its tenant, if it is one.
    pub(super) const fn refusal(self) -> Option<Reason> {
        match self {
            Self::OverQuota => Some(Reason::Quota),
            Self::NotAllowed => Some(Reason::UnknownSource),
            Self::Ended | Self::Client(_) | Self::Store | Self::StoreStalled | Self::Idle | Self::Restart => {
                None
            }
        }
    }

    /// The code and the reason that the client is told, if it is told.
    pub(super) const fn close(self) -> Option<(u16, &'static str)> {
        match self {
            Self::Ended | Self::Client(_) => None,
            Self::Store => Some((1_014, "the store has left")),
            Self::StoreStalled => Some((1_011, "the store takes nothing")),
            Self::Idle => Some((1_001, "idle")),
            Self::OverQuota => Some((1_013, "over quota")),
            Self::NotAllowed => Some((1_008, "not allowed any more")),
            Self::Restart => Some((1_012, "restart")),
        }
    }

    /// The end of its client's connection.
    pub(super) const fn cause(self) -> CloseCause {
        match self {
            Self::Client(cause) => cause,
            Self::Store | Self::StoreStalled => CloseCause::StoreFailed,
            Self::Idle => CloseCause::Idle,
            Self::Ended | Self::OverQuota | Self::NotAllowed | Self::Restart => CloseCause::ClientLeft,
        }
    }
}

/// The time after which one is closed on which nothing passes, unless `idle_timeout` says another: a client whose machine is gone
/// says nothing, and those that are there send a ping within minutes.
const IDLE: Nanos = Nanos::from_secs(3_600);
