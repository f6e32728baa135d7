//! File descriptors: as many as the configuration may need, or a word about it, and room for them in the process' table.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises what this process may have open as far as is needed, and warns if that is not far enough. Returns how many files may be
/// open then.
pub(crate) fn provide(needed: u64) -> u64 {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!(%error, "cannot tell how many files may be open");
            return needed;
        }
    };
    let mut allowed = soft;
    let wanted = needed.min(hard);
    if soft < wanted {
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => {
                allowed = wanted;
                tracing::info!(from = soft, to = wanted, "raised how many files may be open");
            }
            Err(error) => tracing::warn!(%error, "cannot raise how many files may be open"),
        }
    }
    if needed > allowed {
        tracing::warn!(
            needed,
            allowed,
            "more clients and connections are configured than files may be open, and fewer are served: raise LimitNOFILE, or lower max_clients (max_connections of an owner of limits)"
        );
    }
    ALLOWED.store(allowed, Ordering::Relaxed);
    // A client may have a dedicated connection as well.
    reserve(needed.saturating_mul(2).min(allowed));
    allowed
}

/// True if a client that has been accepted took one of the last free descriptors, which are for stores, administration and files.
/// The kernel gives out the lowest number that is free, so that all below this one are in use.
pub(crate) fn is_reserved(accepted: &impl AsRawFd) -> bool {
    let allowed = ALLOWED.load(Ordering::Relaxed);
    let reserved = (allowed / 4).min(MOST_RESERVED);
    u64::try_from(accepted.as_raw_fd()).is_ok_and(|number| number >= allowed - reserved)
}

/// The files that may be open; not known yet at first.
static ALLOWED: AtomicU64 = AtomicU64::new(u64::MAX);
/// The descriptors that clients may not take.
const MOST_RESERVED: u64 = 256;

/// Has the kernel make room for so many descriptors now. It enlarges the table as needed otherwise, at 256, 512 and so on,
/// and in a process with threads each time waits for an RCU grace period: 5 to 50 ms in which the thread that accepts a
/// connection serves nobody. The table never shrinks.
fn reserve(count: u64) {
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    match fcntl(io::stderr(), FcntlArg::F_DUPFD_CLOEXEC(last)) {
        Ok(descriptor) => drop(nix::unistd::close(descriptor)),
        Err(error) => tracing::debug!(%error, count, "cannot make room for file descriptors ahead"),
    }
}
