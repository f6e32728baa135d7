//! The conversation with a client: its decoder, its input, and its replies.

use super::replies::Replies;
use super::task_budget::TaskBudget;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::Refusal;

/// The decoder state, the unread input and the outstanding replies of a client.
#[derive(Debug)]
pub(crate) struct Conversation<W: Wire> {
    /// The state of the protocol.
    pub(crate) decoder: W::Decoder,
    /// Input that has been read and not been decoded; mostly nothing.
    pub(crate) input: Buffer,
    /// The length of input that decoding needs to go on.
    pub(crate) want: usize,
    /// Decoding has stopped for want of room or because of its order, not for want of input.
    pub(crate) decode_paused: bool,
    /// The work that its task may still do before others go first.
    pub(crate) budget: TaskBudget,
    /// Its task waits for room.
    pub(crate) awaits_output: bool,
    /// Nothing more is read from it: it has said `quit`, or its input is malformed.
    pub(crate) closing: bool,
    /// The mode that its next request needs, once it has all its replies.
    pub(crate) next_mode: ConnectionMode,
    /// Its replies, in order.
    pub(crate) replies: Replies,
}

/// The mode that a client's connection changes to before its next request is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionMode {
    /// No change.
    Shared,
    /// The login exchange with the store.
    Login,
    /// A dedicated upstream connection.
    Dedicated,
    /// The body of a request is streamed to the store when the request leaves the queue; if it is refused there, the
    /// body is discarded.
    Streaming,
}

/// A refused request on which those behind it depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RefusedBefore {
    /// None is refused for another.
    #[default]
    Nothing,
    /// `WATCH`.
    Watch(Refusal),
    /// `MULTI`.
    Transaction(Refusal),
    /// A session command.
    Session(Refusal),
}
