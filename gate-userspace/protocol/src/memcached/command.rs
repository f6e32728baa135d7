//! The commands that are known.

use crate::Class;

/// A command. Its variants are named as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is named as the protocol names it")]
pub enum Command {
    Get,
    Gets,
    Gat,
    Gats,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Incr,
    Decr,
    Touch,
    /// `mg`
    MetaGet,
    /// `ms`
    MetaSet,
    /// `md`
    MetaDelete,
    /// `ma`
    MetaArithmetic,
    /// `me`
    MetaDebug,
    /// `mn`
    MetaNoop,
    FlushAll,
    Version,
    Verbosity,
    Stats,
    /// `stats gate`, which gate answers itself.
    StatsGate,
    /// Answered by nothing but the connection's end.
    Quit,
    CacheMemlimit,
    Lru,
    LruCrawler,
    Slabs,
    Extstore,
    RefreshCerts,
}

impl Command {
    /// Every command.
    pub const ALL: [Self; 32] = [
        Self::Get,
        Self::Gets,
        Self::Gat,
        Self::Gats,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Cas,
        Self::Delete,
        Self::Incr,
        Self::Decr,
        Self::Touch,
        Self::MetaGet,
        Self::MetaSet,
        Self::MetaDelete,
        Self::MetaArithmetic,
        Self::MetaDebug,
        Self::MetaNoop,
        Self::FlushAll,
        Self::Version,
        Self::Verbosity,
        Self::Stats,
        Self::StatsGate,
        Self::Quit,
        Self::CacheMemlimit,
        Self::Lru,
        Self::LruCrawler,
        Self::Slabs,
        Self::Extstore,
        Self::RefreshCerts,
    ];

    /// Those that are written so, in lower case.
    pub fn named(name: &str) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |command| command.name() == name)
    }

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Gets => "gets",
            Self::Gat => "gat",
            Self::Gats => "gats",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Cas => "cas",
            Self::Delete => "delete",
            Self::Incr => "incr",
            Self::Decr => "decr",
            Self::Touch => "touch",
            Self::MetaGet => "mg",
            Self::MetaSet => "ms",
            Self::MetaDelete => "md",
            Self::MetaArithmetic => "ma",
            Self::MetaDebug => "me",
            Self::MetaNoop => "mn",
            Self::FlushAll => "flush_all",
            Self::Version => "version",
            Self::Verbosity => "verbosity",
            Self::Stats | Self::StatsGate => "stats",
            Self::Quit => "quit",
            Self::CacheMemlimit => "cache_memlimit",
            Self::Lru => "lru",
            Self::LruCrawler => "lru_crawler",
            Self::Slabs => "slabs",
            Self::Extstore => "extstore",
            Self::RefreshCerts => "refresh_certs",
        }
    }

    /// Its kind, with `keys` keys.
    #[must_use]
    pub const fn class(self, keys: u32) -> Class {
        match self {
            Self::Get | Self::Gets | Self::Gat | Self::Gats | Self::MetaGet if keys > 1 => Class::Mget,
            Self::Get | Self::Gets | Self::Gat | Self::Gats | Self::MetaGet => Class::Get,
            Self::Set
            | Self::Add
            | Self::Replace
            | Self::Append
            | Self::Prepend
            | Self::Cas
            | Self::MetaSet => Class::Set,
            Self::Delete | Self::MetaDelete => Class::Delete,
            Self::Incr | Self::Decr | Self::MetaArithmetic => Class::Counter,
            Self::Touch => Class::Touch,
            Self::MetaDebug => Class::Read,
            Self::MetaNoop | Self::Version | Self::Quit => Class::Connection,
            Self::FlushAll
            | Self::Verbosity
            | Self::Stats
            | Self::StatsGate
            | Self::CacheMemlimit
            | Self::Lru
            | Self::LruCrawler
            | Self::Slabs
            | Self::Extstore
            | Self::RefreshCerts => Class::Admin,
        }
    }

    /// The shape of its answer, where it has one.
    #[must_use]
    pub const fn expect(self) -> Expect {
        match self {
            Self::Get | Self::Gets | Self::Gat | Self::Gats => Expect::Values,
            Self::MetaGet | Self::MetaSet | Self::MetaDelete | Self::MetaArithmetic => Expect::Meta,
            Self::Stats => Expect::Stats,
            Self::Set
            | Self::Add
            | Self::Replace
            | Self::Append
            | Self::Prepend
            | Self::Cas
            | Self::Delete
            | Self::Incr
            | Self::Decr
            | Self::Touch
            | Self::MetaDebug
            | Self::MetaNoop
            | Self::FlushAll
            | Self::Version
            | Self::Verbosity
            | Self::StatsGate
            | Self::Quit
            | Self::CacheMemlimit
            | Self::Lru
            | Self::LruCrawler
            | Self::Slabs
            | Self::Extstore
            | Self::RefreshCerts => Expect::Line,
        }
    }
}

/// The shape of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expect {
    /// One line.
    Line,
    /// `VALUE` blocks and `END`; or one line, an error.
    Values,
    /// One line, which `VA` follows with a value.
    Meta,
    /// Lines and `END`; or one line.
    Stats,
}

/// The answers that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quiet {
    /// The request is answered.
    Answered,
    /// Never, whatever becomes of it: its last word is `noreply`.
    NoReply,
    /// Only if the outcome is other than the usual one: a meta command with the flag `q`. That there is no
    /// answer shows only in the answer to a later command, such as `mn`.
    Unusual,
}
