//! The interception that is pinned, for whoever only looks: read from the kernel, whichever process has put it there.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use aya::maps::{HashMap, Map, MapData};
use gate_common::abi::{
    InterceptCounts, InterceptKey, InterceptState, Intercepted, intercept_flags, intercept_maps as maps,
};
use gate_common::units::Nanos;

use super::arrays;
use super::intercept_state::{pinned_state, running_owner};
use super::link;
use super::mapped::Mapped;
use super::pins::{self, PinDir};

/// An interception, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptionView {
    /// True if the program is attached to a network namespace that is there.
    pub is_attached: bool,
    /// When it was attached, on the monotonic clock.
    pub attached_at: Nanos,
    /// The process id of the gate that owns it, if that runs.
    pub owner: Option<u32>,
    /// The last sign of life of an owner, on the monotonic clock; zero if there was none.
    pub heartbeat: Nanos,
    /// A sign of life older than this is stale.
    pub stale_after: Nanos,
    /// In their order.
    pub addresses: Vec<InterceptedAddress>,
}

/// An address that is intercepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptedAddress {
    /// The store's address; `0.0.0.0` or `[::]` for all of a family.
    pub address: SocketAddr,
    /// The service's name.
    pub service: String,
    /// True if connections from the machine itself are intercepted as well.
    pub local: bool,
    /// True if connections are refused while no gate lives; else they reach the store.
    pub refuses: bool,
    /// New connections that gate got.
    pub given: u64,
    /// New connections that the store got, as no gate lived.
    pub passed: u64,
    /// New connections that were refused, as no gate lived.
    pub refused: u64,
}

/// The end of a client's next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaches {
    /// gate gets it.
    Gate,
    /// The store gets it.
    Store(Lost),
    /// A refusal.
    Nobody(Lost),
}

/// Why gate gets no connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The program is not attached.
    NotAttached,
    /// The owner has ended.
    Gone,
    /// The owner runs, and its last sign of life is too old.
    Stale,
}

impl InterceptionView {
    /// Reads the pins below `directory`; `None` if there are none of this version, or they may not be read.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        let pins = PinDir::interception(directory);
        let state: InterceptState = pinned_state(&pins, false)?.load(0);
        let counts = arrays::array(maps::COUNTS, false, |name| arrays::data_of_pin(&pins, name)).ok()?;
        let map = Map::HashMap(MapData::from_pin(pins.join(maps::INTERCEPTED)).ok()?);
        let map: HashMap<MapData, [u8; 20], [u8; 16]> = HashMap::try_from(map).ok()?;
        let entries = map.iter().filter_map(Result::ok);
        let mut addresses: Vec<_> = entries
            .map(|(key, value)| InterceptedAddress::of(key, Intercepted::from_bytes(value), &counts))
            .collect();
        addresses.sort_by(|one, other| (&one.service, one.address).cmp(&(&other.service, other.address)));
        Some(Self {
            is_attached: link::namespace(&pins::link(&pins, 0)).is_ok_and(|namespace| namespace != 0),
            attached_at: Nanos(state.attached_ns),
            owner: running_owner(&state),
            heartbeat: Nanos(state.heartbeat_ns),
            stale_after: Nanos(state.stale_after_ns),
            addresses,
        })
    }

    /// True if the last sign of life of the owner is too old at `now`.
    #[must_use]
    pub fn is_stale(&self, now: Nanos) -> bool {
        InterceptState::is_stale(self.heartbeat.0, self.stale_after.0, now.0)
    }

    /// The end of the next connection of a client to one of its addresses.
    #[must_use]
    pub fn reaches(&self, address: &InterceptedAddress, now: Nanos) -> Reaches {
        let lost = match self.owner {
            // Without the program nothing is refused either.
            _ if !self.is_attached => return Reaches::Store(Lost::NotAttached),
            // A listener leaves the map with its process, however fresh the sign of life is.
            None => Lost::Gone,
            Some(_) if self.is_stale(now) => Lost::Stale,
            Some(_) => return Reaches::Gate,
        };
        if address.refuses { Reaches::Nobody(lost) } else { Reaches::Store(lost) }
    }
}

impl InterceptedAddress {
    fn of(key: [u8; 20], value: Intercepted, counts: &Mapped<InterceptCounts>) -> Self {
        let InterceptKey { address, port, family } = InterceptKey::from_bytes(key);
        let ip = Ipv6Addr::from(address);
        let ip = match family {
            InterceptKey::V6 => ip.into(),
            _ => ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED).into(),
        };
        let place = value.counts as usize;
        let counts = if place < counts.len() { counts.load(place) } else { InterceptCounts::default() };
        Self {
            address: SocketAddr::new(ip, port),
            service: counts.service.as_str().to_owned(),
            local: value.flags & intercept_flags::LOCAL != 0,
            refuses: value.flags & intercept_flags::REFUSE != 0,
            given: counts.given,
            passed: counts.passed,
            refused: counts.refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_reach_gate_only_while_it_lives_and_is_attached() {
        let address = |refuses| InterceptedAddress {
            address: "198.18.0.1:7".parse().unwrap(),
            service: "redis".to_owned(),
            local: false,
            refuses,
            given: 0,
            passed: 0,
            refused: 0,
        };
        let view = |is_attached, owner, heartbeat| InterceptionView {
            is_attached,
            attached_at: Nanos(1),
            owner,
            heartbeat: Nanos(heartbeat),
            stale_after: Nanos(1_000),
            addresses: Vec::new(),
        };
        let now = Nanos(5_000);
        for (view, passing, refusing) in [
            (view(true, Some(1), 4_000), Reaches::Gate, Reaches::Gate),
            (view(true, Some(1), 3_999), Reaches::Store(Lost::Stale), Reaches::Nobody(Lost::Stale)),
            (view(true, Some(1), 0), Reaches::Store(Lost::Stale), Reaches::Nobody(Lost::Stale)),
            (view(true, None, 4_999), Reaches::Store(Lost::Gone), Reaches::Nobody(Lost::Gone)),
            (
                view(false, Some(1), 4_999),
                Reaches::Store(Lost::NotAttached),
                Reaches::Store(Lost::NotAttached),
            ),
        ] {
            assert_eq!(view.reaches(&address(false), now), passing, "{view:?}");
            assert_eq!(view.reaches(&address(true), now), refusing, "{view:?}");
        }
    }
}
