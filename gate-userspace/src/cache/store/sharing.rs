//! Findings about the answers of fetches: if they are for all who ask for the same, or for one client.
//!
//! Only an answer tells. So nobody waits for another's fetch until an answer has been seen that may be shared, and for a while
//! nobody does after one that turned out to be one client's own.

use gate_common::units::Nanos;

use super::{Cache, Sharing};
use crate::cache::digest::Digest;
use crate::cache::flights::{Joined, Lead};
use crate::cache::key::Key;
use crate::cache::response::{Fields, StoredResponse};
use crate::policy::rank::Rank;

impl Cache {
    /// True if answers to this have been shareable; `kept` is the one that is kept.
    pub(crate) fn is_shareable(
        &self,
        key: &Key,
        fields: &Fields,
        kept: Option<&StoredResponse>,
        now: Nanos,
    ) -> bool {
        match self.sharing.get(&of_fetch(key, fields)) {
            Some(Sharing::Shared) => true,
            Some(Sharing::OneClients { until }) if now < until => false,
            Some(Sharing::OneClients { .. }) | None => kept.is_some_and(StoredResponse::is_shareable),
        }
    }

    /// Joins the fetch of what is asked, unless that goes after this rank, or begins it.
    pub(crate) fn join(&self, key: &Key, fields: &Fields, rank: Rank) -> Joined<StoredResponse> {
        self.flights.join(&key.of_fetch(fields), rank)
    }

    /// The same, unless it is known to be one client's own.
    pub(crate) fn join_unless_unshared(
        &self,
        key: &Key,
        fields: &Fields,
        rank: Rank,
        now: Nanos,
    ) -> Option<Joined<StoredResponse>> {
        (!self.is_unshared(key, fields, now)).then(|| self.join(key, fields, rank))
    }

    /// Begins a fetch of what is asked that nobody joins.
    pub(crate) fn fetch_alone(&self, key: &Key, fields: &Fields) -> Lead<StoredResponse> {
        self.flights.alone(&key.of_fetch(fields))
    }

    /// Notes that an answer to this may be shared, unless another has just shown that one may not.
    pub(crate) fn note_shared(&self, key: &Key, fields: &Fields, now: Nanos) {
        if !self.is_unshared(key, fields, now) {
            self.sharing.insert(of_fetch(key, fields), Sharing::Shared);
        }
    }

    /// Notes that what is asked is one client's own: for a while nobody waits for another's fetch of it.
    pub(crate) fn note_unshared(&self, key: &Key, fields: &Fields, now: Nanos) {
        let until = now.saturating_add(UNSHARED_FOR);
        self.sharing.insert(of_fetch(key, fields), Sharing::OneClients { until });
    }

    fn is_unshared(&self, key: &Key, fields: &Fields, now: Nanos) -> bool {
        let found = self.sharing.get(&of_fetch(key, fields));
        matches!(found, Some(Sharing::OneClients { until }) if now < until)
    }
}

/// A client chooses the length of a key.
fn of_fetch(key: &Key, fields: &Fields) -> Digest {
    Digest::of(&key.of_fetch(fields))
}

/// The time for which an answer that is one client's own says so of further ones.
const UNSHARED_FOR: Nanos = Nanos::from_secs(600);
