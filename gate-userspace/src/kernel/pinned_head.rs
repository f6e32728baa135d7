//! The part of the pinned maps that is the same in every ABI version.

use std::mem::offset_of;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapType;
use gate_common::abi::{Control, maps};

use super::arrays::{data_of_pin, shape_of};
use super::error::{Error, Result};
use super::mapped::Mapped;
use super::owner::ControlHead;
use super::shape::{BPF_F_MMAPABLE, Shape};

/// The part of a pinned control element that is the same in every ABI version.
#[derive(Debug)]
pub struct PinnedHead(Mapped<[u64; Control::HEAD_BYTES / 8]>);

impl PinnedHead {
    /// Maps that of the maps pinned in `directory`, to be read or to be written.
    ///
    /// # Errors
    ///
    /// [`Error::NoPins`]; [`Error::Shape`] if the pin is not that of a control element.
    pub fn open(directory: &Path, writable: bool) -> Result<Self> {
        let name = maps::CONTROL;
        if !directory.join(name).exists() {
            return Err(Error::NoPins { directory: directory.to_owned() });
        }
        let data = data_of_pin(directory, name)?;
        let info = data.info().map_err(|source| Error::aya(name, source))?;
        let found = shape_of(name, &info)?;
        let expected = Shape {
            value_size: found.value_size.max(size_of::<Control>() as u32),
            entries: 1,
            ..Shape { map_type: MapType::Array, key_size: 4, flags: BPF_F_MMAPABLE, ..found }
        };
        if found != expected {
            return Err(Error::Shape { map: name.to_owned(), found, expected });
        }
        Mapped::new(data.fd().as_fd(), 1, writable).map(Self).map_err(|source| Error::map(name, source))
    }

    /// The ABI version of whoever made the maps; zero before they are ready.
    #[must_use]
    pub fn abi_version(&self) -> u32 {
        self.head(offset_of!(Control, abi_version)).load(Ordering::Acquire) as u32
    }
}

impl ControlHead for PinnedHead {
    fn head(&self, offset: usize) -> &AtomicU64 {
        self.0.word(0, offset)
    }
}
