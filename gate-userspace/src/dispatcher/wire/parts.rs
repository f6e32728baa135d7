//! Requests that are sent in parts, and how the replies to the parts become one.

use crate::dispatcher::scan::ScanStep;

/// The way in which the replies to the parts of a request become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// As they come, one store's after the other's, and an end: the keys of a store that fails are missing.
    InTurn,
    /// One array of all values, in the order of the keys.
    Values,
    /// The sum: of each part at most so much as it has keys.
    Sum,
    /// The sum.
    Total,
    /// Any of them: all are alike.
    Same,
    /// One array of the values of all arrays.
    Lists,
    /// The least number at each place of arrays of digits: what is true at all stores.
    Least,
    /// One of them, that of no store which has nothing to say.
    Any,
    /// That of the store which a scan has come to, with the cursor of the scan in place of the store's own.
    Scan(ScanStep),
}

impl Join {
    /// True if the reply has the values of the parts' replies behind its beginning.
    #[inline]
    pub(crate) fn has_values(self) -> bool {
        match self {
            Self::Values | Self::Lists | Self::Scan(_) => true,
            Self::InTurn | Self::Sum | Self::Total | Self::Same | Self::Least | Self::Any => false,
        }
    }
}

/// Requests of several keys that are sent in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splits {
    /// No: one store has all keys, or the request is refused.
    Never,
    /// Always.
    Always(Join),
    /// Where the configuration allows that some of its keys are written before others.
    Writes(Join),
}

impl Splits {
    /// The way in which the replies are joined; `None` if the request is not split. `writes` is true if writes may be.
    #[inline]
    pub(crate) fn join(self, writes: bool) -> Option<Join> {
        match self {
            Self::Always(join) => Some(join),
            Self::Writes(join) => writes.then_some(join),
            Self::Never => None,
        }
    }
}

/// The stores that can answer a request, where several share the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The stores of its keys; where there are several it is split, or not.
    AtKeys(Splits),
    /// Each answers it alike.
    Anywhere,
    /// None alone: all are asked.
    Everywhere(Join),
    /// None alone: one after the other is asked, as the request's cursor says.
    InTurn,
    /// None alone.
    Nowhere,
}

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlace {
    /// The place of its store.
    pub(crate) node: usize,
    /// The slot of a cluster, whose keys alone can be in one request; the store's place where there are none.
    pub(crate) slot: usize,
}

/// Neighbouring keys of one request that are at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) at: KeyPlace,
    pub(crate) keys: u32,
    /// The length of the request for them, in bytes.
    pub(crate) len: usize,
}

/// The requests that one is split into.
#[derive(Debug, Default)]
pub(crate) struct PartBuffers {
    /// The requests to each store, one behind the other.
    pub(crate) stores: Vec<Vec<u8>>,
    /// The runs of a request that is sent by runs, in the order of its keys.
    pub(crate) runs: Vec<Run>,
}

impl PartBuffers {
    /// Empty ones for so many stores.
    pub(crate) fn new(stores: usize) -> Self {
        Self { stores: vec![Vec::new(); stores], runs: Vec::new() }
    }

    /// The bytes of requests that take as long as the splitting of one into these runs, whether they are sent or not.
    pub(crate) fn split_work(&self) -> usize {
        let of_run = |run: &Run| BYTES_OF_PART + run.keys as usize * BYTES_OF_KEY + run.len / BYTES_COPIED;
        self.runs.iter().map(of_run).sum()
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        self.stores.iter_mut().for_each(Vec::clear);
        self.runs.clear();
    }
}

/// The parts of a request. One that has more is refused: each takes memory like a request.
pub(crate) const MOST_PARTS: usize = 1_024;

/// A part takes as long as so many bytes of a request, which are those of one request more, and the slot of a key as so many. A byte of
/// a request takes as long as the copy of so many.
const BYTES_OF_PART: usize = 256;
const BYTES_OF_KEY: usize = 64;
const BYTES_COPIED: usize = 8;

/// The beginning of the reply to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartReply {
    /// Values, behind so many bytes.
    Values(usize),
    /// A number that is part of the reply's beginning, and values behind so many bytes.
    Counted(u64, usize),
    /// A number.
    Number(u64),
    /// All of it.
    Whole,
    /// All of it, which says that the store has nothing.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_counts_as_a_request_and_what_is_copied_as_work() {
        let at = KeyPlace { node: 0, slot: 0 };
        let of = |runs: &[Run]| PartBuffers { stores: Vec::new(), runs: runs.to_vec() }.split_work();
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&vec![Run { at, keys: 1, len: 0 }; 1_000]), 1_000 * (BYTES_OF_PART + BYTES_OF_KEY));
        // Of many keys in a few slots the keys count.
        assert_eq!(of(&[Run { at, keys: 500, len: 0 }; 2]), 2 * BYTES_OF_PART + 1_000 * BYTES_OF_KEY);
        // A script of 64 KiB for 64 nodes: half a megabyte.
        assert!(of(&[Run { at, keys: 1, len: 64 << 10 }; 64]) > 512 << 10);
    }
}
