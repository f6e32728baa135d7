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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aya::maps::{HashMap, MapData, MapInfo, MapType, SockMap};
use aya::programs::SkLookup;
use aya::programs::links::FdLink;
use aya::{Ebpf, EbpfLoader};
use gate_common::abi::{
    INTERCEPT_PROGRAM, INTERCEPT_VERSION, InterceptKey, InterceptState, Intercepted, OWN_SOURCE,
    intercept_flags, intercept_maps as maps,
};
use gate_common::units::Nanos;

use super::arrays::{self, shape_of};
use super::error::{Error, Result};
use super::mapped::Mapped;
use super::pins::PinDir;
use super::shape::{BPF_F_MMAPABLE, Shape};
use super::{link, object, owner, requirements};
use crate::clock;

/// A service whose connections gate is to get.
#[derive(Debug)]
pub struct Target {
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
    state: Arc<Mapped<InterceptState>>,
    intercepted: HashMap<MapData, [u8; 20], [u8; 12]>,
    listeners: SockMap<MapData>,
    pins: PathBuf,
    /// True until it is in force, if nothing was pinned before.
    leaves_nothing: bool,
}

/// Where the daemon shows that it lives.
#[derive(Clone, Debug)]
pub struct Lifeline(Arc<Mapped<InterceptState>>);

impl Lifeline {
    /// A sign of life.
    pub(super) fn beat(&self) {
        let heartbeat = self.0.word(0, offset_of!(InterceptState, heartbeat_ns));
        heartbeat.store(clock::monotonic().0.max(1), Ordering::Relaxed);
    }
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
        match pinned_state(&pins) {
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
        let state: Mapped<InterceptState> = arrays::of_object(&ebpf, maps::STATE)?;
        let mut take = |name| {
            let map = ebpf.take_map(name);
            map.ok_or_else(|| Error::ObjectLacks { what: name.to_owned() })
        };
        let intercepted = HashMap::try_from(take(maps::INTERCEPTED)?);
        let intercepted = intercepted.map_err(|source| Error::aya(maps::INTERCEPTED, source))?;
        let listeners = SockMap::try_from(take(maps::LISTENERS)?);
        let listeners = listeners.map_err(|source| Error::aya(maps::LISTENERS, source))?;
        let state = Arc::new(state);
        let pins = pins.path().to_owned();
        Ok(Self { ebpf, state, intercepted, listeners, pins, leaves_nothing })
    }

    /// Below which directory it is pinned.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.pins.parent().map_or_else(PathBuf::new, Path::to_owned)
    }

    /// Where signs of life are to be shown.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        Lifeline(Arc::clone(&self.state))
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

    /// Intercepts what the `targets` say, and nothing else. The program is attached, or takes the place of the one before.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn put_in_force(&mut self, targets: &[Target], stale_after: Nanos) -> Result<()> {
        let before = self.entries()?;
        let used: BTreeSet<u32> = before.iter().map(|(_, of)| of.listener).collect();
        let mut free = (0..maps::MOST_LISTENERS).filter(|place| !used.contains(place));
        self.own(stale_after)?;
        let mut wanted = Vec::new();
        for target in targets {
            for listener in &target.listeners {
                let system = |source| Error::System { what: "asking a socket for its address", source };
                let at = listener.local_addr().map_err(system)?;
                let place =
                    free.next().ok_or_else(|| Error::ObjectLacks { what: maps::LISTENERS.to_owned() })?;
                let set = self.listeners.set(place, listener, 0);
                set.map_err(|source| Error::aya(maps::LISTENERS, source))?;
                let value = Intercepted { listener: place, flags: flags(target), port: at.port().into() };
                let keys = target.addresses.iter().flat_map(|&address| keys(address));
                let own = keys.filter(|key| loopback(key.family) == at.ip());
                wanted.extend(own.map(|key| (key, value)));
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
        let state = pinned_state(&PinDir::interception(directory))?;
        no_other_owner(&state).is_err().then_some(state.owner_pid as u32)
    }

    fn known(&self, key: InterceptKey) -> Option<Intercepted> {
        self.intercepted.get(&key.to_bytes(), 0).ok().map(Intercepted::from_bytes)
    }

    fn entries(&self) -> Result<Vec<([u8; 20], Intercepted)>> {
        let entries = self.intercepted.iter();
        let read = entries.map(|entry| entry.map(|(key, value)| (key, Intercepted::from_bytes(value))));
        read.collect::<std::result::Result<_, _>>().map_err(|source| Error::aya(maps::INTERCEPTED, source))
    }

    /// Makes this process the owner.
    fn own(&self, stale_after: Nanos) -> Result<()> {
        let (pid, start) = owner::this_process()?;
        let store = |offset, value| self.state.word(0, offset).store(value, Ordering::Relaxed);
        store(offset_of!(InterceptState, owner_pid), pid.into());
        store(offset_of!(InterceptState, owner_start), start);
        store(offset_of!(InterceptState, stale_after_ns), stale_after.0);
        store(offset_of!(InterceptState, version), INTERCEPT_VERSION.into());
        self.lifeline().beat();
        Ok(())
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

/// The source of gate's own connections to a store at `address`, by which the program knows them.
#[must_use]
pub fn own_source(address: IpAddr, local: bool) -> IpAddr {
    match address {
        IpAddr::V4(_) if local => Ipv4Addr::from(OWN_SOURCE).into(),
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The loopback addresses that a store at these addresses needs a listener at.
#[must_use]
pub fn loopbacks(addresses: &[SocketAddr]) -> Vec<IpAddr> {
    let keys = || addresses.iter().flat_map(|&address| keys(address));
    let families = [InterceptKey::V4, InterceptKey::V6];
    let needed = families.into_iter().filter(|&family| keys().any(|key| key.family == family));
    needed.map(loopback).collect()
}

/// The keys of an address; `[::]` stands for every address of both families.
fn keys(address: SocketAddr) -> impl Iterator<Item = InterceptKey> {
    let key = |family, address| InterceptKey { address, port: 0, family };
    let keys = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => [Some(key(InterceptKey::V4, [0; 16])), None],
        IpAddr::V4(ip) => [Some(key(InterceptKey::V4, ip.to_ipv6_mapped().octets())), None],
        IpAddr::V6(ip) if ip.is_unspecified() => {
            [InterceptKey::V4, InterceptKey::V6].map(|family| Some(key(family, [0; 16])))
        }
        IpAddr::V6(ip) => [Some(key(InterceptKey::V6, ip.octets())), None],
    };
    keys.into_iter().flatten().map(move |key| InterceptKey { port: address.port(), ..key })
}

const fn loopback(family: u16) -> IpAddr {
    match family {
        InterceptKey::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

fn flags(target: &Target) -> u32 {
    let flag = |on: bool, flag| if on { flag } else { 0 };
    flag(target.local, intercept_flags::LOCAL) | flag(target.refuse, intercept_flags::REFUSE)
}

/// The state in the pinned maps, if they are of this version and of the shapes that it needs.
fn pinned_state(pins: &Path) -> Option<InterceptState> {
    let expected = [
        (maps::STATE, MapType::Array, (4, size_of::<InterceptState>()), 1, BPF_F_MMAPABLE),
        (maps::INTERCEPTED, MapType::Hash, (20, 12), maps::MOST_ADDRESSES, 0),
        (maps::LISTENERS, MapType::SockMap, (4, 4), maps::MOST_LISTENERS, 0),
    ];
    for (name, map_type, (key_size, value_size), entries, flags) in expected {
        let info = MapInfo::from_pin(pins.join(name)).ok()?;
        let value_size = value_size as u32;
        if shape_of(name, &info).ok()? != (Shape { map_type, key_size, value_size, entries, flags }) {
            return None;
        }
    }
    let state: Mapped<InterceptState> =
        arrays::array(maps::STATE, false, |name| arrays::data_of_pin(pins, name)).ok()?;
    Some(state.load(0)).filter(|state| state.version == u64::from(INTERCEPT_VERSION))
}

/// An error if another daemon owns the maps.
fn no_other_owner(state: &InterceptState) -> Result<()> {
    let pid = state.owner_pid as u32;
    let is_other = pid != std::process::id() && owner::is_running(pid, state.owner_start);
    if is_other { Err(Error::Owned { pid }) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_of_ipv6_stands_for_both_families() {
        let of = |text: &str| {
            let keys = keys(text.parse().unwrap());
            keys.map(|key| (key.family, Ipv6Addr::from(key.address).to_string(), key.port))
                .collect::<Vec<_>>()
        };
        let zeros = "::".to_owned();
        assert_eq!(of("198.18.0.1:7"), [(4, "::ffff:198.18.0.1".to_owned(), 7)]);
        assert_eq!(of("0.0.0.0:7"), [(4, zeros.clone(), 7)]);
        assert_eq!(of("[fd00::1]:7"), [(6, "fd00::1".to_owned(), 7)]);
        assert_eq!(of("[::]:7"), [(4, zeros.clone(), 7), (6, zeros, 7)]);
        let at = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(loopbacks(&at(&["198.18.0.1:7", "0.0.0.0:8"])), [Ipv4Addr::LOCALHOST]);
        assert_eq!(loopbacks(&at(&["[fd00::1]:7"])), [Ipv6Addr::LOCALHOST]);
        assert_eq!(loopbacks(&at(&["[::]:7"])).len(), 2);
    }
}
