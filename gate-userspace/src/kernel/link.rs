//! Operations on a pinned link that aya does not offer: reading its interface, and detaching it at once.

#![allow(unsafe_code, reason = "system calls without safe wrappers")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::error::{Error, Result};

/// The index of the interface that a pinned link is for, in that interface's own network namespace; zero if it
/// has vanished.
///
/// # Errors
///
/// [`Error::System`].
pub(super) fn interface(pin: &Path) -> Result<u32> {
    let failed = |source| Error::System { what: "asking the pinned link for its interface", source };
    let link = open(pin).map_err(failed)?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd())).map_err(failed)?;
    let index = info.lines().find_map(|line| line.strip_prefix("ifindex:")?.trim().parse().ok());
    index.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

/// Takes the program from the interface now: when only its pin is removed, the kernel does so a little later.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn detach(pin: &Path) -> io::Result<()> {
    let link = open(pin)?;
    bpf(LINK_DETACH, &[link.as_raw_fd() as u64]).map(|_| ())
}

fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // The path; a file descriptor that is not used, and no flags.
    let link = bpf(OBJ_GET, &[path.as_ptr() as u64, 0])?;
    // SAFETY: a file descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// `bpf(2)` with the start of its `union bpf_attr`; the kernel takes the rest for zeros.
pub(super) fn bpf(command: libc::c_int, attributes: &[u64]) -> io::Result<RawFd> {
    // SAFETY: the kernel reads the attributes, and what they point to lives in the callers until it returns.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as RawFd) }
}

/// Opens a pin (`enum bpf_cmd` in `linux/bpf.h`).
const OBJ_GET: libc::c_int = 7;
/// Ends a link, whoever holds it.
const LINK_DETACH: libc::c_int = 34;
