//! Faults of what only HTTP services say.

use super::Broken;

/// The line that makes the service one that speaks HTTP; it is on lines 5 and 6 then.
const MEMCACHED: &str = "protocol = \"memcached\"\n";

pub(super) const ROWS: &[Broken] = &[
    (
        "listen",
        "backend = \"127.0.0.1:1\"\ncache = { dir = \"/c\" }\nlisten",
        &["7: service[0].cache: means something only with protocol = \"http\"; others have hot_keys"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"c\", disk = \"16MiB\", max_object = \"5MiB\", key = [\"Cookie\"], size = \"1\" }\n",
        &[
            r#"7: service[0].cache.dir = "c": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"7: service[0].cache.key[0] = "Cookie": is a field that gate answers itself, or that makes an answer one client's own; requests with it pass by the cache, or need no key"#,
            "7: service[0].cache.max_object = \"5MiB\": must be at most a quarter of disk (16MiB)",
            r#"7: service[0].cache.size = "1": unknown key; known here: dedup, dir, disk, key, max_object, memory"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntrusted = \"10.0.0.1\"\ntenant_header = \"X-A\"\ncache = { dir = \"/c\", dedup = \"service\" }\n",
        &[
            r#"9: service[0].cache.dedup = "service": would give one tenant the answers that the store has for another, which it knows by tenant_header; write "tenant", or leave it out"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\n",
        &[
            r#"5: service[0].protocol = "http": is read only by a proxy: write backend as well, or protocol = "opaque""#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntransports = [\"udp\"]\n",
        &[r#"7: service[0].transports[0] = "udp": gate speaks HTTP over TCP only; write ["tcp"]"#],
    ),
    (
        MEMCACHED,
        "protocol = \"resp\"\nbackend = \"127.0.0.1:1\"\ntenant_header = \"x-id\"\n",
        &[r#"7: service[0].tenant_header = "x-id": means something only with protocol = "http""#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntenant_header = \"x-id\"\n",
        &[
            r#"7: service[0].tenant_header = "x-id": is believed from nobody; write trusted as well, e.g. trusted = ["198.18.3.0/24"]"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntrusted = \"0.0.0.0/0\"\n",
        &[
            r#"7: service[0].trusted = "0.0.0.0/0": would let anyone say who it is; name the proxies' own addresses"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntier_header = \"X Tier\"\n",
        &[
            r#"7: service[0].tier_header = "X Tier": must be the name of a field, 1 to 64 letters, digits, "-" and "_", e.g. "X-Scope-OrgID""#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntier_header = \"X-Forwarded-For\"\n",
        &[
            r#"7: service[0].tier_header = "X-Forwarded-For": is a field with another meaning; choose one of your own"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ntrusted = \"10.0.0.1\"\ntenant_header = \"X-A\"\ntier_header = \"x-a\"\n",
        &[r#"9: service[0].tier_header = "x-a": is the field that names the tenant; choose another"#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\noverload_status = \"500\"\n",
        &[r#"7: service[0].overload_status = "500": must be "429", "503" or "529""#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nhot_keys = {}\n",
        &["7: service[0].hot_keys: means nothing with protocol = \"http\": there are no keys; leave it out"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nrows = { query = \"2\" }\n",
        &[
            "7: service[0].rows.query = \"2\": unknown key; known here: admin, blocking, collection, combine, connection, counter, delete, get, mget, mset, pubsub, range, read, scan, script, set, touch, transaction, unknown, write",
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nrows = { read = \"0\" }\n",
        &[r#"7: service[0].rows.read = "0": must be a whole number from 1 to 1000000"#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nquery_types = { a = [\"get /x\",\n\"/a*b\"] }\n",
        &[
            r#"7: service[0].query_types.a[0] = "get /x": a method is in capital letters, e.g. "GET /api/v1/query*""#,
            r#"8: service[0].query_types.a[1] = "/a*b": may have * at its end only; {name} stands for one segment"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nquery_types = { a = [\"/x\",\n\"/x\"] }\n",
        &[r#"8: service[0].query_types.a[1] = "/x": is of a type already, on line 7"#],
    ),
    (
        "quota = \"5000 RU/s\"",
        "quota = \"5000 RU/s\"\nids = [\"a\"]",
        &[
            r#"11: tenant[0].ids = ["a"]: means something only if a service with protocol = "http" has tenant_header: no request names it"#,
        ],
    ),
    (
        "quota = \"5000 RU/s\"",
        "quota = \"5000 RU/s\"\nids = [\"a b\"]",
        &[
            r#"11: tenant[0].ids = ["a b"]: means something only if a service with protocol = "http" has tenant_header: no request names it"#,
            r#"11: tenant[0].ids[0] = "a b": must be the value of a field, 1 to 150 letters without blanks and commas, e.g. "org-1""#,
        ],
    ),
];
