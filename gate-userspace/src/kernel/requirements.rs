//! The kernel features that gate's XDP program needs, probed before anything is loaded.
//!
//! Features are probed, not versions: distributions bring them to older kernels. Each probe loads a program of
//! two instructions at most and drops it again: some microseconds, and nothing is attached or pinned.

#![allow(unsafe_code, reason = "a file descriptor from the kernel, of which this is the only owner")]

use std::fs;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_program_supported};

use super::error::{Error, Result};
use super::link::bpf;

/// Fails if the kernel lacks something that the program cannot do without.
///
/// # Errors
///
/// [`Error::KernelLacks`], which names all that is missing; [`Error::NoPrivilege`], [`Error::NoPerfmon`].
pub(super) fn check() -> Result<()> {
    let mut lacks = Vec::new();
    if !has_xdp_frags()? {
        lacks.push("xdp.frags");
    }
    for (name, helper) in HELPERS {
        let probed = is_helper_supported(ProgramType::Xdp, helper);
        if !probed.map_err(|source| Error::aya(name, source))? {
            lacks.push(name);
        }
    }
    if lacks.is_empty() {
        // The kernel's own answer would be its verifier's log.
        return if has_perfmon() { Ok(()) } else { Err(Error::NoPerfmon) };
    }
    Err(Error::KernelLacks { release: release(), lacks: lacks.join(", ") })
}

/// Fails if the kernel cannot intercept.
///
/// # Errors
///
/// [`Error::NoInterception`], [`Error::NoPrivilege`].
pub(super) fn check_interception() -> Result<()> {
    match is_program_supported(ProgramType::SkLookup) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NoInterception { release: release() }),
        Err(source) => Err(Error::aya("sk_lookup", source)),
    }
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The helpers that came after Linux 5.8, with the version that brought each.
const HELPERS: [(&str, BpfHelper); 3] = [
    ("bpf_loop", BpfHelper::BPF_FUNC_loop),                         // 5.17
    ("bpf_xdp_load_bytes", BpfHelper::BPF_FUNC_xdp_load_bytes),     // 5.18
    ("bpf_xdp_get_buff_len", BpfHelper::BPF_FUNC_xdp_get_buff_len), // 5.18
];

/// True if an XDP program may see packets of several fragments (jumbo frames): Linux 5.18.
fn has_xdp_frags() -> Result<bool> {
    match load(&PASS, XDP_HAS_FRAGS) {
        Ok(_) => Ok(true),
        // A flag that the kernel does not know. The program itself is as old as XDP.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(Error::aya("xdp.frags", error)),
    }
}

/// True if this thread may load programs that compare pointers, as the XDP program does, or that cannot be told.
fn has_perfmon() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    effective(&status).is_none_or(|capabilities| capabilities & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN) != 0)
}

/// The effective capabilities in a process' status.
fn effective(status: &str) -> Option<u64> {
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(capabilities.trim(), 16).ok()
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// Loads an XDP program with these flags.
fn load(program: &[u64], flags: u32) -> io::Result<OwnedFd> {
    const LICENSE: &[u8] = b"GPL\0";
    // The start of `union bpf_attr` for this command: `prog_type` and `insn_cnt`, `insns`, `license`, no log
    // (`log_level` and `log_size`, `log_buf`), `kern_version` and `prog_flags`.
    let attributes = [
        words(XDP_PROGRAM, program.len() as u32),
        program.as_ptr() as u64,
        LICENSE.as_ptr() as u64,
        0,
        0,
        words(0, flags),
    ];
    let loaded = bpf(PROG_LOAD, &attributes)?;
    // SAFETY: a file descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(loaded) })
}

/// Two neighbouring fields of 32 bits.
const fn words(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// `r0 = XDP_PASS; exit`: opcode, registers, offset and immediate, as they lie in memory.
const PASS: [u64; 2] =
    [u64::from_ne_bytes([0xb7, 0, 0, 0, 2, 0, 0, 0]), u64::from_ne_bytes([0x95, 0, 0, 0, 0, 0, 0, 0])];
/// Loads a program (`enum bpf_cmd` in `linux/bpf.h`).
const PROG_LOAD: libc::c_int = 5;
/// `BPF_PROG_TYPE_XDP`.
const XDP_PROGRAM: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`.
const XDP_HAS_FRAGS: u32 = 1 << 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_of_a_process() {
        let status = "Name:\tgate\nCapPrm:\t000001ffffffffff\nCapEff:\t0000008000001000\nSeccomp:\t0\n";
        assert_eq!(effective(status), Some(1 << 39 | 1 << 12));
        assert_eq!(effective("Name:\tgate\n"), None);
    }

    #[test]
    fn fields_lie_side_by_side() {
        let bytes = [words(1, 2), words(3, 4)].map(u64::to_ne_bytes);
        let fields: Vec<u32> = bytes
            .as_flattened()
            .chunks_exact(4)
            .map(|field| u32::from_ne_bytes(field.try_into().expect("four bytes")))
            .collect();
        assert_eq!(fields, [1, 2, 3, 4]);
    }
}
