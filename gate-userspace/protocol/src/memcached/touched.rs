//! The keys that a request touches, as memcached knows them.

use super::MAX_KEY;
use super::base64::decode_standard;
use super::command::Command;
use super::request::Request;

impl Request {
    /// True if `may` agrees to every key that the request touches; `bytes` begin where it does. False where there may be more
    /// than are named.
    pub fn touches_only(&self, bytes: &[u8], mut may: impl FnMut(&[u8]) -> bool) -> bool {
        let nth = |place| {
            let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).nth(place)
        };
        match self.command {
            Command::MetaNoop | Command::Version | Command::Quit | Command::StatsGate => true,
            // Alone, it says nothing of any key; its arguments do, or change what it says.
            Command::Stats => nth(1).is_none(),
            Command::FlushAll
            | Command::Verbosity
            | Command::CacheMemlimit
            | Command::Lru
            | Command::LruCrawler
            | Command::Slabs
            | Command::Extstore
            | Command::RefreshCerts => false,
            // Some versions take the key for base64 only if that is what the first of several flags says.
            Command::MetaDebug if self.base64 => false,
            Command::MetaGet | Command::MetaSet | Command::MetaDelete | Command::MetaArithmetic
                if self.base64 =>
            {
                let mut buffer = [0; MAX_KEY];
                self.keys(bytes).all(|key| decode_standard(key, &mut buffer).is_some_and(&mut may))
            }
            Command::Get
            | Command::Gets
            | Command::Gat
            | Command::Gats
            | Command::Set
            | Command::Add
            | Command::Replace
            | Command::Append
            | Command::Prepend
            | Command::Cas
            | Command::Delete
            | Command::Incr
            | Command::Decr
            | Command::Touch
            | Command::MetaGet
            | Command::MetaSet
            | Command::MetaDelete
            | Command::MetaArithmetic
            | Command::MetaDebug => self.keys(bytes).all(may),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Step;
    use crate::memcached::{Decoder, Limits};

    /// The keys that a request touches; `None` if they are not known.
    fn touched(line: &str) -> Option<Vec<String>> {
        let input = format!("{line}\r\n");
        let Step::Request { request, len } = Decoder::new(Limits::default()).next(input.as_bytes()) else {
            panic!("{line}")
        };
        let mut keys = Vec::new();
        let known = request.touches_only(&input.as_bytes()[..len], |key| {
            keys.push(String::from_utf8_lossy(key).into_owned());
            true
        });
        known.then_some(keys)
    }

    #[test]
    fn keys_are_those_that_memcached_knows() {
        for (line, keys) in [
            ("get a", "a"),
            ("gets a  b c", "a b c"),
            ("gat 0 a b", "a b"),
            ("gat 0", ""),
            ("set a 0 0 1\r\nx", "a"),
            ("cas a 0 0 1 5 noreply\r\nx", "a"),
            ("incr a 1", "a"),
            ("touch a 0", "a"),
            ("mg a v", "a"),
            ("mg YTpi b v", "a:b"),
            ("mg YTo= b", "a:"),
            ("mg YQ== b", "a"),
            ("ms YTpi 1 b\r\nx", "a:b"),
            ("md YTpi q b", "a:b"),
            ("ma YTpi b N0", "a:b"),
            ("me YTpi", "YTpi"),
            ("mn", ""),
            ("version", ""),
            ("stats", ""),
            ("stats gate", ""),
        ] {
            let keys: Vec<&str> = keys.split(' ').filter(|key| !key.is_empty()).collect();
            assert_eq!(touched(line).expect(line), keys, "{line}");
        }
    }

    #[test]
    fn what_is_about_no_key_or_may_be_about_another_is_not_known() {
        for line in [
            "flush_all",
            "flush_all 0 noreply",
            "verbosity 1",
            "cache_memlimit 64",
            "lru mode flat",
            "lru_crawler enable",
            "slabs automove 0",
            "extstore free_memchunks 0 0",
            "refresh_certs",
            "stats items",
            "stats cachedump 1 1",
            "stats detail dump",
            "stats reset",
            // memcached skips what is no base64.
            "mg Y-Tpi b",
            "mg YTp b",
            "mg YTpi==== b",
            "mg ==== b",
            "mg YT=i b",
            // Its version says whether it takes this for a key as it is written.
            "me YTpi b",
            "me YTpi x b",
            "me YTpi bx",
        ] {
            assert_eq!(touched(line), None, "{line}");
        }
    }
}
