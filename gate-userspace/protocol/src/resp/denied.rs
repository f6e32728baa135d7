//! Commands of Redis that are refused.

use super::command::Command;
use super::named::{Named, base, named};
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
    pub(crate) fn add(&mut self, name: &str) -> bool {
        match named(name) {
            Some(Named::Sub { parent, name }) => self.subs.push((parent, name.as_bytes().into())),
            Some(Named::Whole(commands)) => {
                self.whole.resize(Command::COUNT, false);
                commands.iter().for_each(|command| self.whole[command.index()] = true);
            }
            None => return false,
        }
        true
    }

    /// True if a command is in the set, with all its subcommands.
    pub(crate) fn has(&self, name: &str) -> bool {
        let Some(Named::Whole(commands)) = named(name) else { return false };
        commands.iter().all(|command| self.whole.get(command.index()).copied().unwrap_or(false))
    }

    /// True if a request is in the set. `bytes` begin where it does.
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
            Some(name) => subs.any(|(_, sub)| sub.eq_ignore_ascii_case(name)),
            // It has one that is not at hand, and may be any.
            None => request.args > 1,
        }
    }
}
