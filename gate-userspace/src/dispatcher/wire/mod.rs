//! The traits of a protocol, implemented once for each: the codec ([`Codec`]), the requests that can be cached
//! ([`Cacheable`]), those whose work depends on the size of their keys ([`KeySizes`]), and the state that a connection keeps ([`SessionState`]). Everything else is the same for all protocols.
//!
//! [`memcached`]: gets merged and split again. [`resp`]: requests as they come. [`buffer`]: bytes on their way.

use std::fmt::Debug;
use std::net::SocketAddr;

use gate_common::units::Nanos;

use self::buffer::Buffer;
pub(crate) use self::key_sizes::KeySizes;
pub(crate) use self::parts::Placed;
use self::parts::{Join, KeyPlace, PartBuffers, PartReply};
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::store_silence::PauseChange;
use crate::protocol::deny::Deny;
use crate::protocol::own::OwnKeys;
use crate::protocol::price_class::PriceClass;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::resp::Command;
use crate::protocol::resp::cluster::Redirection;
use crate::protocol::{Class, Refusal, RequestMeta, Rule, Step};

pub(super) mod buffer;
pub(super) mod key_sizes;
pub(super) mod memcached;
pub(super) mod parts;
pub(super) mod resp;

/// A protocol: its codec, what of it can be cached, and the state that its connections keep.
pub(crate) trait Wire: Cacheable + KeySizes<<Self as Codec>::Request> {
    /// The state that a connection keeps for its client.
    type Session: SessionState<Self::Request>;
}

/// The codec of a protocol: requests and their replies, from and to bytes.
pub(crate) trait Codec: Debug + Sized + 'static {
    /// Takes requests out of one client's stream.
    type Decoder: Debug;

    /// A request; its keys are offsets into its bytes.
    type Request: Copy + Debug;

    /// Bytes that are not a request.
    type Fault: Copy + Debug;

    /// One connection to the store.
    type Link: Link<Request = Self::Request>;

    /// A request that a working store answers with one line.
    const PROBE: &'static [u8];

    /// True if that line says that the store works.
    fn is_healthy_reply(line: &[u8]) -> bool;

    /// The reply to a client that closes its connection.
    const GOODBYE: &'static [u8];

    /// A new client's decoder, for requests of at most `max_request` bytes.
    fn decoder(max_request: usize) -> Self::Decoder;

    /// The next step of `input`, which no earlier step has taken.
    fn decode(decoder: &mut Self::Decoder, input: &[u8]) -> Step<Self::Request, Self::Fault>;

    /// The bytes of the request that was decoded last, which took `taken` of the input.
    fn bytes<'b>(decoder: &'b Self::Decoder, request: &Self::Request, taken: &'b [u8]) -> &'b [u8];

    /// The properties of a request, known before it runs.
    fn meta(request: &Self::Request) -> &RequestMeta;

    /// The command of a request during which the store may do nothing else for long, whatever its class says; before one of several
    /// stores not that of a write of one key.
    #[inline]
    fn occupies_store(_request: &Self::Request, _is_of_several: bool) -> Option<Command> {
        None
    }

    /// True if only the head has been decoded, and the body is to be streamed.
    fn is_streamed(request: &Self::Request) -> bool;

    /// The price class of a class.
    fn price_class(class: Class) -> PriceClass;

    /// The place of a request's type among `types`.
    fn query_type(types: &QueryTypes, request: &Self::Request, bytes: &[u8]) -> usize;

    /// True if a command is denied.
    fn is_denied(deny: &Deny, request: &Self::Request, bytes: &[u8]) -> bool;

    /// True if a request can touch no other keys than these.
    fn touches_only(own: &OwnKeys, request: &Self::Request, bytes: &[u8]) -> bool;

    /// The route of a request that may pass.
    fn route(request: &Self::Request) -> Route;

    /// The keys that a request names; `bytes` are all of it.
    fn keys<'b>(request: &Self::Request, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]>;

    /// True if these are all keys that it reads or writes, each as the store knows it.
    fn names_all_keys(request: &Self::Request) -> bool;

    /// The stores that can answer a request, where several share the keys; `bytes` are all of it.
    #[inline]
    fn placed(_request: &Self::Request, _bytes: &[u8]) -> Placed {
        Placed::Anywhere
    }

    /// Splits a request into one for each store of its keys, or for each run of them.
    fn split(
        _request: &Self::Request,
        _bytes: &[u8],
        _place_of: impl Fn(&[u8]) -> KeyPlace,
        _parts: &mut PartBuffers,
    ) {
    }

    /// The beginning of the reply to a part with so many keys; `None` if it is an error, or none that can be joined.
    fn part_reply(_join: Join, _keys: u32, _reply: &[u8]) -> Option<PartReply> {
        None
    }

    /// Appends the reply to a request of so many keys whose parts' numbers have this sum; of one with values, what is ahead of them; of
    /// one that is one part's reply, nothing.
    fn joined(_join: Join, _keys: u32, _sum: u64, _out: &mut Vec<u8>) {}

    /// The cursor of a scan of all keys; `None` if it has none that can be one.
    fn scan_cursor(_request: &Self::Request, _bytes: &[u8]) -> Option<u64> {
        None
    }

    /// Appends a scan with another cursor; without one, a request that the store refuses for its cursor.
    fn scan(_request: &Self::Request, _bytes: &[u8], _cursor: Option<u64>, _out: &mut Vec<u8>) {}

    /// The request that a part is; its reply has no end.
    fn part(_bytes: &[u8]) -> Option<Self::Request> {
        None
    }

    /// The request that these bytes begin with, however long, and its length; `None` if it is not whole.
    fn whole(_bytes: &[u8]) -> Option<(Self::Request, usize)> {
        None
    }

    /// True if its reply may say what its client has written.
    fn may_run_code(_request: &Self::Request) -> bool {
        false
    }

    /// The redirection that an error of a cluster's node is.
    fn redirection(_error: &[u8]) -> Option<Redirection<'_>> {
        None
    }

    /// True if an error of a cluster's node says that it does not serve a slot.
    fn is_slot_error(_error: &[u8]) -> bool {
        false
    }

    /// The request that makes a cluster's node take the next request though its slot is another's.
    const ASKING: &'static [u8] = b"";

    /// The reply to a request that has not run, which another try may find where it is then.
    const AGAIN: &'static [u8] = b"";

    /// The slot of a cluster whose node alone can answer a request that names no key; `bytes` are all of it.
    fn slot(_request: &Self::Request, _bytes: &[u8]) -> Option<usize> {
        None
    }

    /// True if gate answers a request before a cluster, as the one node that it shows; `bytes` are all of it.
    #[inline]
    fn presents(_request: &Self::Request, _bytes: &[u8]) -> bool {
        false
    }

    /// True if it ends a transaction or a watch, of which there is none on a shared connection: gate answers it there before a
    /// cluster, so that no client is bound to a node for it.
    #[inline]
    fn ends_nothing(_request: &Self::Request) -> bool {
        false
    }

    /// Appends that answer.
    fn present(_request: &Self::Request, _bytes: &[u8], _view: &ClusterView<'_>, _out: &mut Vec<u8>) {}

    /// The end of a reply, behind those of its parts.
    const END_OF_PARTS: &'static [u8] = b"";

    /// True if the store answers it with exactly one reply.
    fn has_one_answer(request: &Self::Request) -> bool;

    /// The rows that a reply shows by its beginning; zero if it shows none.
    #[inline]
    fn reply_rows(_reply: &[u8]) -> u32 {
        0
    }

    /// True if the client wants no reply, not even a refusal.
    fn wants_no_reply(request: &Self::Request) -> bool;

    /// Appends the answer to bytes that are no request.
    fn answer_fault(fault: &Self::Fault, out: &mut Vec<u8>) -> FaultHandling;

    /// Appends a refusal.
    fn refuse(refusal: Refusal, out: &mut Vec<u8>);
}

/// The requests of a protocol whose replies can be cached, and shared among clients.
pub(crate) trait Cacheable: Codec {
    /// True if it reads one key, and its reply depends on nothing else.
    fn is_coalescable(request: &Self::Request) -> bool;

    /// True if a reply to such a request is for one client alone.
    fn is_for_one_client(answer: &[u8]) -> bool;

    /// True if a reply to such a request is the key's value, rather than an error.
    fn is_cacheable(answer: &[u8]) -> bool;

    /// The request for the TTL of the key of such a request.
    fn query_ttl(request: &Self::Request, bytes: &[u8]) -> Option<(Self::Request, Vec<u8>)>;

    /// The TTL of `answer`, if `said` is the reply to that request.
    fn ttl(answer: &[u8], said: &[u8]) -> Ttl;

    /// The delay of a flush of all keys, if the request is one with a delay.
    fn flushes_in(_request: &Self::Request, _bytes: &[u8]) -> Option<Nanos> {
        None
    }
}

/// The state that a connection to the store keeps for its client. The defaults are those of a protocol without any.
pub(crate) trait SessionState<R> {
    /// True if the store knows users, with permissions of their own.
    const HAS_USERS: bool = false;

    /// The change of the client's identity that a request asks for; `None` if there is none, or it cannot be told.
    fn login(_request: &R, _bytes: &[u8]) -> Option<LoginRequest> {
        None
    }

    /// True if it may change the user, the database or the protocol version of those behind it.
    fn changes_session(_request: &R) -> bool {
        false
    }

    /// True if the reply to a question of gate's own says that the user lacks a permission.
    #[inline]
    fn is_forbidden(_reply: &[u8]) -> bool {
        false
    }

    /// A request that the store refuses, wherever it takes any, in place of one that `rule` denies.
    fn unknown_command(_rule: Option<Rule>) -> &'static [u8] {
        b""
    }

    /// The effect of a request on the state of the connection that it runs on.
    fn effect(_request: &R) -> Effect {
        Effect::None
    }

    /// True if it only asks which of the store's connections its client has: before several nodes there is none to keep.
    fn asks_for_connection(_request: &R) -> bool {
        false
    }

    /// The change of the pause of the store's clients that a request asks for; `bytes` are all of it.
    fn pause(_request: &R, _bytes: &[u8]) -> Option<PauseChange> {
        None
    }

    /// True or false if the client wants replies from now on, or none, and it is certain that the store takes this so; `bytes` are all
    /// of the request.
    fn wants_replies(_request: &R, _bytes: &[u8]) -> Option<bool> {
        None
    }

    /// The reply to a login with a password that gate knows to be wrong.
    const WRONG_PASSWORD: &'static [u8] = b"";

    /// True if it waits for the store's replicas to have what its client has written.
    fn awaits_replicas(_request: &R) -> bool {
        false
    }

    /// The reply to a client whose transaction is refused as a whole.
    const ABORTED: &'static [u8] = b"";

    /// True if it begins a transaction, and the store cannot but say so.
    fn begins(_request: &R) -> bool {
        false
    }

    /// A request that begins a transaction, and the store's answer.
    const BEGIN: &'static [u8] = b"";
    const BEGUN: &'static [u8] = b"";

    /// A request that makes the store reply as much.
    const ABORT: &'static [u8] = b"";

    /// The reply to a client whose store is in cluster mode.
    const IN_CLUSTER: &'static [u8] = b"";
}

/// No state: any connection serves any client.
#[derive(Debug)]
pub(crate) struct Stateless;

impl<R> SessionState<R> for Stateless {}

/// The time for which a key keeps its value, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// Until a write.
    Unbounded,
    /// At most so long.
    AtMost(Nanos),
}

/// A cluster as its clients see it: one node that has all slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterView<'s> {
    /// The service's name.
    pub(crate) service: &'s str,
    /// The address at which the client has reached gate.
    pub(crate) address: SocketAddr,
    /// True if the client speaks the third version of the protocol.
    pub(crate) is_resp3: bool,
    /// The slots whose node is known.
    pub(crate) served: usize,
}

/// The route of a request that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the store, over a shared connection.
    Shared,
    /// To the store, over a dedicated connection.
    Dedicated,
    /// To the store, before any request that follows is decoded: it may change the client's identity.
    Login,
    /// gate answers it with its own statistics.
    GateStats,
    /// The client closes its connection.
    Quit,
}

/// The effect of a request on the state of the connection that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that outlives its reply.
    None,
    /// Nothing either; but it may wait for other clients, and keeps what follows it waiting.
    Blocks,
    /// A transaction begins.
    Begin,
    /// The transaction is executed.
    Commit,
    /// The transaction is given up.
    Discard,
    /// Keys are watched until the transaction ends.
    Watch,
    /// No key is watched any more.
    Unwatch,
    /// All state is forgotten, the identity included.
    Reset,
    /// Not known: the client needs it no more, and no other client gets its connection.
    Unknown,
    /// State is kept until the connection ends.
    Lasting,
    /// The same; the store replies, and then sends by itself.
    Subscribes,
}

/// The consequences of bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultHandling {
    /// True if the connection is closed, since nobody can tell where the next request begins.
    pub(crate) closes: bool,
    /// The reason that is counted.
    pub(crate) reason: gate_common::abi::Reason,
    /// True if the client tries to speak TLS.
    pub(crate) tls: bool,
}

/// One connection to the store, shared by many clients: what is written to it, and whose answer is read.
pub(crate) trait Link: Debug + Default {
    /// See [`Codec::Request`].
    type Request;
    /// The shape of a reply, known before it comes.
    type Expect: Copy + Debug;

    /// True if a request is written as it came, and nothing is known of it but its reply's place: what was not answered over
    /// one connection can be written to the next.
    const REPEATS: bool;

    /// Appends a request to what is to be written; `bytes` are all of it, or the head of one that is streamed.
    fn encode(&mut self, request: &Self::Request, bytes: &[u8], out: &mut Buffer) -> Self::Expect;

    /// The bytes after the body of a request that was encoded without it.
    fn tail(expect: &Self::Expect) -> &'static [u8];

    /// Completes what [`Link::encode`] may have left open, before it is written.
    fn seal(&mut self, out: &mut Buffer);

    /// Decodes the part of the reply to the first unanswered request that `input` begins with. No earlier call has taken
    /// it; it may be empty.
    ///
    /// # Errors
    ///
    /// [`MalformedReply`]: the store does not speak the protocol, and this connection must end.
    fn scan(&mut self, expect: &Self::Expect, input: &[u8]) -> Result<Answer, MalformedReply>;

    /// True if an answer is that of a cluster's node which sends the request to another.
    #[inline]
    fn is_redirection(_answer: &Answer) -> bool {
        false
    }
}

/// A part of the reply to the first request that waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Bytes from the front of the input that the client gets.
    pub(crate) give: usize,
    /// The bytes that the client gets after them.
    pub(crate) add: &'static [u8],
    /// Bytes of the input that are taken.
    pub(crate) len: usize,
    /// True if the reply is complete.
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
