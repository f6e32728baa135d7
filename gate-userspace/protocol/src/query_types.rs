//! Query types: requests that are counted together, are held to one objective and have one highest tier.
//!
//! Every [`Class`] is one. Beside them there may be others with names of their own, and any command may be made one
//! of these or of those. A request's type is looked up by its command's number: nothing is hashed and no name
//! compared, but for subcommands of Redis that the decoder does not tell from each other.

use super::{Class, memcached, resp};

/// The query types of a service, and what is of which. By default, all that is of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryTypes {
    /// The names of those that are no class; their places are behind the classes'.
    own: Vec<String>,
    resp: resp::CommandTypes,
    /// By command; [`BY_CLASS`] where nothing is said.
    memcached: [u8; memcached::Command::ALL.len()],
}

impl QueryTypes {
    /// So many may have names of their own.
    pub const MAX_OWN: usize = 32;

    /// The classes, and what is given here: names, each with the commands (or subcommands of Redis, behind a blank or
    /// a bar) that are of this type, in any case and of either protocol. A name that is a class's means that class.
    /// An entry for a subcommand overrides one for its command. Names of no command are passed
    /// over, and types beyond [`QueryTypes::MAX_OWN`].
    #[must_use]
    pub fn new(types: &[(&str, Vec<String>)]) -> Self {
        let mut this = Self::default();
        let mut said = Vec::new();
        for (name, commands) in types {
            if this.place(name).is_none() && this.own.len() < Self::MAX_OWN {
                this.own.push((*name).to_owned());
            }
            let Some(place) = this.place(name) else { continue };
            said.extend(commands.iter().map(|command| (command.to_ascii_lowercase(), place as u8)));
        }
        for command in memcached::Command::ALL {
            let found = said.iter().find(|(name, _)| name == command.name());
            this.memcached[command as usize] = found.map_or(BY_CLASS, |(_, place)| *place);
        }
        this.resp = resp::CommandTypes::new(&said);
        this
    }

    /// These types, of which is what `other` says: what it says is of a type that is not here goes by its class.
    #[must_use]
    pub fn assigned_by(&self, other: &Self) -> Self {
        let place = |place: u8| Some(self.place(other.names().nth(place.into())?)? as u8);
        Self {
            own: self.own.clone(),
            resp: other.resp.renumbered(place),
            memcached: other.memcached.map(|other| place(other).unwrap_or(BY_CLASS)),
        }
    }

    /// Their names, those of the classes first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own = self.own.iter().map(String::as_str);
        Class::ALL.into_iter().map(|class| -> &str { class.name() }).chain(own)
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there are always the classes")]
    #[must_use]
    pub fn len(&self) -> usize {
        Class::ALL.len() + self.own.len()
    }

    /// The place of a type among them.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names().position(|known| known == name)
    }

    /// The place of a Redis request's type. `bytes` begin where it does.
    #[inline]
    #[must_use]
    pub fn of_resp(&self, request: &resp::Request, bytes: &[u8]) -> usize {
        self.resp.of(request, bytes).map_or(request.meta.class.index(), usize::from)
    }

    /// The place of a memcached request's type.
    #[inline]
    #[must_use]
    pub fn of_memcached(&self, request: &memcached::Request) -> usize {
        match self.memcached[request.command as usize] {
            BY_CLASS => request.meta.class.index(),
            place => place.into(),
        }
    }
}

/// Nothing is said of a command: its class is its type.
const BY_CLASS: u8 = u8::MAX;

impl Default for QueryTypes {
    fn default() -> Self {
        let memcached = [BY_CLASS; memcached::Command::ALL.len()];
        Self { own: Vec::new(), resp: resp::CommandTypes::default(), memcached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(said: &[(&str, &[&str])]) -> QueryTypes {
        let commands = |commands: &[&str]| commands.iter().map(|&command| command.to_owned()).collect();
        let said: Vec<_> = said.iter().map(|(name, said)| (*name, commands(said))).collect();
        QueryTypes::new(&said)
    }

    fn of_resp<'t>(types: &'t QueryTypes, line: &str) -> &'t str {
        let mut decoder = resp::Decoder::new(resp::Limits::default());
        let input = format!("{line}\r\n");
        let resp::Step::Request { request, len } = decoder.next(input.as_bytes()) else { panic!("{line:?}") };
        let place = types.of_resp(&request, decoder.bytes(&request, &input.as_bytes()[..len]));
        types.names().nth(place).unwrap()
    }

    fn of_memcached<'t>(types: &'t QueryTypes, line: &str) -> &'t str {
        let mut decoder = memcached::Decoder::new(memcached::Limits::default());
        let input = format!("{line}\r\n");
        let memcached::Step::Request { request, .. } = decoder.next(input.as_bytes()) else {
            panic!("{line:?}")
        };
        types.names().nth(types.of_memcached(&request)).unwrap()
    }

    #[test]
    fn what_is_said_of_a_command_counts_and_else_its_class() {
        let types = types(&[
            ("reports", &["ZUNIONSTORE", "Sort", "fcall"]),
            ("sessions", &["HGETALL", "CONFIG GET", "client kill"]),
            ("slow", &["CLIENT", "config", "OBJECT|FREQ", "unknown"]),
            // A class takes commands of others.
            ("scan", &["KEYS", "MEMORY USAGE", "XINFO"]),
        ]);
        for (line, name) in [
            ("ZUNIONSTORE a 1 b", "reports"),
            ("sort a store b", "reports"),
            ("FCALL f 0", "reports"),
            ("FCALL_RO f 0", "script"),
            ("SORT_RO a", "combine"),
            ("HGETALL a", "sessions"),
            ("hget a b", Class::Read.name()),
            ("GET a", "get"),
            ("KEYS *", "scan"),
            ("SCAN 0", "scan"),
            ("CONFIG GET a", "sessions"),
            ("config get a", "sessions"),
            ("CONFIG SET a b", "slow"),
            ("CONFIG", "slow"),
            ("CLIENT KILL a", "sessions"),
            ("CLIENT LIST", "slow"),
            ("CLIENT NEWER", "slow"),
            ("OBJECT FREQ a", "slow"),
            ("OBJECT ENCODING a", "read"),
            ("MEMORY USAGE a", "scan"),
            ("MEMORY DOCTOR", "admin"),
            ("XINFO STREAM a", "scan"),
            ("FT.SEARCH a", "slow"),
        ] {
            assert_eq!(of_resp(&types, line), name, "{line}");
        }
        assert_eq!(types.place("slow"), Some(types.len() - 1));
        assert_eq!(types.place("none"), None);
    }

    #[test]
    fn memcached_commands_have_a_type_for_any_number_of_keys() {
        let types = types(&[("sessions", &["GETS", "mg"]), ("touch", &["delete"]), ("admin", &["stats"])]);
        for (line, name) in [
            ("gets a", "sessions"),
            ("gets a b", "sessions"),
            ("mg a v", "sessions"),
            ("get a", "get"),
            ("get a b", "mget"),
            ("delete a", "touch"),
            ("stats", "admin"),
            ("stats gate", "admin"),
        ] {
            assert_eq!(of_memcached(&types, line), name, "{line}");
        }
    }

    #[test]
    fn where_nothing_is_said_classes_are_the_types() {
        let types = QueryTypes::default();
        for class in Class::ALL {
            assert_eq!(types.place(class.name()), Some(class.index()));
        }
        assert_eq!(types.len(), Class::ALL.len());
        for (line, name) in [("GET a", "get"), ("CONFIG GET a", "admin"), ("FT.SEARCH a", "unknown")] {
            assert_eq!(of_resp(&types, line), name, "{line}");
        }
    }

    #[test]
    fn assignments_are_taken_over_by_name_and_new_types_are_not() {
        let before = types(&[("a", &["GET", "CONFIG SET", "incr"]), ("b", &["SET"])]);
        let after =
            types(&[("new", &["SET", "CLIENT KILL", "touch"]), ("b", &["GET", "CONFIG SET", "decr"])]);
        let both = before.assigned_by(&after);
        assert!(both.names().eq(before.names()));
        for (line, name) in [
            ("GET a", "b"),
            ("CONFIG SET a b", "b"),
            ("CONFIG GET a", "admin"),
            ("SET a b", "set"),
            ("CLIENT KILL a", "admin"),
        ] {
            assert_eq!(of_resp(&both, line), name, "{line}");
        }
        for (line, name) in [("incr a 1", "counter"), ("decr a 1", "b"), ("touch a 1", "touch")] {
            assert_eq!(of_memcached(&both, line), name, "{line}");
        }
        assert_eq!(before.assigned_by(&before), before);
    }

    #[test]
    fn there_are_only_so_many() {
        let names: Vec<_> = (0..QueryTypes::MAX_OWN + 1).map(|number| format!("type-{number}")).collect();
        let said: Vec<_> = names.iter().map(|name| (name.as_str(), vec!["GET".to_owned()])).collect();
        assert_eq!(QueryTypes::new(&said).len(), Class::ALL.len() + QueryTypes::MAX_OWN);
    }
}
