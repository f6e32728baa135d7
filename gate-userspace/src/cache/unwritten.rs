//! Records and bodies that are on their way to the disk.
//!
//! Memory may drop what has just been put into it, and the thread that writes may be behind. Until something is written it is found
//! here, so that nothing is fetched or processed a second time. The bytes count as pending ([`super::directory`]), which is their bound.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;

use super::digest::Digest;

/// Records and bodies that are to be written.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Mutex<State>);

/// By key or digest: the bytes, of a record the latest ones, and how many orders to write them there are.
#[derive(Debug, Default)]
struct State {
    records: HashMap<Box<[u8]>, (Bytes, usize)>,
    bodies: HashMap<Digest, (Bytes, usize)>,
}

impl Unwritten {
    /// A record is to be written under a key, in the place of any before it.
    pub(super) fn add_record(&self, key: &[u8], payload: &Bytes) {
        let state = &mut *self.lock();
        let (latest, orders) = state.records.entry(key.into()).or_default();
        latest.clone_from(payload);
        *orders += 1;
    }

    /// A record under this key has been written, or never will be.
    pub(super) fn end_record(&self, key: &[u8]) {
        let state = &mut *self.lock();
        if let Some((_, orders)) = state.records.get_mut(key) {
            *orders -= 1;
            if *orders == 0 {
                state.records.remove(key);
            }
        }
    }

    /// Bodies are to be written. In the place of one that already is comes the one that is there. Returns the bytes of the others.
    pub(super) fn add_bodies(&self, bodies: &mut [(Digest, Bytes)]) -> u64 {
        let state = &mut *self.lock();
        let mut added = 0;
        for (digest, body) in bodies {
            let (known, orders) = state.bodies.entry(*digest).or_insert_with(|| {
                added += body.len() as u64;
                (body.clone(), 0)
            });
            body.clone_from(known);
            *orders += 1;
        }
        added
    }

    /// Bodies have been written, or never will be. Returns the bytes of those that nobody else wants to be written.
    pub(super) fn end_bodies(&self, bodies: &[(Digest, Bytes)]) -> u64 {
        let state = &mut *self.lock();
        let mut ended = 0;
        for (digest, body) in bodies {
            if let Some((_, orders)) = state.bodies.get_mut(digest) {
                *orders -= 1;
                if *orders == 0 {
                    state.bodies.remove(digest);
                    ended += body.len() as u64;
                }
            }
        }
        ended
    }

    /// The record that is to be written under a key.
    pub(super) fn record(&self, key: &[u8]) -> Option<Bytes> {
        self.lock().records.get(key).map(|(payload, _)| payload.clone())
    }

    /// A body that is to be written.
    pub(super) fn body(&self, digest: &Digest) -> Option<Bytes> {
        self.lock().bodies.get(digest).map(|(body, _)| body.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_record_is_found_until_each_is_written() {
        let unwritten = Unwritten::default();
        unwritten.add_record(b"a", &Bytes::from_static(b"1"));
        unwritten.add_record(b"a", &Bytes::from_static(b"2"));
        unwritten.end_record(b"a");
        assert_eq!(unwritten.record(b"a").as_deref(), Some(&b"2"[..]));
        unwritten.end_record(b"a");
        unwritten.end_record(b"b");
        assert_eq!(unwritten.record(b"a"), None);
    }

    #[test]
    fn a_body_is_found_until_it_is_written_as_often_as_ordered() {
        let unwritten = Unwritten::default();
        let mut body = [(Digest::of(b"x"), Bytes::from(vec![b'x']))];
        assert_eq!(unwritten.add_bodies(&mut body), 1);
        let mut copy = [(Digest::of(b"x"), Bytes::from(vec![b'x']))];
        assert_eq!(unwritten.add_bodies(&mut copy), 0, "it takes memory once");
        assert_eq!(copy[0].1.as_ptr(), body[0].1.as_ptr());
        assert_eq!(unwritten.end_bodies(&body), 0);
        assert_eq!(unwritten.body(&body[0].0).as_deref(), Some(&b"x"[..]));
        assert_eq!(unwritten.end_bodies(&copy), 1);
        assert_eq!(unwritten.body(&body[0].0), None);
    }
}
