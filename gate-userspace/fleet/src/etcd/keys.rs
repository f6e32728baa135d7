//! The keys in etcd: `gate/limits` are the limits, as a file says them; `gate/owners/ADDRESS` is an owner, with the time since
//! when, and hangs on its lease.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::api::{EventType, KeyValue, RangeResponse, ResponseHeader, WatchResponse};
use super::error::Error;
use crate::membership::{Limits, MAX_OWNERS, Member, View};

/// All keys are below this.
pub(super) const PREFIX: &str = "gate/";
/// The first key after all of those: `0` follows `/`.
pub(super) const END: &str = "gate0";
/// The limits.
pub(super) const LIMITS: &str = "gate/limits";
const OWNERS: &str = "gate/owners/";
/// The most keys that are read.
pub(super) const MOST_KEYS: usize = 2 * MAX_OWNERS;

/// The key of an owner.
pub(super) fn of_owner(address: SocketAddr) -> String {
    format!("{OWNERS}{address}")
}

/// The revision of an answer.
pub(super) fn revision_of(header: Option<ResponseHeader>) -> Result<u64, Error> {
    Ok(header.ok_or(Error::NoRevision)?.revision.cast_unsigned())
}

/// The keys, as of a revision.
#[derive(Debug, Default)]
pub(super) struct Keys {
    keys: BTreeMap<Vec<u8>, KeyValue>,
    revision: u64,
    as_of: u64,
}

impl Keys {
    /// All keys of one reading.
    pub(super) fn new(answer: RangeResponse) -> Result<Self, Error> {
        let as_of = revision_of(answer.header)?;
        if answer.more {
            tracing::warn!(most = MOST_KEYS, "more keys in etcd than are read");
        }
        let mut keys = Self { as_of, ..Self::default() };
        answer.kvs.into_iter().for_each(|key| keys.put(key));
        Ok(keys)
    }

    /// Takes in what has changed. What is known already is passed over.
    pub(super) fn follow(&mut self, changes: WatchResponse) -> Result<(), Error> {
        for event in changes.events {
            let kind = EventType::try_from(event.r#type).map_err(|_| Error::UnknownChange(event.r#type))?;
            let Some(key) = event.kv else { continue };
            let revision = key.mod_revision.cast_unsigned();
            // A transaction changes several keys at one revision, and its events come together.
            if revision < self.as_of || revision == self.as_of && revision != self.revision {
                continue;
            }
            match kind {
                EventType::Put => self.put(key),
                EventType::Delete => {
                    self.keys.remove(&key.key);
                }
            }
            (self.revision, self.as_of) = (self.revision.max(revision), self.as_of.max(revision));
        }
        Ok(())
    }

    /// The revision up to which nothing is missing.
    pub(super) const fn as_of(&self) -> u64 {
        self.as_of
    }

    /// Owners and limits.
    pub(super) fn view(&self, is_live: bool) -> View {
        let owners = self.keys.values().filter_map(member).take(MAX_OWNERS).collect();
        let limits = self.keys.get(LIMITS.as_bytes()).map(|key| Limits {
            revision: key.mod_revision.cast_unsigned(),
            text: String::from_utf8_lossy(&key.value).into(),
        });
        View { revision: self.revision, as_of: self.as_of, owners, limits, is_live }
    }

    fn put(&mut self, key: KeyValue) {
        let revision = key.mod_revision.cast_unsigned();
        self.revision = self.revision.max(revision);
        if self.keys.len() < MOST_KEYS || self.keys.contains_key(&key.key) {
            self.keys.insert(key.key.clone(), key);
        }
    }
}

fn member(key: &KeyValue) -> Option<Member> {
    let name = str::from_utf8(&key.key).ok()?.strip_prefix(OWNERS)?;
    let (Ok(address), Some(since)) =
        (name.parse::<SocketAddr>(), str::from_utf8(&key.value).ok().and_then(|text| text.parse().ok()))
    else {
        tracing::warn!(name, "a key in etcd that is no owner's is passed over");
        return None;
    };
    Some(Member { address: address.to_string(), since, revision: key.mod_revision.cast_unsigned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::api::Event;

    #[test]
    fn changes_are_taken_in_once_and_an_unknown_kind_not_at_all() {
        let event = |kind, revision, value: &str| Event {
            r#type: kind,
            kv: Some(KeyValue { key: LIMITS.into(), mod_revision: revision, value: value.into() }),
        };
        let changes = |events| WatchResponse { events, ..WatchResponse::default() };
        let mut keys = Keys { as_of: 4, ..Keys::default() };
        keys.follow(changes(vec![event(0, 3, "old"), event(0, 5, "new")])).unwrap();
        let limits = |keys: &Keys| keys.view(true).limits.map(|limits| limits.text.to_string());
        assert_eq!((keys.as_of(), limits(&keys)), (5, Some("new".to_owned())));
        let error = keys.follow(changes(vec![event(2, 6, "what")])).unwrap_err();
        assert!(matches!(error, Error::UnknownChange(2)), "{error}");
        assert_eq!((keys.as_of(), limits(&keys)), (5, Some("new".to_owned())));
        keys.follow(changes(vec![event(1, 7, "")])).unwrap();
        assert_eq!((keys.as_of(), limits(&keys)), (7, None));
    }
}
