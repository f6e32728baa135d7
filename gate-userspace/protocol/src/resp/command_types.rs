//! The query type of each command of Redis, where one is configured.

use super::command::Command;
use super::named::{Named, named};
use super::request::Request;

/// Query types by command. A look-up is one load, but for commands of which only a subcommand's name tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandTypes {
    /// By command: its query type, [`UNSAID`] or [`BY_SUB`]; empty if nothing is said.
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
    query_type: u8,
}

/// Nothing is said of a command.
const UNSAID: u8 = u8::MAX;
/// The query type depends on the subcommand.
const BY_SUB: u8 = u8::MAX - 1;

impl CommandTypes {
    /// The query types of commands, by their names in lower case. An entry for a subcommand overrides one
    /// for its command. Query types are below 254; names of no command are passed over.
    pub(crate) fn new(said: &[(String, u8)]) -> Self {
        let mut types = Self::default();
        let named = || said.iter().filter_map(|(name, query_type)| Some((named(name)?, *query_type)));
        for (named, query_type) in named() {
            if let Named::Whole(commands) = named {
                commands.into_iter().for_each(|command| types.set(command, query_type));
            }
        }
        for (named, query_type) in named() {
            if let Named::Sub { parent, name } = named {
                types.set_sub(Command::find(parent.as_bytes()), name, query_type);
            }
        }
        types
    }

    fn set(&mut self, command: Command, query_type: u8) {
        self.whole.resize(Command::COUNT, UNSAID);
        self.whole[command.index()] = query_type;
    }

    fn set_sub(&mut self, command: Command, name: &str, query_type: u8) {
        let known = command.sub(name.as_bytes());
        if known != command {
            return self.set(known, query_type);
        }
        let parent = command.index();
        let others = self.whole.get(parent).copied().unwrap_or(UNSAID);
        if others != BY_SUB {
            self.set(command, BY_SUB);
            self.subs.push(Sub { parent, name: Box::default(), query_type: others });
        }
        self.subs.push(Sub { parent, name: name.as_bytes().into(), query_type });
    }

    /// The same, with other numbers for the query types; `None` if nothing is to be said of one any more.
    pub(crate) fn renumbered(&self, number: impl Fn(u8) -> Option<u8>) -> Self {
        let number =
            |query_type| if query_type < BY_SUB { number(query_type).unwrap_or(UNSAID) } else { query_type };
        let subs = self.subs.iter().map(|sub| Sub { query_type: number(sub.query_type), ..sub.clone() });
        Self {
            whole: self.whole.iter().map(|&query_type| number(query_type)).collect(),
            subs: subs.collect(),
        }
    }

    /// A request's query type, if something is said of its command. `bytes` begin where it does.
    #[inline]
    pub(crate) fn of(&self, request: &Request, bytes: &[u8]) -> Option<u8> {
        match *self.whole.get(request.command.index())? {
            UNSAID => None,
            BY_SUB => self.by_sub(request, bytes),
            query_type => Some(query_type),
        }
    }

    fn by_sub(&self, request: &Request, bytes: &[u8]) -> Option<u8> {
        let name = request.args(bytes).nth(1).unwrap_or_default();
        let of_command = || self.subs.iter().filter(|sub| sub.parent == request.command.index());
        let named = of_command().find(|sub| !sub.name.is_empty() && sub.name.eq_ignore_ascii_case(name));
        let query_type = named.or_else(|| of_command().find(|sub| sub.name.is_empty()))?.query_type;
        (query_type != UNSAID).then_some(query_type)
    }
}
