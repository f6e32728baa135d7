//! Bytes that come in at one end and leave at the other.

use std::fmt;

/// A queue of bytes in one piece, whose memory is reused.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    head: usize,
}

impl fmt::Debug for Buffer {
    /// The content may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Buffer {
    /// The content, the oldest byte first.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// Its bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.head..]
    }

    /// Takes away what is behind the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.head + len);
    }

    /// The number of bytes in it.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// The memory that it takes, in bytes.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// True if it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `bytes` at the end.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Lets `read` add at the end, where there is room for `count` bytes at least; it must do nothing else.
    pub(crate) fn fill<T>(&mut self, count: usize, read: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.make_room(count);
        self.bytes.reserve(count);
        read(&mut self.bytes)
    }

    #[inline]
    fn make_room(&mut self, count: usize) {
        // What is moved is less than what has left since it was moved last: no byte pays for more than one move.
        if self.head > self.len() && self.bytes.len() + count > self.bytes.capacity() {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }

    /// Lets `write` add at the end; it must do nothing else.
    #[inline]
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        debug_assert!(self.bytes.len() >= before);
    }

    /// Takes `count` bytes from the front.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} bytes", self.len());
        self.head += count;
        if self.head == self.bytes.len() {
            self.clear();
        }
    }

    /// Empties it. A buffer that grew large gives its memory back.
    pub(crate) fn clear(&mut self) {
        self.head = 0;
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }

    /// Gives all memory back if nothing is in it.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// The memory that an empty buffer may keep: several reads' worth of replies.
const KEPT: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn bytes_leave_in_the_order_in_which_they_came(
            pieces in proptest::collection::vec((0_usize..200, 0_usize..200), 0..100)
        ) {
            let mut buffer = Buffer::default();
            let mut model = std::collections::VecDeque::new();
            let mut next = 0_u8;
            for (added, taken) in pieces {
                let piece: Vec<u8> = (0..added).map(|i| next.wrapping_add(i as u8)).collect();
                next = next.wrapping_add(added as u8);
                if added % 2 == 0 {
                    buffer.push(&piece);
                } else {
                    buffer.fill(added, |end| end.extend_from_slice(&piece));
                }
                model.extend(piece);
                let taken = taken.min(buffer.len());
                buffer.consume(taken);
                model.drain(..taken);
                proptest::prop_assert_eq!(buffer.bytes(), model.make_contiguous() as &[u8]);
            }
        }
    }

    #[test]
    fn a_large_buffer_gives_its_memory_back_when_it_is_empty() {
        let mut buffer = Buffer::default();
        buffer.push(&vec![0; KEPT + 1]);
        buffer.consume(KEPT);
        assert!(buffer.bytes.capacity() > KEPT);
        buffer.consume(1);
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
