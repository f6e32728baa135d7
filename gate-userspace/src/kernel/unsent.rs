//! Bytes that a TCP socket holds for its peer.

#![allow(unsafe_code, reason = "system calls without safe wrappers for a descriptor that others own")]

use std::os::fd::RawFd;

/// The bytes that were written to an open TCP socket and that its peer has not acknowledged; `None` if the kernel does not say.
#[must_use]
pub fn unacknowledged(socket: RawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one integer, to memory that outlives the call.
    let result = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).ok() } else { None }
}

/// Has the kernel drop what a socket holds for its peer when it is closed, instead of trying to send it for minutes.
pub fn drop_unsent_on_close(socket: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the kernel reads one structure of this length, from memory that outlives the call. Should it fail, the bytes stay
    // for as long as the kernel tries.
    unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
    }
}
