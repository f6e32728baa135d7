//! Faults of a `[[tenant]]` with members.

use super::Broken;

/// The second tenant, from its name to its sources.
const SECOND: &str = "\"hostile\"\nsources = [\"198.18.2.1\"]";
/// The service, from its protocol on.
const SERVICE: &str = "protocol = \"memcached\"\nlisten = \"198.18.0.1:11211\"";
macro_rules! proxied {
    ($protocol:literal, $rest:literal) => {
        concat!(
            "protocol = \"",
            $protocol,
            "\"\nlisten = \"198.18.0.1:11211\"\nbackend = \"127.0.0.1:1\"\n[[tenant]]\nname = \"many/*\"\nquota = \"2000 RU/s\"\n",
            $rest
        )
    };
}

pub(super) const ROWS: &[Broken] = &[
    (
        "\"hostile\"",
        "\"hostile/*\"",
        &[
            r#"12: tenant[1].name = "hostile/*": ends in "/*", but nothing says of which members: write ids = "*", or sources = "each /32""#,
        ],
    ),
    (
        "\"hostile\"",
        "\"host*\"",
        &[r#"12: tenant[1].name = "host*": must be 1 to 48 letters, digits, '-', '_' or '.'"#],
    ),
    (
        "\"hostile\"",
        "\"hostile\"\nmember_memory = \"1MiB\"",
        &[
            r#"13: tenant[1].member_memory = "1MiB": means something only beside ids = "*" or sources = "each /32""#,
        ],
    ),
    (
        SECOND,
        "\"hostile\"\nsources = \"each /32\"",
        &[
            r#"13: tenant[1].sources = "each /32": makes each of many a tenant of its own; say so in its name: name = "hostile/*""#,
            r#"13: tenant[1].sources = "each /32": needs a backend in every service, and "cache" has none: the interface tells no members apart"#,
        ],
    ),
    (
        SECOND,
        "\"hostile/*\"\nsources = [\"each /0\", \"each /129\", \"each 32\"]",
        &[
            r#"12: tenant[1].name = "hostile/*": ends in "/*", but nothing says of which members: write ids = "*", or sources = "each /32""#,
            r#"13: tenant[1].sources[0] = "each /0": must be "each /N", N from 1 to 32 for IPv4 and from 33 to 128 for IPv6, e.g. ["each /32", "each /64"]"#,
            r#"13: tenant[1].sources[1] = "each /129": must be "each /N", N from 1 to 32 for IPv4 and from 33 to 128 for IPv6, e.g. ["each /32", "each /64"]"#,
            r#"13: tenant[1].sources[2] = "each 32": must be "each /N", N from 1 to 32 for IPv4 and from 33 to 128 for IPv6, e.g. ["each /32", "each /64"]"#,
        ],
    ),
    (
        SERVICE,
        proxied!("resp", "sources = [\"each /32\", \"10.0.0.0/8\",\n\"each /24\"]\nmember_memory = \"1KiB\""),
        &[
            r#"11: tenant[0].sources[1] = "10.0.0.0/8": stands beside "each"; write a tenant of its own for it"#,
            r#"12: tenant[0].sources[2] = "each /24": is taken, on line 11"#,
            r#"13: tenant[0].member_memory = "1KiB": must be from 64KiB to 16GiB"#,
        ],
    ),
    (
        SERVICE,
        proxied!(
            "memcached",
            "sources = \"each /32\"\n[[service]]\nname = \"u\"\nprotocol = \"memcached\"\ntransports = [\"udp\", \"tcp\"]\nlisten = \"127.0.0.1:9\"\nbackend = \"127.0.0.1:8\""
        ),
        &[
            r#"11: tenant[0].sources = "each /32": needs connections, and service "u" takes datagrams, whose sources may be forged; write transports = ["tcp"] there"#,
        ],
    ),
    (
        SERVICE,
        proxied!(
            "resp",
            "ids = \"*\"\n[[tenant]]\nname = \"more/*\"\nids = \"*\"\nquota = \"2000 RU/s\"\ncharge = [\"many/*\"]\n[[tenant]]\nname = \"part\"\npart_of = \"many/*\"\nkey_prefixes = \"a\"\nquota = \"2000 RU/s\""
        ),
        &[
            r#"14: tenant[1].ids = "*": is taken, on line 11: a value could be a member of either tenant"#,
            r#"16: tenant[1].charge = ["many/*"]: has a tenant with members, and nothing would say which; name another"#,
            r#"19: tenant[2].part_of = "many/*": has members, and no parts; name another"#,
        ],
    ),
    (
        SERVICE,
        concat!(
            "default = \"many/*\"\n",
            proxied!(
                "resp",
                "ids = [\"*\", \"org-1\"]\nsources = \"10.0.0.0/8\"\nusers = \"a\"\nlimits = { get = \"1/s\" }\nkeys = \"own\"\nkey_prefixes = \"a\"\ncandidate = \"1000 RU/s\"\ntcp_quota = \"1MiB/s\"\nsyn_rate = \"10/s\"\nreply_budget = \"0B/s\""
            )
        ),
        &[
            r#"5: service[0].default = "many/*": has members, and no source would say which; name another"#,
            r#"12: tenant[0].ids = ["*", "org-1"]: has "*" beside others; write a tenant of its own for them"#,
            r#"13: tenant[0].sources = "10.0.0.0/8": stands beside ids = "*", and a request may be reached by either; write two tenants"#,
            r#"14: tenant[0].users = "a": would be one for all members together; leave it out"#,
            r#"15: tenant[0].limits: would be one for all members together; leave it out"#,
            r#"16: tenant[0].keys = "own": would be one for all members together; leave it out"#,
            r#"17: tenant[0].key_prefixes = "a": would be one for all members together; leave it out"#,
            r#"18: tenant[0].candidate = "1000 RU/s": would be one for all members together; leave it out"#,
            r#"19: tenant[0].tcp_quota = "1MiB/s": would be one for all members together; leave it out"#,
            r#"20: tenant[0].syn_rate = "10/s": would be one for all members together; leave it out"#,
            r#"21: tenant[0].reply_budget = "0B/s": would be one for all members together; leave it out"#,
        ],
    ),
    (
        SECOND,
        "\"hostile/*\"\nids = \"*\"",
        &[
            r#"13: tenant[1].ids = "*": means something only if a service with protocol = "http" has tenant_header, or one with "resp" a backend: no request names it"#,
        ],
    ),
    (
        SERVICE,
        proxied!(
            "resp",
            "sources = \"each /32\"\n[[tenant]]\nname = \"all\"\nsources = \"0.0.0.0/0\"\nquota = \"2000 RU/s\""
        ),
        &[r#"14: tenant[1].sources = "0.0.0.0/0": is taken, on line 11"#],
    ),
];
