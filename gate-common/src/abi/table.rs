//! Lookup tables in plain arrays: tenants by source prefix, services by port.
//!
//! A table is a tree of [`Block`]s of 256 entries, one for each value of the next byte. An entry is
//! empty, a value, or the number of a further block. Prefixes that end within a byte are expanded
//! over its entries and pushed down to the leaves, so that a lookup never goes back. An array access
//! costs XDP 1 to 3 ns and the kernel's LPM trie about 100; this is worth its memory.

use core::mem::size_of;

/// 256 [`Entry`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Block(pub [u32; 256]);

const _: () = assert!(size_of::<Block>() == 1024);

impl Block {
    /// 256 empty entries.
    pub const EMPTY: Self = Self([Entry::EMPTY.0; 256]);
}

/// Nothing, a value or a further block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(pub u32);

impl Entry {
    /// Nothing here.
    pub const EMPTY: Self = Self(0);
    /// The largest value, and the largest block number.
    pub const MAX: u32 = Self::BLOCK_BIT - 1;
    const BLOCK_BIT: u32 = 1 << 31;

    /// An entry that ends the search; zero is [`Entry::EMPTY`].
    #[must_use]
    pub const fn value(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// An entry that goes on in another block.
    #[must_use]
    pub const fn block(number: u32) -> Self {
        Self(number | Self::BLOCK_BIT)
    }

    /// The block where the search goes on; `None` if it ends here.
    #[must_use]
    #[inline(always)]
    pub const fn as_block(self) -> Option<u32> {
        if self.0 & Self::BLOCK_BIT != 0 { Some(self.0 & Self::MAX) } else { None }
    }
}

/// Walks a table from block `root` along the bytes of `key`: its value, or zero.
///
/// `entry` reads one entry of one block, `None` where there is no such block.
#[inline(always)]
pub fn find<const N: usize>(root: u32, key: &[u8; N], entry: impl Fn(u32, u8) -> Option<u32>) -> u32 {
    if root == 0 {
        return 0;
    }
    let mut block = root;
    for &byte in key {
        match entry(block, byte) {
            None => return 0,
            Some(found) => match Entry(found).as_block() {
                Some(next) => block = next,
                None => return found,
            },
        }
    }
    0
}

/// Walks the table of IPv4 sources, whose first level is indexed by two bytes: 256 blocks in a row
/// from `root`, then one byte each.
#[inline(always)]
pub fn find_v4(root: u32, address: [u8; 4], entry: impl Fn(u32, u8) -> Option<u32>) -> u32 {
    let [a, b, c, d] = address;
    if root == 0 { 0 } else { find(root + a as u32, &[b, c, d], entry) }
}

/// One bit for each port of each transport: whether any service may listen there.
///
/// A first look for the packets that are nobody's business; ports that only an old or only a new
/// generation knows are set as long as either is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortFilter {
    /// Bits of UDP ports.
    pub udp: [u64; 1024],
    /// Bits of TCP ports.
    pub tcp: [u64; 1024],
}

const _: () = assert!(size_of::<PortFilter>() == 16_384);

impl PortFilter {
    /// The word and the bit of a port.
    #[must_use]
    #[inline(always)]
    pub const fn place(port: u16) -> (usize, u64) {
        ((port >> 6) as usize, 1 << (port & 63))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_follows_blocks_and_ends_at_values() {
        let mut blocks = [Block::EMPTY; 4];
        blocks[1].0[10] = Entry::block(2).0;
        blocks[1].0[11] = Entry::value(7).0;
        blocks[2].0[0] = Entry::block(3).0;
        blocks[3].0[255] = Entry::value(9).0;
        blocks[3].0[254] = Entry::block(99).0;
        let entry = |block: u32, byte: u8| blocks.get(block as usize).map(|block| block.0[byte as usize]);
        for (key, value) in [
            ([11, 1, 2, 3], 7),
            ([10, 0, 255, 1], 9),
            ([10, 0, 254, 1], 0),
            ([10, 1, 255, 1], 0),
            ([12, 0, 0, 0], 0),
        ] {
            assert_eq!(find(1, &key, entry), value, "{key:?}");
        }
        assert_eq!(find(0, &[11], entry), 0);
        assert_eq!(find_v4(0, [1, 11, 0, 0], entry), 0);
        assert_eq!(find_v4(1, [0, 11, 0, 0], entry), 7);
        assert_eq!(find_v4(1, [1, 0, 255, 0], entry), 9);
    }
}
