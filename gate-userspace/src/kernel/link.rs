//! Operations on a pinned link that aya does not offer: reading its interface and program, and detaching it at once.

#![allow(unsafe_code, reason = "system calls without safe wrappers")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::error::{Error, Result};

/// The kernel's answer about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkInfo {
    /// The index of the interface that it is for, in that interface's own network namespace; zero if that has vanished, or the
    /// link was detached.
    pub(super) interface: u32,
    /// The id of its program.
    pub(super) program: u32,
}

/// Asks the kernel about a pinned link.
///
/// # Errors
///
/// [`Error::System`].
pub(super) fn info(pin: &Path) -> Result<LinkInfo> {
    let failed = |source| Error::System { what: "asking the pinned link for its interface", source };
    let link = open(pin).map_err(failed)?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd())).map_err(failed)?;
    parse(&info).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

fn parse(info: &str) -> Option<LinkInfo> {
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(LinkInfo { interface: field("ifindex:")?, program: field("prog_id:")? })
}

/// The network namespace that a pinned link is for, by its inode's number; zero if that is gone.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn namespace(pin: &Path) -> io::Result<u64> {
    let link = open(pin)?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", link.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("netns_ino:")?.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Puts another program in the place of a pinned link's, without a moment between the two.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn update(pin: &Path, program: BorrowedFd<'_>) -> io::Result<()> {
    let link = open(pin)?;
    // `link_fd` and `new_prog_fd`; no flags.
    let words = link.as_raw_fd() as u64 | (program.as_raw_fd() as u64) << 32;
    bpf(LINK_UPDATE, &[words, 0]).map(|_| ())
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
/// Gives a link another program.
const LINK_UPDATE: libc::c_int = 29;
/// Ends a link, whoever holds it.
const LINK_DETACH: libc::c_int = 34;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_and_program_are_read_from_the_kernels_fields() {
        let info = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\taa\nprog_id:\t17\nifindex:\t5\n";
        assert_eq!(parse(info), Some(LinkInfo { interface: 5, program: 17 }));
        assert_eq!(parse(&info.replace("ifindex:\t5", "ifindex:\t0")).map(|info| info.interface), Some(0));
        assert_eq!(parse("link_type:\txdp\nprog_id:\t17\n"), None);
    }
}
