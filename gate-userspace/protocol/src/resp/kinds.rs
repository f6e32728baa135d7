//! Which kind each command of Redis is of, where something says so.

use super::command::Command;
use super::named::{Named, named};
use super::request::Request;

/// Kinds by command. A look-up is one load, but for commands of which only a subcommand's name tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// By command: its kind, [`UNSAID`] or [`BY_SUB`]; empty if nothing is said.
    whole: Vec<u8>,
    subs: Vec<Sub>,
}

/// A subcommand that the decoder does not tell from others of its command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sub {
    /// Its command's number.
    parent: usize,
    /// Empty for any other subcommand.
    name: Box<[u8]>,
    kind: u8,
}

/// Nothing is said of a command.
const UNSAID: u8 = u8::MAX;
/// The kind depends on the subcommand.
const BY_SUB: u8 = u8::MAX - 1;

impl Kinds {
    /// The kinds of commands, by their names in lower case. An entry for a subcommand overrides one
    /// for its command. Kinds are below 254; names of no command are passed over.
    pub(crate) fn new(said: &[(String, u8)]) -> Self {
        let mut kinds = Self::default();
        let named = || said.iter().filter_map(|(name, kind)| Some((named(name)?, *kind)));
        for (named, kind) in named() {
            if let Named::Whole(commands) = named {
                commands.into_iter().for_each(|command| kinds.set(command, kind));
            }
        }
        for (named, kind) in named() {
            if let Named::Sub { parent, name } = named {
                kinds.set_sub(Command::find(parent.as_bytes()), name, kind);
            }
        }
        kinds
    }

    fn set(&mut self, command: Command, kind: u8) {
        self.whole.resize(Command::COUNT, UNSAID);
        self.whole[command.index()] = kind;
    }

    fn set_sub(&mut self, command: Command, name: &str, kind: u8) {
        let known = command.sub(name.as_bytes());
        if known != command {
            return self.set(known, kind);
        }
        let parent = command.index();
        let others = self.whole.get(parent).copied().unwrap_or(UNSAID);
        if others != BY_SUB {
            self.set(command, BY_SUB);
            self.subs.push(Sub { parent, name: Box::default(), kind: others });
        }
        self.subs.push(Sub { parent, name: name.as_bytes().into(), kind });
    }

    /// The same, with other numbers for the kinds; `None` if nothing is to be said of one any more.
    pub(crate) fn renumbered(&self, number: impl Fn(u8) -> Option<u8>) -> Self {
        let number = |kind| if kind < BY_SUB { number(kind).unwrap_or(UNSAID) } else { kind };
        let subs = self.subs.iter().map(|sub| Sub { kind: number(sub.kind), ..sub.clone() });
        Self { whole: self.whole.iter().map(|&kind| number(kind)).collect(), subs: subs.collect() }
    }

    /// A request's kind, if something is said of its command. `bytes` begin where it does.
    #[inline]
    pub(crate) fn of(&self, request: &Request, bytes: &[u8]) -> Option<u8> {
        match *self.whole.get(request.command.index())? {
            UNSAID => None,
            BY_SUB => self.by_sub(request, bytes),
            kind => Some(kind),
        }
    }

    fn by_sub(&self, request: &Request, bytes: &[u8]) -> Option<u8> {
        let asked = request.args(bytes).nth(1).unwrap_or_default();
        let of_command = || self.subs.iter().filter(|sub| sub.parent == request.command.index());
        let named = of_command().find(|sub| !sub.name.is_empty() && sub.name.eq_ignore_ascii_case(asked));
        let kind = named.or_else(|| of_command().find(|sub| sub.name.is_empty()))?.kind;
        (kind != UNSAID).then_some(kind)
    }
}
