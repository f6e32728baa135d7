//! Properties of a request from its arguments: where its keys are, how many rows, whether it waits.

use super::args::{Args, Run};
use super::command::{Command, KeySpec, OPEN_ROWS, Rows, State};
use crate::{Access, Class, RowsBy, number};

/// The properties of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) access: Access,
    pub(super) state: State,
    pub(super) keys: u32,
    pub(super) rows: u32,
    pub(super) rows_by: RowsBy,
    pub(super) runs: [Run; 2],
}

/// More rows than this are not believed: bounds often reach beyond what there is.
const MAX_ROWS: u32 = 10_000;

/// The keys of a command that has them at fixed places: the first one's number, and how many there are among
/// `args` arguments.
#[inline]
pub(super) fn fixed_keys(keys: KeySpec, args: u32) -> Option<(u32, u32, u8)> {
    let KeySpec::Range { first, last, step } = keys else { return None };
    let first = u32::from(first);
    // One beyond the last.
    let end = if last < 0 {
        args.saturating_sub(u32::from((last + 1).unsigned_abs()))
    } else {
        args.min(u32::from(last.unsigned_abs()) + 1)
    };
    let keys = end.saturating_sub(first);
    // Dividing takes as long as all the rest.
    Some((first, if step == 1 { keys } else { keys.div_ceil(u32::from(step)) }, step))
}

/// Reads what the arguments tell of a request of `count` arguments, of which `args` are at hand; of those that
/// are not, the worst is assumed. If its keys are at fixed places, there are so many, and `fixed` are at hand.
#[inline(always)]
pub(super) fn read(command: Command, args: &Args<'_>, count: u32, keys: u32, fixed: Run) -> Shape {
    let spec = command.spec();
    let access = spec.access;
    let state = spec.state;
    let runs = [fixed, Run::default()];
    let are_fixed = matches!(spec.keys, KeySpec::None | KeySpec::Range { .. });
    if are_fixed && spec.rows == Rows::Keys && !spec.may_store && args.left() >= count {
        // Nearly always. Nothing is looked for, and nothing leaves the registers.
        let rows_by = if command == EXEC { RowsBy::OtherRequests } else { RowsBy::Request };
        return Shape { access, state, keys, rows: keys.clamp(1, MAX_ROWS), rows_by, runs };
    }
    let mut shape = Shape { access, state, keys, rows: 0, rows_by: RowsBy::Request, runs };
    match spec.keys {
        KeySpec::None | KeySpec::Range { .. } => {}
        KeySpec::Counted { at, destination } => shape.counted(args, count, at.into(), destination),
        KeySpec::Streams => shape.streams(args),
    }
    if spec.may_store && options(args, 2, &["STORE", "STOREDIST"]).is_some() {
        shape.access = Access::WriteAny;
    }
    if args.left() < count {
        shape.assume_the_worst(command, args.left());
    }
    let stated = match spec.rows {
        Rows::Keys => Some(shape.keys),
        Rows::Open => None,
        Rows::Fields { from, step } => Some(count.saturating_sub(from.into()).div_ceil(step.into())),
        _ => rows(spec.rows, spec.keys, args),
    };
    shape.rows = stated.unwrap_or(OPEN_ROWS).clamp(1, MAX_ROWS);
    let by_keys = matches!(spec.rows, Rows::Keys | Rows::Fields { .. });
    if !by_keys && stated.is_none_or(|rows| rows > MAX_ROWS) {
        shape.rows_by = shown_by_reply(command);
    }
    shape
}

/// The rows that the reply to a command shows which does not state them.
fn shown_by_reply(command: Command) -> RowsBy {
    match command.spec().class {
        // It says how many bytes it has written.
        _ if command == BITOP => RowsBy::Request,
        Class::Range | Class::Collection => RowsBy::Reply,
        _ => RowsBy::ReplyInPart,
    }
}

const EXEC: Command = Command::named("exec");
const BITOP: Command = Command::named("bitop");

impl Shape {
    /// The argument at `at` says how many keys follow it.
    fn counted(&mut self, args: &Args<'_>, count: u32, at: usize, destination: bool) {
        let mut rest = args.clone();
        let Some(declared) = rest.nth(at).and_then(number) else { return };
        let declared = u32::try_from(declared).unwrap_or(0).min(count - at as u32 - 1);
        let keys = Run { at: rest.at() as u32, count: declared.min(rest.left()), step: 1 };
        self.keys = declared;
        if destination {
            let mut args = args.clone();
            args.next();
            self.runs = [Run { at: args.at() as u32, count: 1, step: 0 }, keys];
            self.keys += 1;
        } else {
            self.runs[0] = keys;
        }
    }

    /// Options, `STREAMS`, keys, and as many places in them.
    fn streams(&mut self, args: &Args<'_>) {
        let mut rest = args.clone();
        rest.next();
        while let Some(word) = rest.next() {
            let values = match word {
                _ if word.eq_ignore_ascii_case(b"STREAMS") => {
                    self.keys = rest.left() / 2;
                    self.runs[0] = Run { at: rest.at() as u32, count: self.keys, step: 1 };
                    return;
                }
                _ if word.eq_ignore_ascii_case(b"BLOCK") => {
                    self.state = State::Blocking;
                    1
                }
                _ if word.eq_ignore_ascii_case(b"COUNT") => 1,
                _ if word.eq_ignore_ascii_case(b"GROUP") => 2,
                _ if word.eq_ignore_ascii_case(b"NOACK") => 0,
                _ => {
                    // An option that a later version of the store may know.
                    if rest.any(|word| word.eq_ignore_ascii_case(b"BLOCK")) {
                        self.state = State::Blocking;
                    }
                    return;
                }
            };
            for _ in 0..values {
                rest.next();
            }
        }
    }

    /// Only `seen` arguments are at hand.
    fn assume_the_worst(&mut self, command: Command, seen: u32) {
        let spec = command.spec();
        let all_at_hand = self.runs.iter().map(|run| run.count).sum::<u32>() == self.keys;
        let known = match spec.keys {
            KeySpec::None | KeySpec::Range { .. } => all_at_hand,
            KeySpec::Counted { at, .. } => all_at_hand && seen > at.into(),
            KeySpec::Streams => {
                self.state = State::Blocking;
                false
            }
        };
        if spec.may_store || self.access == Access::Write && !known {
            self.access = Access::WriteAny;
        }
        if spec.parent && seen < 2 {
            (self.access, self.state) = (Access::WriteAny, State::Own);
        }
    }
}

/// Rows by the numbers among the arguments; `None` if those do not tell.
fn rows(by: Rows, keys: KeySpec, args: &Args<'_>) -> Option<u32> {
    let limit = |from| stated(args, from, "LIMIT", 1);
    let rows = match by {
        Rows::Bounds { from } => {
            let from = usize::from(from);
            let mut bounds = args.clone().skip(from).map(number);
            match (bounds.next().flatten(), bounds.next().flatten()) {
                _ if options(args, from + 2, &["BYSCORE", "BYLEX"]).is_some() => limit(from + 2),
                (Some(first), Some(last)) if (first < 0) == (last < 0) => Some((last - first).max(0) + 1),
                _ => None,
            }
        }
        Rows::Number { at } => Some(args.clone().nth(at.into()).and_then(number).map_or(1, i64::abs)),
        Rows::Count(default) => {
            // Where keys come last, options come first.
            let from = if keys == KeySpec::Streams { 1 } else { 2 };
            let count = stated(args, from, "COUNT", 0);
            // What the store takes for the default of its own; others walk to the end.
            count.or((default != OPEN_ROWS).then_some(default.into()))
        }
        Rows::Limit => limit(2),
        Rows::Keys | Rows::Open | Rows::Fields { .. } => None,
    };
    rows.filter(|&rows| rows >= 0).map(|rows| u32::try_from(rows).unwrap_or(u32::MAX))
}

/// The arguments after the first of `words`, searched from number `from` on.
fn options<'b>(args: &Args<'b>, from: usize, words: &[&str]) -> Option<Args<'b>> {
    let mut rest = args.clone();
    for _ in 0..from {
        rest.next()?;
    }
    rest.find(|arg| words.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes())))?;
    Some(rest)
}

/// The largest of the numbers that stand at a place behind each `word`, searched from number `from` on; one below zero, if there is any.
/// The store takes one of several options of a name, and the price must not be that of a smaller one.
fn stated(args: &Args<'_>, from: usize, word: &str, place: usize) -> Option<i64> {
    let mut rest = args.clone();
    let mut most = None;
    for _ in 0..from {
        rest.next()?;
    }
    while rest.find(|arg| arg.eq_ignore_ascii_case(word.as_bytes())).is_some() {
        match rest.clone().nth(place).and_then(number) {
            Some(below) if below < 0 => return Some(below),
            stated => most = most.max(stated),
        }
    }
    most
}

/// A number that can be added to another without a thought.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let number = i64::try_from(number::unsigned(digits)?).ok()?.min(i64::MAX / 4);
    Some(if digits.len() < text.len() { -number } else { number })
}
