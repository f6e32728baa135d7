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
            r#"7: service[0].cache.size = "1": unknown key; known here: dedup, dir, disk, keep_own, key, max_object, memory, stale"#,
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
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\naccess_log = \"a.json\"\naccess_log_sample = \"0\"\n",
        &[
            r#"7: service[0].access_log = "a.json": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"8: service[0].access_log_sample = "0": must be a whole number from 1 to 1000000"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nwebsocket = \"on\"\nbackend_http = \"h2\"\n",
        &[
            r#"7: service[0].websocket = "on": goes by HTTP/1.1, which backend_http = "h2" does not speak; leave out one of them"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nbackend_http = \"2\"\n",
        &[r#"7: service[0].backend_http = "2": must be "1.1" or "h2""#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\naccess_log_sample = \"5\"\n",
        &[r#"7: service[0].access_log_sample = "5": means something only beside access_log"#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"127.0.0.1:3\", origins = [\"http://a\"] }\n",
        &["7: service[0].process: means something only beside cache, which keeps what is processed"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"/c\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"127.0.0.1:3\", origins = [\"http://a\"], origins_ca = \"/ca.pem\" }\n",
        &[
            r#"8: service[0].process.origins_ca = "/ca.pem": means something only beside an origin over https"#,
        ],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"/c\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"198.18.0.1:11211\", origins = [\"http://a\"] }\n",
        &["8: service[0].process: blobs (198.18.0.1:11211) overlaps 198.18.0.1:11211, on line 9"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:4\"\ncache = { dir = \"/c\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"198.18.0.1:11211\", origins = [\"http://a\"] }\n[[service]]\nname = \"b\"\nprotocol = \"memcached\"\n",
        &[r#"13: service[1].listen = "198.18.0.1:11211": overlaps 198.18.0.1:11211, on line 9"#],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:4\"\ncache = { dir = \"/c\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"127.0.0.1:3\", origins = [\"http://a\"] }\n[[service]]\nname = \"b\"\nprotocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"/d\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"127.0.0.1:3\", origins = [\"http://a\"] }\n",
        &["15: service[1].process: blobs (127.0.0.1:3) overlaps 127.0.0.1:3, on line 9"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:4\"\n[[service]]\nname = \"b\"\nprotocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"/d\" }\nprocess = { path = \"/img/{spec}/{url}\", by = \"http://127.0.0.1:2/{spec}/{blob}\", blobs = \"127.0.0.1:4\", origins = [\"http://a\"] }\n",
        &["13: service[1].process: blobs (127.0.0.1:4) overlaps 127.0.0.1:4, on line 7"],
    ),
    (
        MEMCACHED,
        "protocol = \"http\"\nbackend = \"127.0.0.1:1\"\ncache = { dir = \"/c\" }\nprocess = { path = \"/{spec}{url}\", by = \"ftp://a\", blobs = \"0.0.0.0:3\", origins = [\"http://a/b\", \"ftp://a\"], origins_ca = \"ca.pem\", specs = [\"..\"], networks = \"10.0.0.1/8\", concurrency = \"0\", downloads = \"0\", queue = \"-1\", by2 = \"\" }\n",
        &[
            r#"8: service[0].process.blobs = "0.0.0.0:3": must be one address, which the processor is told, e.g. "127.0.0.1:9912""#,
            r#"8: service[0].process.by = "ftp://a": must be a URL with {spec} and {blob}, or {blob_url}, in its path, e.g. "http://127.0.0.1:8081/{spec}/{blob}""#,
            r#"8: service[0].process.by2 = "": unknown key; did you mean by?"#,
            r#"8: service[0].process.concurrency = "0": must be a whole number from 1 to 1024"#,
            r#"8: service[0].process.downloads = "0": must be a whole number from 1 to 4096"#,
            r#"8: service[0].process.networks = "10.0.0.1/8": has bits beyond its length; the prefix is "10.0.0.0/8""#,
            r#"8: service[0].process.origins[0] = "http://a/b": must be a scheme, a host and perhaps a port, without a path, e.g. "https://images.example" or "http://*.example:8080""#,
            r#"8: service[0].process.origins[1] = "ftp://a": must be a scheme, a host and perhaps a port, without a path, e.g. "https://images.example" or "http://*.example:8080""#,
            r#"8: service[0].process.origins_ca = "ca.pem": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"8: service[0].process.path = "/{spec}{url}": must be a path with {spec}, a whole segment, and behind it {url} at its end, e.g. "/img/{spec}/{url}""#,
            r#"8: service[0].process.queue = "-1": must be a whole number from 0 to 100000"#,
            r#"8: service[0].process.specs[0] = "..": must be 1 to 64 letters, digits and -._~,:=@+, and may not hold "..", e.g. "w200""#,
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
