//! Lookup tables in plain arrays: tenants by source prefix, services by port.
//!
//! A table is a tree of [`Block`]s of 256 entries, one for each value of the next byte. An entry is
//! empty, a value, or the number of a further block. Prefixes that end within a byte are expanded
//! over its entries and pushed down to the leaves, so that a lookup never goes back. An array access
//! costs XDP 1 to 3 ns and the kernel's LPM trie about 100; this is worth its memory.

use core::fmt;
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

/// Where the chain of services of each port starts; zero where nobody's does.
///
/// A configuration's services lie in the lower or the upper half of [`super::maps::SERVICES`], a new one's in
/// the half that is not in force. An entry holds the first slot of either's chain, 16 bits each, and
/// [`super::View::ports_shift`] says which of them counts.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Ports {
    /// Of UDP, by [`Ports::place`].
    pub udp: [u32; 65_536],
    /// Of TCP, likewise.
    pub tcp: [u32; 65_536],
}

const _: () = assert!(size_of::<Ports>() == 1 << 19);

impl Ports {
    /// The highest slot that an entry has room for.
    pub const MAX_SLOT: u32 = u16::MAX as u32;
    /// The value of [`super::View::ports_shift`] for the upper half; for the lower it is zero.
    pub const UPPER: u32 = 16;

    /// The place of a port: what its bytes in network order are as a number of this machine.
    #[must_use]
    #[inline(always)]
    pub const fn place(port: u16) -> usize {
        port.to_be() as usize
    }

    /// The first slot of one half's chain; zero if it has none.
    #[must_use]
    #[inline(always)]
    pub const fn slot(entry: u32, shift: u32) -> u32 {
        (entry >> (shift & Self::UPPER)) & Self::MAX_SLOT
    }
}

impl fmt::Debug for Ports {
    /// Only the ports that somebody listens on: the slots of the lower and of the upper half.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ports = f.debug_map();
        for (transport, entries) in [("udp", &self.udp), ("tcp", &self.tcp)] {
            for port in 0..=u16::MAX {
                let entry = entries[Self::place(port)];
                if entry != 0 {
                    let slots = (Self::slot(entry, 0), Self::slot(entry, Self::UPPER));
                    ports.entry(&format_args!("{transport} {port}"), &slots);
                }
            }
        }
        ports.finish()
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
