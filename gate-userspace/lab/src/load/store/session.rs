//! The state of a connection whose protocol has one.

use std::collections::BTreeMap;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::command::Step;
use super::items::Items;
use super::{Protocol, http, resp};

/// One client's.
#[derive(Debug)]
pub(super) enum Session {
    Resp(resp::Session),
    Http(http::Session),
}

impl Session {
    /// That of a new client; `None` for memcached's. Commands may have times of their own.
    pub(super) fn new(protocol: Protocol, times: &Arc<BTreeMap<String, Nanos>>) -> Option<Self> {
        match protocol {
            Protocol::Memcached => None,
            Protocol::Resp => Some(Self::Resp(resp::Session::new(Arc::clone(times)))),
            Protocol::Http => Some(Self::Http(http::Session::new(Arc::clone(times)))),
        }
    }

    /// Runs the first command of `input` against the items, at one moment, and appends its answer.
    pub(super) fn step(&mut self, input: &[u8], items: &mut Items, now: Nanos, out: &mut Vec<u8>) -> Step {
        match self {
            Self::Resp(session) => session.step(input, items, now, out),
            Self::Http(session) => session.step(input, items, now, out),
        }
    }

    /// The name of the command that was run last, in lower case.
    pub(super) fn last_command(&self) -> &[u8] {
        match self {
            Self::Resp(session) => &session.last_command,
            Self::Http(session) => &session.last_command,
        }
    }
}
