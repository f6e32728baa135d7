//! Requests that may occupy a Redis, which does one thing at a time: nobody is answered meanwhile.
//!
//! **Rule.** A request may take long unless the table of commands says that its own words bound its work, and these name few elements.
//! A command that overwrites, moves or ends a key frees what the key held, which may be millions of elements, before Redis does anything else.
//!
//! Several stores share permits and the queue, so that patience with a silent one is paid by the clients of the others as well. There a
//! plain write of one key, which nearly always is short, has none.

use crate::protocol::resp::Request;
use crate::protocol::{Class, RowsBy};

/// True if a request may take long: nothing says that it does not, or it names many elements.
#[inline]
pub(super) fn occupies_store(request: &Request, is_of_several: bool) -> bool {
    let meta = &request.meta;
    if meta.rows_by != RowsBy::Request || meta.rows > MANY_ROWS {
        return true;
    }
    let is_plain = matches!(meta.class, Class::Get | Class::Set | Class::Counter | Class::Touch);
    !(request.command.is_bounded() || is_of_several && is_plain)
}

/// So many rows take Redis a few milliseconds.
const MANY_ROWS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Step;
    use crate::protocol::resp::{Command, Decoder, Limits};

    #[test]
    fn every_command_is_bounded_or_may_occupy_the_store() {
        for command in Command::all() {
            let line = command.name().replace('|', " ") + " k 1 1 1\r\n";
            let Step::Request { request, .. } = Decoder::new(Limits::default()).next(line.as_bytes()) else {
                panic!("{line}")
            };
            assert!(occupies_store(&request, false) || request.command.is_bounded(), "{line}");
        }
    }

    #[test]
    fn what_goes_through_or_frees_a_large_key_may_occupy_the_store() {
        let occupies = |line: &str| {
            let line = format!("{line}\r\n");
            match Decoder::new(Limits::default()).next(line.as_bytes()) {
                Step::Request { request, .. } => {
                    [false, true].map(|several| occupies_store(&request, several))
                }
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
            "MSET k v",
            "RENAME a k",
            "COPY a k REPLACE",
            "RESTORE k 0 v REPLACE",
            "XADD k MAXLEN 0 * f v",
            "ZRANGESTORE k a 0 1",
            "GEORADIUS a 0 0 1 m STORE k",
            "ZRANGEBYSCORE k 0 1 LIMIT 1000000 1",
            "LRANGE k 0 2000",
            "XREAD STREAMS k 0",
            "HEXPIRE k 0 FIELDS 1 f",
            "CLIENT SOMETHING",
            "PUBLISH c m",
        ] {
            assert_eq!(occupies(line), [true; 2], "{line}");
        }
        for line in ["SET k v", "SETEX k 9 v", "GETSET k v", "GETDEL k", "GETEX k PXAT 1", "EXPIRE k -1"] {
            assert_eq!(occupies(line), [true, false], "{line}");
        }
        for line in [
            "GET k",
            "INCR k",
            "HGET k f",
            "HSET k f v",
            "SADD k m",
            "ZADD k 1 m",
            "ZSCORE k m",
            "LPUSH k v",
            "LPOP k",
            "LRANGE k 0 9",
            "XREAD COUNT 10 STREAMS k 0",
            "SETNX k v",
            "PERSIST k",
            "UNLINK k",
            "PING",
            "EXISTS k",
            "TTL k",
            "STRLEN k",
            "MGET a b c",
            "APPEND k v",
        ] {
            assert_eq!(occupies(line), [false; 2], "{line}");
        }
    }
}
