//! The properties of a command, and short functions that define them.

pub(super) use super::super::State;
use crate::{Access, Class};

/// A command, or a subcommand as `parent|name`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// In lower case.
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    pub(crate) access: Access,
    pub(crate) keys: KeySpec,
    pub(crate) rows: Rows,
    pub(crate) state: State,
    /// True if its second word may name a subcommand of its own.
    pub(crate) parent: bool,
    /// True if it only reads, unless an option names a key to store into.
    pub(crate) may_store: bool,
    /// True if its answer says what its keys hold and nothing else: neither chance nor time has a part in it.
    pub(crate) pure: bool,
    /// True if its work is bounded by its own request, whatever its keys hold: it neither goes through all of a key nor frees one. Of
    /// any other, and of one that is not known, nobody can tell how long it keeps a store from everything else.
    pub(crate) bounded: bool,
    /// True if a test has compared the row with what [`super::super::COMPARED_WITH`] says of the command.
    pub(crate) compared: bool,
}

/// Where keys are among the arguments, of which the name is number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySpec {
    /// None, or not known before it runs.
    None,
    /// From `first` to `last`, every `step`th; a negative `last` counts from the end, -1 being the last.
    Range { first: u8, last: i8, step: u8 },
    /// The argument at `at` says how many follow it. With a destination, that is number 1.
    Counted { at: u8, destination: bool },
    /// The first half of what follows `STREAMS`.
    Streams,
}

/// The estimate of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// One for each key.
    Keys,
    /// One for every `step` arguments from `from` on.
    Fields { from: u8, step: u8 },
    /// From the place that is argument `from` to the one that is the next; by `LIMIT` if there is a `BY...`.
    Bounds { from: u8 },
    /// The number that is argument `at`; 1 if it is not there.
    Number { at: u8 },
    /// The number after `COUNT`, or this many.
    Count(u32),
    /// The second number after `LIMIT`, or [`OPEN_ROWS`].
    Limit,
    /// [`OPEN_ROWS`]
    Open,
}

/// Rows of what only the store knows the size of.
pub const OPEN_ROWS: u32 = 100;

pub(super) const NONE: Access = Access::Neither;
pub(super) const READ: Access = Access::Read;
pub(super) const WRITE: Access = Access::Write;
pub(super) const ANY: Access = Access::WriteAny;

pub(super) const NO_KEYS: KeySpec = KeySpec::None;
pub(super) const ONE: KeySpec = range(1, 1, 1);
pub(super) const TWO: KeySpec = range(1, 2, 1);
pub(super) const ALL: KeySpec = range(1, -1, 1);
pub(super) const BUT_LAST: KeySpec = range(1, -2, 1);
pub(super) const PAIRS: KeySpec = range(1, -1, 2);
pub(super) const SECOND: KeySpec = range(2, 2, 1);
pub(super) const FROM_SECOND: KeySpec = range(2, -1, 1);
pub(super) const COUNTED: KeySpec = KeySpec::Counted { at: 1, destination: false };
pub(super) const COUNTED_SECOND: KeySpec = KeySpec::Counted { at: 2, destination: false };
pub(super) const STORED_COUNTED: KeySpec = KeySpec::Counted { at: 2, destination: true };
pub(super) const STREAMS: KeySpec = KeySpec::Streams;

const fn range(first: u8, last: i8, step: u8) -> KeySpec {
    KeySpec::Range { first, last, step }
}

/// A command that any connection will do for, with a row for each key.
pub(super) const fn c(name: &'static str, class: Class, access: Access, keys: KeySpec) -> Spec {
    let rows = Rows::Keys;
    let state = State::Shared;
    Spec {
        name,
        class,
        access,
        keys,
        rows,
        state,
        parent: false,
        may_store: false,
        pure: false,
        bounded: false,
        compared: true,
    }
}

impl Spec {
    pub(super) const fn state(self, state: State) -> Self {
        Self { state, ..self }
    }

    pub(super) const fn parent(self) -> Self {
        Self { parent: true, ..self }
    }

    pub(super) const fn may_store(self) -> Self {
        Self { may_store: true, ..self }
    }

    pub(super) const fn pure(self) -> Self {
        Self { pure: true, ..self }
    }

    /// A command whose work its own words bound: as many elements as it names, each found in logarithmic time or less, of
    /// values that are strings of 512 MiB at most.
    pub(super) const fn bounded(self) -> Self {
        Self { bounded: true, ..self }
    }

    /// A command that the compared version does not know: the row is from the documentation.
    pub(super) const fn not_compared(self) -> Self {
        Self { compared: false, ..self }
    }

    pub(super) const fn fields(self, from: u8, step: u8) -> Self {
        Self { rows: Rows::Fields { from, step }, ..self }
    }

    pub(super) const fn bounds(self, from: u8) -> Self {
        Self { rows: Rows::Bounds { from }, ..self }
    }

    pub(super) const fn number(self, at: u8) -> Self {
        Self { rows: Rows::Number { at }, ..self }
    }

    pub(super) const fn count(self, default: u32) -> Self {
        Self { rows: Rows::Count(default), ..self }
    }

    pub(super) const fn limit(self) -> Self {
        Self { rows: Rows::Limit, ..self }
    }

    pub(super) const fn open(self) -> Self {
        Self { rows: Rows::Open, ..self }
    }
}
