//! Which requests are expected to take the same time, as far as their price goes.
//!
//! There is room for eight such classes of a service, in what XDP reads ([`ServiceState::latency_mru`]). XDP prices the
//! commands of memcached alone, so these are in the classes that it tells apart ([`QueryClass`]). Those of Redis, which
//! has more of them, are grouped by what their work depends on: a key, several keys, a part of a key, or all that is in it.
//!
//! In both, the first is the read of one key, and the last what could not be read.
//!
//! [`ServiceState::latency_mru`]: gate_common::abi::ServiceState::latency_mru

use gate_common::abi::QueryClass;

use super::Class;

/// A class of requests that are expected to take the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceClass(u8);

/// The names of the classes, in their order.
pub type Names = [&'static str; QueryClass::COUNT];

impl PriceClass {
    /// Reads of one key's whole value.
    pub const GET: Self = Self(QueryClass::Get as u8);
    /// Whatever has no class of its own.
    pub const OTHER: Self = Self(QueryClass::Other as u8);

    /// Those of memcached.
    pub const OF_MEMCACHED: Names = ["get", "mget", "set", "delete", "counter", "touch", "other", "unread"];
    /// Those of Redis.
    pub const OF_REDIS: Names = ["get", "mget", "write", "read", "range", "combine", "other", "unread"];

    /// That of a request to memcached, as XDP has it.
    #[must_use]
    pub const fn of_memcached(class: Class) -> Self {
        Self(match class {
            Class::Get => QueryClass::Get,
            Class::Mget => QueryClass::MultiGet,
            Class::Set => QueryClass::Set,
            Class::Delete => QueryClass::Delete,
            Class::Counter => QueryClass::Arithmetic,
            Class::Touch => QueryClass::Touch,
            Class::Mset
            | Class::Read
            | Class::Write
            | Class::Range
            | Class::Collection
            | Class::Combine
            | Class::Scan
            | Class::Script
            | Class::Transaction
            | Class::Blocking
            | Class::Pubsub
            | Class::Connection
            | Class::Admin
            | Class::Unknown => QueryClass::Other,
        } as u8)
    }

    /// Those of HTTP: reads and writes without a route of their own, then the first routes' query types.
    pub const OF_HTTP: Names =
        ["read", "write", "route-1", "route-2", "route-3", "route-4", "other", "unread"];

    /// That of a request by HTTP whose query type has this place: the types of the first four routes have one each, which
    /// learned prices tell apart.
    #[must_use]
    pub const fn of_http(place: usize) -> Self {
        const READ: usize = Class::Read.index();
        const WRITE: usize = Class::Write.index();
        match place {
            READ => Self::GET,
            WRITE => Self(1),
            _ if place >= Class::ALL.len() && place < Class::ALL.len() + 4 => {
                Self((place - Class::ALL.len()) as u8 + 2)
            }
            _ => Self::OTHER,
        }
    }

    /// That of a request to Redis.
    #[must_use]
    pub const fn of_redis(class: Class) -> Self {
        match class {
            Class::Get => Self::GET,
            Class::Mget => Self(1),
            Class::Set | Class::Mset | Class::Delete | Class::Counter | Class::Touch | Class::Write => {
                Self(2)
            }
            Class::Read => Self(3),
            // Most unknown commands are a module's: they may walk over as much as a scan does.
            Class::Range | Class::Collection | Class::Scan | Class::Unknown => Self(4),
            Class::Combine => Self(5),
            Class::Script
            | Class::Transaction
            | Class::Blocking
            | Class::Pubsub
            | Class::Connection
            | Class::Admin => Self::OTHER,
        }
    }

    /// Its place among them.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        // All places are below.
        self.0 as usize % QueryClass::COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_a_name_that_says_what_is_in_it() {
        use Class::*;
        for (class, memcached, redis) in [
            (Get, "get", "get"),
            (Mget, "mget", "mget"),
            (Set, "set", "write"),
            (Mset, "other", "write"),
            (Delete, "delete", "write"),
            (Counter, "counter", "write"),
            (Touch, "touch", "write"),
            (Read, "other", "read"),
            (Write, "other", "write"),
            (Range, "other", "range"),
            (Collection, "other", "range"),
            (Combine, "other", "combine"),
            (Scan, "other", "range"),
            (Script, "other", "other"),
            (Unknown, "other", "range"),
        ] {
            let named = [
                PriceClass::OF_MEMCACHED[PriceClass::of_memcached(class).index()],
                PriceClass::OF_REDIS[PriceClass::of_redis(class).index()],
            ];
            assert_eq!(named, [memcached, redis], "{class:?}");
        }
        for names in [PriceClass::OF_MEMCACHED, PriceClass::OF_REDIS] {
            assert_eq!(names[QueryClass::Unread as usize], "unread");
            assert_eq!(names[PriceClass::OTHER.index()], "other");
        }
    }
}
