//! Commands of Redis that are refused.

use super::command::Command;
use super::request::Request;

/// A set of commands and subcommands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// By command: whether it is in the set; empty if none is.
    whole: Vec<bool>,
    /// The command's name, and the name of a subcommand that is in the set.
    subs: Vec<(&'static str, Box<[u8]>)>,
}

impl Denied {
    /// Adds a command, in lower case, with all its subcommands; or one subcommand, after a blank or a bar. False
    /// if there is no such command.
    pub(in crate::protocol) fn add(&mut self, name: &str) -> bool {
        if let Some((name, sub)) = name.split_once([' ', '|']) {
            let plain = !sub.is_empty() && sub.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'|');
            let Some(&parent) = CONTAINERS.iter().find(|parent| **parent == name).filter(|_| plain) else {
                return false;
            };
            self.subs.push((parent, sub.as_bytes().into()));
            return true;
        }
        let all = std::iter::once(Command::UNKNOWN).chain(Command::all());
        let added: Vec<_> = all.filter(|command| base(*command) == name).collect();
        self.whole.resize(Command::all().count() + 1, false);
        added.iter().for_each(|command| self.whole[command.index()] = true);
        !added.is_empty()
    }

    /// Whether a request is in the set. `bytes` begin where it does.
    #[must_use]
    #[inline]
    pub fn denies(&self, request: &Request, bytes: &[u8]) -> bool {
        self.whole.get(request.command.index()).copied().unwrap_or(false)
            || (!self.subs.is_empty() && self.denies_sub(request, bytes))
    }

    fn denies_sub(&self, request: &Request, bytes: &[u8]) -> bool {
        let name = base(request.command);
        let mut subs = self.subs.iter().filter(|(parent, _)| *parent == name).peekable();
        if subs.peek().is_none() {
            return false;
        }
        match request.args(bytes).nth(1) {
            Some(asked) => subs.any(|(_, sub)| sub.eq_ignore_ascii_case(asked)),
            // It has one that is not at hand, and may be any.
            None => request.args > 1,
        }
    }
}

/// A command's name without its subcommand's.
fn base(command: Command) -> &'static str {
    command.name().split('|').next().unwrap_or_default()
}

/// Commands that have subcommands.
const CONTAINERS: [&str; 16] = [
    "acl", "client", "cluster", "command", "config", "debug", "function", "latency", "memory", "module",
    "object", "pubsub", "script", "slowlog", "xgroup", "xinfo",
];
