//! File descriptors: as many as the configuration may need, or a word about it, and room for them in the process' table.

use std::io;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises what this process may have open as far as is needed, and warns if that is not far enough.
pub(crate) fn provide(needed: u64) {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => return tracing::warn!(%error, "cannot tell how many files may be open"),
    };
    let wanted = needed.min(hard);
    if soft < wanted {
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => tracing::info!(from = soft, to = wanted, "raised how many files may be open"),
            Err(error) => tracing::warn!(%error, "cannot raise how many files may be open"),
        }
    }
    if needed > hard {
        tracing::warn!(
            needed,
            allowed = hard,
            "more clients and connections are configured than files may be open: raise LimitNOFILE, or lower max_clients (max_connections of an owner of limits)"
        );
    }
    // A client may have a dedicated connection as well.
    reserve(needed.saturating_mul(2).min(soft.max(wanted)));
}

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
