//! The maps of a pin directory, new or taken over, in the hands of this process.

use std::fs::File;
use std::sync::Arc;

use gate_common::abi::maps;
use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};

use super::error::{Error, Result};
use super::jiffies;
use super::load::Loaded;
use super::maps::Maps;
use super::migration;
use super::migration::Migration;
use super::owner::{self, ControlHead, Found, Ownership, Previous};
use super::pins::PinDir;
use super::sizes::Sizes;

/// The maps, before this process owns them.
#[derive(Debug)]
pub struct Opened {
    /// The maps.
    pub maps: Arc<Maps>,
    /// True if they were made just now.
    pub fresh: bool,
    /// Those whose place they take.
    migration: Option<Migration>,
    /// The object, if there was time to load it.
    loaded: Option<Loaded>,
    sizes: Sizes,
    pins: PinDir,
    /// The sources whose packets are traced, if any.
    traced: Option<IpNet>,
    /// Two daemons that start at once: the second waits, and then finds the first.
    _lock: Flock<File>,
}

/// Opens the maps that are pinned in `pins`, or makes new ones of these sizes.
///
/// The object is loaded with new maps, and before a daemon that runs is taken over from: whether the
/// kernel accepts it must be known before that daemon ends. Where nobody owns the maps, taking them comes first: the
/// kernel needs a good part of a second to verify the object. Maps that are too small get new ones
/// beside them. The program is the variant that traces, if there are sources to be `traced`.
///
/// # Errors
///
/// [`Error::Owned`] if a daemon runs and `take_over` is not set; [`Error::NotWhole`], [`Error::Shape`],
/// [`Error::AbiVersion`] if the pinned maps cannot be used; and those of [`Loaded::new`].
/// Nothing that was not there before stays pinned but what [`PinDir::staging`] holds, until the next call.
pub fn open(pins: &PinDir, sizes: &Sizes, take_over: bool, traced: Option<IpNet>) -> Result<Opened> {
    let failed = |source| Error::PinDir { directory: pins.path().to_owned(), source };
    let file = File::open(pins.path()).map_err(failed)?;
    let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))?;
    migration::recover(pins)?;
    let opened = |maps, fresh, migration, loaded, sizes| {
        Ok(Opened { maps, fresh, migration, loaded, sizes, pins: pins.clone(), traced, _lock: lock })
    };
    let (old, needed) = match pinned(pins)? {
        Pinned::Nothing => {
            let loaded = fresh(pins, sizes, traced).inspect_err(|_| remove_again(pins))?;
            return opened(Arc::clone(&loaded.maps), true, None, Some(loaded), *sizes);
        }
        Pinned::Present(maps) => {
            let found = Sizes { samples: sizes.samples, ..maps.sizes() };
            let needed = found.or_larger(sizes);
            // An older gate may have made other rows of rare counters for these sizes.
            if needed == found && maps.rare_rows() == found.rare_rows() as usize {
                let loaded = match owner_before(&*maps, take_over)? {
                    Found::Running(_) => Some(load(&found, pins, traced)?),
                    Found::NoOwner | Found::Stopped(_) => None,
                };
                return opened(Arc::from(maps), false, None, loaded, found);
            }
            (maps, needed)
        }
    };
    owner_before(&*old, take_over)?;
    PinDir::remove(&pins.staging())?;
    let loaded = load(&needed, &PinDir::make(&pins.staging())?, traced)?;
    let migration = Migration::new(old, &loaded.maps, pins);
    opened(Arc::clone(&loaded.maps), false, Some(migration), Some(loaded), needed)
}

/// The owner of the maps; an error if it may not be ended.
fn owner_before(maps: &(impl ControlHead + ?Sized), take_over: bool) -> Result<Found> {
    match owner::find(maps)? {
        Found::Running(pid) if !take_over => Err(Error::Owned { pid }),
        found => Ok(found),
    }
}

impl Opened {
    /// Takes ownership, ending a live owner.
    ///
    /// # Errors
    ///
    /// Those of [`owner::take`].
    pub fn take(&self) -> Result<(Ownership, Previous)> {
        match &self.migration {
            Some(migration) => migration.take(&self.maps),
            None => owner::take(&*self.maps),
        }
    }

    /// The object, loaded now if it was not before; and the maps whose place these take when it is attached.
    ///
    /// # Errors
    ///
    /// Those of [`Loaded::new`].
    pub fn into_loaded(self) -> Result<(Loaded, Option<Migration>)> {
        let loaded = self.loaded.map_or_else(|| load(&self.sizes, &self.pins, self.traced), Ok)?;
        Ok((loaded, self.migration))
    }
}

fn load(sizes: &Sizes, pins: &PinDir, traced: Option<IpNet>) -> Result<Loaded> {
    match traced {
        Some(sources) => Loaded::tracing(sizes, Some(pins), sources),
        None => Loaded::new(sizes, Some(pins)),
    }
}

fn fresh(pins: &PinDir, sizes: &Sizes, traced: Option<IpNet>) -> Result<Loaded> {
    let mut loaded = load(sizes, pins, traced)?;
    let clock = jiffies::measure(&mut loaded)?;
    loaded.maps.init(clock);
    Ok(loaded)
}

fn remove_again(pins: &PinDir) {
    if let Err(error) = PinDir::remove(pins.path()) {
        tracing::warn!(error = &error as &dyn std::error::Error, "pins were left behind");
    }
}

/// The maps that are pinned.
enum Pinned {
    Nothing,
    Present(Box<Maps>),
}

fn pinned(pins: &PinDir) -> Result<Pinned> {
    let attached = pins.has_link();
    match Maps::pinned(pins.path(), true) {
        // A daemon that died before it had made its maps ready: nothing refers to them yet.
        Err(Error::NoPins { .. } | Error::NotWhole { .. } | Error::AbiVersion { found: 0, .. })
            if !attached =>
        {
            PinDir::remove(pins.path())?;
            PinDir::make(pins.path())?;
            Ok(Pinned::Nothing)
        }
        Err(Error::NoPins { directory }) => Err(Error::NotWhole { directory, map: maps::CONTROL }),
        other => other.map(|maps| Pinned::Present(Box::new(maps))),
    }
}
