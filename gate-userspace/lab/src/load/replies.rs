//! Requests out and answers in, in any protocol. Pure.

use super::http;
use super::memcached::{self, Garbage, Reply};
use super::mix::Request;
use super::protocol::Protocol;
use super::resp;

/// One connection's.
pub(super) enum Replies {
    Memcached(memcached::Replies),
    Resp(resp::Replies),
    Http(http::Replies),
}

impl Replies {
    pub(super) fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Memcached => Self::Memcached(memcached::Replies::default()),
            Protocol::Resp => Self::Resp(resp::Replies::default()),
            Protocol::Http => Self::Http(http::Replies::default()),
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Self::Memcached(_) => Protocol::Memcached,
            Self::Resp(_) => Protocol::Resp,
            Self::Http(_) => Protocol::Http,
        }
    }

    pub(super) fn encode(&self, request: Request<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Memcached(_) => memcached::encode(request, out),
            Self::Resp(_) => resp::encode(request, out),
            Self::Http(_) => http::encode(request, out),
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8], each: impl FnMut(Reply)) -> Result<(), Garbage> {
        match self {
            Self::Memcached(replies) => replies.feed(bytes, each),
            Self::Resp(replies) => replies.feed(bytes, each),
            Self::Http(replies) => replies.feed(bytes, each),
        }
    }
}
