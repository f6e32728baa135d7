//! Where maps and link are pinned, so that they outlive the daemon.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use gate_common::abi::Control;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::clsact;
use super::error::{Error, Result};
use super::namespace;
use super::owner::ControlHead as _;
use super::pinned_head::PinnedHead;

/// A directory of pins on a BPF file system, mode 0700.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinDir(PathBuf);

impl PinDir {
    /// Opens `directory`, making it if need be, and mounting the BPF file system at
    /// `BPF_FS` if `directory` lies below it and none is mounted.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`] if it cannot be made, is not on a BPF file system, or belongs to another user.
    pub fn make(directory: &Path) -> Result<Self> {
        let failed = |source| Error::PinDir { directory: directory.to_owned(), source };
        if directory.starts_with(BPF_FS) && !is_bpf_fs(Path::new(BPF_FS)) {
            mount(Some("bpf"), BPF_FS, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
                .map_err(|error| failed(with_context("mounting the BPF file system", error.into())))?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        if !is_bpf_fs(directory) {
            let reason = format!("not on a BPF file system; choose a directory below {BPF_FS}");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let metadata = fs::metadata(directory).map_err(failed)?;
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            let reason = format!("belongs to user {}", metadata.uid());
            return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, reason)));
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        Ok(Self(directory.to_owned()))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The pin of a map.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where new maps are pinned until their program is attached.
    #[must_use]
    pub fn staging(&self) -> PathBuf {
        self.0.join("new")
    }

    /// Where new maps are pinned whose program is attached, while their pins take the place of those here.
    #[must_use]
    pub fn replacing(&self) -> PathBuf {
        self.0.join("replacing")
    }

    /// Where the link and the maps of interception are pinned.
    #[must_use]
    pub fn interception(directory: &Path) -> PathBuf {
        directory.join("intercept")
    }

    /// True if a link is pinned.
    #[must_use]
    pub fn has_link(&self) -> bool {
        (0..Control::INTERFACES).any(|slot| self.link(slot).exists())
    }

    /// The pin of the link in a slot below [`Control::INTERFACES`].
    #[must_use]
    pub fn link(&self, slot: usize) -> PathBuf {
        link(&self.0, slot)
    }

    /// The pin of the link in a slot of the program that marks what was charged.
    #[must_use]
    pub fn mark_link(&self, slot: usize) -> PathBuf {
        mark_link(&self.0, slot)
    }

    /// The pin of the link in a slot of the program that measures answers.
    #[must_use]
    pub fn measure_link(&self, slot: usize) -> PathBuf {
        measure_link(&self.0, slot)
    }

    /// The pin of that program, where its link cannot be pinned.
    #[must_use]
    pub fn measure_filter(&self, slot: usize) -> PathBuf {
        measure_filter(&self.0, slot)
    }

    /// Takes the programs from the interface, and removes every pin and the directory.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`]. A directory that is not there is no error.
    pub fn remove(directory: &Path) -> Result<Removed> {
        let failed = |source| Error::PinDir { directory: directory.to_owned(), source };
        let mut removed = Removed { link: false, maps: 0 };
        for slot in 0..Control::INTERFACES {
            let info = super::link::info(&link(directory, slot)).ok();
            // In another network namespace the index means another interface.
            let interface = info.map(|info| info.interface).filter(|_| is_here(directory));
            let pins = [measure_link(directory, slot), measure_filter(directory, slot)];
            if let Err(error) = clsact::remove(&pins[0], &pins[1], interface) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the program that measures was left behind"
                );
            }
            for pin in [mark_link(directory, slot), link(directory, slot)] {
                if pin.exists()
                    && let Err(error) = super::link::detach(&pin)
                {
                    tracing::debug!(error = &error as &dyn std::error::Error, "the link goes with its pin");
                }
            }
            unlink(&mark_link(directory, slot)).map_err(failed)?;
            removed.link |= unlink(&link(directory, slot)).map_err(failed)?;
        }
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_dir() {
                Self::remove(&entry.path())?;
                continue;
            }
            removed.maps += usize::from(unlink(&entry.path()).map_err(failed)?);
        }
        match fs::remove_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(removed),
        }
    }
}

/// The result of [`PinDir::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// True if a link was pinned.
    pub link: bool,
    /// How many maps were pinned.
    pub maps: usize,
}

/// Where Linux has its BPF file system.
pub(super) const BPF_FS: &str = "/sys/fs/bpf";

pub(super) fn link(directory: &Path, slot: usize) -> PathBuf {
    directory.join(numbered("link", slot))
}

fn mark_link(directory: &Path, slot: usize) -> PathBuf {
    directory.join(numbered("mark-link", slot))
}

fn measure_link(directory: &Path, slot: usize) -> PathBuf {
    directory.join(numbered("measure-link", slot))
}

/// The pin of the program that measures, where its link cannot be pinned.
fn measure_filter(directory: &Path, slot: usize) -> PathBuf {
    directory.join(numbered("measure-filter", slot))
}

/// The first slot's pins have the name that they had when there was one interface.
fn numbered(name: &str, slot: usize) -> String {
    if slot == 0 { name.to_owned() } else { format!("{name}-{slot}") }
}

/// True if the interfaces of the maps that are pinned here are in this thread's network namespace.
fn is_here(directory: &Path) -> bool {
    PinnedHead::open(directory, false).is_ok_and(|head| {
        head.head(offset_of!(Control, namespace)).load(Ordering::Relaxed) == namespace::of_thread()
    })
}

fn unlink(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_bpf_fs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

fn with_context(doing: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}
