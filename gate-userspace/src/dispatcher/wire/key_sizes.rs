//! The requests of a protocol whose work depends on how much their keys hold. The defaults are those of a protocol without any.

use crate::protocol::resp::Extent;

/// See the [module](self).
pub(crate) trait KeySizes<R> {
    /// How the rows of a request follow from the size of its keys.
    #[inline]
    fn extent(_request: &R, _bytes: &[u8]) -> Extent {
        Extent::default()
    }

    /// The keys that it reads for that, if their sizes tell its rows.
    fn read_keys<'b>(_request: &R, _bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        std::iter::empty()
    }

    /// Appends the questions that tell the size of what it reads, at most so many; returns their number.
    fn size_questions(_request: &R, _bytes: &[u8], _most: usize, _out: &mut Vec<u8>) -> usize {
        0
    }

    /// The size that the answer to such a question says; `None` if it says none.
    fn told_size(_answer: &[u8]) -> Option<u64> {
        None
    }

    /// True if the answer to such a question says that the store has none of this kind.
    fn has_no_question(_answer: &[u8]) -> bool {
        false
    }

    /// True for a request that removes keys, whose memory the store frees while everybody waits.
    #[inline]
    fn frees(_request: &R) -> bool {
        false
    }

    /// Appends the request with the same effect and answer for which nobody waits.
    fn free_later(_request: &R, _bytes: &[u8], _out: &mut Vec<u8>) {}
}
