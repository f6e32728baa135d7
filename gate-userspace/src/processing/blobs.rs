//! Originals that are being processed, by names that nobody can guess.
//!
//! A name is a number by which the original is found, and 128 bits by the system's generator, which are compared in constant
//! time: how long a look-up takes says nothing of a secret. A name is gone when its processing ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use hyper::header::HeaderMap;
use subtle::ConstantTimeEq as _;

use crate::clock;

/// The originals that can be fetched.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    next: AtomicU64,
    by_number: Mutex<HashMap<u64, Arc<Blob>>>,
}

/// An original that can be fetched.
#[derive(Debug)]
pub(crate) struct Blob {
    pub(crate) bytes: Bytes,
    /// The fields that say what it is.
    pub(crate) headers: HeaderMap,
    secret: [u8; 16],
    was_fetched: AtomicBool,
}

/// An original that can be fetched as long as this is there.
#[derive(Debug)]
pub(crate) struct Published {
    blobs: Arc<Blobs>,
    number: u64,
    blob: Arc<Blob>,
}

impl Blobs {
    /// Has an original be fetched under a new name.
    pub(crate) fn publish(self: &Arc<Self>, bytes: Bytes, headers: HeaderMap) -> Published {
        let number = self.next.fetch_add(1, Relaxed);
        let secret = clock::secret();
        let blob = Arc::new(Blob { bytes, headers, secret, was_fetched: AtomicBool::new(false) });
        self.lock().insert(number, Arc::clone(&blob));
        Published { blobs: Arc::clone(self), number, blob }
    }

    /// The original with this name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Blob>> {
        let digits = name.as_bytes();
        if digits.len() != LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let number = u64::from_str_radix(&name[..16], 16).ok()?;
        let secret = u128::from_str_radix(&name[16..], 16).ok()?.to_be_bytes();
        let blob = self.lock().get(&number).cloned()?;
        bool::from(blob.secret.ct_eq(&secret)).then_some(blob)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Blob>>> {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blob {
    /// Notes that all of it has been handed to whoever fetched it.
    pub(crate) fn note_fetched(&self) {
        self.was_fetched.store(true, Relaxed);
    }
}

impl Published {
    /// Its name: letters and digits.
    pub(crate) fn name(&self) -> String {
        format!("{:016x}{:032x}", self.number, u128::from_be_bytes(self.blob.secret))
    }

    /// True if somebody has fetched all of it.
    pub(crate) fn was_fetched(&self) -> bool {
        self.blob.was_fetched.load(Relaxed)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.blobs.lock().remove(&self.number);
    }
}

/// The length of a name.
const LEN: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_as_long_as_its_processing() {
        let blobs = Arc::new(Blobs::default());
        let first = blobs.publish(Bytes::from_static(b"1"), HeaderMap::new());
        let second = blobs.publish(Bytes::from_static(b"2"), HeaderMap::new());
        let name = first.name();
        assert_eq!(blobs.find(&name).unwrap().bytes, "1");
        assert_ne!(&name[16..], &second.name()[16..]);
        let crossed = [&name[..16], &second.name()[16..]].concat();
        for wrong in [
            "",
            "0",
            &name[1..],
            &crossed,
            &name.replace(&name[16..], &"0".repeat(32)),
            &format!("+{}", &name[1..]),
        ] {
            assert!(blobs.find(wrong).is_none(), "{wrong}");
        }
        assert!(!first.was_fetched());
        blobs.find(&name).unwrap().note_fetched();
        assert!(first.was_fetched() && !second.was_fetched());
        drop(first);
        assert!(blobs.find(&name).is_none() && blobs.find(&second.name()).is_some());
    }
}
