//! A body that comes in pieces.
//!
//! Small pieces are put together as they come: each would take memory beside its bytes, and keep the buffer that it was read into.

use std::collections::VecDeque;

use hyper::body::Bytes;

use super::digest::{Digest, Hasher};

/// The pieces that have come of a body.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    whole: VecDeque<Bytes>,
    /// Small ones, behind all others.
    small: Vec<u8>,
    len: usize,
}

impl Pieces {
    /// One more has come.
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < SMALL {
            self.small.extend_from_slice(&piece);
            if self.small.len() >= BLOCK {
                self.close();
            }
        } else {
            self.close();
            self.whole.push_back(piece);
        }
    }

    /// The bytes that have come.
    pub(crate) const fn len(&self) -> u64 {
        self.len as u64
    }

    /// True if it takes no longer to put them together than to have another thread do it.
    pub(super) const fn is_short(&self) -> bool {
        self.len <= SHORT
    }

    /// The body, and its digest. Others run in between.
    pub(super) fn join(mut self) -> (Bytes, Digest) {
        self.close();
        let is_short = self.is_short();
        let mut whole = Vec::with_capacity(self.len);
        let mut hasher = Hasher::default();
        for part in self.whole.iter().flat_map(|piece| piece.chunks(STEP)) {
            hasher.update(part);
            whole.extend_from_slice(part);
            if !is_short {
                std::thread::yield_now();
            }
        }
        (whole.into(), hasher.finish())
    }

    /// The pieces, in their order.
    pub(crate) fn into_pieces(mut self) -> VecDeque<Bytes> {
        self.close();
        self.whole
    }

    fn close(&mut self) {
        if !self.small.is_empty() {
            self.whole.push_back(std::mem::take(&mut self.small).into());
        }
    }
}

/// A shorter piece is put together with others.
const SMALL: usize = 16 << 10;
/// Small pieces are put together up to this.
const BLOCK: usize = 64 << 10;
/// A body up to this long is hashed in some 100 us.
const SHORT: usize = 32 << 10;
/// The bytes between two chances for other threads.
const STEP: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_make_the_body_in_its_order() {
        for lens in [&[][..], &[1], &[SMALL], &[1, SMALL, 2, 3, SMALL, SMALL, 5], &[SMALL - 1; 20]] {
            let mut pieces = Pieces::default();
            let mut body = Vec::new();
            for (place, &len) in lens.iter().enumerate() {
                let piece: Vec<u8> = (0..len).map(|at| (at + place) as u8).collect();
                body.extend_from_slice(&piece);
                pieces.push(piece.into());
            }
            assert_eq!(pieces.len(), body.len() as u64);
            assert_eq!(pieces.join(), (body.clone().into(), Digest::of(&body)));
        }
    }

    #[test]
    fn many_small_pieces_take_little_more_than_their_bytes() {
        let mut pieces = Pieces::default();
        (0..200_000).for_each(|_| pieces.push(Bytes::from_static(b"x")));
        let pieces = pieces.into_pieces();
        assert!(pieces.len() <= 200_000 / BLOCK + 1, "{}", pieces.len());
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), 200_000);
    }
}
