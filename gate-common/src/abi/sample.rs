//! Samples: the key of a request that passed, or the verdict on one that was refused.
//!
//! The ring buffer holds a [`Sample`] of the former and a [`SampleHead`] alone of the latter; their lengths, and that of a
//! [`Measured`](super::Measured), tell them apart.

use core::mem::size_of;

use super::Reason;

/// One request in [`super::View::sample_every`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleHead {
    /// [`super::Service::id`].
    pub service: u32,
    /// The tenant's index; zero is nobody.
    pub tenant: u32,
    /// How many requests it stands for.
    pub weight: u32,
    /// See [`sample_flags`].
    pub flags: u16,
    /// Bytes of [`Sample::key`] that count.
    pub key_len: u16,
    /// The address that the packet names as its source; IPv4 as `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Zero if it passed; else the number of its [`Reason`], plus one.
    pub refused: u8,
    /// Of a refusal for [`Reason::Quota`]: zero if the tenant's own bucket lacked the price; else the number of the
    /// [`super::OtherBucket`], plus one.
    pub bucket: u8,
    /// Spelled out.
    pub _reserved: [u8; 6],
}

const _: () = assert!(size_of::<SampleHead>() == 40);

impl SampleHead {
    /// The reason of a refusal; `None` if it passed.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        Reason::ALL.get(usize::from(self.refused).checked_sub(1)?).copied()
    }
}

/// One request that passed, with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    /// All but the key.
    pub head: SampleHead,
    /// The key; what follows [`SampleHead::key_len`] bytes is undefined.
    pub key: [u8; Sample::MAX_KEY],
}

const _: () = assert!(size_of::<Sample>() == 296);

impl Sample {
    /// The longest key that is sampled, in bytes; memcached's own limit is 250.
    pub const MAX_KEY: usize = 256;
}

/// Bits of [`SampleHead::flags`].
pub mod sample_flags {
    /// The request writes.
    pub const WRITE: u16 = 1 << 0;
    /// The key is longer than the sample.
    pub const CUT: u16 = 1 << 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_sample_is_that_of_its_number() {
        let of = |refused| SampleHead { refused, ..SampleHead::default() }.reason();
        assert_eq!(
            [of(0), of(1), of(12), of(255)],
            [None, Some(Reason::Quota), Some(Reason::UnknownSource), None]
        );
    }
}
