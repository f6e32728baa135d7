//! The rest of those who followed a flight that was refused for its leader's sake: they lead one anew.

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::{MilliRu, Nanos};

use super::flights::JoinResult;
use super::followers::{CacheClient, Followers};
use super::{CacheRole, HotCache};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::{Charged, InFlight};
use crate::dispatcher::wire::Cacheable;
use crate::policy::rank::Rank;

/// A read that goes to the store for all who follow it.
type LeadingRead<C> = InFlight<Rc<C>, CacheRole>;

impl<W: Cacheable, C: CacheClient> HotCache<W, C> {
    /// Has followers, of whom the first to go to the store would go with this rank, follow another flight. Returns the read that leads it,
    /// unless it is under way.
    ///
    /// # Errors
    ///
    /// The followers, if each has to ask for itself: their key is being written, or too many follow already.
    pub(crate) fn lead_anew(
        &self,
        mut followers: Followers<W, C>,
        rank: Rank,
        now: Nanos,
    ) -> Result<Option<LeadingRead<C>>, Followers<W, C>> {
        let key = followers.flight.key;
        let number = self.flights.number(followers.flight.flight_key());
        let Some(version) = self.versions.of(key) else { return Err(followers) };
        let following = &mut *self.following.borrow_mut();
        for rank in rank.not_after() {
            let Some(under_way) = following.get_mut(&(number, rank)) else { continue };
            let is_same = under_way.has_room_for(followers.flight.flight_key(), version);
            let joins = is_same && under_way.take_over(&mut followers.followers, key);
            return if joins { Ok(None) } else { Err(followers) };
        }
        let Some(first) = followers.followers.first() else { return Ok(None) };
        let flight_key = followers.flight.flight_key();
        let part = self.flights.join(flight_key, key, version, rank, self.thread, self.max_answer);
        let (flight, read) = match part {
            JoinResult::Follower(flight) => (flight, None),
            JoinResult::Leader(leading) => {
                self.metrics.count(Event::Flight);
                let flight = Arc::clone(leading.flight());
                let read = InFlight {
                    client: Rc::clone(&first.client),
                    node: first.node,
                    seq: first.seq,
                    // Its followers are charged.
                    charged: Charged { price: MilliRu::ZERO, at: now, ..first.charged.clone() },
                    features: first.features,
                    silent: first.silent,
                    redirects: 0,
                    cache_role: CacheRole::LeadFlight(leading),
                };
                (flight, Some(read))
            }
        };
        followers.followers.iter().for_each(|follower| follower.client.key_order().follow(key));
        let place = (number, flight.rank);
        let before = following.insert(place, Followers { flight, ..followers });
        debug_assert!(before.is_none(), "followers of two flights");
        Ok(read)
    }
}
