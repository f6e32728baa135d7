//! The maps of a pin directory, new or taken over, in the hands of this process.

use std::fs::File;
use std::sync::Arc;

use gate_common::abi::maps;
use nix::fcntl::{Flock, FlockArg};

use super::owner::{self, Found, Ownership, Previous};
use super::{Error, Loaded, Maps, PinDir, Result, Sizes, jiffies};

/// The maps, before this process owns them.
#[derive(Debug)]
pub struct Opened {
    /// The maps.
    pub maps: Arc<Maps>,
    /// Whether they were made just now.
    pub fresh: bool,
    /// The object, if there was time to load it.
    loaded: Option<Loaded>,
    sizes: Sizes,
    pins: PinDir,
    /// Two daemons that start at once: the second waits, and then finds the first.
    _lock: Flock<File>,
}

/// Opens the maps that are pinned in `pins`, or makes new ones of these sizes.
///
/// The object is loaded with new maps, and beside a daemon that runs and is to be relieved: whether the
/// kernel takes it must be known before that daemon ends. Where nobody rules, ruling comes first: the
/// kernel takes a good part of a second to verify the object.
///
/// # Errors
///
/// [`Error::Owned`] if a daemon runs and `take_over` is not set; [`Error::NotWhole`], [`Error::Shape`],
/// [`Error::AbiVersion`], [`Error::TooSmall`] if the pinned maps cannot be used; and those of [`Loaded::new`]. Nothing
/// that was not
/// there before stays pinned.
pub fn open(pins: &PinDir, sizes: &Sizes, take_over: bool) -> Result<Opened> {
    let failed = |source| Error::PinDir { directory: pins.path().to_owned(), source };
    let file = File::open(pins.path()).map_err(failed)?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))?;
    let opened = |maps, fresh, loaded, sizes| {
        Ok(Opened { maps, fresh, loaded, sizes, pins: pins.clone(), _lock: lock })
    };
    let Some((maps, found)) = pinned(pins, sizes)? else {
        let loaded = fresh(pins, sizes).inspect_err(|_| remove_again(pins))?;
        return opened(Arc::clone(&loaded.maps), true, Some(loaded), *sizes);
    };
    let loaded = match owner::find(&maps)? {
        Found::Running(pid) if !take_over => return Err(Error::Owned { pid }),
        Found::Running(_) => Some(Loaded::new(&found, Some(pins))?),
        Found::Nobody | Found::Stopped(_) => None,
    };
    opened(Arc::new(maps), false, loaded, found)
}

impl Opened {
    /// Takes ownership, ending a live owner.
    ///
    /// # Errors
    ///
    /// Those of [`owner::take`].
    pub fn take(&self) -> Result<(Ownership, Previous)> {
        owner::take(&self.maps)
    }

    /// The object, loaded now if it was not before.
    ///
    /// # Errors
    ///
    /// Those of [`Loaded::new`].
    pub fn into_loaded(self) -> Result<Loaded> {
        self.loaded.map_or_else(|| Loaded::new(&self.sizes, Some(&self.pins)), Ok)
    }
}

fn fresh(pins: &PinDir, sizes: &Sizes) -> Result<Loaded> {
    let mut loaded = Loaded::new(sizes, Some(pins))?;
    let clock = jiffies::measure(&mut loaded)?;
    loaded.maps.init(clock);
    Ok(loaded)
}

fn remove_again(pins: &PinDir) {
    if let Err(error) = PinDir::remove(pins.path()) {
        tracing::warn!(error = &error as &dyn std::error::Error, "pins were left behind");
    }
}

/// The pinned maps and their sizes, compared with what is needed; `None` if there are none.
fn pinned(pins: &PinDir, needed: &Sizes) -> Result<Option<(Maps, Sizes)>> {
    let attached = pins.link().exists();
    let existing = match Maps::pinned(pins.path(), true) {
        // A daemon that died before it had made its maps ready: nothing refers to them yet.
        Err(Error::NoPins { .. } | Error::NotWhole { .. } | Error::AbiVersion { found: 0, .. })
            if !attached =>
        {
            PinDir::remove(pins.path())?;
            PinDir::make(pins.path())?;
            return Ok(None);
        }
        Err(Error::NoPins { directory }) => {
            return Err(Error::NotWhole { directory, missing: maps::CONTROL });
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
    Ok(Some((existing, Sizes { samples: needed.samples, ..found })))
}
