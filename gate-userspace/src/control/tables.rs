//! Lookup tables as trees of blocks, built for [`gate_common::abi::find`].
//!
//! **Problem.** 100,000 source prefixes must cost XDP a few array accesses. Each table is a tree with one
//! level for each byte of the key; a prefix that ends within a byte fills a range of entries, and where a
//! longer one lies within, the shorter one is pushed down into the new block. So a lookup stops at the
//! first entry that is no block, and that is the longest match.
//!
//! **Invariants.** Prefixes are inserted shortest first, so that a fill never meets a block. Blocks of a
//! new table are never blocks of one in use ([`Placement`]).

use std::collections::HashSet;

use gate_common::abi::{Block, Entry};

/// A table whose blocks are numbered from zero, the root first.
#[derive(Clone, Debug)]
pub struct Table {
    /// How many blocks in a row make the root: the first level is indexed by their number, too.
    root_blocks: usize,
    blocks: Vec<Block>,
}

impl Table {
    /// A table of IPv4 sources, for [`gate_common::abi::find_v4`].
    #[must_use]
    pub fn v4() -> Self {
        Self::with_root(ROOT_V4)
    }

    /// A table whose keys are bytes, for [`gate_common::abi::find`].
    #[must_use]
    pub fn bytes() -> Self {
        Self::with_root(1)
    }

    fn with_root(root_blocks: usize) -> Self {
        Self { root_blocks, blocks: vec![Block::EMPTY; root_blocks] }
    }

    /// Maps every key that starts with the first `length` bits of `key` to `value`.
    ///
    /// Prefixes must be inserted shortest first.
    ///
    /// # Panics
    ///
    /// If `length` is longer than `key`.
    pub fn insert(&mut self, key: &[u8], length: u8, value: u32) {
        let length = usize::from(length);
        assert!(length <= key.len() * 8, "{length} bits of {} bytes", key.len());
        let skipped = self.root_blocks.ilog2() as usize;
        if length < skipped {
            // Shorter than what the root's own number says: a range of root blocks.
            let width = self.root_blocks >> length;
            let first = usize::from(key[0]) & !(width - 1);
            for block in &mut self.blocks[first..first + width] {
                block.0.fill(Entry::value(value).0);
            }
            return;
        }
        let bytes = &key[skipped / 8..];
        let mut block = if skipped == 0 { 0 } else { usize::from(key[0]) };
        let mut left = length - skipped;
        for &byte in bytes {
            if left <= 8 {
                let width = 1_usize << (8 - left);
                let first = usize::from(byte) & !(width - 1);
                self.blocks[block].0[first..first + width].fill(Entry::value(value).0);
                return;
            }
            block = self.descend(block, byte);
            left -= 8;
        }
    }

    /// The block below an entry, made if need be, with the entry's value pushed down.
    fn descend(&mut self, block: usize, byte: u8) -> usize {
        let entry = Entry(self.blocks[block].0[usize::from(byte)]);
        if let Some(below) = entry.as_block() {
            return below as usize;
        }
        let below = self.blocks.len();
        self.blocks.push(Block([entry.0; 256]));
        self.blocks[block].0[usize::from(byte)] = Entry::block(below as u32).0;
        below
    }

    /// True if nothing was inserted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.len() == self.root_blocks
            && self.blocks.iter().all(|block| block.0.iter().all(|&entry| entry == 0))
    }

    /// How many blocks it needs below its root.
    #[must_use]
    pub fn len_below_root(&self) -> usize {
        self.blocks.len() - self.root_blocks
    }
}

/// Where the blocks of a new generation's tables go.
#[derive(Debug)]
pub struct Placement {
    root_v4: u32,
    free: Vec<u32>,
    placed: Vec<(u32, Block)>,
}

/// There are not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the source and port tables need more than the {capacity} KiB that are reserved for them, half of which the configuration in force may hold"
)]
pub struct Full {
    /// Blocks in all.
    pub capacity: u32,
}

impl Placement {
    /// Free blocks among `capacity`: neither zero, nor in `used`.
    #[must_use]
    pub fn new(capacity: u32, used: &HashSet<u32>) -> Self {
        let [first, second] = ROOTS_V4;
        let root_v4 = if used.contains(&first) { second } else { first };
        let free = (FIRST_FREE..capacity).rev().filter(|block| !used.contains(block)).collect();
        Self { root_v4, free, placed: Vec::new() }
    }

    /// Places a table; returns its root, zero if it is empty.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn place(&mut self, table: Table, capacity: u32) -> Result<u32, Full> {
        if table.is_empty() {
            return Ok(0);
        }
        let mut numbers = Vec::with_capacity(table.blocks.len());
        if table.root_blocks == ROOT_V4 {
            numbers.extend((self.root_v4..).take(ROOT_V4));
        }
        while numbers.len() < table.blocks.len() {
            numbers.push(self.free.pop().ok_or(Full { capacity })?);
        }
        for (place, mut block) in table.blocks.into_iter().enumerate() {
            for entry in &mut block.0 {
                if let Some(below) = Entry(*entry).as_block() {
                    *entry = Entry::block(numbers[below as usize]).0;
                }
            }
            self.placed.push((numbers[place], block));
        }
        Ok(numbers[0])
    }

    /// The placed blocks, with their numbers.
    #[must_use]
    pub fn into_blocks(self) -> Vec<(u32, Block)> {
        self.placed
    }
}

/// Every block that a table in use consists of: `entries` reads a block.
pub fn blocks_of(
    root: u32,
    root_blocks: u32,
    capacity: u32,
    used: &mut HashSet<u32>,
    block: &dyn Fn(u32) -> Block,
) {
    if root == 0 {
        return;
    }
    let mut next: Vec<u32> = (root..root.saturating_add(root_blocks)).collect();
    while let Some(number) = next.pop() {
        if number >= capacity || !used.insert(number) {
            continue;
        }
        next.extend(block(number).0.iter().filter_map(|&entry| Entry(entry).as_block()));
    }
}

/// Blocks in the root of the table of IPv4 sources.
pub const ROOT_V4: usize = 256;
/// The two places of that root, one for a table in force and one for the next.
const ROOTS_V4: [u32; 2] = [1, 1 + ROOT_V4 as u32];
/// The first block after these; block zero is none.
pub const FIRST_FREE: u32 = ROOTS_V4[1] + ROOT_V4 as u32;

#[cfg(test)]
mod tests {
    use gate_common::abi::{find, find_v4};
    use proptest::prelude::*;

    use super::*;

    /// The value of the longest matching prefix, by looking at every one.
    fn longest<const N: usize>(prefixes: &[([u8; N], u8, u32)], key: [u8; N]) -> u32 {
        let matches = |prefix: &[u8; N], length: u8| {
            (0..usize::from(length)).all(|bit| (prefix[bit / 8] ^ key[bit / 8]) & (0x80 >> (bit % 8)) == 0)
        };
        let matching = prefixes.iter().filter(|(prefix, length, _)| matches(prefix, *length));
        matching.max_by_key(|(_, length, _)| *length).map_or(0, |(_, _, value)| *value)
    }

    /// Distinct prefixes, shortest first, dense enough to lie within each other.
    fn prefixes<const N: usize>() -> impl Strategy<Value = Vec<([u8; N], u8, u32)>> {
        let byte = prop_oneof![Just(0), Just(10), Just(11), Just(128), Just(255)];
        let prefix = (proptest::collection::vec(byte, N), 0..=(N * 8) as u8);
        proptest::collection::vec(prefix, 0..40).prop_map(|drawn| {
            let mut prefixes: Vec<([u8; N], u8, u32)> = Vec::new();
            for (place, (key, length)) in drawn.into_iter().enumerate() {
                let mut key: [u8; N] = key.try_into().expect("N bytes were drawn");
                for bit in usize::from(length)..N * 8 {
                    key[bit / 8] &= !(0x80 >> (bit % 8));
                }
                if !prefixes.iter().any(|(other, l, _)| *other == key && *l == length) {
                    prefixes.push((key, length, place as u32 + 1));
                }
            }
            prefixes.sort_by_key(|(_, length, _)| *length);
            prefixes
        })
    }

    fn placed(table: Table, used: &HashSet<u32>) -> (u32, Vec<Block>) {
        const CAPACITY: u32 = 4096;
        let mut placement = Placement::new(CAPACITY, used);
        let root = placement.place(table, CAPACITY).expect("there is room");
        let mut blocks = vec![Block([u32::MAX; 256]); CAPACITY as usize];
        for (number, block) in placement.into_blocks() {
            assert!(!used.contains(&number), "block {number} is in use");
            blocks[number as usize] = block;
        }
        (root, blocks)
    }

    proptest! {
        #[test]
        fn a_lookup_finds_the_longest_prefix_v4(prefixes in prefixes::<4>(), keys in proptest::collection::vec(any::<[u8; 4]>(), 50)) {
            let mut table = Table::v4();
            for (key, length, value) in &prefixes {
                table.insert(key, *length, *value);
            }
            let (root, blocks) = placed(table, &HashSet::new());
            let entry = |block: u32, byte: u8| blocks.get(block as usize).map(|block| block.0[usize::from(byte)]);
            for key in keys.into_iter().chain(prefixes.iter().map(|(key, _, _)| *key)) {
                prop_assert_eq!(find_v4(root, key, entry), longest(&prefixes, key), "{:?}", key);
            }
        }

        #[test]
        fn a_lookup_finds_the_longest_prefix_v6(prefixes in prefixes::<16>(), keys in proptest::collection::vec(any::<[u8; 16]>(), 50)) {
            let mut table = Table::bytes();
            for (key, length, value) in &prefixes {
                table.insert(key, *length, *value);
            }
            let (root, blocks) = placed(table, &HashSet::new());
            let entry = |block: u32, byte: u8| blocks.get(block as usize).map(|block| block.0[usize::from(byte)]);
            for key in keys.into_iter().chain(prefixes.iter().map(|(key, _, _)| *key)) {
                prop_assert_eq!(find(root, &key, entry), longest(&prefixes, key), "{:?}", key);
            }
        }

        #[test]
        fn a_new_table_never_takes_a_block_in_use(old in prefixes::<4>(), new in prefixes::<4>()) {
            let build = |prefixes: &[([u8; 4], u8, u32)]| {
                let mut table = Table::v4();
                prefixes.iter().for_each(|(key, length, value)| table.insert(key, *length, *value));
                table
            };
            let (root, blocks) = placed(build(&old), &HashSet::new());
            let mut used = HashSet::new();
            blocks_of(root, ROOT_V4 as u32, 4096, &mut used, &|number| blocks[number as usize]);
            let (next, _) = placed(build(&new), &used);
            prop_assert!(root == 0 || next != root);
        }
    }

    #[test]
    fn an_empty_table_needs_nothing_and_a_full_one_says_so() {
        let mut placement = Placement::new(FIRST_FREE + 1, &HashSet::new());
        assert_eq!(placement.place(Table::v4(), 9), Ok(0));
        let mut table = Table::bytes();
        table.insert(&[1, 2], 16, 7);
        assert_eq!(placement.place(table, 9), Err(Full { capacity: 9 }));
    }
}
