//! The boundary between the connections to the store and whoever sends requests over them.
//!
//! A connection knows bytes, replies and timeouts. It moves each request's state ([`StoreEvents::InFlight`]) from
//! [`super::connection::StoreConnection::send`] to its end without looking inside, and reports through this trait, which is
//! dispatched statically.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

use gate_common::units::Nanos;

use super::error::StoreError;
use super::pool_identity::PoolIdentity;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::wire::{Answer, Codec, Wire};

/// The owner of store connections: it sends requests, and receives their replies and failures.
pub(crate) trait StoreEvents: Debug + Sized + 'static {
    /// The store's protocol.
    type Wire: Wire;
    /// The state of a request between the client and the store.
    type InFlight: Debug;
    /// The measurements of one connection's replies.
    type Observations: Debug + Default;
    /// The result of a request that the request sent behind it needs ([`FollowUp`]).
    type HandedOver;

    fn settings(&self) -> &Settings;

    /// The buffer for one read from a socket.
    fn scratch(&self) -> &RefCell<Box<[u8]>>;

    /// Some of the reply to a request has come; `is_first` if there was none before.
    fn reply_part(&self, request: &mut Self::InFlight, reply: ReplyPart<'_>);

    /// The reply to a request is complete. Returns what the request sent behind it needs.
    fn reply_end(
        &self,
        observations: &mut Self::Observations,
        request: &mut Self::InFlight,
        timing: ReplyTiming,
    ) -> Option<Self::HandedOver>;

    /// A request receives the result of the one before it.
    fn hand_over(&self, request: &mut Self::InFlight, result: Self::HandedOver);

    /// All replies of one read from the socket have been processed.
    fn read_end(&self, observations: &mut Self::Observations, now: Nanos);

    /// There will be no reply to a request, or no more of it.
    fn failed(&self, request: Self::InFlight, progress: ReplyProgress, failure: Failure<'_>);

    /// A node of a cluster sends a request, which it has not run, to another. `bytes` are all of the request; `None` if they were not
    /// kept.
    fn redirected(
        &self,
        request: Self::InFlight,
        error: &[u8],
        bytes: Option<&[u8]>,
        progress: ReplyProgress,
    );

    /// A node of a cluster does not serve a slot now: `-CLUSTERDOWN`, `-TRYAGAIN`.
    fn note_cluster_error(&self, error: &[u8]);

    /// True if the client that a request belongs to has not read its earlier replies, so that more should wait at the
    /// store. `is_paused` is true if it does.
    fn is_held_up(&self, request: &Self::InFlight, is_paused: bool) -> bool;

    /// True if two requests belong to one client.
    fn is_same_client(&self, one: &Self::InFlight, other: &Self::InFlight) -> bool;

    /// True if a request's reply comes before another's of the same client.
    fn is_earlier(&self, one: &Self::InFlight, other: &Self::InFlight) -> bool;

    /// The reply to a request waits at the store for the client. From now on this is not the store's time.
    fn paused(&self, request: &mut Self::InFlight);

    /// Requests may be sent now that permits are free.
    fn dispatch(&self);

    /// Writes to the clients that have replies.
    fn flush(&self);

    /// A connection to a store has been established.
    fn connected(&self, node: NodeId);

    /// A connection to a store has ended.
    fn disconnected(&self, node: NodeId);

    /// A store is none of the service's any more.
    fn left(&self, node: NodeId);

    /// A connection ended, and nothing is wrong with the store: another one is made at once.
    fn connection_lost(&self, error: &StoreError);

    /// A connection to a store ended for `error`, or could not be made; the next attempt is after `backoff`.
    fn store_down(&self, node: NodeId, error: &StoreError, backoff: Nanos);

    /// Waits until any connection, of any thread, reaches a store after it was down.
    fn store_back(&self, node: NodeId) -> impl Future<Output = ()>;

    /// The store no longer accepts the user of a pool. True if the pool is closed for that.
    fn user_refused(&self, pool: &Rc<PoolIdentity>, why: &[u8]) -> bool;

    /// The store says that it is in cluster mode, or that it is not.
    fn set_in_cluster(&self, in_cluster: bool);

    /// True if the store is in cluster mode.
    fn is_in_cluster(&self) -> bool;
}

/// A part of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyPart<'b> {
    /// The store's bytes, of which [`Answer::give`] belong to the client.
    pub(crate) input: &'b [u8],
    pub(crate) answer: Answer,
    /// True if nothing of this reply came before.
    pub(crate) is_first: bool,
}

impl<'b> ReplyPart<'b> {
    /// The bytes that the client gets from the store; [`Answer::add`] follows them.
    #[inline]
    pub(crate) fn given(&self) -> &'b [u8] {
        &self.input[..self.answer.give]
    }
}

/// The times of a request that has been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyTiming {
    /// The store that has answered it.
    pub(crate) node: NodeId,
    /// When it was sent.
    pub(crate) sent: Nanos,
    /// When the last of its reply was read.
    pub(crate) now: Nanos,
    /// The length of its reply on the wire.
    pub(crate) received: usize,
    /// True if the reply has waited at the store for the client.
    pub(crate) is_paused: bool,
}

/// How far the reply had come to a request that gets no more of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyProgress {
    pub(crate) is_started: bool,
    /// As of [`ReplyTiming::is_paused`].
    pub(crate) is_paused: bool,
}

/// A reason why a request gets no reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure<'w> {
    /// The connection failed before the request was sent.
    Unsent {
        /// The time until the next attempt to connect.
        retry_after: Nanos,
    },
    /// The connection failed after the request was sent: the store may have executed it.
    Uncertain,
    /// The store no longer accepts the pool's user: its error.
    UserRefused(&'w [u8]),
    /// The nodes of a cluster send the request on to each other, and gate follows no more. It has not run.
    Astray(&'static [u8]),
}

/// A request that is sent right behind another, whose result it needs.
#[derive(Debug)]
pub(crate) struct FollowUp<E: StoreEvents> {
    pub(crate) in_flight: E::InFlight,
    pub(crate) request: <E::Wire as Codec>::Request,
    pub(crate) bytes: Vec<u8>,
}
