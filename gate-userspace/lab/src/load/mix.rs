//! A mix of requests, each with its weight: one tenant's, read from a file (`mix_file`) or made of its `reads`.
//!
//! ```toml
//! [[request]]
//! command = "get"
//! weight = 3
//! keys = 10000
//! value = "1KiB"
//! ```
//!
//! | key | | default |
//! |---|---|---|
//! | `command` | `get`, `mget`, `set`, `delete`, `range`, `script`, or a list: a command of Redis and its arguments, or a method and a path of HTTP, in which `{key}` stands for the key | required |
//! | `weight` | how often, beside the weights of the others; 1 to 1,000,000 | 1 |
//! | `name` | under which it is counted | the command |
//! | `keys` | a number, `"uniform:COUNT"` or `"zipf:COUNT:EXPONENT"` | 1000 |
//! | `prefix` | what its keys begin with | the tenant's name; with `:rows` behind it for `range` |
//! | `count` | the keys of an `mget`, the rows of a `range`; 1 to 100,000 | 10 |
//! | `value` | the size of values that are set, and of those that `--fill` writes; up to 1 MiB | 100B |
//! | `script` | of `script`: the text, with the key as `KEYS[1]` | required |

use std::fmt;

use super::keys::{Keys, push_key};
use super::protocol::Protocol;

/// Requests with their weights. Never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    pub(super) entries: Vec<Entry>,
    /// True if each kind of request is counted by itself.
    pub(super) by_request: bool,
}

/// One kind of request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) weight: u32,
    pub(super) command: Command,
    pub(super) keys: Keys,
    /// The beginning of its keys; empty for the tenant's name.
    pub(super) prefix: String,
    /// Of values that are written, by it or before the run.
    pub(super) value_bytes: usize,
}

/// A kind of request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Get,
    Set,
    MultiGet { count: usize },
    Delete,
    Range { rows: usize },
    Script { body: String },
    Custom { words: Vec<String> },
}

/// One request. Keys have no blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Get {
        key: &'a str,
    },
    Set {
        key: &'a str,
        value_bytes: usize,
    },
    /// `keys` are separated by blanks.
    MultiGet {
        keys: &'a str,
        count: usize,
    },
    Delete {
        key: &'a str,
    },
    Range {
        key: &'a str,
        rows: usize,
    },
    Script {
        key: &'a str,
        body: &'a str,
    },
    /// [`KEY`] in `words` stands for the key.
    Custom {
        key: &'a str,
        words: &'a [String],
    },
}

/// In the words of a command, the place of the key.
pub(super) const KEY: &str = "{key}";

impl Mix {
    /// Reads and writes of the same keys.
    pub(super) fn reads_and_writes(read_steps: u32, of_steps: u32, keys: Keys, value_bytes: usize) -> Self {
        let entry = |name: &str, command, weight| Entry {
            name: name.to_owned(),
            weight,
            command,
            keys,
            prefix: String::new(),
            value_bytes,
        };
        let entries =
            vec![entry("get", Command::Get, read_steps), entry("set", Command::Set, of_steps - read_steps)];
        Self { entries, by_request: false }
    }

    /// The names under which requests are counted; none if all are counted together.
    pub(super) fn names(&self) -> Vec<String> {
        let counted = if self.by_request { &self.entries[..] } else { &[] };
        counted.iter().map(|entry| entry.name.clone()).collect()
    }

    /// The request of an entry for the keys that were drawn.
    pub(super) fn request<'a>(&'a self, entry: usize, keys: &'a str) -> Request<'a> {
        let Entry { command, value_bytes, .. } = &self.entries[entry];
        match command {
            Command::Get => Request::Get { key: keys },
            Command::Set => Request::Set { key: keys, value_bytes: *value_bytes },
            Command::MultiGet { count } => Request::MultiGet { keys, count: *count },
            Command::Delete => Request::Delete { key: keys },
            Command::Range { rows } => Request::Range { key: keys, rows: *rows },
            Command::Script { body } => Request::Script { key: keys, body },
            Command::Custom { words } => Request::Custom { key: keys, words },
        }
    }

    /// The first request that cannot be made this way, and the remedy.
    pub(super) fn refusal(&self, protocol: Protocol, udp: bool, tenant: &str) -> Option<String> {
        self.entries.iter().find_map(|entry| {
            let wrong = entry.refusal(protocol, udp, tenant)?;
            Some(if self.by_request { format!("{}: {wrong}", entry.name) } else { wrong })
        })
    }
}

impl Entry {
    /// The beginning of its keys.
    pub(super) fn prefix(&self, tenant: &str) -> String {
        match (&self.prefix[..], &self.command) {
            // Lists do not share keys with values.
            ("", Command::Range { .. }) => format!("{tenant}:rows"),
            ("", _) => tenant.to_owned(),
            (prefix, _) => prefix.to_owned(),
        }
    }

    /// How many keys it draws.
    pub(super) fn keys_each(&self) -> usize {
        if let Command::MultiGet { count } = self.command { count } else { 1 }
    }

    fn refusal_over_http(&self) -> Option<String> {
        match &self.command {
            Command::Get | Command::Set | Command::Delete => None,
            Command::Custom { words } if words.len() == 2 && words[1].starts_with('/') => None,
            Command::Custom { .. } => Some(
                "over HTTP a list is a method and a path, e.g. [\"GET\", \"/api/v1/query?q={key}\"]"
                    .to_owned(),
            ),
            command => Some(format!("HTTP has no {command}: give a list of a method and a path")),
        }
    }

    fn refusal(&self, protocol: Protocol, udp: bool, tenant: &str) -> Option<String> {
        let resp_only =
            matches!(self.command, Command::Range { .. } | Command::Script { .. } | Command::Custom { .. });
        if resp_only && protocol == Protocol::Memcached {
            return Some(format!("memcached has no {}: give --protocol resp", self.command));
        }
        if protocol == Protocol::Http {
            return self.refusal_over_http();
        }
        if !udp {
            return None;
        }
        let mut longest = String::new();
        push_key(&mut longest, &self.prefix(tenant), self.keys.count());
        let bytes = match self.command {
            Command::Set => self.value_bytes,
            _ => self.keys_each() * (longest.len() + 1),
        };
        (bytes > MAX_DATAGRAM_BYTES).then(|| {
            format!("a request of {bytes} bytes does not fit a datagram (at most {MAX_DATAGRAM_BYTES}): give --tcp")
        })
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::MultiGet { .. } => "mget",
            Self::Delete => "delete",
            Self::Range { .. } => "range",
            Self::Script { .. } => "script",
            Self::Custom { words } => &words[0],
        })
    }
}

/// A request stays within one Ethernet frame, as memcached wants it over UDP.
const MAX_DATAGRAM_BYTES: usize = 1_024;
