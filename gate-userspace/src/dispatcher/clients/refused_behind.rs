//! Requests that are refused since the one before them was, on which they depend.
//!
//! Clients send `SELECT` and a write, or `MULTI`, the commands and `EXEC`, in one go, without waiting for what the first is
//! answered. Were it refused alone, the rest would run in another database, as another user, or one by one.
//!
//! - A session command (`AUTH`, `HELLO`, `SELECT`, `RESET`, `CLIENT SETNAME`) that the store cannot take now: all that the client has
//!   sent behind it is refused in the same words, and then the client is closed ([`super::client::Client::is_session_refused`]).
//! - `MULTI`: everything up to `EXEC`, `DISCARD` or `RESET` is refused with it, and `EXEC` is answered as Redis answers that of
//!   a transaction with an error in it. A session command among them is one that was refused.
//! - `WATCH`: the next `MULTI` is refused in the same words.

use super::client::Client;
use super::conversation::RefusedBefore;
use crate::dispatcher::wire::{Effect, SessionState, Wire};
use crate::protocol::{Blame, Refusal};

impl<W: Wire> Client<W> {
    /// The refusal of a request that depends on a refused one before it; `None` for any other request.
    #[inline]
    pub(crate) fn refused_with_earlier(&self, request: &W::Request) -> Option<Refusal> {
        let before = self.refused_before.get();
        if before == RefusedBefore::Nothing {
            return None;
        }
        self.refused_with(before, request)
    }

    #[cold]
    fn refused_with(&self, before: RefusedBefore, request: &W::Request) -> Option<Refusal> {
        match (before, W::Session::effect(request)) {
            (RefusedBefore::Session(refusal), _) => Some(refusal),
            (RefusedBefore::Nothing, _) => None,
            (_, Effect::Reset) | (RefusedBefore::Watch(_), Effect::Unwatch | Effect::Discard) => {
                self.refused_before.set(RefusedBefore::Nothing);
                None
            }
            (RefusedBefore::Watch(refusal), Effect::Begin) => {
                self.refused_before.set(RefusedBefore::Transaction(refusal));
                Some(refusal)
            }
            (RefusedBefore::Watch(_), _) => None,
            (RefusedBefore::Transaction(refusal), Effect::Commit | Effect::Discard) => {
                self.refused_before.set(RefusedBefore::Nothing);
                Some(refusal)
            }
            (RefusedBefore::Transaction(refusal), _) => {
                if W::Session::changes_session(request) {
                    self.refuse_session(refusal);
                }
                Some(refusal)
            }
        }
    }

    /// A request of its is refused.
    #[inline]
    pub(crate) fn note_refused(&self, request: &W::Request, refusal: Refusal) {
        let lasts = refusal.blame() == Blame::Denied;
        match W::Session::effect(request) {
            Effect::Begin => self.refused_before.set(RefusedBefore::Transaction(refusal)),
            // Of what is denied for good, the client is told as by a store that does not let its user do it.
            Effect::Watch if !lasts => self.refused_before.set(RefusedBefore::Watch(refusal)),
            Effect::None
            | Effect::Blocks
            | Effect::Commit
            | Effect::Discard
            | Effect::Watch
            | Effect::Unwatch
            | Effect::Reset
            | Effect::Unknown
            | Effect::Lasting
            | Effect::Subscribes => {
                if !lasts && W::Session::changes_session(request) {
                    self.refuse_session(refusal);
                }
            }
        }
    }

    /// The store cannot take a session command now.
    pub(crate) fn refuse_session(&self, refusal: Refusal) {
        self.refused_before.set(RefusedBefore::Session(refusal));
    }

    /// True if a session command was refused: the client is closed when all that it has sent is refused as well.
    #[inline]
    pub(crate) fn is_session_refused(&self) -> bool {
        matches!(self.refused_before.get(), RefusedBefore::Session(_))
    }
}
