//! The kernel's counters at both ends of a pair: what full queues lost, and what happened meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use anyhow::Result;
use gate_tests::net::{CLIENT_INTERFACE, Net};

/// Counters by end, file, protocol and name.
#[derive(Debug, Default)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    pub(crate) fn read(net: &Net) -> Result<Self> {
        let mut counters = Self::default();
        for (end, namespace) in [("client", &net.client), ("server", &net.server)] {
            let texts = namespace.enter(|| {
                FILES.map(|(file, shape)| {
                    (file, shape, fs::read_to_string(format!("/proc/thread-self/net/{file}")))
                })
            })?;
            for (file, shape, text) in texts {
                counters.add(&format!("{end} {file}"), shape, &text?);
            }
        }
        Ok(counters)
    }

    /// The packets that the veth's ring and the server's sockets had no room for.
    pub(crate) fn lost(&self) -> u64 {
        let ring = format!("client dev {CLIENT_INTERFACE}: tx-drop");
        let lost = |name: &str| {
            name == ring
                || name.starts_with("server snmp") && FULL.iter().any(|full| name.ends_with(full))
                || name.starts_with("server raw")
        };
        self.0.iter().filter(|(name, _)| lost(name)).map(|(_, count)| count).sum()
    }

    /// The counters that have changed since `before`.
    pub(crate) fn since(&self, before: &Self) -> Changes {
        let change = |(name, now): (&String, &u64)| {
            let before = before.0.get(name).copied().unwrap_or(0);
            (*now != before).then(|| (name.clone(), before, *now))
        };
        Changes(self.0.iter().filter_map(change).collect())
    }

    fn add(&mut self, file: &str, shape: Shape, text: &str) {
        let mut names = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some((first, values)) = words.split_first() else { continue };
            match shape {
                Shape::NamesAndValues if names.first() != Some(first) => names = words,
                Shape::NamesAndValues => {
                    for (name, value) in names.iter().skip(1).zip(values) {
                        self.count(format!("{file} {first} {name}"), value);
                    }
                }
                Shape::Pairs => {
                    let own =
                        values.chunks_exact(2).map(|pair| (format!("{file} {first} {}", pair[0]), pair[1]));
                    own.for_each(|(name, value)| self.count(name, value));
                }
                Shape::OneEach => self.count(format!("{file} {first}"), values.first().unwrap_or(&"")),
                Shape::Interfaces => {
                    for (column, name) in COLUMNS {
                        self.count(format!("{file} {first} {name}"), values.get(column).unwrap_or(&""));
                    }
                }
                Shape::LastColumn => {
                    self.count(format!("{file} {first} drops"), values.last().unwrap_or(&""))
                }
            }
        }
    }

    /// Adds a value; a heading is none.
    fn count(&mut self, name: String, value: &str) {
        if let Ok(value) = value.parse::<u64>() {
            *self.0.entry(name).or_default() += value;
        }
    }
}

/// Counters that have changed, one a line.
pub(crate) struct Changes(Vec<(String, u64, u64)>);

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, before, now)| write!(f, "\n  {name}: {before} => {now}"))
    }
}

/// The way in which a file gives its counters.
#[derive(Clone, Copy)]
enum Shape {
    /// A line of names, then one of values.
    NamesAndValues,
    /// Names and values by turns.
    Pairs,
    /// One name and one value a line.
    OneEach,
    /// An interface a line.
    Interfaces,
    /// A socket a line, its drops at the end.
    LastColumn,
}

/// Below `/proc/net`.
const FILES: [(&str, Shape); 10] = [
    ("dev", Shape::Interfaces),
    ("snmp", Shape::NamesAndValues),
    ("netstat", Shape::NamesAndValues),
    ("snmp6", Shape::OneEach),
    ("sockstat", Shape::Pairs),
    ("sockstat6", Shape::Pairs),
    ("raw", Shape::LastColumn),
    ("raw6", Shape::LastColumn),
    ("udp", Shape::LastColumn),
    ("udp6", Shape::LastColumn),
];
/// Behind the interface's name.
const COLUMNS: [(usize, &str); 6] =
    [(1, "rx"), (2, "rx-error"), (3, "rx-drop"), (9, "tx"), (10, "tx-error"), (11, "tx-drop")];
/// Counters of UDP: datagrams for which there was no room.
const FULL: [&str; 2] = ["RcvbufErrors", "MemErrors"];
