//! What the dispatcher needs of a protocol. One implementation for each: everything else is the same for all.
//!
//! [`memcached`]: gets merged and split again. [`resp`]: requests as they come. [`buffer`]: bytes on their way.

use std::fmt::Debug;

use gate_common::units::Nanos;

use self::buffer::Buffer;
use crate::dispatcher::identity::LoginRequest;
use crate::protocol::deny::Deny;
use crate::protocol::own::OwnKeys;
use crate::protocol::price_class::PriceClass;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::{Class, Refusal, RequestMeta, Step};

pub(super) mod buffer;
pub(super) mod memcached;
pub(super) mod resp;

/// A protocol, as the dispatcher sees it.
pub(crate) trait Wire: Debug + Sized + 'static {
    /// Takes requests out of one client's stream.
    type Decoder: Debug;
    /// A request; its keys are offsets into its bytes.
    type Request: Copy + Debug;
    /// Bytes that are not a request.
    type Fault: Copy + Debug;
    /// One connection to the store.
    type Link: Link<Request = Self::Request>;

    /// What a store that works answers with one line.
    const PROBE: &'static [u8];

    /// Whether that line says that it works.
    fn is_healthy_reply(line: &[u8]) -> bool;

    /// Whether the store knows users, and may let one do what another may not.
    const HAS_USERS: bool;

    /// What a client reads that says goodbye.
    const GOODBYE: &'static [u8];

    /// A new client's decoder, for requests of at most `max_request` bytes.
    fn decoder(max_request: usize) -> Self::Decoder;

    /// What `input`, which no earlier step has taken, begins with.
    fn decode(decoder: &mut Self::Decoder, input: &[u8]) -> Step<Self::Request, Self::Fault>;

    /// The bytes of the request that was decoded last, which took `taken` of the input.
    fn bytes<'b>(decoder: &'b Self::Decoder, request: &Self::Request, taken: &'b [u8]) -> &'b [u8];

    /// What is known of a request before it runs.
    fn meta(request: &Self::Request) -> &RequestMeta;

    /// Whether only its head has been decoded: its body follows, to be passed on as it comes.
    fn is_streamed(request: &Self::Request) -> bool;

    /// What is expected to take as long as a request of this class, for its price.
    fn price_class(class: Class) -> PriceClass;

    /// The place of a request's type among `types`.
    fn query_type(types: &QueryTypes, request: &Self::Request, bytes: &[u8]) -> usize;

    /// What a request asks to be changed about who its client is; `None` if nothing, or if that cannot be told.
    fn change(request: &Self::Request, bytes: &[u8]) -> Option<LoginRequest>;

    /// Whether a command is among those that are denied.
    fn is_denied(deny: &Deny, request: &Self::Request, bytes: &[u8]) -> bool;

    /// Whether a request can touch no other keys than these.
    fn touches_only(own: &OwnKeys, request: &Self::Request, bytes: &[u8]) -> bool;

    /// Whether an answer says that the user may not do what it asked.
    fn is_forbidden(answer: &[u8]) -> bool;

    /// A request that the store refuses, wherever it takes any.
    const UNKNOWN_COMMAND: &'static [u8];

    /// What becomes of a request that may pass.
    fn route(request: &Self::Request) -> Route;

    /// What a request means for a transaction.
    fn transaction(_request: &Self::Request) -> Transaction {
        Transaction::None
    }

    /// Whether it waits for the store's replicas to have what its client has written.
    fn awaits_replicas(_request: &Self::Request) -> bool {
        false
    }

    /// What a client reads whose transaction is refused as a whole, and what makes the store say as much.
    const ABORTED: &'static [u8] = b"";
    const ABORT: &'static [u8] = b"";

    /// The keys that a request names; `bytes` are all of it.
    fn keys<'b>(request: &Self::Request, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]>;

    /// Whether these are all the keys that it is about, each as the store knows it.
    fn names_all_keys(request: &Self::Request) -> bool;

    /// Whether it reads one key, and what that holds is all that its answer depends on.
    fn is_coalescable(request: &Self::Request) -> bool;

    /// Whether an answer to such a request is for one client alone.
    fn is_for_one_client(answer: &[u8]) -> bool;

    /// Whether an answer to such a request says what the key holds, rather than that something is wrong.
    fn is_cacheable(answer: &[u8]) -> bool;

    /// What asks the store how long the key of such a request lives.
    fn query_ttl(request: &Self::Request, bytes: &[u8]) -> Option<(Self::Request, Vec<u8>)>;

    /// For how long `answer` holds, if the store has answered that question so.
    fn ttl(answer: &[u8], said: &[u8]) -> Ttl;

    /// In how long the store does what it is asked, if that is to forget everything at a later time.
    fn flushes_in(_request: &Self::Request, _bytes: &[u8]) -> Option<Nanos> {
        None
    }

    /// Whether the store answers it with one reply, no more and no less.
    fn has_one_answer(request: &Self::Request) -> bool;

    /// Whether the client wants no answer, not even a refusal.
    fn wants_no_reply(request: &Self::Request) -> bool;

    /// Appends the answer to bytes that are no request.
    fn answer_fault(fault: &Self::Fault, out: &mut Vec<u8>) -> FaultHandling;

    /// Appends a refusal.
    fn refuse(refusal: Refusal, out: &mut Vec<u8>);
}

/// For how long what a key holds can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// Until it is written to, as far as is known.
    Unbounded,
    /// At most so long.
    AtMost(Nanos),
}

/// What becomes of a request that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// It goes to the store by a connection that many clients share.
    Shared,
    /// It needs a connection to the store that no one else uses, and so do all that follow it.
    Dedicated,
    /// It may change who the client is: the store is asked before anything that follows is looked at.
    Login,
    /// The gate answers it with its own figures.
    GateStats,
    /// The client says goodbye.
    Quit,
}

/// What a request means for a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transaction {
    /// Nothing: it is a part of one that is open.
    None,
    /// One begins.
    Begin,
    /// It is to be done.
    Commit,
    /// It is given up.
    Discard,
    /// The connection's state is forgotten, and it ends with that.
    Reset,
}

/// What becomes of a connection whose client sent bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultHandling {
    /// No one can tell where the next request begins: it ends.
    pub(crate) closes: bool,
    /// What is counted.
    pub(crate) reason: gate_common::abi::Reason,
    /// The client wants to speak TLS.
    pub(crate) tls: bool,
}

/// One connection to the store, shared by many clients: what is written to it, and whose answer is read.
pub(crate) trait Link: Debug + Default {
    /// See [`Wire::Request`].
    type Request;
    /// What is known of an answer before it comes.
    type Expect: Copy + Debug;

    /// Appends a request to what is to be written; `bytes` are all of it, or the head of one that is streamed.
    fn encode(&mut self, request: &Self::Request, bytes: &[u8], out: &mut Buffer) -> Self::Expect;

    /// What comes after the body of a request that was encoded without it.
    fn tail(expect: &Self::Expect) -> &'static [u8];

    /// Completes what [`Link::encode`] may have left open, before it is written.
    fn seal(&mut self, out: &mut Buffer);

    /// What `input`, which no earlier call has taken, holds of the answer to the first request that is not
    /// wholly answered. It may be called without input.
    ///
    /// # Errors
    ///
    /// [`MalformedReply`]: the store does not speak the protocol, and this connection must end.
    fn scan(&mut self, expect: &Self::Expect, input: &[u8]) -> Result<Answer, MalformedReply>;
}

/// What a store's bytes mean for the first request that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Bytes from the front of the input that the client gets.
    pub(crate) give: usize,
    /// What the client gets after them.
    pub(crate) add: &'static [u8],
    /// Bytes of the input that are taken.
    pub(crate) len: usize,
    /// Whether the answer is whole.
    pub(crate) last: bool,
}

impl Answer {
    /// More input is wanted.
    pub(crate) const MORE: Self = Self { give: 0, add: b"", len: 0, last: false };
}

/// The store sent what its protocol does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store sent {0}")]
pub(crate) struct MalformedReply(pub(crate) String);

/// The longest request that is gathered; a longer one is passed on as it comes. What it costs to lend it a connection
/// to the store is little beside its own length, and 10,000 clients that stop in the middle of such a request hold
/// 640 MiB. Any datagram's is shorter.
pub(crate) const MAX_BUFFERED_REQUEST: usize = 64 << 10;
