//! Requests that may occupy a Redis, which does one thing at a time: nobody is answered meanwhile.

use crate::protocol::resp::{Command, Request};
use crate::protocol::{Class, RequestMeta, RowsBy};

/// True if a request may take long: by its class, since it has many rows, or since it does not say how many elements it goes through,
/// which may be a million.
#[inline]
pub(super) fn occupies_store(request: &Request) -> bool {
    let RequestMeta { class, rows_by, rows, .. } = request.meta;
    let is_single = matches!(class, Class::Get | Class::Set | Class::Counter | Class::Touch);
    let goes_through_all = || rows_by != RowsBy::Request || LINEAR.contains(&request.command);
    rows > MANY_ROWS || !is_single && (request.meta.may_take_long() || goes_through_all())
}

/// Commands that go through what their keys hold, and do not say so by their class or rows.
const LINEAR: [Command; 26] = [
    Command::named("bitcount"),
    Command::named("bitpos"),
    Command::named("lpos"),
    Command::named("lindex"),
    Command::named("lset"),
    Command::named("lrem"),
    Command::named("linsert"),
    Command::named("ltrim"),
    Command::named("srandmember"),
    Command::named("hrandfield"),
    Command::named("zrandmember"),
    Command::named("spop"),
    Command::named("zremrangebylex"),
    Command::named("zremrangebyrank"),
    Command::named("zremrangebyscore"),
    Command::named("xinfo|stream"),
    Command::named("xpending"),
    Command::named("xtrim"),
    Command::named("xgroup|destroy"),
    Command::named("memory|usage"),
    Command::named("del"),
    Command::named("rename"),
    Command::named("renamenx"),
    Command::named("move"),
    Command::named("restore"),
    Command::named("setrange"),
];
/// So many rows take Redis a few milliseconds.
const MANY_ROWS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Step;
    use crate::protocol::resp::{Decoder, Limits};

    #[test]
    fn what_goes_through_a_large_key_may_occupy_the_store() {
        let occupies = |line: &str| {
            let line = format!("{line}\r\n");
            match Decoder::new(Limits::default()).next(line.as_bytes()) {
                Step::Request { request, .. } => occupies_store(&request),
                _ => panic!("{line}"),
            }
        };
        for line in [
            "SMEMBERS k",
            "HGETALL k",
            "LPOS k v",
            "BITCOUNT k",
            "BITPOS k 1",
            "SRANDMEMBER k -1000000",
            "LREM k 0 v",
            "LRANGE k 0 -1",
            "ZRANGEBYSCORE k -inf +inf",
            "XRANGE k - +",
            "SORT k",
            "SUNION a b",
            "KEYS *",
            "DEL k",
            "EVAL x 0",
            "DUMP k",
            "SOMETHING k",
            "EXEC",
        ] {
            assert!(occupies(line), "{line}");
        }
        for line in [
            "GET k",
            "SET k v",
            "INCR k",
            "HGET k f",
            "HSET k f v",
            "SADD k m",
            "ZADD k 1 m",
            "ZSCORE k m",
            "LPUSH k v",
            "LPOP k",
            "EXPIRE k 1",
            "PING",
            "EXISTS k",
            "TTL k",
            "STRLEN k",
            "MGET a b c",
            "APPEND k v",
            "PUBLISH c m",
        ] {
            assert!(!occupies(line), "{line}");
        }
    }
}
