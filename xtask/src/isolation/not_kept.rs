//! The behaviours that a polite tenant feels through gate all the same, each with its reason.
//!
//! The suite expects of these what it says here: one that starts to hold fails the suite, and is then removed.

/// The effect on the polite tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaks {
    /// Requests of the polite tenant fail.
    Errors,
    /// Its p99 is above the limit.
    Latency,
    /// Its p99 is near the limit, above in some runs and below in others.
    Sometimes,
}

/// A behaviour that is felt.
#[derive(Clone, Copy, Debug)]
pub struct NotKept {
    /// The behaviour's name.
    pub name: &'static str,
    /// Its effect.
    pub breaks: Breaks,
    /// The reason, in sentences.
    pub reason: &'static str,
}

/// All of them.
pub const NOT_KEPT: &[NotKept] = &[
    NotKept {
        name: "`flush_all` by one who may",
        breaks: Breaks::Errors,
        reason: "The tenant is allowed to do it, and it concerns all: memcached has one key space. Deny it (`deny`, or `keys = \"own\"`), \
                 as is done for the hostile tenant.",
    },
    NotKept {
        name: "a flood from a forged sender",
        breaks: Breaks::Errors,
        reason: "Nothing in a datagram proves its sender, so whoever forges one spends the quota of the tenant that it names. It costs \
                 that tenant its quota and never its connections. Serve datagrams only where the network checks source addresses, or \
                 leave `transports` at its default, TCP.",
    },
    NotKept { name: "huge hashes and sets", breaks: Breaks::Latency, reason: UNKNOWN_SIZE },
    NotKept { name: "unions of large sets", breaks: Breaks::Latency, reason: UNKNOWN_SIZE },
    NotKept { name: "sorting", breaks: Breaks::Latency, reason: UNKNOWN_SIZE },
    NotKept { name: "removal of large keys", breaks: Breaks::Latency, reason: UNKNOWN_SIZE },
    NotKept { name: "huge ranges", breaks: Breaks::Sometimes, reason: UNKNOWN_SIZE },
    NotKept { name: "a pipeline of sorting", breaks: Breaks::Sometimes, reason: UNKNOWN_SIZE },
    NotKept { name: "reads of huge values", breaks: Breaks::Sometimes, reason: TRANSFERS },
    NotKept { name: "huge values", breaks: Breaks::Sometimes, reason: TRANSFERS },
    NotKept {
        name: "scripts by one who may",
        breaks: Breaks::Latency,
        reason: "Redis runs one request at a time, a script to its end, and nobody knows before how long it takes. `deny_scripts = \"on\"` \
                 refuses them, as is done for the hostile tenant.",
    },
    NotKept {
        name: "`KEYS` by one who may",
        breaks: Breaks::Latency,
        reason: "Redis runs one request at a time, and walks over all keys for this one. It is among the commands that are recommended \
                 for `deny`, as is done for the hostile tenant.",
    },
    NotKept { name: "idle connections", breaks: Breaks::Sometimes, reason: BURST },
    NotKept { name: "idle connections of the unknown", breaks: Breaks::Sometimes, reason: BURST },
    NotKept { name: "half a request", breaks: Breaks::Sometimes, reason: BURST },
    NotKept { name: "half a value", breaks: Breaks::Sometimes, reason: BURST },
    NotKept { name: "takeovers beside idle connections", breaks: Breaks::Sometimes, reason: BURST },
    NotKept { name: "watched keys", breaks: Breaks::Sometimes, reason: TABLE_OF_REDIS },
    NotKept { name: "blocked clients", breaks: Breaks::Sometimes, reason: TABLE_OF_REDIS },
    NotKept { name: "transactions without end", breaks: Breaks::Sometimes, reason: TABLE_OF_REDIS },
];

/// Of connections that are opened all at once.
const BURST: &str = "Hundreds of connections are opened within a fraction of a second. Two CPUs do all of the work for them: the \
     handshakes in the kernel, for both ends, and accepting them. gate serves its other clients after every four that it accepts, \
     but new connections of the polite tenant stand behind them in the kernel's queue. It is over once they are open, and counts much in \
     a short measurement.";

/// Of requests and answers of many megabytes.
const TRANSFERS: &str = "Redis has one thread, which copies such a value from or to its socket for milliseconds, directly as well. The \
     tenant pays for the bytes, which bounds how many there are, not how long one takes. `max_request` bounds what is written.";

/// Of clients that need a dedicated connection each.
const TABLE_OF_REDIS: &str = "Each of these clients has a connection of its own to Redis. At 256 and at 512 connections the kernel enlarges \
     Redis' table of descriptors, and Redis, which has threads, waits until no CPU uses the old one: its `accept4` took 6 to 27 ms there, \
     in which it serves nobody, directly as well as through gate. It is over once they are open. `max_dedicated` bounds how many a tenant \
     has.";

/// Of requests whose work depends on what is stored.
const UNKNOWN_SIZE: &str = "Redis runs one request at a time, to its end, and only Redis knows how large the key is. A tenant pays for what its \
     keys hold, which gate remembers or asks for, so that its quota soon lets few of them pass; how long one of them takes it does not bound. \
     `max_rows` refuses those that would read more; `deny` and `tiers` keep such requests away from those who ask for little.";
