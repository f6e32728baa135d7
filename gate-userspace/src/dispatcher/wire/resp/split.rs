//! Requests about keys in several slots of a cluster, which no node answers as a whole: those that are split, and their replies.
//!
//! A node refuses a request about several slots, even where it has all of them. So each run of neighbouring keys of one slot is a
//! request of its own: the runs' values, one behind the other, are in the order of the keys.

use std::io::Write as _;

use crate::dispatcher::wire::parts::{Join, KeyPlace, MOST_PARTS, PartBuffers, PartReply, Run, Splits};
use crate::protocol::resp::{Command, Request};

/// The requests that are split.
pub(super) fn splits(request: &Request) -> Splits {
    // A streamed request may have more keys than have come.
    if request.streamed || request.meta.keys < 2 {
        return Splits::Never;
    }
    match request.command {
        MGET => Splits::Always(Join::Values),
        DEL | EXISTS | TOUCH | UNLINK => Splits::Always(Join::Sum),
        MSET if request.args % 2 == 1 => Splits::Writes(Join::Same),
        _ => Splits::Never,
    }
}

/// The way in which all nodes answer a request about what each of them has; `None` if it is no such request.
pub(super) fn asks_all(request: &Request, bytes: &[u8]) -> Option<Join> {
    // A streamed request has not come as a whole.
    if request.streamed {
        return None;
    }
    match request.command {
        DBSIZE => Some(Join::Total),
        FLUSHALL | FLUSHDB | SAVE | BGSAVE | BGREWRITEAOF => Some(Join::Same),
        KEYS => Some(Join::Lists),
        RANDOMKEY => Some(Join::Any),
        SCRIPT if is_about(request, bytes, &["EXISTS"]) => Some(Join::Least),
        SCRIPT if is_about(request, bytes, &["LOAD", "FLUSH"]) => Some(Join::Same),
        FUNCTION if is_about(request, bytes, &["LOAD", "DELETE", "FLUSH", "RESTORE"]) => Some(Join::Same),
        _ => None,
    }
}

/// True if the word behind a command is one of these.
fn is_about(request: &Request, bytes: &[u8], words: &[&str]) -> bool {
    let is = |word: &[u8]| words.iter().any(|one| word.eq_ignore_ascii_case(one.as_bytes()));
    request.args(bytes).nth(1).is_some_and(is)
}

/// Appends a request for each run of keys that are at one place; none if there are more than [`MOST_PARTS`].
pub(super) fn split(
    request: &Request,
    bytes: &[u8],
    place_of: impl Fn(&[u8]) -> KeyPlace,
    parts: &mut PartBuffers,
) {
    let each = if request.command == MSET { 2 } else { 1 };
    let mut args = request.args(bytes);
    let name = args.next().unwrap_or_default();
    for key in args.clone().step_by(each) {
        let at = place_of(key);
        match parts.runs.last_mut() {
            Some(run) if run.at.slot == at.slot => run.keys += 1,
            Some(_) | None => parts.runs.push(Run { at, keys: 1, len: 0 }),
        }
        if parts.runs.len() > MOST_PARTS {
            return;
        }
    }
    for run in &mut parts.runs {
        let out = &mut parts.stores[run.at.node];
        let before = out.len();
        let count = run.keys as usize * each;
        // Into memory it cannot fail.
        let _ = write!(out, "*{}\r\n", count + 1);
        for arg in std::iter::once(name).chain(args.by_ref().take(count)) {
            let _ = write!(out, "${}\r\n", arg.len());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
        run.len = out.len() - before;
    }
}

/// The beginning of the reply to a part with so many keys; `None` if it is an error, or none that can be joined.
pub(super) fn part_reply(join: Join, keys: u32, reply: &[u8]) -> Option<PartReply> {
    match join {
        Join::InTurn => None,
        Join::Values => {
            let (count, len) = number(b'*', reply)?;
            (count == u64::from(keys)).then_some(PartReply::Values(len))
        }
        Join::Sum => {
            let (count, len) = number(b':', reply)?;
            (count <= u64::from(keys) && len == reply.len()).then_some(PartReply::Number(count))
        }
        Join::Total => {
            let (count, len) = number(b':', reply)?;
            (len == reply.len()).then_some(PartReply::Number(count))
        }
        Join::Any if matches!(reply, b"$-1\r\n" | b"_\r\n") => Some(PartReply::Nothing),
        Join::Same | Join::Any => {
            (!matches!(reply.first(), None | Some(b'-' | b'!'))).then_some(PartReply::Whole)
        }
        Join::Least => (reply.first() == Some(&b'*')).then_some(PartReply::Whole),
        Join::Lists => {
            let (count, len) = number(b'*', reply)?;
            Some(PartReply::Counted(count, len))
        }
        Join::Scan(step) => {
            let (cursor, len) = node_cursor(reply)?;
            Some(PartReply::Counted(step.cursor_behind(cursor)?, len))
        }
    }
}

/// Appends the reply to the whole; of one with values, what is ahead of them.
pub(super) fn joined(join: Join, keys: u32, sum: u64, out: &mut Vec<u8>) {
    let _ = match join {
        Join::InTurn | Join::Same | Join::Least | Join::Any => Ok(()),
        Join::Values => write!(out, "*{keys}\r\n"),
        Join::Lists => write!(out, "*{sum}\r\n"),
        Join::Scan(_) => {
            let cursor = sum.to_string();
            write!(out, "*2\r\n${}\r\n{cursor}\r\n", cursor.len())
        }
        Join::Sum | Join::Total => write!(out, ":{sum}\r\n"),
    };
}

/// The cursor at the beginning of a node's reply to a scan, and the length of that beginning.
fn node_cursor(reply: &[u8]) -> Option<(u64, usize)> {
    let head = reply.strip_prefix(CURSOR_AND_KEYS)?;
    let (len, start) = number(b'$', head)?;
    let text = head.get(start..)?.get(..usize::try_from(len).ok()?)?;
    let end = CURSOR_AND_KEYS.len() + start + text.len() + 2;
    let cursor = super::scan::unsigned(text)?;
    (reply.get(end - 2..end)? == b"\r\n").then_some((cursor, end))
}

/// The number in the first line of a reply, and the length of that.
fn number(kind: u8, reply: &[u8]) -> Option<(u64, usize)> {
    let (&first, rest) = reply.split_first()?;
    let digits = &rest[..memchr::memchr(b'\r', rest).filter(|_| first == kind)?];
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let len = 1 + digits.len() + 2;
    (reply.get(len - 1) == Some(&b'\n')).then_some((number, len))
}

const CURSOR_AND_KEYS: &[u8] = b"*2\r\n";
const DEL: Command = Command::named("del");
const EXISTS: Command = Command::named("exists");
const MGET: Command = Command::named("mget");
const MSET: Command = Command::named("mset");
const TOUCH: Command = Command::named("touch");
const UNLINK: Command = Command::named("unlink");
const DBSIZE: Command = Command::named("dbsize");
const FLUSHALL: Command = Command::named("flushall");
const FLUSHDB: Command = Command::named("flushdb");
const BGREWRITEAOF: Command = Command::named("bgrewriteaof");
const BGSAVE: Command = Command::named("bgsave");
const FUNCTION: Command = Command::named("function");
const KEYS: Command = Command::named("keys");
const RANDOMKEY: Command = Command::named("randomkey");
const SAVE: Command = Command::named("save");
const SCRIPT: Command = Command::named("script");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Step;
    use crate::protocol::resp::{Decoder, Limits};

    fn parts(line: &str) -> (Splits, Vec<String>, Vec<(usize, u32)>) {
        let mut decoder = Decoder::new(Limits::default());
        let line = format!("{line}\r\n");
        let Step::Request { request, .. } = decoder.next(line.as_bytes()) else { panic!("{line}") };
        let bytes = decoder.bytes(&request, line.as_bytes()).to_vec();
        let mut parts = PartBuffers::new(2);
        let place_of = |key: &[u8]| {
            let slot = usize::from(key[0] - b'a');
            KeyPlace { node: slot % 2, slot }
        };
        if splits(&request) != Splits::Never {
            split(&request, &bytes, place_of, &mut parts);
        }
        let mut at = [0; 2];
        for run in &parts.runs {
            let from = at[run.at.node];
            at[run.at.node] += run.len;
            let part = &parts.stores[run.at.node][from..at[run.at.node]];
            let Step::Request { len, request } = decoder.next(part) else { panic!("{part:?}") };
            assert_eq!((len, request.meta.keys), (part.len(), run.keys), "{line}");
        }
        let text = |part: &Vec<u8>| String::from_utf8_lossy(part).replace("\r\n", " ");
        let runs = parts.runs.iter().map(|run| (run.at.slot, run.keys)).collect();
        (splits(&request), parts.stores.iter().map(text).collect(), runs)
    }

    #[test]
    fn a_request_is_split_by_runs_of_one_slot() {
        let (splits, stores, runs) = parts("MGET a1 a2 b c a3");
        assert_eq!(splits, Splits::Always(Join::Values));
        assert_eq!(runs, [(0, 2), (1, 1), (2, 1), (0, 1)]);
        let a = "*3 $4 MGET $2 a1 $2 a2 *2 $4 MGET $1 c *2 $4 MGET $2 a3 ";
        assert_eq!(stores, [a, "*2 $4 MGET $1 b "]);
        let (splits, stores, runs) = parts("mset a 1 b 2 b2 3");
        assert_eq!(splits, Splits::Writes(Join::Same));
        assert_eq!(runs, [(0, 1), (1, 2)]);
        assert_eq!(stores[1], "*5 $4 mset $1 b $1 2 $2 b2 $1 3 ");
        for line in ["DEL a b", "UNLINK a b", "EXISTS a b a", "TOUCH a b"] {
            assert_eq!(parts(line).0, Splits::Always(Join::Sum), "{line}");
        }
        for line in ["MSET a 1 b", "MSETNX a 1 b 2", "MGET a", "RENAME a b", "PFCOUNT a b", "SUNION a b"] {
            assert_eq!(parts(line).0, Splits::Never, "{line}");
        }
    }

    #[test]
    fn what_a_part_says_is_read_or_refused() {
        for (join, keys, reply, read) in [
            (Join::Values, 2, "*2\r\n$1\r\nx\r\n$-1\r\n", Some(PartReply::Values(4))),
            (Join::Values, 12, "*12\r\n$1\r\n", Some(PartReply::Values(5))),
            (Join::Values, 2, "*1\r\n$1\r\nx\r\n", None),
            (Join::Values, 2, "*-1\r\n", None),
            (Join::Values, 2, "-ERR no\r\n", None),
            (Join::Sum, 2, ":2\r\n", Some(PartReply::Number(2))),
            (Join::Sum, 2, ":3\r\n", None),
            (Join::Sum, 2, ":-1\r\n", None),
            (Join::Sum, 2, "+OK\r\n", None),
            (Join::Total, 2, ":12\r\n", Some(PartReply::Number(12))),
            (Join::Total, 2, ":x\r\n", None),
            (Join::Same, 2, "+OK\r\n", Some(PartReply::Whole)),
            (Join::Same, 2, "-OOM\r\n", None),
            (Join::InTurn, 2, "+OK\r\n", None),
            (Join::Lists, 1, "*2\r\n$1\r\nx\r\n$1\r\ny\r\n", Some(PartReply::Counted(2, 4))),
            (Join::Lists, 1, "*0\r\n", Some(PartReply::Counted(0, 4))),
            (Join::Lists, 1, "-ERR no\r\n", None),
            (Join::Least, 1, "*2\r\n:1\r\n:0\r\n", Some(PartReply::Whole)),
            (Join::Least, 1, "-ERR no\r\n", None),
            (Join::Any, 1, "$1\r\nx\r\n", Some(PartReply::Whole)),
            (Join::Any, 1, "$-1\r\n", Some(PartReply::Nothing)),
            (Join::Any, 1, "-ERR no\r\n", None),
        ] {
            assert_eq!(part_reply(join, keys, reply.as_bytes()), read, "{join:?} {reply}");
        }
        let whole = |join| {
            let mut out = Vec::new();
            joined(join, 3, 2, &mut out);
            String::from_utf8(out).unwrap()
        };
        let whole = [Join::Values, Join::Sum, Join::Same, Join::Lists, Join::Any].map(whole);
        assert_eq!(whole, ["*3\r\n", ":2\r\n", "", "*2\r\n", ""]);
    }

    #[test]
    fn a_nodes_cursor_is_read_whole_or_not_at_all() {
        for (reply, read) in [
            ("*2\r\n$1\r\n0\r\n*0\r\n", Some((0, 11))),
            ("*2\r\n$3\r\n128\r\n*1\r\n$1\r\na\r\n", Some((128, 13))),
            ("*2\r\n$1\r\nx\r\n*0\r\n", None),
            ("*2\r\n$0\r\n\r\n*0\r\n", None),
            ("*2\r\n$9\r\n1\r\n", None),
            ("*3\r\n$1\r\n0\r\n", None),
            ("-ERR invalid cursor\r\n", None),
        ] {
            assert_eq!(node_cursor(reply.as_bytes()), read, "{reply}");
        }
    }
}
