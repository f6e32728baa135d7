//! Faults of a `[[tenant]]`.

use super::Broken;

/// The second tenant, and after it a service that can tell keys.
const SECOND: &str = "sources = [\"198.18.2.1\"]\nquota = \"2000 RU/s\"\n";
macro_rules! second {
    ($text:literal) => {
        concat!(
            $text,
            "quota = \"2000 RU/s\"\n[[service]]\nname = \"proxied\"\nprotocol = \"resp\"\n\
             listen = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n"
        )
    };
}

pub(super) const ROWS: &[Broken] = &[
    (
        "quota = \"5000 RU/s\"",
        "quota = \"5000 RU/s\"\nmetrics = \"off\"",
        &[r#"11: tenant[0].metrics = "off": must be "auto" or "on""#],
    ),
    (
        "[[service]]",
        "metrics_tenants = \"0\"\n[[tenant]]\nname = \"seen\"\nsources = \"10.0.0.0/8\"\nquota = \"2000 RU/s\"\nmetrics = \"on\"\n[[service]]",
        &[r#"8: tenant[0].metrics = "on": is one too many: metrics_tenants in [gate] allows 0"#],
    ),
    (
        "\"hostile\"",
        "\"hostile\"\nlimits = { scan = \"0/s\", HGETALL = \"2000000000 RU/s\", GET = \"5\", get = \"unlimited\", SET = \"x RU/s\" }",
        &[
            r#"13: tenant[1].limits.GET = "5": must be requests or request units a second, above 0 and at most 1000000000, e.g. "10/s" or "500 RU/s""#,
            r#"13: tenant[1].limits.HGETALL = "2000000000 RU/s": must be requests or request units a second, above 0 and at most 1000000000, e.g. "10/s" or "500 RU/s""#,
            r#"13: tenant[1].limits.SET = "x RU/s": must be requests or request units a second, above 0 and at most 1000000000, e.g. "10/s" or "500 RU/s""#,
            r#"13: tenant[1].limits.get = "unlimited": must be requests or request units a second, above 0 and at most 1000000000, e.g. "10/s" or "500 RU/s""#,
            r#"13: tenant[1].limits.scan = "0/s": must be requests or request units a second, above 0 and at most 1000000000, e.g. "10/s" or "500 RU/s""#,
        ],
    ),
    (
        "\"hostile\"",
        "\"hostile\"\nlimits.scan = \"1/s\"\nlimits.SCAN = \"1/s\"\nlimits.hgetall = \"1/s\"\nlimits.HgetAll = \"1 RU/s\"",
        &[
            r#"15: tenant[1].limits.hgetall = "1/s": is limited already, on line 16: a command is the same in any case"#,
        ],
    ),
    (
        "\"hostile\"",
        "\"hostile\"\nlimits.scann = \"1/s\"\nlimits.nothing = \"1/s\"",
        &[
            r#"13: tenant[1].limits.scann = "1/s": is no query type and no command; did you mean scan?"#,
            r#"14: tenant[1].limits.nothing = "1/s": is no query type and no command; e.g. limits = { scan = "10/s", HGETALL = "500 RU/s" }"#,
        ],
    ),
    (
        "\"hostile\"",
        "\"hostile\"\nlimits = \"1/s\"",
        &[r#"13: tenant[1].limits = "1/s": must be a table: limits = { ... }"#],
    ),
    ("name = \"polite\"\n", "", &[r#"7: tenant[0].name: is missing, e.g. name = "polite""#]),
    ("\"polite\"", "\"\"", &[r#"8: tenant[0].name = "": must be 1 to 48 letters, digits, '-', '_' or '.'"#]),
    (
        "\"polite\"",
        "\"two words\"",
        &[r#"8: tenant[0].name = "two words": must be 1 to 48 letters, digits, '-', '_' or '.'"#],
    ),
    ("\"hostile\"", "\"polite\"", &[r#"12: tenant[1].name = "polite": is taken, on line 8"#]),
    ("quota = \"5000 RU/s\"\n", "", &[r#"7: tenant[0].quota: is missing, e.g. quota = "5000 RU/s""#]),
    ("\"5000 RU/s\"", "\"-5\"", &[r#"10: tenant[0].quota = "-5": must be above 0, e.g. "5000 RU/s""#]),
    (
        "\"5000 RU/s\"",
        "\"0 RU/s\"",
        &[r#"10: tenant[0].quota = "0 RU/s": must be above 0, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "5000",
        &[r#"10: tenant[0].quota = 5000: must be a rate in request units, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "\"5000/s\"",
        &[r#"10: tenant[0].quota = "5000/s": must be a rate in request units, e.g. "5000 RU/s""#],
    ),
    (
        "\"5000 RU/s\"",
        "\"1 RU/s\"",
        &[
            r#"10: tenant[0].quota = "1 RU/s": would refuse a full frame of 1500 bytes for good: at 2.465 RU it takes 2.465s at this rate, and burst (100ms) and max_debt (200ms) together allow less; raise one of the three"#,
        ],
    ),
    (
        "\"5000 RU/s\"",
        "\"50000000000 RU/s\"",
        &[r#"10: tenant[0].quota = "50000000000 RU/s": must be at most 1000000000 RU/s, or "unlimited""#],
    ),
    (
        "quota = \"5000",
        "qouta = \"5000",
        &[r#"10: tenant[0].qouta = "5000 RU/s": unknown key; did you mean quota?"#],
    ),
    (
        "quota = \"5000",
        "burst = \"1ms\"\nquota = \"5000",
        &[r#"10: tenant[0].burst = "1ms": must be from 4ms to 3600s"#],
    ),
    (
        "quota = \"5000",
        "max_debt = \"1 year\"\nquota = \"5000",
        &[r#"10: tenant[0].max_debt = "1 year": must be a time, e.g. "100ms" (ns, us, ms, s, min, h, d)"#],
    ),
    (
        "quota = \"5000",
        "reply_budget = \"2GiB/s\"\nquota = \"5000",
        &[r#"10: tenant[0].reply_budget = "2GiB/s": must be from 0B/s to 1GiB/s"#],
    ),
    (
        "quota = \"5000",
        "tcp_quota = \"1 B/s\"\nquota = \"5000",
        &[r#"10: tenant[0].tcp_quota = "1 B/s": must be from 1KiB/s to 512GiB/s"#],
    ),
    (
        "quota = \"5000",
        "syn_rate = \"0/s\"\nquota = \"5000",
        &[r#"10: tenant[0].syn_rate = "0/s": must be above 0, e.g. "2000/s", or "unlimited""#],
    ),
    (
        "quota = \"5000",
        "syn_rate = \"2000000000/s\"\nquota = \"5000",
        &[r#"10: tenant[0].syn_rate = "2000000000/s": must be at most 1000000000/s, or "unlimited""#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"65\"\nrefuse = \"yes\"\nquota = \"5000",
        &[
            r#"10: tenant[0].multiplier = "65": must be from 1 to 64"#,
            r#"11: tenant[0].refuse = "yes": must be "on" or "off""#,
        ],
    ),
    (
        "quota = \"5000",
        "multiplier = \"0.5\"\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = "0.5": must be from 1 to 64"#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"x4\"\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = "x4": must be a factor, e.g. "4""#],
    ),
    (
        "quota = \"5000",
        "multiplier = 4\nquota = \"5000",
        &[r#"10: tenant[0].multiplier = 4: must be in quotes: "4""#],
    ),
    (
        "quota = \"5000",
        "multiplier = \"8\"\nburst = \"8ms\"\nmax_debt = \"0s\"\ncharge = \"hostile\"\nquota = \"2000",
        &[
            r#"10: tenant[0].multiplier = "8": would refuse a full frame of 1500 bytes for good: 19.720 RU is more than burst and max_debt of polite together allow; up to "6" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "\"5000 RU/s\"\n[[tenant]]\n",
        "\"5000 RU/s\"\nmultiplier = \"64\"\ncharge = \"hostile\"\n[[tenant]]\nburst = \"4ms\"\n",
        &[
            r#"11: tenant[0].multiplier = "64": would refuse a full frame of 1500 bytes for good: 157.760 RU is more than burst and max_debt of hostile together allow; up to "9" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "quota = \"5000",
        "tier = \"gold\"\nquota = \"5000",
        &[r#"10: tenant[0].tier = "gold": must be "critical", "standard", "batch" or "best-effort""#],
    ),
    (
        "quota = \"5000",
        "candidate = \"0.1 RU/s\"\nquota = \"5000",
        &[
            r#"10: tenant[0].candidate = "0.1 RU/s": would refuse a full frame of 1500 bytes for good: at 2.465 RU it takes 24.65s at this rate, and burst (100ms) and max_debt (200ms) together allow less; raise one of the three"#,
        ],
    ),
    (
        "quota = \"5000",
        "max_connections = \"0\"\nmax_outstanding = \"many\"\nquota = \"5000",
        &[
            r#"10: tenant[0].max_connections = "0": must be a whole number from 1 to 1000000, or unlimited"#,
            r#"11: tenant[0].max_outstanding = "many": must be a whole number from 1 to 1000000"#,
        ],
    ),
    (
        "listen",
        "query_types = { mine = [\"get\"] }\nlisten",
        &["6: service[0].query_types: means something only beside backend"],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nquery_types.mine = [\"gets\", \"gte\", \"HGETALL\"]\n\
         query_types.other = [\"GETS\", \"unknown\"]\ntiers = { mine = \"batch\", mien = \"batch\" }\n\
         parallelism = \"4\"\nobjectives = { other = { p50 = \"0s\" }, ohter = { p50 = \"1ms\" } }\nlisten",
        &[
            r#"7: service[0].query_types.mine[1] = "gte": no command has this name; did you mean "get"?"#,
            r#"7: service[0].query_types.mine[2] = "HGETALL": must be a command of the service's protocol, e.g. "gets", "incr""#,
            r#"8: service[0].query_types.other[0] = "GETS": is of a type already, on line 7"#,
            r#"8: service[0].query_types.other[1] = "unknown": must be a command of the service's protocol, e.g. "gets", "incr""#,
            r#"9: service[0].tiers.mien = "batch": unknown key; did you mean mine?"#,
            r#"11: service[0].objectives.ohter: unknown key; did you mean other?"#,
            r#"11: service[0].objectives.other.p50 = "0s": must be from 10µs to 3600s"#,
        ],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:11212\"\n[service.query_types]\nreports = [\"SORT\", \"CONFIG|GET\", \"gets\"]\n\
         scan = [\"config get\", \"GET nonsense\", 7]\nempty = []\nnone = { }\n[[service]]\nname = \"x\"\nprotocol = \"memcached\"\n",
        &[
            r#"3: service[0].listen: is missing, e.g. listen = "198.18.0.1:11211""#,
            r#"8: service[0].query_types.reports[2] = "gets": no command has this name; did you mean "get"?"#,
            r#"9: service[0].query_types.scan[0] = "config get": is of a type already, on line 8"#,
            r#"9: service[0].query_types.scan[1] = "GET nonsense": must be a command of the service's protocol, e.g. "SORT", "CONFIG GET""#,
            r#"9: service[0].query_types.scan[2] = 7: must be in quotes: "7""#,
            r#"10: service[0].query_types.empty = []: is empty; give at least one, or leave the key out"#,
            r#"11: service[0].query_types.none = { }: must be one value, not a table"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nquery_types.default = \"get\"\nquery_types.Gets = \"gets\"\n\
         query_types.1st = \"incr\"\nquery_types.refusals = \"ms\"\nquery_types.\"a.b\" = \"decr\"\nquery_types.unknown = \"mg\"\nlisten",
        &[
            r#"7: service[0].query_types.default = "get": stands for every type in objectives; choose another name"#,
            r#"8: service[0].query_types.Gets = "gets": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; did you mean get?"#,
            r#"9: service[0].query_types.1st = "incr": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; e.g. reports"#,
            r#"10: service[0].query_types.refusals = "ms": names other figures in gate's statistics; choose another name"#,
            r#"11: service[0].query_types."a.b" = "decr": a type's name must be 1 to 32 lower-case letters, digits, "-" and "_", a letter first; e.g. reports"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntiers = { scan = \"low\", scna = \"batch\" }\nlisten",
        &[
            r#"7: service[0].tiers.scan = "low": must be "critical", "standard", "batch" or "best-effort""#,
            r#"7: service[0].tiers.scna = "batch": unknown key; did you mean scan?"#,
        ],
    ),
    (
        "quota = \"5000",
        "charge = [\"hostil\", \"polite\"]\nquota = \"5000",
        &[
            r#"10: tenant[0].charge[0] = "hostil": no tenant has this name; did you mean "hostile"?"#,
            r#"10: tenant[0].charge[1] = "polite": is charged anyway: it is the tenant itself"#,
        ],
    ),
    // Parts.
    (
        "sources = [\"198.18.2.1\"]\n",
        "part_of = \"polite\"\nkey_prefixes = \"web:\"\n",
        &[
            r#"13: tenant[1].part_of = "polite": means something only if a service has a backend: gate sees no other requests' keys"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "sources = [\"198.18.2.1\"]\nkey_prefixes = [\"web:\", \"\"]\n",
        &[
            r#"14: tenant[1].key_prefixes = ["web:", ""]: means something only beside part_of or keys = "own""#,
            r#"14: tenant[1].key_prefixes[1] = "": must be 1 to 250 bytes; what begins with none is charged to the whole anyway"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]",
        "sources = \"198.18.2.1\"\ndeny_scripts = \"yes\"",
        &[r#"14: tenant[1].deny_scripts = "yes": must be "on" or "off""#],
    ),
    // Keys of its own.
    (
        "sources = [\"198.18.2.1\"]\n",
        "sources = [\"198.18.2.1\"]\nkeys = \"mine\"\nkey_prefixes = \"web:\"\n",
        &[r#"14: tenant[1].keys = "mine": must be "any" or "own""#],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "sources = [\"198.18.2.1\"]\nkeys = \"any\"\nkey_prefixes = \"web:\"\n",
        &[r#"15: tenant[1].key_prefixes = "web:": means something only beside part_of or keys = "own""#],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "sources = [\"198.18.2.1\"]\nkeys = \"own\"\nkey_prefixes = \"web:\"\n",
        &[
            r#"14: tenant[1].keys = "own": means something only if a service has a backend: gate sees no other requests' keys"#,
        ],
    ),
    (
        SECOND,
        second!("keys = \"own\"\nsources = [\"198.18.2.1\"]\n"),
        &[
            r#"13: tenant[1].keys = "own": leaves it no key; write key_prefixes as well, e.g. key_prefixes = ["web:"]"#,
        ],
    ),
    (
        SECOND,
        second!("keys = \"own\"\nkey_prefixes = [\"web:\", \"\"]\nsources = [\"198.18.2.1\"]\n"),
        &[
            r#"14: tenant[1].key_prefixes[1] = "": must be 1 to 250 bytes; what begins with none is charged to the whole anyway"#,
        ],
    ),
    (
        SECOND,
        second!("part_of = \"polite\"\nkey_prefixes = \"web:\"\nkeys = \"own\"\n"),
        &[
            r#"15: tenant[1].keys = "own": belongs into the tenant that this is a part of, whose clients they are"#,
        ],
    ),
    (
        SECOND,
        second!(
            "keys = \"own\"\nsources = [\"198.18.2.1\"]\nkey_prefixes = [\"img:\", \"web:\", \"web:1\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\nsources = [\"198.18.2.2\"]\nkeys = \"own\"\nkey_prefixes = \"web\"\n"
        ),
        &[
            r#"21: tenant[2].key_prefixes = "web": "web" overlaps "web:" of tenant "hostile", on line 15: with keys = "own", no prefix may begin with one of another tenant's"#,
        ],
    ),
    (
        SECOND,
        second!(
            "keys = \"own\"\nsources = [\"198.18.2.1\"]\nkey_prefixes = [\"img:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"part\"\npart_of = \"hostile\"\nkey_prefixes = [\"img:1\", \"web:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\nsources = [\"198.18.2.2\"]\nkeys = \"own\"\nkey_prefixes = \"web:\"\n"
        ),
        &[
            r#"26: tenant[3].key_prefixes = "web:": "web:" overlaps "web:" of tenant "hostile", on line 20: with keys = "own", no prefix may begin with one of another tenant's"#,
        ],
    ),
    (
        SECOND,
        second!("part_of = \"polite\"\nmax_connections = \"7\"\nsources = [\"198.18.2.1\"]\n"),
        &[
            r#"11: tenant[1].key_prefixes: is missing, e.g. key_prefixes = ["web:", "img:"]"#,
            r#"14: tenant[1].max_connections = "7": belongs into the tenant that this is a part of, whose clients they are"#,
            r#"15: tenant[1].sources = ["198.18.2.1"]: belongs into the tenant that this is a part of, whose clients they are"#,
        ],
    ),
    (
        SECOND,
        second!("part_of = \"plite\"\nkey_prefixes = [\"web:\"]\n"),
        &[r#"13: tenant[1].part_of = "plite": no tenant has this name; did you mean "polite"?"#],
    ),
    (
        SECOND,
        second!("part_of = \"hostile\"\nkey_prefixes = [\"web:\"]\n"),
        &[r#"13: tenant[1].part_of = "hostile": is the tenant itself"#],
    ),
    (
        SECOND,
        second!(
            "part_of = \"polite\"\nkey_prefixes = [\"web:\",\n\"img:\", \"web:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\npart_of = \"polite\"\nkey_prefixes = \"img:\"\n"
        ),
        &[
            r#"15: tenant[1].key_prefixes[2] = "web:": is taken, on line 14"#,
            r#"20: tenant[2].key_prefixes = "img:": is taken, on line 15"#,
        ],
    ),
    (
        SECOND,
        second!(
            "part_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"other\"\npart_of = \"hostile\"\nkey_prefixes = \"web:\"\n"
        ),
        &[
            r#"18: tenant[2].part_of = "hostile": is a part itself: of "polite", which its own parts would have to be of too"#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"\n[[tenant]]\n",
        "listen = \"198.18.0.1:11211\"\nbackend = \"127.0.0.1:2\"\ndefault = \"part\"\n\
         [[tenant]]\nname = \"part\"\npart_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n[[tenant]]\n",
        &[r#"8: service[0].default = "part": is a part, which has no clients of its own; name "polite""#],
    ),
    (
        "listen = \"198.18.0.1:11211\"\n[[tenant]]\n",
        "listen = \"198.18.0.1:11211\"\nbackend = \"127.0.0.1:2\"\n[[tenant]]\nname = \"part\"\nburst = \"4ms\"\n\
         part_of = \"polite\"\nkey_prefixes = [\"web:\"]\nquota = \"1000 RU/s\"\n[[tenant]]\nmultiplier = \"64\"\n",
        &[
            r#"15: tenant[1].multiplier = "64": would refuse a full frame of 1500 bytes for good: 157.760 RU is more than burst and max_debt of part together allow; up to "4" fits, and refuse = "on" refuses everything"#,
        ],
    ),
    (
        "quota = \"5000",
        "charge = [\"hostile\", \"hostile\"]\nquota = \"5000",
        &[r#"10: tenant[0].charge[1] = "hostile": is named twice"#],
    ),
    (
        "sources = [\"198.18.2.1\"]\n",
        "",
        &[
            r#"11: tenant[1].sources: is missing, and no service or tenant names this one: nothing would be charged to it; e.g. sources = ["198.18.1.0/24"]"#,
        ],
    ),
    (
        "198.18.2.1",
        "198.18.1.7/24",
        &[
            r#"13: tenant[1].sources[0] = "198.18.1.7/24": has bits beyond its length; the prefix is "198.18.1.0/24""#,
        ],
    ),
    ("198.18.2.1", "198.18.1.0/24", &[r#"13: tenant[1].sources[0] = "198.18.1.0/24": is taken, on line 9"#]),
    (
        "198.18.2.1",
        "198.18.1.0/33",
        &[
            r#"13: tenant[1].sources[0] = "198.18.1.0/33": must be an address or a prefix, e.g. "198.18.1.0/24" or "fd00:1::/64""#,
        ],
    ),
    (
        "198.18.2.1",
        "::ffff:198.18.2.1",
        &[r#"13: tenant[1].sources[0] = "::ffff:198.18.2.1": must be written as IPv4: 198.18.2.1"#],
    ),
    (
        "[\"198.18.2.1\"]",
        "[]",
        &["13: tenant[1].sources = []: is empty; give at least one, or leave the key out"],
    ),
    (
        "[\"198.18.2.1\"]",
        "[\"198.18.2.1\", 5, { a = 1 }]",
        &[
            r#"13: tenant[1].sources[1] = 5: must be an address or a prefix, e.g. "198.18.1.0/24" or "fd00:1::/64""#,
            "13: tenant[1].sources[2] = { a = 1 }: must be one value, not a table",
        ],
    ),
    // Users and commands.
    (
        "sources = [\"198.18.2.1\"]",
        "users = \"alice\"",
        &[
            r#"13: tenant[1].users = "alice": means something only if a service with protocol = "resp" has a backend: gate sees no other logins"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]",
        "users = [\"alice\", \"\", \"a b\", \"bob #12\", \"alice\"]",
        &[
            r#"13: tenant[1].users = ["alice", "", "a b", "bob #12", "alice"]: means something only if a service with protocol = "resp" has a backend: gate sees no other logins"#,
            r#"13: tenant[1].users[1] = "": must be the name of a user, 1 to 128 letters without blanks, e.g. "alice""#,
            r##"13: tenant[1].users[2] = "a b": behind a user's name must be "#" and 64 hexadecimal digits, SHA-256 of a password"##,
            r##"13: tenant[1].users[3] = "bob #12": behind a user's name must be "#" and 64 hexadecimal digits, SHA-256 of a password"##,
            r#"13: tenant[1].users[4] = "alice": is taken, on line 13"#,
        ],
    ),
    (
        "sources = [\"198.18.2.1\"]",
        "sources = \"198.18.2.1\"\ndeny = [\"FLUSHAL\", \"KEYS\", \"GET a\", \"\"]",
        &[
            r#"14: tenant[1].deny[0] = "FLUSHAL": no command has this name; did you mean "flushall"?"#,
            r#"14: tenant[1].deny[2] = "GET a": must be a command of Redis or memcached, e.g. "FLUSHALL", "CONFIG SET", or "unknown" for those that gate does not know"#,
            r#"14: tenant[1].deny[3] = "": must be a command of Redis or memcached, e.g. "FLUSHALL", "CONFIG SET", or "unknown" for those that gate does not know"#,
        ],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:6379\"\nstore_user = \"a b\"\nstore_password_file = \"x\"\nmax_pools = \"0\"\n",
        &[
            r#"7: service[0].store_user = "a b": must be the name of a user, 1 to 128 letters without blanks, e.g. "alice""#,
            r#"8: service[0].store_password_file = "x": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"9: service[0].max_pools = "0": must be a whole number from 1 to 4096"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\ntransports = \"tcp\"\nmax_pools = \"1\"\nlisten",
        &[r#"8: service[0].max_pools = "1": means something only with protocol = "resp""#],
    ),
    (
        "protocol = \"memcached\"\n",
        "protocol = \"resp\"\nbackend = \"127.0.0.1:6379\"\nstore_user = \"gate\"\n",
        &[r#"7: service[0].store_user = "gate": has no password: write store_password_file as well"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:1\"\nstore_password_file = \"/etc/gate/password\"\nlisten",
        &[
            r#"7: service[0].store_password_file = "/etc/gate/password": memcached knows no password without a user: write store_user as well"#,
        ],
    ),
];
