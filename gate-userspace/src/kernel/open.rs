//! The maps of a pin directory, new or taken over, in the hands of this process.

use std::fs::File;

use gate_common::abi::maps;
use nix::fcntl::{Flock, FlockArg};

use super::owner::{self, Ownership, Previous};
use super::{Error, Loaded, Maps, PinDir, Result, Sizes, jiffies};

/// Loads the object with the maps that are pinned in `pins`, or with new ones of these sizes, and takes
/// ownership.
///
/// # Errors
///
/// [`Error::Owned`] if a daemon is alive and `take_over` is not set; [`Error::Shape`], [`Error::AbiVersion`],
/// [`Error::TooSmall`] if the pinned maps cannot be used; and those of [`Loaded::new`]. Nothing that was not
/// there before stays pinned.
pub fn open(pins: &PinDir, sizes: &Sizes, take_over: bool) -> Result<(Loaded, Ownership, Previous)> {
    // Two daemons that start at once: the second waits, and then finds the first.
    let directory =
        || Error::PinDir { directory: pins.path().to_owned(), source: std::io::Error::last_os_error() };
    let file = File::open(pins.path()).map_err(|_| directory())?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|_| directory())?;
    match pinned(pins, sizes)? {
        Some(found) => {
            let loaded = Loaded::new(&found, Some(pins))?;
            let (ownership, previous) = owner::take(&loaded.maps, take_over)?;
            Ok((loaded, ownership, previous))
        }
        None => fresh(pins, sizes).inspect_err(|_| {
            if let Err(error) = PinDir::remove(pins.path()) {
                tracing::warn!(%error, "pins were left behind");
            }
        }),
    }
}

fn fresh(pins: &PinDir, sizes: &Sizes) -> Result<(Loaded, Ownership, Previous)> {
    let mut loaded = Loaded::new(sizes, Some(pins))?;
    let clock = jiffies::measure(&mut loaded)?;
    loaded.maps.init(clock);
    let (ownership, previous) = owner::take(&loaded.maps, false)?;
    Ok((loaded, ownership, previous))
}

/// The sizes of the pinned maps, compared with what is needed; `None` if there are none.
fn pinned(pins: &PinDir, needed: &Sizes) -> Result<Option<Sizes>> {
    if !pins.map(maps::CONTROL).exists() {
        return Ok(None);
    }
    let existing = match Maps::pinned(pins.path(), false) {
        // A daemon that died before it had made its maps ready: nothing refers to them yet.
        Err(Error::AbiVersion { found: 0, .. }) => {
            PinDir::remove(pins.path())?;
            PinDir::make(pins.path())?;
            return Ok(None);
        }
        other => other?,
    };
    let found = existing.sizes();
    for (what, found, needed, exactly) in [
        ("CPUs", found.cpus, needed.cpus, true),
        ("tenants", found.tenants, needed.tenants, false),
        ("services", found.services, needed.services, false),
        ("table blocks", found.blocks, needed.blocks, false),
    ] {
        if found < needed || (exactly && found != needed) {
            return Err(Error::TooSmall { what, found, needed });
        }
    }
    Ok(Some(Sizes { samples: needed.samples, ..found }))
}
