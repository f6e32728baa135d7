//! Array maps in the daemon's memory.
//!
//! XDP and the daemon read and write the same words at the same time, so every access here is a
//! relaxed atomic of 64 bits: no reference to a whole element is ever made. What must be seen
//! together is ordered by the generation, which is written with release and read with acquire.

#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A type that is an array of 64-bit words in disguise.
///
/// # Safety
///
/// The type is `repr(C)` or `repr(transparent)`, its alignment is at most 8 bytes, its size is a multiple
/// of 8, it has no padding, and every pattern of bits is a valid value.
pub unsafe trait Words: Copy + 'static {}

macro_rules! words {
    ($($of:ty),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$of>() % 8 == 0 && align_of::<$of>() <= 8);
        // SAFETY: checked above and beside the type: integers only, padding spelled out, size asserted.
        unsafe impl $crate::kernel::mapped::Words for $of {}
    )+};
}

words!(
    u64,
    abi::Block,
    abi::Clock,
    abi::Control,
    abi::CounterLine,
    abi::Cpu,
    abi::InterceptCounts,
    abi::InterceptState,
    abi::Measured,
    abi::Name,
    abi::Pending,
    abi::Ports,
    abi::Sample,
    abi::SampleHead,
    abi::Service,
    abi::ServiceState,
    abi::Tenant,
    abi::RareCounters,
    abi::TenantLine,
    abi::TenantState,
    abi::TopKey,
    abi::TraceRecord,
    abi::Tracing,
    abi::View,
    gate_common::token_bucket::Rate,
    [u64; 2],
    [u64; abi::Control::HEAD_BYTES / 8],
);

/// An array map whose elements are `T`, mapped into memory until it is dropped.
#[derive(Debug)]
pub struct Mapped<T> {
    words: NonNull<AtomicU64>,
    bytes: NonZeroUsize,
    len: usize,
    writable: bool,
    element: PhantomData<T>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only accessed by atomics.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: Words> Mapped<T> {
    /// Maps the `len` elements of the map behind `map`, whose value size must be that of `T`.
    ///
    /// # Errors
    ///
    /// The kernel's error: the map is not mappable (`EINVAL`), or may not be written (`EPERM`).
    pub(super) fn new(map: BorrowedFd<'_>, len: usize, writable: bool) -> std::io::Result<Self> {
        let bytes = NonZeroUsize::new(len * size_of::<T>())
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a map without elements"))?;
        let protection =
            if writable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        // SAFETY: a new mapping, at an address that the kernel chooses, touches nothing that exists.
        let address = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, map.as_fd(), 0) }?;
        Ok(Self { words: address.cast(), bytes, len, writable, element: PhantomData })
    }

    /// `len` elements that no kernel knows of, all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn private(len: usize) -> std::io::Result<Self> {
        let bytes = NonZeroUsize::new(len * size_of::<T>())
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, "a map without elements"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses, touches nothing that exists.
        let address = unsafe { mmap_anonymous(None, bytes, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Self { words: address.cast(), bytes, len, writable: true, element: PhantomData })
    }

    /// How many elements there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are none; never true.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at byte `offset` of element `index`.
    ///
    /// # Panics
    ///
    /// If there is no such element, or `offset` is not that of a word in it.
    #[must_use]
    #[inline]
    pub fn word(&self, index: usize, offset: usize) -> &AtomicU64 {
        assert!(index < self.len, "element {index} of {}", self.len);
        assert!(offset.is_multiple_of(8) && offset < size_of::<T>(), "offset {offset}");
        // SAFETY: within the mapping (asserted), aligned to 8 (the mapping is to a page, elements and
        // offsets are multiples of 8), and alive as long as `self`; all access is atomic.
        unsafe { self.words.add((index * size_of::<T>() + offset) / 8).as_ref() }
    }

    /// The words of element `index`.
    ///
    /// # Panics
    ///
    /// If there is no such element.
    #[must_use]
    pub fn words(&self, index: usize) -> &[AtomicU64] {
        let first = std::ptr::from_ref(self.word(index, 0));
        // SAFETY: as in `word`, for every word of the element.
        unsafe { std::slice::from_raw_parts(first, size_of::<T>() / 8) }
    }

    /// Copies element `index`, word by word.
    ///
    /// # Panics
    ///
    /// If there is no such element.
    #[must_use]
    pub fn load(&self, index: usize) -> T {
        self.load_at(index, 0)
    }

    /// Copies the part of element `index` that starts at byte `offset`.
    ///
    /// # Panics
    ///
    /// If there is no such element or part.
    #[must_use]
    pub fn load_at<U: Words>(&self, index: usize, offset: usize) -> U {
        assert!(offset + size_of::<U>() <= size_of::<T>(), "a part beyond the element");
        let mut value = std::mem::MaybeUninit::<U>::uninit();
        let target = value.as_mut_ptr().cast::<u64>();
        for word in 0..size_of::<U>() / 8 {
            let bits = self.word(index, offset + word * 8).load(Ordering::Relaxed);
            // SAFETY: within `value`, whose size is a multiple of 8; it may be aligned to less than 8.
            unsafe { target.add(word).write_unaligned(bits) };
        }
        // SAFETY: every word was written, and every pattern of bits is valid (`Words`).
        unsafe { value.assume_init() }
    }

    /// Writes element `index`, word by word.
    ///
    /// # Panics
    ///
    /// If there is no such element, or the map was opened to be read.
    pub fn store(&self, index: usize, value: &T) {
        self.store_at(index, 0, value);
    }

    /// Writes the part of element `index` that starts at byte `offset`.
    ///
    /// # Panics
    ///
    /// If there is no such element or part, or the map was opened to be read.
    pub fn store_at<U: Words>(&self, index: usize, offset: usize, value: &U) {
        assert!(self.writable, "the map was opened to be read");
        assert!(offset + size_of::<U>() <= size_of::<T>(), "a part beyond the element");
        let source = std::ptr::from_ref(value).cast::<u64>();
        for word in 0..size_of::<U>() / 8 {
            // SAFETY: within `value`, whose size is a multiple of 8 and which has no padding (`Words`).
            let bits = unsafe { source.add(word).read_unaligned() };
            self.word(index, offset + word * 8).store(bits, Ordering::Relaxed);
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference to it outlives `self`.
        let unmapped = unsafe { munmap(self.words.cast(), self.bytes.get()) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Copies a `T` out of bytes that the kernel wrote; `None` if there are too few.
pub(super) fn read_words<T: Words>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: `bytes` is as long as `T`, and every pattern of bits is valid (`Words`).
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
