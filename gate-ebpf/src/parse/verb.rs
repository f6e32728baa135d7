//! memcached's commands, by their first bytes.

use gate_common::abi::QueryClass;

use crate::maps::opaque_value;

/// A command's properties in one word: bits that the scanner tests, and its [`QueryClass`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verb(u32);

impl Verb {
    /// A [`QueryClass`].
    const CLASS: u32 = 0b111;
    /// Each word is a key.
    pub(crate) const KEYS: u32 = 1 << 3;
    /// The first word, the command itself or a time, is no key.
    pub(crate) const FIRST_IS_NONE: u32 = 1 << 4;
    /// Its words are scanned one by one.
    pub(crate) const WORDS: u32 = 1 << 5;
    /// Data follows the line.
    pub(crate) const DATA: u32 = 1 << 6;
    /// One more number, of 64 bits, comes before the data.
    pub(crate) const UNIQUE: u32 = 1 << 7;
    /// A meta command: flags follow its key.
    pub(crate) const META: u32 = 1 << 8;
    /// Its first key may be sampled.
    pub(crate) const SAMPLED: u32 = 1 << 9;
    /// The command writes.
    pub(crate) const WRITES: u32 = 1 << 10;
    /// `noreply` at its end asks for no answer.
    pub(crate) const NOREPLY: u32 = 1 << 11;

    /// No command yet.
    pub(crate) const NONE: Self = Self(0);
    const GET: Self = Self(QueryClass::Get as u32 | Self::KEYS | Self::SAMPLED);
    const GET_AND_TOUCH: Self = Self(Self::GET.0 | Self::FIRST_IS_NONE | Self::WORDS);
    const WRITE: u32 = Self::SAMPLED | Self::WRITES | Self::NOREPLY;
    const STORE: Self = Self(QueryClass::Set as u32 | Self::WORDS | Self::DATA | Self::WRITE);
    const CAS: Self = Self(Self::STORE.0 | Self::UNIQUE);
    const DELETE: Self = Self(QueryClass::Delete as u32 | Self::WRITE);
    const ARITHMETIC: Self = Self(QueryClass::Arithmetic as u32 | Self::WRITE);
    const TOUCH: Self = Self(QueryClass::Touch as u32 | Self::WRITE);
    const METAS: u32 = Self::META | Self::WORDS | Self::SAMPLED;
    const META_GET: Self = Self(QueryClass::Get as u32 | Self::METAS);
    const META_SET: Self = Self(QueryClass::Set as u32 | Self::METAS | Self::DATA | Self::WRITES);
    const META_DELETE: Self = Self(QueryClass::Delete as u32 | Self::METAS | Self::WRITES);
    const META_ARITHMETIC: Self = Self(QueryClass::Arithmetic as u32 | Self::METAS | Self::WRITES);
    const META_DEBUG: Self = Self(QueryClass::Other as u32 | Self::META | Self::WORDS);
    /// Any other command: each word after it may be a key.
    pub(crate) const OTHER: Self =
        Self(QueryClass::Other as u32 | Self::KEYS | Self::FIRST_IS_NONE | Self::NOREPLY);
    /// A command after spaces, which memcached skips: it may be any command.
    pub(crate) const HIDDEN: Self =
        Self(QueryClass::Unread as u32 | Self::KEYS | Self::FIRST_IS_NONE | Self::NOREPLY);

    /// True if any of `bits` is set.
    #[inline(always)]
    pub(crate) fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// One if `bit`, which is a single one, is set, else zero; without a branch.
    #[inline(always)]
    pub(crate) fn bit(self, bit: u32) -> u64 {
        opaque_value(u64::from(self.0 >> bit.trailing_zeros())) & 1
    }

    /// The class of a command with so many rows.
    #[inline(always)]
    pub(crate) fn class(self, rows: u32) -> u32 {
        let class = self.0 & Self::CLASS;
        if class == QueryClass::Get as u32 && rows > 1 { QueryClass::MultiGet as u32 } else { class }
    }

    /// The number of rows that it names with so many words.
    #[inline(always)]
    pub(crate) fn rows(self, words: u32) -> u32 {
        if !self.has(Self::KEYS) {
            return words.min(1);
        }
        if self.has(Self::FIRST_IS_NONE) { words.saturating_sub(1) } else { words }
    }

    /// The index of the first key among its words.
    #[inline(always)]
    pub(crate) fn first_key(self) -> u32 {
        u32::from(self.has(Self::FIRST_IS_NONE))
    }

    /// True if the word at this index must be a number before data.
    #[inline(always)]
    pub(crate) fn is_number(self, index: u32) -> bool {
        if self.has(Self::META) {
            index == 1
        } else {
            matches!(index, 1..=3) || index == 4 && self.has(Self::UNIQUE)
        }
    }

    /// The largest number at this index that every memcached accepts before data.
    #[inline(always)]
    pub(crate) fn largest(self, index: u32) -> Option<u64> {
        match index {
            _ if index == self.data_len_at() => Some(i32::MAX as u64 - 2),
            1 if !self.has(Self::META) => Some(u32::MAX as u64),
            2 if !self.has(Self::META) => Some(i32::MAX as u64),
            _ => None,
        }
    }

    /// The index of the data's length.
    #[inline(always)]
    pub(crate) fn data_len_at(self) -> u32 {
        if self.has(Self::META) { 1 } else { 3 }
    }

    /// The least words of a storage command: key, flags, expiry, length, and a unique; of a meta command key and length.
    #[inline(always)]
    pub(crate) fn least_words(self) -> u32 {
        (4 + self.bit(Self::UNIQUE) - 2 * self.bit(Self::META)) as u32
    }

    /// The most words of a storage command beyond the least: `noreply`, or a meta command's flags.
    #[inline(always)]
    pub(crate) fn optional_words(self) -> u32 {
        (1 + (MAX_META_FLAGS - 1) * self.bit(Self::META)) as u32
    }

    /// The command at the start of a line, given the line's first eight bytes, and its length with the space
    /// after it: zero for [`Verb::OTHER`] and [`Verb::HIDDEN`].
    #[inline(always)]
    pub(crate) fn of(line: u64) -> (Self, u32) {
        if line as u32 == text4(b"get ") {
            return (Self::GET, 4);
        }
        let space_fifth = (line >> 32) as u8 == b' ';
        match line as u32 {
            SET | ADD => (Self::STORE, 4),
            CAS4 => (Self::CAS, 4),
            GAT => (Self::GET_AND_TOUCH, 4),
            GETS | BGET if space_fifth => (Self::GET, 5),
            GATS if space_fifth => (Self::GET_AND_TOUCH, 5),
            INCR | DECR if space_fifth => (Self::ARITHMETIC, 5),
            TOUC if line & SIX == text8(b"touch \0\0") => (Self::TOUCH, 6),
            DELE if line & SEVEN == text8(b"delete \0") => (Self::DELETE, 7),
            APPE if line & SEVEN == text8(b"append \0") => (Self::STORE, 7),
            PREP if line == text8(b"prepend ") => (Self::STORE, 8),
            REPL if line == text8(b"replace ") => (Self::STORE, 8),
            _ => Self::short(line),
        }
    }

    /// The commands of two letters, [`Verb::OTHER`] and [`Verb::HIDDEN`].
    #[inline(always)]
    fn short(line: u64) -> (Self, u32) {
        let verb = match line as u32 & 0x00ff_ffff {
            MG => Self::META_GET,
            MS => Self::META_SET,
            MD => Self::META_DELETE,
            MA => Self::META_ARITHMETIC,
            ME => Self::META_DEBUG,
            _ if line as u8 == b' ' => return (Self::HIDDEN, 0),
            _ => return (Self::OTHER, 0),
        };
        (verb, 3)
    }
}

/// Fewer than memcached's limit on the words of a meta command, which has changed over time, key and length taken off.
const MAX_META_FLAGS: u64 = 14;

const SET: u32 = text4(b"set ");
const ADD: u32 = text4(b"add ");
const CAS4: u32 = text4(b"cas ");
const GAT: u32 = text4(b"gat ");
const GETS: u32 = text4(b"gets");
const BGET: u32 = text4(b"bget");
const GATS: u32 = text4(b"gats");
const INCR: u32 = text4(b"incr");
const DECR: u32 = text4(b"decr");
const TOUC: u32 = text4(b"touc");
const DELE: u32 = text4(b"dele");
const APPE: u32 = text4(b"appe");
const PREP: u32 = text4(b"prep");
const REPL: u32 = text4(b"repl");
const MG: u32 = text4(b"mg \0");
const MS: u32 = text4(b"ms \0");
const MD: u32 = text4(b"md \0");
const MA: u32 = text4(b"ma \0");
const ME: u32 = text4(b"me \0");
const SIX: u64 = 0x0000_ffff_ffff_ffff;
const SEVEN: u64 = 0x00ff_ffff_ffff_ffff;

/// Four bytes as the scanner reads them.
pub(crate) const fn text4(text: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*text)
}

/// Eight bytes as the scanner reads them.
pub(crate) const fn text8(text: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*text)
}
