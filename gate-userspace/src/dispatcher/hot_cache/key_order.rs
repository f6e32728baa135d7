//! A client's outstanding requests by key, so that its requests for one key take effect in their order.
//!
//! **Problem.** A client's own requests reach the store in their order, since they take one connection. An answer out
//! of the cache is earlier than what is on its way, and a flight may leave later than a write behind it. **Rule.**
//! While a request about a key is on its way on the client's own connection, so are those that follow it; while a read
//! follows a flight, what follows it about that key joins the same flight or waits.
//!
//! Keys are told apart by one bit of 128: a collision costs a hit or a wait, never the order.

use std::cell::Cell;

use super::versions::KeyHash;
use crate::dispatcher::request::{ReplySlot, SeqNo};

/// One client's.
#[derive(Debug, Default)]
pub(crate) struct KeyOrder {
    /// Reads that follow a flight, and their keys.
    following: Cell<usize>,
    followed: Cell<u128>,
    /// Keys on the client's own connection: those of requests before `boundary`, and later ones.
    older: Cell<u128>,
    newer: Cell<u128>,
    boundary: Cell<SeqNo>,
    /// Its next request waits until no read follows a flight.
    waits: Cell<bool>,
}

impl KeyOrder {
    /// A read follows a flight.
    pub(crate) fn follow(&self, key: KeyHash) {
        self.following.set(self.following.get() + 1);
        self.followed.set(self.followed.get() | key.bit());
    }

    /// A flight that one read followed is complete.
    pub(crate) fn complete_followers(&self) {
        self.following.set(self.following.get() - 1);
        if self.following.get() == 0 {
            self.followed.set(0);
            self.waits.set(false);
        }
    }

    /// Pauses the client until none of its reads follows a flight.
    pub(crate) fn wait(&self) {
        self.waits.set(true);
    }

    /// True if the client's next request waits.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits.get()
    }

    /// True if any read follows a flight.
    #[inline]
    pub(crate) fn follows(&self) -> bool {
        self.following.get() > 0
    }

    /// True if a read of one of the keys with these bits may follow a flight.
    pub(crate) fn follows_any(&self, bits: u128) -> bool {
        self.followed.get() & bits != 0
    }

    /// A request about the keys with these bits takes the client's own connection.
    #[inline]
    pub(crate) fn send(&self, bits: u128, slot: ReplySlot) {
        if slot.first >= self.boundary.get() {
            self.older.set(self.newer.take());
            self.boundary.set(slot.seq);
        }
        self.newer.set(self.newer.get() | bits);
    }

    /// As [`KeyOrder::send`], for a read that has followed a flight in vain.
    pub(crate) fn send_late(&self, key: KeyHash) {
        self.newer.set(self.newer.get() | key.bit());
    }

    /// True if no request for this key is outstanding, on the client's own connection or as a flight.
    #[inline]
    pub(crate) fn is_free(&self, key: KeyHash, slot: ReplySlot) -> bool {
        slot.first == slot.seq || !self.has_sent(key, slot) && !self.follows_any(key.bit())
    }

    /// True if a request for this key may be outstanding on the client's own connection.
    #[inline]
    pub(crate) fn has_sent(&self, key: KeyHash, slot: ReplySlot) -> bool {
        if slot.first == slot.seq {
            return false;
        }
        let older = if slot.first < self.boundary.get() { self.older.get() } else { 0 };
        (older | self.newer.get()) & key.bit() != 0
    }
}

/// The bits of keys that are not known.
pub(crate) const ANY_KEY: u128 = u128::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::versions::Versions;
    use super::*;
    use crate::dispatcher::clients::replies::Replies;

    #[test]
    fn a_client_waits_until_no_read_of_its_follows_a_flight() {
        let versions = Versions::new(1);
        let order = KeyOrder::default();
        let key = versions.hash(b"key");
        let mut replies = Replies::new(|_, _| ());
        replies.open();
        let slot = ReplySlot { seq: replies.next(), first: replies.first() };
        assert!(order.is_free(key, slot));
        order.follow(key);
        order.follow(key);
        assert!(!order.is_free(key, slot));
        assert!(order.follows() && order.follows_any(key.bit()) && !order.follows_any(!key.bit()));
        order.wait();
        order.complete_followers();
        assert!(order.waits() && order.follows_any(key.bit()));
        order.complete_followers();
        assert!(
            !order.waits() && !order.follows() && !order.follows_any(ANY_KEY) && order.is_free(key, slot)
        );
    }

    proptest! {
        /// Against a plain model: the requests that are not answered.
        #[test]
        fn requests_under_way_are_kept_and_answered_ones_released(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..40, 0_usize..4), 1..300),
        ) {
            let versions = Versions::new(1);
            let order = KeyOrder::default();
            let mut replies = Replies::new(|_, _| ());
            let mut open = std::collections::VecDeque::new();
            for (own, key, answered) in steps {
                let key = versions.hash(&[key]);
                let slot = ReplySlot { seq: replies.next(), first: replies.first() };
                if open.iter().any(|&(_, other)| other == Some(key)) {
                    prop_assert!(order.has_sent(key, slot) && !order.is_free(key, slot), "forgotten");
                }
                prop_assert!(!open.is_empty() || !order.has_sent(key, slot), "nothing is on its way");
                if own {
                    order.send(key.bit(), slot);
                }
                open.push_back((replies.open(), own.then_some(key)));
                for (seq, _) in open.drain(..answered.min(open.len())) {
                    replies.whole(seq);
                }
            }
            // However busy a client is: after two rounds of what it has on its way, all older is forgotten.
            let old = versions.hash(b"old");
            let mut ask = |key: KeyHash| {
                let slot = ReplySlot { seq: replies.next(), first: replies.first() };
                let had_sent = order.has_sent(key, slot);
                order.send(if had_sent { 0 } else { key.bit() & !old.bit() }, slot);
                open.push_back((replies.open(), None));
                if open.len() > 5 {
                    replies.whole(open.pop_front().expect("there are five").0);
                }
                had_sent
            };
            (0..1_000_u32).for_each(|_| { ask(versions.hash(b"new")); });
            prop_assert!(!ask(old) || old.bit() == versions.hash(b"new").bit());
        }
    }
}
