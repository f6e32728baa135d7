//! Errors at the kernel boundary.

use std::io;
use std::path::PathBuf;

use aya::programs::ProgramError;

use super::shape::Shape;

/// Errors at the kernel boundary.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binary holds no eBPF object.
    #[error(
        "this binary was built without the eBPF object; build it with `cargo xtask build-ebpf` and then anew"
    )]
    NoObject,
    /// The object lacks a map or a program, or has another kind of it.
    #[error("the eBPF object has no {what} of the kind that this version needs")]
    ObjectLacks {
        /// Its name.
        what: String,
    },
    /// The kernel refuses eBPF to this user.
    #[error(
        "the kernel refuses eBPF to this process: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    NoPrivilege(#[source] io::Error),
    /// eBPF is allowed, and one capability is missing.
    #[error(
        "this process lacks CAP_PERFMON, without which the kernel's verifier does not take gate's XDP program"
    )]
    NoPerfmon,
    /// The kernel is too old for the program.
    #[error(
        "this kernel, {release}, lacks {lacks}, which gate's XDP program needs; Linux 6.1 and newer have it"
    )]
    KernelLacks {
        /// Its release, as `uname -r` prints it.
        release: String,
        /// All that it lacks.
        lacks: String,
    },
    /// A map could not be made, opened or mapped.
    #[error("map {map}")]
    Map {
        /// Its name.
        map: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// aya's word on a map or a program.
    #[error("{what}")]
    Aya {
        /// The map or program.
        what: String,
        /// aya's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// gate has pinned nothing there.
    #[error("no gate is attached: {} holds no maps; start one with `gate run`, or name another --pin-dir", directory.display())]
    NoPins {
        /// Where it looked.
        directory: PathBuf,
    },
    /// A pinned map is not what this version expects.
    #[error(
        "pinned map {map} is {found}, expected {expected}: end the gate that made it, then `gate detach`"
    )]
    Shape {
        /// Its name.
        map: String,
        /// The shape that it has.
        found: Shape,
        /// The shape that it should have.
        expected: Shape,
    },
    /// Some of the pins are gone, or of another gate's.
    #[error("the pins in {} are not whole, {map} is not there or of another size: end the gate that made them, then `gate detach`", directory.display())]
    NotWhole {
        /// Where they are.
        directory: PathBuf,
        /// The map that is not there, or does not fit the others.
        map: &'static str,
    },
    /// Another version made the pinned maps, and it is none that this gate can take over.
    #[error("the maps in {} have ABI version {found}, this gate has {expected}: end the gate that made them, then `gate detach`", directory.display())]
    AbiVersion {
        /// Where they are pinned.
        directory: PathBuf,
        /// Their version.
        found: u32,
        /// This binary's version.
        expected: u32,
    },
    /// The pin directory cannot be made or used.
    #[error("pin directory {}", directory.display())]
    PinDir {
        /// Where it should be.
        directory: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no interface {interface:?}; `ip link` lists those that there are")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// The same interface under two names.
    #[error("interface {interface} is listed already, by another of its names: name each interface once")]
    SameInterface {
        /// The second name.
        interface: String,
    },
    /// One interface lies on another.
    #[error(
        "interface {interface} lies on {lower}, which is listed too: packets go through both and would be charged twice; \
         keep {lower} if {interface} is a VLAN or macvlan, and of a bond or bridge either it or its ports"
    )]
    Stacked {
        /// The one above.
        interface: String,
        /// The one below.
        lower: String,
    },
    /// Another XDP program is attached there.
    #[error(
        "another XDP program is attached to {interface}: detach it first (a gate's by `gate detach --pin-dir DIR`, others by `ip link set dev {interface} xdp off` or `bpftool link`)"
    )]
    Occupied {
        /// The interface.
        interface: String,
    },
    /// The pinned link belongs to another interface.
    #[error(
        "{} is pinned for another interface than {interface}, or one of another network namespace: use another pin directory, or `gate detach` first",
        directory.display()
    )]
    OtherInterface {
        /// Where the link is pinned.
        directory: PathBuf,
        /// The interface that was asked for.
        interface: String,
    },
    /// The program cannot be attached.
    #[error("cannot attach to {interface} in {mode} mode")]
    Attach {
        /// The interface.
        interface: String,
        /// `native` or `generic`.
        mode: &'static str,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel cannot intercept.
    #[error(
        "this kernel, {release}, has no sk_lookup, which `intercept = \"on\"` needs; Linux 5.9 and newer have it"
    )]
    NoInterception {
        /// Its release, as `uname -r` prints it.
        release: String,
    },
    /// Interception is pinned for another network namespace.
    #[error(
        "the interception that is pinned in {} is of another network namespace: use another pin directory, or `gate detach` first",
        directory.display()
    )]
    OtherNamespace {
        /// Where it is pinned.
        directory: PathBuf,
    },
    /// A daemon owns the maps.
    #[error("gate runs already, as process {pid}: end it, or take over with `gate run --takeover`")]
    Owned {
        /// Its process id.
        pid: u32,
    },
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// [`std::result::Result`] with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// True if there can be no XDP here: for this user, with this binary or on this kernel.
    #[must_use]
    pub fn rules_out_xdp(&self) -> bool {
        match self {
            Self::NoPrivilege(_) | Self::NoPerfmon | Self::NoObject | Self::KernelLacks { .. } => true,
            Self::PinDir { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    pub(super) fn map(map: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::NoPrivilege(source),
            _ => Self::Map { map: map.to_owned(), source },
        }
    }

    /// aya's errors, told apart where a user can do something about them.
    pub(super) fn aya(what: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        // Not EACCES, which is what the verifier says of a program.
        match os_error(&source) {
            Some(libc::EPERM) => Self::NoPrivilege(io::Error::from_raw_os_error(libc::EPERM)),
            _ => Self::Aya { what: what.to_owned(), source: Box::new(source) },
        }
    }

    /// A program that the kernel did not load, with the last line of what its verifier says; `debug` logs more.
    pub(super) fn load(what: &str, source: ProgramError) -> Self {
        let ProgramError::LoadError { io_error, verifier_log } = source else {
            return Self::aya(what, source);
        };
        let log = verifier_log.to_string();
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        tracing::debug!("the verifier on {what}:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        // Its very last line counts what was processed.
        let last = lines.iter().rev().find(|line| !line.starts_with("processed ")).unwrap_or(&"nothing");
        Self::aya(&format!("loading {what} (GATE_LOG=debug shows more; the verifier: {last})"), io_error)
    }
}

/// The system call's error number at the root of an error.
pub(super) fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        next = error.source();
    }
    None
}
