//! The table of behaviours of careless and hostile tenants, and the measurement of a polite tenant beside each.
//!
//! `cargo xtask bench isolation` measures every behaviour directly at the store and through gate, and writes
//! docs/ISOLATION.md; the suite `proxy`, module `isolation::behaviours`, runs the same table through gate at reduced
//! size. Everything happens on loopback: each tenant has a prefix of 127.0.0.0/8 as its source.
//!
//! A behaviour is bounded in count and time. Its threads give way to all others (`SCHED_IDLE`): on a machine of its own a hostile tenant takes
//! no processor from the store, from gate or from the polite tenant.

mod connections;
mod datagrams;
mod dear;
mod hostile;
mod memcached;
mod not_kept;
mod operation;
mod polite;
mod redis;
mod site;
mod traffic;

use std::net::Ipv4Addr;
use std::time::Duration;

pub use hostile::{Hostile, give_way};
pub use not_kept::{Breaks, NOT_KEPT, NotKept};
pub use polite::Seen;
pub use site::{Gate, Measured, Site, Target};

use anyhow::Result;

/// The store that a behaviour is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Debian's memcached with its defaults, and datagrams.
    Memcached,
    /// Debian's Redis with its defaults, which saves nothing.
    Redis,
}

impl Store {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "Redis",
        }
    }
}

/// The origin of a behaviour's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A tenant with a quota, to whom the commands are denied that docs/CONFIGURATION.md recommends, and scripts.
    Tenant,
    /// A tenant with the same quota to whom nothing is denied.
    Privileged,
    /// A source that no tenant names.
    Unknown,
    /// Datagrams that name an address of the polite tenant as their sender.
    Forged,
}

impl Origin {
    /// An address of it; there are as many as a port has room for many connections.
    #[must_use]
    pub fn address(self, number: u64) -> Ipv4Addr {
        let host = 1 + (number % 250) as u8;
        match self {
            Self::Tenant => Ipv4Addr::new(127, 0, 5, host),
            Self::Privileged => Ipv4Addr::new(127, 0, 7, host),
            Self::Unknown => Ipv4Addr::new(127, 9, 0, host),
            Self::Forged => POLITE,
        }
    }
}

/// The address of the polite tenant.
pub const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 6, 1);

/// A section of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Connections: many, new, idle, half-open, slow.
    Connections,
    /// Requests to memcached.
    Memcached,
    /// Datagrams to memcached.
    Datagrams,
    /// Requests to Redis.
    Redis,
    /// One dear command of Redis at a time.
    Dear,
    /// The operator's work meanwhile.
    Operation,
}

impl Group {
    /// All of them, in the table's order.
    pub const ALL: [Self; 6] =
        [Self::Connections, Self::Memcached, Self::Datagrams, Self::Redis, Self::Dear, Self::Operation];

    /// Its heading in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "Connections",
            Self::Memcached => "Requests to memcached",
            Self::Datagrams => "Datagrams to memcached",
            Self::Redis => "Requests to Redis",
            Self::Dear => "One dear command of Redis at a time",
            Self::Operation => "While the operator works",
        }
    }

    fn behaviours(self) -> Vec<Behaviour> {
        match self {
            Self::Connections => connections::behaviours(),
            Self::Memcached => memcached::behaviours(),
            Self::Datagrams => datagrams::behaviours(),
            Self::Redis => redis::behaviours(),
            Self::Dear => dear::behaviours(),
            Self::Operation => operation::behaviours(),
        }
    }
}

/// One thing that a careless or hostile tenant does.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Its name, distinct.
    pub name: &'static str,
    /// A sentence that says what it does.
    pub does: &'static str,
    /// The store that it is about.
    pub store: Store,
    /// The origin of its connections.
    pub origin: Origin,
    /// Its section of the table.
    pub group: Group,
    /// False if there is nothing to do without a gate.
    pub directly: bool,
    /// True if the polite tenant's requests may wait for it, and must not fail.
    pub may_wait: bool,
    /// A script that fills Redis for it; its argument is the number of elements.
    fill: &'static str,
    run: fn(&Hostile<'_>) -> Result<()>,
}

impl Behaviour {
    fn new(
        group: Group,
        store: Store,
        name: &'static str,
        does: &'static str,
        run: fn(&Hostile<'_>) -> Result<()>,
    ) -> Self {
        Self {
            name,
            does,
            store,
            origin: Origin::Tenant,
            group,
            directly: true,
            may_wait: false,
            fill: "",
            run,
        }
    }

    fn by(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    fn through_gate_only(self) -> Self {
        Self { directly: false, ..self }
    }

    /// The reason for which a polite tenant feels it all the same, if one is known.
    #[must_use]
    pub fn not_kept(&self) -> Option<&'static NotKept> {
        NOT_KEPT.iter().find(|entry| entry.name == self.name)
    }
}

/// The highest p99 that counts as kept, of a polite tenant with this p99 on its own.
#[must_use]
pub fn limit(baseline: Duration) -> Duration {
    (baseline * 2).max(baseline + Duration::from_millis(1))
}

/// The table, in the order of [`Group::ALL`].
#[must_use]
pub fn behaviours() -> Vec<Behaviour> {
    Group::ALL.into_iter().flat_map(Group::behaviours).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{NOT_KEPT, behaviours};

    #[test]
    fn there_are_forty_behaviours_with_distinct_names() {
        let behaviours = behaviours();
        let names: BTreeSet<_> = behaviours.iter().map(|behaviour| behaviour.name).collect();
        assert_eq!(names.len(), behaviours.len());
        assert!(names.len() >= 40, "{}", names.len());
        assert!(behaviours.iter().all(|behaviour| behaviour.does.ends_with('.')));
    }

    #[test]
    fn what_is_not_kept_names_behaviours_once() {
        let names: BTreeSet<_> = behaviours().iter().map(|behaviour| behaviour.name).collect();
        let listed: BTreeSet<_> = NOT_KEPT.iter().map(|entry| entry.name).collect();
        assert!(listed.is_subset(&names), "{:?}", listed.difference(&names));
        assert_eq!(listed.len(), NOT_KEPT.len());
    }
}
