//! The followers of a flight, and what a client is to hot keys.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use super::flights::{Flight, FlightKey};
use super::key_order::KeyOrder;
use super::versions::{KeyHash, Version};
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Decoded, InFlight};
use crate::dispatcher::wire::Cacheable;

/// A client, as far as hot keys are concerned.
pub(crate) trait CacheClient: Debug {
    /// The client's outstanding requests, by key.
    fn key_order(&self) -> &KeyOrder;

    /// True for the sender of a datagram.
    fn is_datagram(&self) -> bool;

    /// The scope of the answers that the store gives it.
    fn scope(&self) -> u64;

    /// That scope, if the client may have the answer to another client's read.
    fn shared_scope(&self) -> Option<u64>;
}

/// One thread's clients that follow a flight.
#[derive(Debug)]
pub(crate) struct Followers<W: Cacheable, C> {
    pub(super) flight: Arc<Flight>,
    pub(crate) request: W::Request,
    pub(crate) followers: Vec<Follower<C>>,
}

/// A request that follows a flight.
pub(super) type Follower<C> = InFlight<Rc<C>, ()>;

impl<W: Cacheable, C: CacheClient> Followers<W, C> {
    /// True if a read of this version of a key may join.
    pub(super) fn has_room_for(&self, flight_key: FlightKey<'_>, version: Version) -> bool {
        self.flight.version == version
            && self.flight.flight_key() == flight_key
            && self.followers.len() < MOST_READERS
    }

    /// Takes over those who followed another flight for the same answer; `false` if they are too many.
    pub(super) fn take_over(&mut self, others: &mut Vec<Follower<C>>, key: KeyHash) -> bool {
        let fits = self.followers.len() + others.len() <= MOST_READERS;
        if fits {
            others.iter().for_each(|follower| follower.client.key_order().follow(key));
            self.followers.append(others);
        }
        fits
    }

    /// A read that has been charged follows as well.
    pub(super) fn add(&mut self, decoded: Decoded<'_, W, C>, charged: &Charged, key: KeyHash) {
        let Decoded { client, slot, request, target, .. } = decoded;
        client.key_order().follow(key);
        self.followers.push(InFlight {
            client: Rc::clone(client),
            node: target.node(),
            seq: slot.seq,
            charged: charged.clone(),
            features: CostFeatures::of::<W>(request),
            silent: W::wants_no_reply(request),
            redirects: 0,
            cache_role: (),
        });
    }
}

/// 10,000 clients of one thread, each with a few reads: 8 MiB.
const MOST_READERS: usize = 1 << 17;
