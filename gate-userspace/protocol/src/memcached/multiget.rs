//! Many clients' gets as one, and its values back to those who asked.
//!
//! memcached answers a multiget in the order of its keys and leaves out what it does not have, so each
//! value belongs to the next key that is equal, and the keys passed over were misses.

use super::request::Keys;

/// A multiget in the making.
#[derive(Clone, Debug)]
pub struct Merge {
    line: Vec<u8>,
    keys: u32,
}

impl Default for Merge {
    fn default() -> Self {
        Self { line: Vec::from(GET), keys: 0 }
    }
}

impl Merge {
    /// Adds a key that a decoder has read.
    pub fn push(&mut self, key: &[u8]) {
        self.line.push(b' ');
        self.line.extend_from_slice(key);
        self.keys += 1;
    }

    /// How many keys it has.
    #[must_use]
    pub const fn keys(&self) -> u32 {
        self.keys
    }

    /// Appends it to `out` as it is sent, and begins anew. Without keys it is nothing.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.keys > 0 {
            out.extend_from_slice(&self.line);
            out.extend_from_slice(b"\r\n");
        }
        self.line.truncate(GET.len());
        self.keys = 0;
    }
}

/// Finds the key that a value answers, among those asked for in one multiget.
#[derive(Clone, Copy, Debug, Default)]
pub struct Split {
    /// Bytes of keys that have been passed, and how many they were.
    at: usize,
    passed: u32,
}

impl Split {
    /// The place of `key` among the keys asked for, the first being 0; those between the last answer and it
    /// are misses. `None` if it was not asked for, or not in that order: then the store's answers are
    /// not to be trusted.
    ///
    /// `keys` is the same at each call: the multiget's keys as they were sent, with blanks between them.
    pub fn place(&mut self, keys: &[u8], key: &[u8]) -> Option<u32> {
        let mut rest = Keys::new(keys.get(self.at..)?);
        while let Some(requested) = rest.next() {
            self.passed += 1;
            if requested == key {
                self.at = keys.len() - rest.rest().len();
                return Some(self.passed - 1);
            }
        }
        self.at = keys.len();
        None
    }
}

const GET: &[u8] = b"get";
