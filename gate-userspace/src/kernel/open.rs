//! The maps of a pin directory, new or taken over, in the hands of this process.

use std::fs::File;
use std::sync::Arc;

use gate_common::abi::maps;
use nix::fcntl::{Flock, FlockArg};

use super::owner::{self, Found, Ownership, Previous};
use super::{Error, Loaded, Maps, Outgrown, PinDir, Result, Sizes, jiffies};

/// The maps, before this process owns them.
#[derive(Debug)]
pub struct Opened {
    /// The maps.
    pub maps: Arc<Maps>,
    /// Whether they were made just now.
    pub fresh: bool,
    /// Those whose place they take.
    outgrown: Option<Outgrown>,
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
/// kernel takes a good part of a second to verify the object. Maps that are too small get larger ones beside them.
///
/// # Errors
///
/// [`Error::Owned`] if a daemon runs and `take_over` is not set; [`Error::NotWhole`], [`Error::Shape`],
/// [`Error::AbiVersion`], [`Error::OtherCpus`] if the pinned maps cannot be used; and those of [`Loaded::new`].
/// Nothing that was not there before stays pinned but what [`PinDir::beside`] holds, until the next call.
pub fn open(pins: &PinDir, sizes: &Sizes, take_over: bool) -> Result<Opened> {
    let failed = |source| Error::PinDir { directory: pins.path().to_owned(), source };
    let file = File::open(pins.path()).map_err(failed)?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))?;
    let opened = |maps, fresh, outgrown, loaded, sizes| {
        Ok(Opened { maps, fresh, outgrown, loaded, sizes, pins: pins.clone(), _lock: lock })
    };
    let Some((maps, found)) = pinned(pins, sizes)? else {
        let loaded = fresh(pins, sizes).inspect_err(|_| remove_again(pins))?;
        return opened(Arc::clone(&loaded.maps), true, None, Some(loaded), *sizes);
    };
    let owner = owner::find(&maps)?;
    if let (Found::Running(pid), false) = (owner, take_over) {
        return Err(Error::Owned { pid });
    }
    let larger = found.or_larger(sizes);
    if larger != found {
        PinDir::remove(&pins.beside())?;
        let loaded = Loaded::new(&larger, Some(&PinDir::make(&pins.beside())?))?;
        let outgrown = Outgrown::new(maps, &loaded.maps, pins);
        return opened(Arc::clone(&loaded.maps), false, Some(outgrown), Some(loaded), larger);
    }
    let loaded = match owner {
        Found::Running(_) => Some(Loaded::new(&found, Some(pins))?),
        Found::Nobody | Found::Stopped(_) => None,
    };
    opened(Arc::new(maps), false, None, loaded, found)
}

impl Opened {
    /// Takes ownership, ending a live owner.
    ///
    /// # Errors
    ///
    /// Those of [`owner::take`].
    pub fn take(&self) -> Result<(Ownership, Previous)> {
        match &self.outgrown {
            Some(outgrown) => outgrown.take(&self.maps),
            None => owner::take(&self.maps),
        }
    }

    /// The object, loaded now if it was not before; and the maps whose place these take when it is attached.
    ///
    /// # Errors
    ///
    /// Those of [`Loaded::new`].
    pub fn into_loaded(self) -> Result<(Loaded, Option<Outgrown>)> {
        let loaded = self.loaded.map_or_else(|| Loaded::new(&self.sizes, Some(&self.pins)), Ok)?;
        Ok((loaded, self.outgrown))
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

/// The pinned maps and their sizes; `None` if there are none.
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
            return Err(Error::NotWhole { directory, map: maps::CONTROL });
        }
        other => other?,
    };
    let found = existing.sizes();
    if found.cpus != needed.cpus {
        return Err(Error::OtherCpus { found: found.cpus, needed: needed.cpus });
    }
    Ok(Some((existing, Sizes { samples: needed.samples, ..found })))
}
