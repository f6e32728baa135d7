//! A transaction whose `MULTI` is refused is refused as a whole.
//!
//! Clients send `MULTI`, the commands and `EXEC` in one go, without waiting for what `MULTI` is answered. Were it refused
//! alone, the commands would run one by one. So everything up to `EXEC`, `DISCARD` or `RESET` is refused with it, and
//! `EXEC` is answered as Redis answers that of a transaction with an error in it.

use super::client::Client;
use crate::dispatcher::wire::{Effect, SessionState, Wire};
use crate::protocol::Refusal;

impl<W: Wire> Client<W> {
    /// The refusal of a request that belongs to a transaction whose `MULTI` was refused; `None` for any other request.
    #[inline]
    pub(crate) fn refused_with_multi(&self, request: &W::Request) -> Option<Refusal> {
        let refusal = self.refused_multi.get()?;
        match W::Session::effect(request) {
            Effect::Commit | Effect::Discard => self.refused_multi.set(None),
            Effect::Reset => {
                self.refused_multi.set(None);
                return None;
            }
            _ => {}
        }
        Some(refusal)
    }

    /// A request of its is refused.
    #[inline]
    pub(crate) fn note_refused(&self, request: &W::Request, refusal: Refusal) {
        if W::Session::effect(request) == Effect::Begin {
            self.refused_multi.set(Some(refusal));
        }
    }
}
