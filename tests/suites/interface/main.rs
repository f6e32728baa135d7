//! The program at the interface: what it does to packets that real sockets, other CPUs and models send.
//!
//! The packets' rows themselves are the suite `fixtures`.

mod connections;
mod counters;
mod differential;
mod executed;
mod hot_keys;
mod key_limits;
mod limits;
mod memcached;
mod oracle;
mod racing;
mod replies;
mod scale;
