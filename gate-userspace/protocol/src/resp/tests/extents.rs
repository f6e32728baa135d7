use super::super::{Decoder, Extent, Limits, ReadKind, Request, Step, says_unknown_command, told_size};

fn one(line: &str) -> (Request, Vec<u8>) {
    let mut decoder = Decoder::new(Limits::default());
    let line = format!("{line}\r\n");
    let Step::Request { request, .. } = decoder.next(line.as_bytes()) else { panic!("{line}") };
    (request, decoder.bytes(&request, line.as_bytes()).to_vec())
}

fn extent(line: &str) -> Extent {
    let (request, bytes) = one(line);
    request.extent(&bytes)
}

fn questions(line: &str) -> String {
    let (request, bytes) = one(line);
    let mut out = Vec::new();
    let count = request.size_questions(&bytes, 8, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches('*').count(), count, "{line}");
    let words = text.split("\r\n").filter(|word| !word.starts_with('$'));
    let words: Vec<_> = words.map(|word| if word.starts_with('*') { "/" } else { word }).collect();
    words.join(" ").trim_matches(['/', ' ']).to_owned()
}

#[test]
fn rows_follow_from_the_size_of_the_key() {
    for (line, elements, rows) in [
        ("HGETALL k", 1_000, 2_000),
        ("HKEYS k", 1_000, 1_000),
        ("SMEMBERS k", 1_000, 1_000),
        ("LRANGE k 0 -1", 1_000, 1_000),
        ("LRANGE k 10 -11", 1_000, 980),
        ("LRANGE k -20000 -1", 30_000, 20_000),
        ("LRANGE k 0 20000", 30_000, 20_001),
        ("LRANGE k 0 20000", 7, 7),
        ("LRANGE k 5 -1", 3, 0),
        ("LRANGE k -9223372036854775808 9223372036854775807", 12, 12),
        ("ZRANGE k 0 -1 WITHSCORES", 1_000, 2_000),
        ("ZREVRANGE k 0 -1", 1_000, 1_000),
        ("ZRANGEBYSCORE k 1 2 WITHSCORES", 500, 1_000),
        ("SORT k LIMIT 0 1", 1_000, 1_000),
        ("SUNIONSTORE d a b", 1_000, 1_000),
        ("HGETALL k", u64::MAX, u32::MAX),
    ] {
        assert_eq!(extent(line).rows(elements), Some(rows), "{line}");
    }
    for line in ["GET k", "LRANGE k 0 9", "LRANGE k a b", "XRANGE k - +", "SINTER a b", "SCAN 0 COUNT 20000"]
    {
        assert_eq!(extent(line).rows(1_000), None, "{line}");
    }
}

#[test]
fn a_reply_tells_the_size_where_it_shows_the_end_of_the_key() {
    for (line, values, beyond) in [
        ("HGETALL k", 2, 0),
        ("SMEMBERS k", 1, 0),
        ("LRANGE k 0 -1", 1, 0),
        ("LRANGE k 10 -11", 1, 20),
        ("ZRANGE k 0 -1 withscores", 2, 0),
        ("LRANGE k -50000 -1", 0, 0),
        ("LRANGE k 0 20000", 0, 0),
        ("SORT k", 1, 0),
        ("SORT k GET a GET b", 0, 0),
        ("SORT k LIMIT 0 1", 0, 0),
        ("SUNION a b", 0, 0),
        ("ZRANGEBYSCORE k -inf +inf", 0, 0),
    ] {
        let extent = extent(line);
        assert_eq!((extent.values, extent.beyond), (values, beyond), "{line}");
    }
}

#[test]
fn kinds_tell_apart_what_is_not_alike() {
    use ReadKind::*;
    for (line, kind) in [
        ("GET k", None),
        ("HGET k f", None),
        ("LRANGE k 0 9", None),
        ("UNLINK k", None),
        ("DEL k", Delete),
        ("HVALS k", Hash),
        ("LRANGE k 0 -1", List),
        ("SMEMBERS k", Set),
        ("ZRANGE k 0 -1", Sorted),
        ("ZRANGE k 0 5 BYSCORE", Scores),
        ("ZREVRANGEBYLEX k + -", Scores),
        ("XRANGE k - +", Stream),
        ("SORT_RO k", Sort),
        ("SDIFF a b", SetCombine),
        ("ZUNION 2 a b", SortedCombine),
        ("ZINTERCARD 2 a b", Intersect),
        ("KEYS *", Walk),
        ("DUMP k", Other),
    ] {
        assert_eq!(extent(line).kind, kind, "{line}");
    }
}

#[test]
fn questions_read_no_row() {
    for (line, asked) in [
        ("HGETALL k", "HLEN k"),
        ("LRANGE k 0 -1", "LLEN k"),
        ("SMEMBERS k", "SCARD k"),
        ("ZRANGE k 0 -1", "ZCARD k"),
        ("ZRANGEBYSCORE k (1 +inf", "ZCOUNT k (1 +inf"),
        ("ZREVRANGEBYSCORE k +inf 1", "ZCOUNT k 1 +inf"),
        ("ZRANGE k [b [a BYLEX REV", "ZLEXCOUNT k [a [b"),
        ("SORT k", "LLEN k / SCARD k / ZCARD k"),
        ("SUNIONSTORE d a b", "SCARD a / SCARD b"),
        ("ZUNIONSTORE d 2 a b", "ZCARD a / SCARD a / ZCARD b / SCARD b"),
        // Too many, or nothing tells it.
        ("SUNION a b c d e f g h i", ""),
        ("SINTER a b", ""),
        ("DEL a", ""),
        ("GET a", ""),
    ] {
        assert_eq!(questions(line), asked, "{line}");
    }
    let long = format!("SUNION {}", "k".repeat(20_000));
    let array = format!("*2\r\n$6\r\nSUNION\r\n$20000\r\n{}", &long[7..]);
    let Step::Request { request, len } = Decoder::new(Limits::default()).next(array.as_bytes()) else {
        panic!()
    };
    assert!(request.streamed && !request.extent(&array.as_bytes()[..len]).can_be_asked());
}

#[test]
fn answers_say_a_size_or_nothing() {
    for (answer, size) in [
        (":0\r\n", Some(0)),
        (":1000000\r\n", Some(1_000_000)),
        ("-WRONGTYPE Operation against a key\r\n", Some(0)),
        ("-ERR unknown command 'HLEN'\r\n", None),
        ("-ERR min or max is not a float\r\n", None),
        ("-NOPERM this user has no permissions\r\n", None),
        (":-1\r\n", None),
        ("$1\r\n5\r\n", None),
        ("", None),
    ] {
        assert_eq!(told_size(answer.as_bytes()), size, "{answer}");
        assert_eq!(says_unknown_command(answer.as_bytes()), answer.contains("unknown"), "{answer}");
    }
}

#[test]
fn a_request_by_another_name_has_the_same_arguments() {
    for line in ["DEL a", "del a b c", "DEL \"a b\""] {
        let (request, bytes) = one(line);
        let mut out = Vec::new();
        request.write_as(b"UNLINK", &bytes, &mut out);
        let Step::Request { request: other, len } = Decoder::new(Limits::default()).next(&out) else {
            panic!("{line}")
        };
        assert_eq!((len, other.command.name()), (out.len(), "unlink"), "{line}");
        let keys =
            |request: &Request, bytes: &[u8]| request.keys(bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(keys(&other, &out), keys(&request, &bytes), "{line}");
        assert!(!keys(&other, &out).is_empty(), "{line}");
    }
}
