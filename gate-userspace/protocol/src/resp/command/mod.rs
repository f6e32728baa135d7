//! The commands that are known: what each does to keys, to its connection, and how much it is likely to do.
//!
//! A command that is not here may change any key and read as much as a scan does ([`Command::UNKNOWN`]). It needs a
//! connection of its own for its answer. Those that change a connection's state are all here: of newer ones, see `CLIENT`.

mod data;
mod server;
mod spec;

pub use spec::OPEN_ROWS;
pub(super) use spec::{KeySpec, Rows, Spec};

use crate::{Access, Class};

/// A command of Redis 7.0, or one that is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(u16);

/// The state of the store's connection that a command needs or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing: any connection of the same user, database and protocol version will do.
    Shared,
    /// `SELECT`: chooses the database.
    Select,
    /// `HELLO`: chooses the protocol version, and may do what `AUTH` and `CLIENT SETNAME` do.
    Hello,
    /// `AUTH`: chooses the user.
    Auth,
    /// `CLIENT SETNAME` and its like: says or asks what the connection is called.
    Name,
    /// `MULTI`, `EXEC`, `WATCH` ...: belongs to a transaction.
    Transaction,
    /// May wait for other clients, and keeps all behind it waiting.
    Blocking,
    /// `CLIENT PAUSE`, `CLIENT UNPAUSE`: what is ahead of it on a shared connection may be waiting for the end of a pause.
    Pause,
    /// `SUBSCRIBE` and its like: what comes is not in answer to requests any more.
    Pubsub,
    /// `MONITOR`: likewise, for good.
    Monitor,
    /// `SYNC` and its like: the connection becomes a replica's.
    Replication,
    /// `CLIENT REPLY`: requests may have no answer from now on.
    Reply,
    /// `CLIENT TRACKING` and its like: the store tells of changed keys.
    Tracking,
    /// `ASKING`, `READONLY`, `READWRITE`: concern a cluster.
    Cluster,
    /// `RESET`: all as at the beginning.
    Reset,
    /// `QUIT`: the end.
    Quit,
    /// Anything else that needs a connection of its own, which is also assumed of what is not known.
    Own,
}

/// The table's parts.
const PARTS: [&[Spec]; 6] =
    [data::STRING, data::KEYSPACE, data::COLLECTION, server::CONNECTION, server::SCRIPT, server::SERVER];

const UNKNOWN: Spec =
    spec::c("unknown", Class::Unknown, Access::WriteAny, spec::NO_KEYS).open().state(State::Own);

const COUNT: usize = {
    let mut count = 1;
    let mut part = 0;
    while part < PARTS.len() {
        count += PARTS[part].len();
        part += 1;
    }
    count
};

/// Every command, the unknown one first.
static TABLE: [Spec; COUNT] = {
    let mut table = [UNKNOWN; COUNT];
    let mut to = 1;
    let mut part = 0;
    while part < PARTS.len() {
        let mut from = 0;
        while from < PARTS[part].len() {
            table[to] = PARTS[part][from];
            (to, from) = (to + 1, from + 1);
        }
        part += 1;
    }
    table
};

/// Places in [`TABLE`] by hash, with the next free place where two collide; 0 is empty. Subcommands are apart: what
/// separates their names is part of no name that a client says.
static COMMANDS: [u16; SLOTS] = places(false);
static SUBCOMMANDS: [u16; SLOTS] = places(true);

const fn places(of_subcommands: bool) -> [u16; SLOTS] {
    let mut places = [0; SLOTS];
    let mut command = 1;
    while command < COUNT {
        let name = TABLE[command].name.as_bytes();
        if contains(name, SEPARATOR) == of_subcommands {
            let mut slot = hash(name);
            while places[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            places[slot] = command as u16;
        }
        command += 1;
    }
    places
}

/// Three of four are empty.
const SLOTS: usize = 1 << 10;
const _: () = assert!(COUNT * 3 < SLOTS);

/// Of a name in any case: of its length, and of its first and its last eight bytes.
#[inline]
const fn hash(name: &[u8]) -> usize {
    let (first, last) = match (name.first_chunk(), name.last_chunk(), name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last), ..) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        (.., Some(first), Some(last)) => {
            (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64)
        }
        _ if name.is_empty() => (0, 0),
        // Up to three: the first, the middle and the last are all.
        _ => (name[0] as u64 | (name[name.len() / 2] as u64) << 8, name[name.len() - 1] as u64),
    };
    // This bit is what makes a letter a small one. What else it makes alike, a comparison tells apart.
    let first = first | SMALL;
    let last = last | SMALL;
    let mixed = (first ^ last.rotate_left(29)).wrapping_mul(MIX) ^ name.len() as u64;
    (mixed.wrapping_mul(MIX) >> (u64::BITS - SLOTS.ilog2())) as usize
}

const SMALL: u64 = u64::from_ne_bytes([b'a' ^ b'A'; 8]);
/// Odd, and as irregular as the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The longest name of a subcommand, its parent's included, in bytes.
const MAX_NAME: usize = 32;

/// Between a command and its subcommand.
const SEPARATOR: u8 = b'|';

impl Command {
    /// One that is not in the table.
    pub const UNKNOWN: Self = Self(0);

    /// How many there are, the unknown one among them.
    pub(super) const COUNT: usize = COUNT;

    /// The command with this name, in lower case; a subcommand as `parent|name`. For constants.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub const fn named(name: &str) -> Self {
        let mut command = 1;
        while command < COUNT {
            if equal(TABLE[command].name.as_bytes(), name.as_bytes()) {
                return Self(command as u16);
            }
            command += 1;
        }
        panic!("no such command")
    }

    /// Its name, in lower case; a subcommand as `parent|name`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Every command that is known.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..COUNT as u16).map(Self)
    }

    /// True if its row in the table has been compared with [`super::COMPARED_WITH`].
    #[must_use]
    pub const fn is_compared(self) -> bool {
        self.spec().compared
    }

    /// True if its work is bounded by its own request, whatever its keys hold; never of one that is not known. How many elements
    /// a request names is [`crate::RequestMeta::rows`].
    #[must_use]
    #[inline]
    pub const fn is_bounded(self) -> bool {
        self.spec().bounded
    }

    /// Its number, by which [`Command::numbered`] finds it again.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The command with a number; of one that there is not, the unknown one.
    #[must_use]
    pub const fn numbered(number: u16) -> Self {
        if (number as usize) < COUNT { Self(number) } else { Self::UNKNOWN }
    }

    /// Its place among all of them; the unknown one is first.
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) const fn spec(self) -> &'static Spec {
        &TABLE[self.0 as usize]
    }

    /// The command that `name` names, in whatever case.
    #[inline]
    pub(super) fn find(name: &[u8]) -> Self {
        Self::look_up(&COMMANDS, name)
    }

    /// Its subcommand that `name` names, or itself if that is not known apart.
    pub(super) fn sub(self, name: &[u8]) -> Self {
        let parent = self.name().as_bytes();
        let len = parent.len() + 1 + name.len();
        if len > MAX_NAME {
            return self;
        }
        let mut whole = [0; MAX_NAME];
        whole[..parent.len()].copy_from_slice(parent);
        whole[parent.len()] = SEPARATOR;
        whole[parent.len() + 1..len].copy_from_slice(name);
        let found = Self::look_up(&SUBCOMMANDS, &whole[..len]);
        if found == Self::UNKNOWN { self } else { found }
    }

    #[inline]
    fn look_up(places: &[u16; SLOTS], name: &[u8]) -> Self {
        let mut slot = hash(name);
        loop {
            let command = Self(places[slot]);
            if command == Self::UNKNOWN || command.name().as_bytes().eq_ignore_ascii_case(name) {
                return command;
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

const fn contains(name: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < name.len() {
        if name[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn every_command_is_found_by_its_name_in_any_case() {
        for command in Command::all() {
            let (parent, sub) =
                command.name().split_once('|').map_or((command.name(), None), |(a, b)| (a, Some(b)));
            for upper in [false, true] {
                let case = |name: &str| if upper { name.to_ascii_uppercase() } else { name.to_owned() };
                let found = Command::find(case(parent).as_bytes());
                let found = sub.map_or(found, |sub| found.sub(case(sub).as_bytes()));
                assert_eq!(found, command);
            }
            if sub.is_some() {
                assert!(Command::named(parent).spec().parent, "{parent} is not looked into");
            }
            assert_eq!(Command::named(command.name()), command, "twice in the table");
        }
        for name in
            ["", "nonsense", "client|list", "ge", "gett", "a name that is longer than any that there is"]
        {
            assert_eq!(Command::find(name.as_bytes()), Command::UNKNOWN, "{name}");
        }
        let client = Command::named("client");
        for sub in ["", "nonsense", "a name that is longer than any that there is"] {
            assert_eq!(client.sub(sub.as_bytes()), client, "{sub}");
        }
    }
}
