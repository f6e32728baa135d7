use super::*;
use crate::protocol::Access;

/// The request that a line is, and its bytes.
pub(super) fn request(line: &str) -> (Request, Vec<u8>) {
    let mut decoder = Decoder::new(Limits::default());
    let line = format!("{line}\r\n");
    let Step::Request { request, .. } = decoder.next(line.as_bytes()) else { panic!("{line}") };
    let bytes = decoder.bytes(&request, line.as_bytes()).to_vec();
    (request, bytes)
}

#[test]
fn what_is_shared_only_reads_one_key() {
    let shared = [
        "bitcount",
        "bitfield_ro",
        "bitpos",
        "exists",
        "geodist",
        "geohash",
        "geopos",
        "georadius_ro",
        "georadiusbymember_ro",
        "geosearch",
        "get",
        "getbit",
        "getrange",
        "hexists",
        "hget",
        "hgetall",
        "hkeys",
        "hlen",
        "hmget",
        "hstrlen",
        "hvals",
        "lindex",
        "llen",
        "lpos",
        "lrange",
        "scard",
        "sismember",
        "smembers",
        "smismember",
        "strlen",
        "substr",
        "type",
        "xlen",
        "xrange",
        "xrevrange",
        "zcard",
        "zcount",
        "zlexcount",
        "zmscore",
        "zrange",
        "zrangebylex",
        "zrangebyscore",
        "zrank",
        "zrevrange",
        "zrevrangebylex",
        "zrevrangebyscore",
        "zrevrank",
        "zscore",
    ];
    for command in Command::all() {
        let name = command.name();
        let (request, bytes) = request(&format!("{} key", name.replace('|', " ")));
        assert_eq!(Resp::is_coalescable(&request), shared.contains(&name), "{name}");
        if shared.contains(&name) {
            assert_eq!((request.meta.access, request.meta.keys), (Access::Read, 1), "{name}");
            assert_eq!(request.state, State::Shared, "{name}");
            assert!(Resp::has_one_answer(&request), "{name}");
            let (query, bytes) = Resp::query_ttl(&request, &bytes).unwrap();
            assert_eq!(query.command, Command::named("pttl"));
            assert_eq!(bytes, b"*2\r\n$4\r\nPTTL\r\n$3\r\nkey\r\n");
        }
    }
    assert!(!Resp::is_coalescable(&request("exists key other").0), "two keys");
}

#[test]
fn a_keys_ttl_is_what_the_store_says() {
    let value = b"$1\r\nv\r\n";
    for (answer, said, ttl) in [
        (&value[..], ":250\r\n", Ttl::AtMost(Nanos::from_millis(250))),
        (value, ":0\r\n", Ttl::AtMost(Nanos::ZERO)),
        (value, ":-1\r\n", Ttl::Unbounded),
        // It has gone since.
        (value, ":-2\r\n", Ttl::AtMost(Nanos::ZERO)),
        (b"$-1\r\n", ":-2\r\n", Ttl::Unbounded),
        (b"+none\r\n", ":-2\r\n", Ttl::Unbounded),
        // It was the first of its sorted set, or there is no set.
        (b":0\r\n", ":-2\r\n", Ttl::AtMost(Nanos::ZERO)),
        (value, "-NOPERM\r\n", Ttl::AtMost(Nanos::ZERO)),
    ] {
        assert_eq!(Resp::ttl(answer, said.as_bytes()), ttl, "{said}");
    }
    assert!(Resp::is_cacheable(value) && !Resp::is_cacheable(b"-WRONGTYPE\r\n") && !Resp::is_cacheable(b""));
}
