//! The events that are counted.

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A client was accepted.
    Accepted,
    /// A client was turned away: there are too many.
    TurnedAway,
    /// A client left, or all was said.
    Left,
    /// A client was closed because it did not read its replies.
    SlowReader,
    /// A client was closed because it did not go on with its request.
    SlowWriter,
    /// A client was closed because the store broke off in the middle of its reply.
    Cut,
    /// A client was closed that wanted nothing for too long, or did not say in time who it is.
    Idle,
    /// A client got a connection to the store of its own.
    DedicatedConnection,
    /// A request was too long to be gathered, and was passed on as it came.
    Streamed,
    /// A datagram came.
    Datagram,
    /// An answer to a datagram was longer than it and than the budget for replies allowed.
    AnswerDropped,
    /// A request was decoded.
    Request,
    /// The store answered a request.
    Answered,
    /// A connection to the store was made.
    StoreConnected,
    /// A connection to the store failed or was lost.
    StoreFailed,
    /// A client named a user and a password that the store did not accept.
    LoginFailed,
    /// A pool was closed because the store no longer accepts its user.
    PoolRefused,
    /// A connection was closed for the PROXY header that it began with, or did not begin with.
    HeaderRejected,
    /// A client wanted to speak TLS.
    Tls,
    /// A read of a hot key was answered with what was kept of it.
    CacheHit,
    /// A read of a hot key was answered by another's read.
    Coalesced,
    /// A read of a hot key went to the store for all who asked.
    Flight,
    /// What was kept of a hot key was no longer true: it had been written to.
    Invalidated,
}

impl Event {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 23] = [
        Self::Accepted,
        Self::TurnedAway,
        Self::Left,
        Self::SlowReader,
        Self::SlowWriter,
        Self::Cut,
        Self::Idle,
        Self::DedicatedConnection,
        Self::Streamed,
        Self::Datagram,
        Self::AnswerDropped,
        Self::Request,
        Self::Answered,
        Self::StoreConnected,
        Self::StoreFailed,
        Self::LoginFailed,
        Self::PoolRefused,
        Self::HeaderRejected,
        Self::Tls,
        Self::CacheHit,
        Self::Coalesced,
        Self::Flight,
        Self::Invalidated,
    ];

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::TurnedAway => "turned-away",
            Self::Left => "left",
            Self::SlowReader => "slow-reader",
            Self::SlowWriter => "slow-writer",
            Self::Cut => "cut",
            Self::Idle => "idle",
            Self::DedicatedConnection => "dedicated-connection",
            Self::Streamed => "streamed",
            Self::Datagram => "datagrams",
            Self::AnswerDropped => "answers-dropped",
            Self::Request => "requests",
            Self::Answered => "answered",
            Self::StoreConnected => "store-connected",
            Self::StoreFailed => "store-failed",
            Self::LoginFailed => "login-failed",
            Self::PoolRefused => "pool-refused",
            Self::HeaderRejected => "header-rejected",
            Self::Tls => "tls",
            Self::CacheHit => "cache-hits",
            Self::Coalesced => "coalesced",
            Self::Flight => "flights",
            Self::Invalidated => "invalidated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list_and_names_differ() {
        for (seq, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, seq, "{}", event.name());
            assert_eq!(Event::ALL.iter().filter(|other| other.name() == event.name()).count(), 1);
        }
    }
}
