//! The position of a request among those of its client.

/// A request's position in the order of its client's requests, which is the order of the replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeqNo(pub(crate) u64);
