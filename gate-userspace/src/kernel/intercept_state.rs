//! The pinned state of interception: who intercepts, and whether it lives.

use std::mem::offset_of;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aya::maps::{MapInfo, MapType};
use gate_common::abi::{INTERCEPT_VERSION, InterceptCounts, InterceptState, intercept_maps as maps};
use gate_common::units::Nanos;

use super::arrays::{self, shape_of};
use super::error::{Error, Result};
use super::mapped::Mapped;
use super::owner::{self, Predecessor};
use super::shape::{BPF_F_MMAPABLE, Shape};
use crate::clock;

/// Where this process shows that it lives, once it owns the interception.
#[derive(Clone, Debug)]
pub struct Lifeline {
    state: Arc<Mapped<InterceptState>>,
    /// Its id, and when it was started.
    process: (u32, u64),
    /// True once it has owned the interception.
    has_owned: Arc<AtomicBool>,
}

/// The owner of the interception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This process.
    This,
    /// None: it was taken from the owner.
    Nobody,
    /// Another process, which runs.
    Other,
    /// A process that has ended.
    Gone,
}

impl Lifeline {
    pub(super) fn new(state: Mapped<InterceptState>) -> Result<Self> {
        let process = owner::this_process()?;
        Ok(Self { state: Arc::new(state), process, has_owned: Arc::default() })
    }

    /// A sign of life. One that has taken over shows its own: a gate that it took over from shows none in its place.
    pub(super) fn beat(&self) {
        if self.has_owned.load(Ordering::Relaxed) && self.owner() != Owner::This {
            return;
        }
        self.store(offset_of!(InterceptState, heartbeat_ns), clock::monotonic().0.max(1));
    }

    /// Makes this process the owner. If it `inherited` the sockets of the owner before it, that one may close its own at once.
    pub(super) fn own(&self, stale_after: Nanos, inherited: bool) {
        let (pid, start) = self.process;
        self.store(offset_of!(InterceptState, inherited), inherited.into());
        self.store(offset_of!(InterceptState, owner_pid), pid.into());
        self.store(offset_of!(InterceptState, owner_start), start);
        self.store(offset_of!(InterceptState, stale_after_ns), stale_after.0);
        self.store(offset_of!(InterceptState, version), INTERCEPT_VERSION.into());
        self.has_owned.store(true, Ordering::Relaxed);
        self.beat();
    }

    /// Notes that the program has been attached now.
    pub(super) fn attached(&self) {
        self.store(offset_of!(InterceptState, attached_ns), clock::monotonic().0);
    }

    /// True if another gate owns the interception, and listens with the sockets of the one before it.
    pub(super) fn is_handed_on(&self) -> bool {
        self.owner() == Owner::Other && self.state.load(0).inherited == 1
    }

    /// The owner, if it is another process that runs.
    pub(super) fn predecessor(&self) -> Result<Option<Predecessor>> {
        let state = self.state.load(0);
        Predecessor::open(state.owner_pid as u32, state.owner_start)
    }

    pub(super) fn owner(&self) -> Owner {
        let state = self.state.load(0);
        let pid = state.owner_pid as u32;
        match pid {
            0 => Owner::Nobody,
            _ if (pid, state.owner_start) == self.process => Owner::This,
            _ if owner::is_running(pid, state.owner_start) => Owner::Other,
            _ => Owner::Gone,
        }
    }

    fn store(&self, offset: usize, value: u64) {
        self.state.word(0, offset).store(value, Ordering::Relaxed);
    }
}

/// The process id of a daemon other than this one that runs and owns the interception that is pinned there.
pub(super) fn other_owner(state: &Mapped<InterceptState>) -> Option<u32> {
    running_owner(&state.load(0)).filter(|&pid| pid != std::process::id())
}

/// The process id of the owner, if that runs.
pub(super) fn running_owner(state: &InterceptState) -> Option<u32> {
    let pid = state.owner_pid as u32;
    (pid == std::process::id() || owner::is_running(pid, state.owner_start)).then_some(pid)
}

/// An error if another daemon owns the interception.
pub(super) fn no_other_owner(state: &Mapped<InterceptState>) -> Result<()> {
    other_owner(state).map_or(Ok(()), |pid| Err(Error::Owned { pid }))
}

/// Takes the interception that is pinned there from its owner, which finds out when it looks.
pub(super) fn disown(pins: &Path) {
    if let Some(state) = pinned_state(pins, true) {
        state.word(0, offset_of!(InterceptState, owner_pid)).store(0, Ordering::Relaxed);
    }
}

/// The state in the pinned maps, if they are of this version and of the shapes that it needs.
pub(super) fn pinned_state(pins: &Path, writable: bool) -> Option<Mapped<InterceptState>> {
    let expected = [
        (maps::STATE, MapType::Array, (4, size_of::<InterceptState>()), 1, BPF_F_MMAPABLE),
        (maps::INTERCEPTED, MapType::Hash, (20, 16), maps::MOST_ADDRESSES, 0),
        (maps::LISTENERS, MapType::SockMap, (4, 4), maps::MOST_LISTENERS, 0),
        (
            maps::COUNTS,
            MapType::Array,
            (4, size_of::<InterceptCounts>()),
            maps::MOST_ADDRESSES,
            BPF_F_MMAPABLE,
        ),
    ];
    for (name, map_type, (key_size, value_size), entries, flags) in expected {
        let info = MapInfo::from_pin(pins.join(name)).ok()?;
        let value_size = value_size as u32;
        if shape_of(name, &info).ok()? != (Shape { map_type, key_size, value_size, entries, flags }) {
            return None;
        }
    }
    let state: Mapped<InterceptState> =
        arrays::array(maps::STATE, writable, |name| arrays::data_of_pin(pins, name)).ok()?;
    Some(state).filter(|state| state.load(0).version == u64::from(INTERCEPT_VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_shows_no_sign_of_life_in_the_place_of_another() {
        let lifeline = Lifeline::new(Mapped::private(1).unwrap()).unwrap();
        let heartbeat = || lifeline.state.load(0).heartbeat_ns;
        let forget = || lifeline.store(offset_of!(InterceptState, heartbeat_ns), 0);
        // One that is about to take over.
        lifeline.beat();
        assert!(heartbeat() > 0);
        lifeline.own(Nanos::from_secs(1), false);
        assert_eq!(lifeline.owner(), Owner::This);
        // Another has: the first process of the machine, which is there for as long as this one.
        let start = owner::start_time(1).unwrap();
        for (pid, start, expected) in
            [(1, start, Owner::Other), (1, start + 1, Owner::Gone), (0, 0, Owner::Nobody)]
        {
            lifeline.store(offset_of!(InterceptState, owner_pid), pid);
            lifeline.store(offset_of!(InterceptState, owner_start), start);
            forget();
            lifeline.beat();
            assert_eq!((lifeline.owner(), heartbeat()), (expected, 0));
        }
        lifeline.own(Nanos::from_secs(1), false);
        assert!(heartbeat() > 0);
    }
}
