//! The events that are counted.

/// An event of a service. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A client was accepted.
    Accepted,
    /// A client was turned away: there were too many.
    TurnedAway,
    /// A client left, or had all its replies.
    Left,
    /// A client was closed because it did not read its replies.
    SlowReader,
    /// A client was closed because it did not go on with its request.
    SlowWriter,
    /// A client was closed because the store broke off in the middle of its reply.
    Cut,
    /// A client was closed that had no request for too long, or did not log in in time.
    Idle,
    /// A client was not read for up to 10 ms, since its tenant's requests were refused too often.
    ReadPaused,
    /// A client got a dedicated connection to the store.
    DedicatedConnection,
    /// A request was too long to be gathered, and was streamed.
    Streamed,
    /// A datagram was received.
    Datagram,
    /// An answer to a datagram was longer than the datagram and the reply budget allowed.
    AnswerDropped,
    /// A request was decoded.
    Request,
    /// The store answered a request.
    Answered,
    /// A store of several did not answer its part of a request: the keys there were missing from the reply.
    PartFailed,
    /// A node of a cluster sent a request to another.
    Redirected,
    /// A request that a node of a cluster sent to another was not: it had been too often, or could not be sent twice.
    RedirectFailed,
    /// The store was asked for the size of what a request reads.
    SizeAsked,
    /// The store did not tell it: the request was priced by what is known without.
    SizeUntold,
    /// A request read far more than the store had told before.
    SizeToldWrong,
    /// The slots of a cluster were read, and other nodes have them.
    SlotsChanged,
    /// No node of a cluster said slots that can be.
    SlotsUnknown,
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
    /// A client began a TLS handshake where gate speaks plainly.
    Tls,
    /// A client was closed because it did not begin, or did not end, a TLS handshake where gate speaks TLS.
    TlsFailed,
    /// A TLS handshake was held for 10 ms or more, since those of its tenant, or all, had taken their part of the thread.
    HandshakePaused,
    /// A client and the store went on as a WebSocket.
    WebSocket,
    /// A WebSocket ended.
    WebSocketEnded,
    /// A WebSocket was closed because its tenant stayed far above its quota.
    WebSocketOverQuota,
    /// A read of a hot key was answered from the cache.
    CacheHit,
    /// A read of a hot key was answered by another client's read.
    Coalesced,
    /// A read of a hot key went to the store for all clients that asked.
    Flight,
    /// A cached answer was outdated: its key had been written to.
    Invalidated,
}

impl Event {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 37] = [
        Self::Accepted,
        Self::TurnedAway,
        Self::Left,
        Self::SlowReader,
        Self::SlowWriter,
        Self::Cut,
        Self::Idle,
        Self::ReadPaused,
        Self::DedicatedConnection,
        Self::Streamed,
        Self::Datagram,
        Self::AnswerDropped,
        Self::Request,
        Self::Answered,
        Self::PartFailed,
        Self::Redirected,
        Self::RedirectFailed,
        Self::SizeAsked,
        Self::SizeUntold,
        Self::SizeToldWrong,
        Self::SlotsChanged,
        Self::SlotsUnknown,
        Self::StoreConnected,
        Self::StoreFailed,
        Self::LoginFailed,
        Self::PoolRefused,
        Self::HeaderRejected,
        Self::Tls,
        Self::TlsFailed,
        Self::HandshakePaused,
        Self::WebSocket,
        Self::WebSocketEnded,
        Self::WebSocketOverQuota,
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
            Self::ReadPaused => "reads-paused",
            Self::DedicatedConnection => "dedicated-connection",
            Self::Streamed => "streamed",
            Self::Datagram => "datagrams",
            Self::AnswerDropped => "answers-dropped",
            Self::Request => "requests",
            Self::Answered => "answered",
            Self::PartFailed => "part-failed",
            Self::Redirected => "redirected",
            Self::RedirectFailed => "redirect-failed",
            Self::SizeAsked => "sizes-asked",
            Self::SizeUntold => "sizes-untold",
            Self::SizeToldWrong => "sizes-told-wrong",
            Self::SlotsChanged => "slots-changed",
            Self::SlotsUnknown => "slots-unknown",
            Self::StoreConnected => "store-connected",
            Self::StoreFailed => "store-failed",
            Self::LoginFailed => "login-failed",
            Self::PoolRefused => "pool-refused",
            Self::HeaderRejected => "header-rejected",
            Self::Tls => "tls",
            Self::TlsFailed => "tls-failed",
            Self::HandshakePaused => "handshakes-paused",
            Self::WebSocket => "websockets",
            Self::WebSocketEnded => "websockets-ended",
            Self::WebSocketOverQuota => "websockets-over-quota",
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
    fn numbers_are_positions_in_the_list_and_names_differ() {
        for (seq, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, seq, "{}", event.name());
            assert_eq!(Event::ALL.iter().filter(|other| other.name() == event.name()).count(), 1);
        }
    }
}
