//! Codecs: bytes in, events out. Pure: no sockets, no clocks, nothing that waits.
//!
//! The caller owns each connection's input buffer and passes what is unconsumed of it, from the first
//! such byte; every event says how many of these bytes it takes. A codec remembers how far it has
//! looked, so that input that trickles in is not looked at again and again. It copies nothing: an
//! event holds numbers and offsets, and keys are read out of the caller's bytes.
//!
//! **A request that fits is given whole; a larger one is streamed** ([`Step::Request`] with its head,
//! then [`Step::Body`]). So a connection's buffer never needs to hold more than
//! the limits of its codec say, which also bounds what a slow sender can hold.
//!
//! **What is forwarded must mean the same to the store.** Connections to the store are shared: a
//! request that gate ends elsewhere than the store does would give one client's answers to another.
//! So whatever is forwarded, as it came, is what the store is known to read with the same end; what could be
//! read in two ways is refused here, with the store's own words where it has any.
//!
//! - [`memcached`]: text and meta commands, over TCP and in datagrams.
//! - [`resp`]: RESP2 and RESP3, and the commands of Redis.
//! - [`http`]: routes, addresses and refusals; its messages are a library's.
//! - [`mod@proxy_header`]: who a client is, by the word of the proxy before gate.
//!
//! Each has a request side (a `Decoder`), an answer side, and one place that writes refusals.

#![forbid(unsafe_code)]

pub mod deny;
pub mod http;
pub mod memcached;
mod number;
pub mod own;
pub mod price_class;
pub mod proxy_header;
pub mod query_types;
mod refusal;
pub mod resp;

pub use refusal::{Blame, LargeRead, Refusal, Rule};

/// How a TLS connection begins: a record of a handshake, by any version of the protocol. No request does.
pub(crate) const TLS: [u8; 2] = [0x16, 0x03];

/// A request decoder's result for the start of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<R, F> {
    /// Nothing yet. To be called again when there are at least `want` bytes, which is more than there
    /// are now; more may then be wanted.
    More {
        /// Bytes of input.
        want: usize,
    },
    /// A request: all of it, or the head of one whose body follows.
    Request {
        /// Bytes of input that it takes.
        len: usize,
        /// The request.
        request: R,
    },
    /// More of the last request, to be passed on as it is.
    Body {
        /// Bytes of input that it takes.
        len: usize,
        /// True if the request ends with it.
        last: bool,
    },
    /// Bytes that mean nothing, or belong to a request that was at fault.
    Skip {
        /// Bytes of input that it takes; at least 1.
        len: usize,
    },
    /// Not a request. If it interrupts a body, what was sent of that request can only be taken back by
    /// closing the connection to the store.
    Fault {
        /// Bytes of input that it takes.
        len: usize,
        /// The answer, and whether the connection ends with it.
        fault: F,
    },
}

impl<R, F> Step<R, F> {
    /// Bytes of input that it takes.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        match self {
            Self::More { .. } => 0,
            Self::Request { len, .. }
            | Self::Body { len, .. }
            | Self::Skip { len }
            | Self::Fault { len, .. } => *len,
        }
    }
}

/// The properties of any request that are known before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMeta {
    /// Its kind.
    pub class: Class,
    /// The request's access to its keys.
    pub access: Access,
    /// True if its keys may be sampled: it is on the list of commands whose keys are keys, and no
    /// secret is among them.
    pub keyed: bool,
    /// Keys that it names.
    pub keys: u32,
    /// Rows that it is likely to touch; at least 1. See each protocol for what it takes them from.
    pub rows: u32,
    /// Where the number of rows is known from.
    pub rows_by: RowsBy,
    /// Its length as far as it is known, body included.
    pub bytes: u64,
}

/// Where the number of a request's rows is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowsBy {
    /// The request says it.
    Request,
    /// The request says nothing, and its reply shows them all: [`RequestMeta::rows`] is a guess.
    Reply,
    /// The reply shows a part of them at most: [`RequestMeta::rows`] is a guess, and no fewer are touched.
    ReplyInPart,
    /// They are in the prices of other requests, whose replies this one's holds: the end of a transaction.
    OtherRequests,
}

impl RequestMeta {
    /// True if the store may take long before it answers: scripts, commands that sort and combine keys, and those that
    /// concern the whole store.
    #[must_use]
    pub const fn may_take_long(&self) -> bool {
        match self.class {
            Class::Script | Class::Combine | Class::Scan | Class::Admin | Class::Unknown => true,
            Class::Get
            | Class::Mget
            | Class::Set
            | Class::Mset
            | Class::Delete
            | Class::Counter
            | Class::Touch
            | Class::Read
            | Class::Write
            | Class::Range
            | Class::Collection
            | Class::Transaction
            | Class::Blocking
            | Class::Pubsub
            | Class::Connection => matches!(self.access, Access::WriteAny),
        }
    }
}

/// A request's access to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// No key is read or written.
    Neither,
    /// Keys are read.
    Read,
    /// The keys that it names may be changed, and no others.
    Write,
    /// Any key may be changed: a flush, a script, a command that is not known.
    WriteAny,
}

impl Access {
    /// True if a key may be changed.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteAny)
    }
}

/// The kind of a request: what query types are made of unless the configuration says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Reads one key's whole value.
    Get,
    /// Reads several keys' whole values.
    Mget,
    /// Writes one key's whole value.
    Set,
    /// Writes several keys' whole values.
    Mset,
    /// Removes keys.
    Delete,
    /// Adds to a number.
    Counter,
    /// Changes how long a key lives.
    Touch,
    /// Reads a bounded part of one key, or about it.
    Read,
    /// Changes part of one key.
    Write,
    /// Reads between two bounds of one key.
    Range,
    /// Reads everything in one key.
    Collection,
    /// Combines keys: intersections, sorting.
    Combine,
    /// Walks over keys or a key's members.
    Scan,
    /// Runs code in the store.
    Script,
    /// Belongs to a transaction.
    Transaction,
    /// May wait in the store.
    Blocking,
    /// Publishes or subscribes.
    Pubsub,
    /// Concerns the connection.
    Connection,
    /// Concerns the server.
    Admin,
    /// Not known.
    Unknown,
}

impl Class {
    /// Every class, in the order of its number.
    pub const ALL: [Self; 20] = [
        Self::Get,
        Self::Mget,
        Self::Set,
        Self::Mset,
        Self::Delete,
        Self::Counter,
        Self::Touch,
        Self::Read,
        Self::Write,
        Self::Range,
        Self::Collection,
        Self::Combine,
        Self::Scan,
        Self::Script,
        Self::Transaction,
        Self::Blocking,
        Self::Pubsub,
        Self::Connection,
        Self::Admin,
        Self::Unknown,
    ];

    /// Its place in [`Class::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Mget => "mget",
            Self::Set => "set",
            Self::Mset => "mset",
            Self::Delete => "delete",
            Self::Counter => "counter",
            Self::Touch => "touch",
            Self::Read => "read",
            Self::Write => "write",
            Self::Range => "range",
            Self::Collection => "collection",
            Self::Combine => "combine",
            Self::Scan => "scan",
            Self::Script => "script",
            Self::Transaction => "transaction",
            Self::Blocking => "blocking",
            Self::Pubsub => "pubsub",
            Self::Connection => "connection",
            Self::Admin => "admin",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests;
