//! Commands about everything but keys.
//!
//! Source: `COMMAND` of Redis 7.0; a test compares them with a real server's. What is newer is from the documentation.

use super::spec::*;
use crate::Class::*;

/// Connections, transactions, publishing.
pub(super) const CONNECTION: &[Spec] = &[
    c("asking", Connection, NONE, NO_KEYS).state(State::Cluster).bounded(),
    c("auth", Connection, NONE, NO_KEYS).state(State::Auth).bounded(),
    c("client", Connection, NONE, NO_KEYS).state(State::Own).parent(),
    c("client|caching", Connection, NONE, NO_KEYS).state(State::Tracking).bounded(),
    // It is the client that asks for it, and others name it by that: it keeps to that connection.
    c("client|id", Connection, NONE, NO_KEYS).state(State::Own).bounded(),
    c("client|info", Connection, NONE, NO_KEYS).state(State::Own).bounded(),
    c("client|getname", Connection, NONE, NO_KEYS).state(State::Name).bounded(),
    c("client|getredir", Connection, NONE, NO_KEYS).state(State::Tracking).bounded(),
    c("client|help", Admin, NONE, NO_KEYS).bounded(),
    c("client|kill", Admin, NONE, NO_KEYS),
    c("client|list", Admin, NONE, NO_KEYS),
    // Libraries greet with it. It asks to be told when the store moves, which is between gate and the store.
    c("client|maint_notifications", Connection, NONE, NO_KEYS).not_compared().bounded(),
    c("client|no-evict", Admin, NONE, NO_KEYS).state(State::Own).bounded(),
    c("client|no-touch", Connection, NONE, NO_KEYS).state(State::Own).not_compared().bounded(),
    c("client|pause", Admin, NONE, NO_KEYS).state(State::Pause).bounded(),
    c("client|reply", Connection, NONE, NO_KEYS).state(State::Reply).bounded(),
    c("client|setname", Connection, NONE, NO_KEYS).state(State::Name).bounded(),
    c("client|tracking", Connection, NONE, NO_KEYS).state(State::Tracking).bounded(),
    c("client|trackinginfo", Connection, NONE, NO_KEYS).state(State::Tracking).bounded(),
    c("client|unblock", Admin, NONE, NO_KEYS),
    c("client|unpause", Connection, NONE, NO_KEYS).state(State::Pause).bounded(),
    c("command", Admin, NONE, NO_KEYS),
    c("discard", Transaction, NONE, NO_KEYS).state(State::Transaction).bounded(),
    c("echo", Connection, NONE, NO_KEYS).bounded(),
    c("exec", Transaction, ANY, NO_KEYS).state(State::Transaction),
    c("hello", Connection, NONE, NO_KEYS).state(State::Hello).bounded(),
    c("multi", Transaction, NONE, NO_KEYS).state(State::Transaction).bounded(),
    c("ping", Connection, NONE, NO_KEYS).bounded(),
    c("psubscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub),
    c("publish", Pubsub, NONE, NO_KEYS),
    c("pubsub", Pubsub, NONE, NO_KEYS),
    c("punsubscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub),
    c("quit", Connection, NONE, NO_KEYS).state(State::Quit).bounded(),
    c("readonly", Connection, NONE, NO_KEYS).state(State::Cluster).bounded(),
    c("readwrite", Connection, NONE, NO_KEYS).state(State::Cluster).bounded(),
    c("reset", Connection, NONE, NO_KEYS).state(State::Reset).bounded(),
    c("select", Connection, NONE, NO_KEYS).state(State::Select).bounded(),
    c("spublish", Pubsub, NONE, NO_KEYS),
    c("ssubscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub).bounded(),
    c("subscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub).bounded(),
    c("sunsubscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub),
    c("unsubscribe", Pubsub, NONE, NO_KEYS).state(State::Pubsub),
    c("unwatch", Transaction, NONE, NO_KEYS).state(State::Transaction).bounded(),
    c("wait", Blocking, NONE, NO_KEYS).state(State::Blocking).bounded(),
    c("watch", Transaction, NONE, ALL).state(State::Transaction).bounded(),
    c("client|setinfo", Connection, NONE, NO_KEYS).state(State::Name).not_compared().bounded(),
    c("waitaof", Blocking, NONE, NO_KEYS).state(State::Blocking).not_compared().bounded(),
];

/// Scripts and functions.
pub(super) const SCRIPT: &[Spec] = &[
    c("eval", Script, ANY, COUNTED_SECOND),
    c("eval_ro", Script, READ, COUNTED_SECOND),
    c("evalsha", Script, ANY, COUNTED_SECOND),
    c("evalsha_ro", Script, READ, COUNTED_SECOND),
    c("fcall", Script, ANY, COUNTED_SECOND),
    c("fcall_ro", Script, READ, COUNTED_SECOND),
    c("function", Admin, ANY, NO_KEYS).parent(),
    c("function|dump", Admin, NONE, NO_KEYS),
    c("function|help", Admin, NONE, NO_KEYS).bounded(),
    // Redis answers these while a script runs, so they must not wait for one: they are of no class that may take long.
    c("function|kill", Connection, NONE, NO_KEYS).bounded(),
    c("function|list", Admin, NONE, NO_KEYS),
    c("function|stats", Connection, NONE, NO_KEYS).bounded(),
    c("script", Script, NONE, NO_KEYS).parent(),
    c("script|debug", Admin, NONE, NO_KEYS).state(State::Own),
    // Likewise.
    c("script|kill", Connection, NONE, NO_KEYS).bounded(),
];

/// The server.
pub(super) const SERVER: &[Spec] = &[
    c("acl", Admin, NONE, NO_KEYS).parent(),
    // Their users may read other keys than before: no answer that was kept holds.
    c("acl|deluser", Admin, ANY, NO_KEYS),
    c("acl|load", Admin, ANY, NO_KEYS),
    c("acl|setuser", Admin, ANY, NO_KEYS),
    c("bgrewriteaof", Admin, NONE, NO_KEYS),
    c("bgsave", Admin, NONE, NO_KEYS),
    c("cluster", Admin, NONE, NO_KEYS),
    c("config", Admin, NONE, NO_KEYS),
    c("debug", Admin, ANY, NO_KEYS),
    c("failover", Admin, ANY, NO_KEYS),
    c("info", Admin, NONE, NO_KEYS),
    c("lastsave", Admin, NONE, NO_KEYS).bounded(),
    c("latency", Admin, NONE, NO_KEYS),
    c("lolwut", Admin, NONE, NO_KEYS),
    c("memory", Admin, NONE, NO_KEYS).parent(),
    c("memory|usage", Read, READ, SECOND),
    c("module", Admin, ANY, NO_KEYS).parent(),
    c("module|list", Admin, NONE, NO_KEYS),
    c("monitor", Admin, NONE, NO_KEYS).state(State::Monitor),
    c("psync", Admin, ANY, NO_KEYS).state(State::Replication),
    c("replconf", Admin, NONE, NO_KEYS).state(State::Replication),
    c("replicaof", Admin, ANY, NO_KEYS),
    c("role", Admin, NONE, NO_KEYS).bounded(),
    c("save", Admin, NONE, NO_KEYS),
    c("shutdown", Admin, NONE, NO_KEYS).state(State::Own),
    c("slaveof", Admin, ANY, NO_KEYS),
    c("slowlog", Admin, NONE, NO_KEYS),
    c("sync", Admin, ANY, NO_KEYS).state(State::Replication),
    c("time", Connection, NONE, NO_KEYS).bounded(),
];
