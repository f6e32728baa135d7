//! The kind and the size of a map.

use aya::maps::MapType;

/// The shape of a map, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub(super) map_type: MapType,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
}

impl Shape {
    /// How many elements it has; bytes for a ring buffer.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// The size of an element in bytes.
    #[must_use]
    pub const fn value_size(&self) -> u32 {
        self.value_size
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { map_type, key_size, value_size, entries, flags } = self;
        write!(f, "{map_type:?} of {entries} entries, {key_size} to {value_size} bytes, flags {flags:#x}")
    }
}

/// The kernel's flag of array maps that can be mapped into memory (`linux/bpf.h`).
pub(super) const BPF_F_MMAPABLE: u32 = 1 << 10;
