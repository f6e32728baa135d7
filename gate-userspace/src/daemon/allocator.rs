//! The thresholds of the C library's allocator.
//!
//! glibc maps large blocks one by one, and gives each back to the system when it is freed. By default it raises the length from
//! which it does so, up to 32 MiB, whenever such a block is freed. From then on the replies that wait for clients lie in the
//! heaps of the threads, and what is freed there between blocks in use stays with the process: more than `client_memory` allows.

#![allow(unsafe_code, reason = "glibc's thresholds")]

/// Keeps the thresholds where they are. To be called before the process has more than one thread.
pub(super) fn fix_thresholds() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [(libc::M_MMAP_THRESHOLD, MAPPED_FROM), (libc::M_TRIM_THRESHOLD, KEPT)] {
        // SAFETY: two integers, which only concern how memory is had from the system and given back to it.
        if unsafe { libc::mallopt(parameter, bytes) } == 0 {
            tracing::debug!(parameter, bytes, "the allocator takes no such threshold");
        }
    }
}

/// The length from which a block is a mapping of its own, in bytes. memcached's largest value by default is not, since a new
/// mapping costs as much as copying it does.
const MAPPED_FROM: i32 = 1 << 20;
/// The bytes at the end of a heap that are kept for later blocks.
const KEPT: i32 = 2 << 20;
