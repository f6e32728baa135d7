//! The program that gives new connections to a store's own address to gate (`sk_lookup`).
//!
//! Its link and its maps are pinned in a directory of their own below gate's pins, so that they outlive the daemon, and the one
//! that follows finds where the one before listens. The sockets themselves are in a map: one that nobody holds any more leaves
//! it by itself, and connections reach the store again.
//!
//! A gate that follows another never writes to a place of the sockets' map that the other uses: it takes a free one, lets the
//! addresses refer to it, and empties the rest. Kernels differ in what becomes of a socket that is written over by itself.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::offset_of;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap, MapData, SockMap};
use aya::programs::SkLookup;
use aya::programs::links::FdLink;
use aya::{Ebpf, EbpfLoader};
use gate_common::abi::{
    INTERCEPT_PROGRAM, InterceptCounts, InterceptKey, Intercepted, Name, intercept_flags,
    intercept_maps as maps,
};
use gate_common::units::Nanos;

use super::error::{Error, Result};
use super::intercept_keys::{keys, loopback};
use super::intercept_state::{Lifeline, Owner, disown, no_other_owner, other_owner, pinned_state};
use super::mapped::Mapped;
use super::owner::Predecessor;
use super::pins::PinDir;
use super::{arrays, link, object, requirements};

/// A service whose connections gate is to get.
#[derive(Debug)]
pub struct Target {
    /// The service's name.
    pub service: Name,
    /// The addresses of its store, of any family.
    pub addresses: Vec<SocketAddr>,
    /// The sockets that get the connections, on loopback addresses; one for each family of `addresses`.
    pub listeners: Vec<TcpListener>,
    /// True if the machine's own connections are wanted as well.
    pub local: bool,
    /// True if connections are refused while no gate lives.
    pub refuse: bool,
}

/// The program and its maps, pinned.
pub struct Interception {
    ebpf: Ebpf,
    lifeline: Lifeline,
    intercepted: HashMap<MapData, [u8; 20], [u8; 16]>,
    counts: Mapped<InterceptCounts>,
    listeners: SockMap<MapData>,
    /// All of them once more, to be pinned again.
    maps: Vec<(&'static str, MapData)>,
    pins: PathBuf,
    /// True until it is in force, if nothing was pinned before.
    leaves_nothing: bool,
    /// The services that are intercepted, and how old a sign of life may be.
    targets: Vec<Target>,
    stale_after: Nanos,
    /// True if the sockets are those of the gate before this one.
    inherited: bool,
    /// True if the owner was gone at the last look.
    was_gone: bool,
}

/// The state of an interception that was put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In force.
    InForce,
    /// In force again, after it was not.
    Restored,
    /// Another gate's, which has taken over and runs.
    TakenOver,
    /// Taken away from this gate.
    Removed,
}

impl Interception {
    /// Loads the program, with the maps that are pinned below `directory`, or new ones. Nothing is intercepted by that which
    /// was not before.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterception`], [`Error::NoPrivilege`], [`Error::NoObject`], [`Error::PinDir`]; [`Error::OtherNamespace`];
    /// [`Error::Owned`] if a daemon runs whose maps they are and `takes_over` is not set.
    pub fn open(directory: &Path, takes_over: bool) -> Result<Self> {
        let object = object::intercepting().ok_or(Error::NoObject)?;
        requirements::check_interception()?;
        PinDir::make(directory)?;
        let pins = PinDir::interception(directory);
        let is_linked = link_at(&pins).exists();
        if is_linked && ![0, this_namespace()?].contains(&namespace_of(&pins)?) {
            return Err(Error::OtherNamespace { directory: directory.to_owned() });
        }
        match pinned_state(&pins, false) {
            Some(state) if !takes_over => no_other_owner(&state)?,
            Some(_) => {}
            None => Self::remove(directory)?,
        }
        let pins = PinDir::make(&pins)?;
        let leaves_nothing = !link_at(pins.path()).exists();
        let loaded = Self::load(object, &pins, leaves_nothing);
        if leaves_nothing && loaded.is_err() {
            Self::remove(directory)?;
        }
        loaded
    }

    fn load(object: &[u8], pins: &PinDir, leaves_nothing: bool) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        for name in maps::ALL {
            loader.map_pin_path(name, pins.map(name));
        }
        let mut ebpf = loader.load(object).map_err(|source| Error::aya("eBPF object", source))?;
        let program = program(&mut ebpf)?;
        program.load().map_err(|source| Error::load(INTERCEPT_PROGRAM, source))?;
        let lifeline = Lifeline::new(arrays::of_object(&ebpf, maps::STATE)?)?;
        let counts = arrays::of_object(&ebpf, maps::COUNTS)?;
        let all = maps::ALL.into_iter().map(|name| Ok((name, arrays::data_of(&ebpf, name)?)));
        let all: Vec<_> = all.collect::<Result<_>>()?;
        let mut take = |name| {
            let map = ebpf.take_map(name);
            map.ok_or_else(|| Error::ObjectLacks { what: name.to_owned() })
        };
        let intercepted = HashMap::try_from(take(maps::INTERCEPTED)?);
        let intercepted = intercepted.map_err(|source| Error::aya(maps::INTERCEPTED, source))?;
        let listeners = SockMap::try_from(take(maps::LISTENERS)?);
        let listeners = listeners.map_err(|source| Error::aya(maps::LISTENERS, source))?;
        let pins = pins.path().to_owned();
        Ok(Self {
            ebpf,
            lifeline,
            intercepted,
            counts,
            listeners,
            maps: all,
            pins,
            leaves_nothing,
            targets: Vec::new(),
            stale_after: Nanos::ZERO,
            inherited: false,
            was_gone: false,
        })
    }

    /// Where signs of life are to be shown.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        self.lifeline.clone()
    }

    /// The gate that owns it, if that is another one, which runs.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn predecessor(&self) -> Result<Option<Predecessor>> {
        self.lifeline.predecessor()
    }

    /// True if another gate owns it and listens with this one's sockets.
    #[must_use]
    pub fn is_handed_on(&self) -> bool {
        self.lifeline.is_handed_on()
    }

    /// The loopback addresses at which the gate before this one listens for any of these addresses of a store.
    #[must_use]
    pub fn listens(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut found = Vec::new();
        for key in addresses.iter().flat_map(|&address| keys(address)) {
            let Some(known) = self.known(key) else { continue };
            let at = SocketAddr::new(loopback(key.family), known.port as u16);
            if known.port != 0 && !found.contains(&at) {
                found.push(at);
            }
        }
        found
    }

    /// Intercepts what the `targets` say, and nothing else, until this is dropped. The program is attached, or takes the place
    /// of the one before. `inherited` says that the sockets are those of the gate before this one, as far as it had them.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn put_in_force(&mut self, targets: Vec<Target>, stale_after: Nanos, inherited: bool) -> Result<()> {
        self.inherited = inherited;
        self.targets = targets;
        self.stale_after = stale_after;
        self.intercept()
    }

    /// Sees to it that it is still in force: a gate that had taken over may have ended before it told this one, and the program
    /// may have been detached. To be called now and then.
    ///
    /// # Errors
    ///
    /// The kernel's, if it is not, and cannot be put in force again.
    pub fn look_after(&mut self) -> Result<Standing> {
        let owner = self.lifeline.owner();
        let was_gone = std::mem::replace(&mut self.was_gone, owner == Owner::Gone);
        match owner {
            Owner::Nobody => return Ok(Standing::Removed),
            Owner::Other => return Ok(Standing::TakenOver),
            // One that is about to be the owner says so word by word.
            Owner::Gone if !was_gone => return Ok(Standing::InForce),
            Owner::This if self.is_linked() => return Ok(Standing::InForce),
            Owner::This | Owner::Gone => {}
        }
        // Taken back: nobody has them but this one.
        self.inherited = false;
        self.intercept()?;
        Ok(Standing::Restored)
    }

    /// Takes it back, unless another gate has taken over: connections reach the stores.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`].
    pub fn end(self) -> Result<()> {
        match self.lifeline.owner() {
            Owner::This => Self::remove(&self.directory()),
            Owner::Nobody | Owner::Other | Owner::Gone => Ok(()),
        }
    }

    fn intercept(&mut self) -> Result<()> {
        let before = self.entries()?;
        let used: BTreeSet<u32> = before.iter().map(|(_, of)| of.listener).collect();
        let counted: BTreeSet<u32> = before.iter().map(|(_, of)| of.counts).collect();
        let mut free = (0..maps::MOST_LISTENERS).filter(|place| !used.contains(place));
        let mut uncounted = (0..maps::MOST_ADDRESSES).filter(|place| !counted.contains(place));
        let lacks = |what: &str| Error::ObjectLacks { what: what.to_owned() };
        self.lifeline.own(self.stale_after, self.inherited);
        let mut wanted = Vec::new();
        for target in &self.targets {
            for listener in &target.listeners {
                let system = |source| Error::System { what: "asking a socket for its address", source };
                let at = listener.local_addr().map_err(system)?;
                let place = free.next().ok_or_else(|| lacks(maps::LISTENERS))?;
                let set = self.listeners.set(place, listener, 0);
                set.map_err(|source| Error::aya(maps::LISTENERS, source))?;
                let keys = target.addresses.iter().flat_map(|&address| keys(address));
                for key in keys.filter(|key| loopback(key.family) == at.ip()) {
                    let known = before.iter().find(|(known, _)| *known == key.to_bytes());
                    let counts = match known {
                        Some((_, known)) => known.counts,
                        None => uncounted.next().ok_or_else(|| lacks(maps::COUNTS))?,
                    };
                    let service = target.service;
                    match known {
                        Some(_) => {
                            let offset = offset_of!(InterceptCounts, service);
                            self.counts.store_at(counts as usize, offset, &service);
                        }
                        None => self.counts.store(
                            counts as usize,
                            &InterceptCounts { service, ..InterceptCounts::default() },
                        ),
                    }
                    let port = at.port().into();
                    wanted.push((key, Intercepted { listener: place, flags: flags(target), port, counts }));
                }
            }
        }
        for (key, value) in &wanted {
            let inserted = self.intercepted.insert(key.to_bytes(), value.to_bytes(), 0);
            inserted.map_err(|source| Error::aya(maps::INTERCEPTED, source))?;
        }
        for (key, _) in before.iter().filter(|(key, _)| wanted.iter().all(|(of, _)| of.to_bytes() != *key)) {
            // One that is gone already is as well.
            let _ = self.intercepted.remove(key);
        }
        self.pin_maps()?;
        self.attach()?;
        self.leaves_nothing = false;
        // What the gate before this one used. An empty place is an error that says nothing.
        used.iter().for_each(|place| drop(self.listeners.clear_index(place)));
        Ok(())
    }

    /// Takes the link and the maps below `directory` away, if there are any.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`].
    pub fn remove(directory: &Path) -> Result<()> {
        let pins = PinDir::interception(directory);
        if pins.exists() {
            PinDir::remove(&pins)?;
            // The XDP program's pins keep theirs.
            let _ = fs::remove_dir(directory);
        }
        Ok(())
    }

    /// The process id of another daemon that runs and owns the interception below `directory`.
    #[must_use]
    pub fn owner(directory: &Path) -> Option<u32> {
        other_owner(&pinned_state(&PinDir::interception(directory), false)?)
    }

    /// Takes the interception below `directory` from the gate that owns it, which ends when it finds out.
    pub fn disown(directory: &Path) {
        disown(&PinDir::interception(directory));
    }

    /// Below which directory it is pinned.
    fn directory(&self) -> PathBuf {
        self.pins.parent().map_or_else(PathBuf::new, Path::to_owned)
    }

    fn known(&self, key: InterceptKey) -> Option<Intercepted> {
        self.intercepted.get(&key.to_bytes(), 0).ok().map(Intercepted::from_bytes)
    }

    fn entries(&self) -> Result<Vec<([u8; 20], Intercepted)>> {
        let entries = self.intercepted.iter();
        let read = entries.map(|entry| entry.map(|(key, value)| (key, Intercepted::from_bytes(value))));
        read.collect::<std::result::Result<_, _>>().map_err(|source| Error::aya(maps::INTERCEPTED, source))
    }

    /// Pins what is not pinned any more: the gate before this one may have taken everything away at its end.
    fn pin_maps(&self) -> Result<()> {
        let pins = PinDir::make(&self.pins)?;
        let lacks = |name: &str| !pins.map(name).exists();
        for (name, map) in self.maps.iter().filter(|(name, _)| lacks(name)) {
            map.pin(pins.map(name)).map_err(|source| Error::aya(name, source))?;
        }
        Ok(())
    }

    /// True if the program is attached to this thread's network namespace.
    fn is_linked(&self) -> bool {
        namespace_of(&self.pins).is_ok_and(|of| this_namespace().is_ok_and(|this| of == this))
    }

    /// Attaches the program to this thread's network namespace, or gives it to the link that is there.
    fn attach(&mut self) -> Result<()> {
        let pin = link_at(&self.pins);
        let failed = |what| move |source| Error::System { what, source };
        let program = program(&mut self.ebpf)?;
        if pin.exists() {
            let fd = program.fd().map_err(|source| Error::aya(INTERCEPT_PROGRAM, source))?;
            match link::update(&pin, fd.as_fd()) {
                // The namespace that it was for is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {
                    fs::remove_file(&pin).map_err(failed("removing the link of interception"))?;
                }
                updated => return updated.map_err(failed("replacing the program of interception")),
            }
        }
        let namespace = File::open(NAMESPACE).map_err(failed("opening the network namespace"))?;
        let attached = program.attach(namespace);
        let id = attached.map_err(|source| Error::aya("attaching to the network namespace", source))?;
        let link = program.take_link(id).map_err(|source| Error::aya(INTERCEPT_PROGRAM, source))?;
        let link = FdLink::from(link);
        link.pin(&pin).map_err(|source| Error::aya("pinning the link of interception", source))?;
        self.lifeline.attached();
        Ok(())
    }
}

impl std::fmt::Debug for Interception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interception").field("pins", &self.pins).finish_non_exhaustive()
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if self.leaves_nothing
            && let Err(error) = Self::remove(&self.directory())
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "pins were left behind");
        }
    }
}

fn flags(target: &Target) -> u32 {
    let flag = |on: bool, flag| if on { flag } else { 0 };
    flag(target.local, intercept_flags::LOCAL) | flag(target.refuse, intercept_flags::REFUSE)
}

fn program(ebpf: &mut Ebpf) -> Result<&mut SkLookup> {
    let lacks = || Error::ObjectLacks { what: INTERCEPT_PROGRAM.to_owned() };
    let program = ebpf.program_mut(INTERCEPT_PROGRAM).ok_or_else(lacks)?;
    program.try_into().map_err(|source| Error::aya(INTERCEPT_PROGRAM, source))
}

fn link_at(pins: &Path) -> PathBuf {
    super::pins::link(pins, 0)
}

fn namespace_of(pins: &Path) -> Result<u64> {
    let what = "asking the link of interception for its network namespace";
    link::namespace(&link_at(pins)).map_err(|source| Error::System { what, source })
}

fn this_namespace() -> Result<u64> {
    let file = fs::metadata(NAMESPACE);
    Ok(file.map_err(|source| Error::System { what: "reading the network namespace", source })?.ino())
}

/// This thread's.
const NAMESPACE: &str = "/proc/thread-self/ns/net";
