//! Faults of stores at Unix sockets, and of several that share the keys.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    (
        "listen",
        "backend = \"unix:run/cache.sock\"\nlisten",
        &[
            r#"6: service[0].backend = "unix:run/cache.sock": must be the whole path of a socket, e.g. "unix:/run/redis/redis.sock""#,
        ],
    ),
    (
        "listen",
        "backend = \"unix:/run/cache.sock\"\nbackend_tls = { ca = \"/ca.pem\" }\nlisten",
        &[
            r#"7: service[0].backend_tls: means nothing beside a Unix socket, on which gate speaks plainly; leave it out"#,
        ],
    ),
    (
        "listen",
        "backends = [\"127.0.0.1:1 weight=0\", \"127.0.0.1:2\", \"127.0.0.1:2 name=b\", \"0.0.0.0:3\", \"cache\"]\nbackend = \"127.0.0.1:1\"\nhash = \"md5\"\nlisten",
        &[
            r#"6: service[0].backends[0] = "127.0.0.1:1 weight=0": must have a weight from 1 to 10000, e.g. "cache-1:11211 weight=2""#,
            r#"6: service[0].backends[2] = "127.0.0.1:2 name=b": is listed twice"#,
            r#"6: service[0].backends[3] = "0.0.0.0:3": must be the store's own address, e.g. "127.0.0.1:11212""#,
            r#"6: service[0].backends[4] = "cache": must be an address and a port or a host name and a port, e.g. "198.18.0.1:11211" or "cache.example:11211""#,
            r#"7: service[0].backend = "127.0.0.1:1": has no meaning beside backends: leave one of the two out"#,
            r#"8: service[0].hash = "md5": must be "ketama", "twemproxy", "rendezvous" or "crc16""#,
        ],
    ),
    (
        "listen",
        "backends = [\"127.0.0.1:1\", \"127.0.0.1:2 weight=1000\"]\nhash_tag = \"{}\"\nbackend_tls = { ca = \"/ca.pem\" }\nlisten",
        &[
            r#"6: service[0].backends = ["127.0.0.1:1", "127.0.0.1:2 weight=1000"]: leaves 127.0.0.1:1 without a key: its weight is too small beside the others' for a ring; raise it, or leave it out"#,
            r#"7: service[0].hash_tag = "{}": means something only beside hash = "twemproxy""#,
            r#"8: service[0].backend_tls: needs the name that the certificates of all backends are for: say name"#,
        ],
    ),
    (
        "listen",
        "backends = [\"127.0.0.1:1 name=a\", \"127.0.0.1:2\", \"127.0.0.1:3 name=a\"]\nlisten",
        &[
            r#"6: service[0].backends = ["127.0.0.1:1 name=a", "127.0.0.1:2", "127.0.0.1:3 name=a"]: has 127.0.0.1:1 and 127.0.0.1:3, which are both "a" in the choice of a key's store: one of them would have no key; give each a name of its own (`name=`)"#,
        ],
    ),
    (
        "\"memcached\"",
        "\"resp\"\nbackends = \"127.0.0.1:1\"\nhash = \"twemproxy\"\nkey_hash = \"hsieh\"\nhash_tag = \"<\"",
        &[
            r#"6: service[0].backends = "127.0.0.1:1": divides the keys of memcached alone; write backend, with one store, or cluster = "on" for the nodes of a Redis Cluster"#,
            r#"8: service[0].key_hash = "hsieh": must be "one_at_a_time", "md5", "crc16", "crc32", "crc32a", "fnv1_64", "fnv1a_64", "fnv1_32", "fnv1a_32" or "murmur""#,
            r#"9: service[0].hash_tag = "<": must be two characters, e.g. "{}""#,
        ],
    ),
    (
        "\"memcached\"",
        "\"resp\"\ncluster = \"on\"\nbackends = [\"unix:/run/a.sock\", \"127.0.0.1:1 weight=2\", \"127.0.0.1:2\", \"127.0.0.1:2\", \"0.0.0.0:3\"]\nhash = \"crc16\"\nbackend_tls = { ca = \"/ca.pem\" }\nmax_redirects = \"0\"\nsplit_writes = \"some\"",
        &[
            r#"7: service[0].backends[0] = "unix:/run/a.sock": must be an address and a port: the other nodes of a cluster are not at Unix sockets"#,
            r#"7: service[0].backends[1] = "127.0.0.1:1 weight=2": must be an address alone beside cluster, e.g. "198.18.0.1:6379": its nodes say which keys they have"#,
            r#"7: service[0].backends[3] = "127.0.0.1:2": is listed twice"#,
            r#"7: service[0].backends[4] = "0.0.0.0:3": must be the node's own address, e.g. "127.0.0.1:7000""#,
            r#"8: service[0].hash = "crc16": has no meaning beside cluster, whose nodes say which keys they have; leave it out"#,
            r#"9: service[0].backend_tls: cannot be used beside cluster: gate speaks plainly to its nodes; leave it out"#,
            r#"10: service[0].max_redirects = "0": must be a whole number from 1 to 16"#,
            r#"11: service[0].split_writes = "some": must be "on" or "off""#,
        ],
    ),
    (
        "listen",
        "cluster = \"on\"\nbackend = \"127.0.0.1:1\"\nlisten",
        &[r#"6: service[0].cluster = "on": is Redis': write protocol = "resp", or leave it out"#],
    ),
    (
        "\"memcached\"",
        "\"resp\"\nmax_redirects = \"2\"\nsplit_writes = \"on\"\nbackend = \"unix:/run/a.sock\"",
        &[
            r#"6: service[0].max_redirects = "2": means something only beside cluster = "on""#,
            r#"7: service[0].split_writes = "on": means something only beside cluster = "on""#,
        ],
    ),
    (
        "\"memcached\"",
        "\"resp\"\ncluster = \"on\"",
        &[
            r#"6: service[0].cluster = "on": needs backends: write the addresses of some of its nodes, e.g. ["198.18.0.1:6379"]"#,
        ],
    ),
    (
        "\"memcached\"",
        "\"resp\"\ncluster = \"on\"\nbackend = \"unix:/run/a.sock\"",
        &[
            r#"7: service[0].backend = "unix:/run/a.sock": must be an address and a port: the other nodes of a cluster are not at Unix sockets"#,
        ],
    ),
    (
        "listen",
        "hash = \"ketama\"\nlisten",
        &[r#"6: service[0].hash = "ketama": means something only beside backends"#],
    ),
    (
        "listen",
        "backends = [\"198.18.0.1:11211\", \"127.0.0.1:2\"]\nlisten",
        &[
            r#"6: service[0].backends = ["198.18.0.1:11211", "127.0.0.1:2"]: lists an address of the service itself"#,
        ],
    ),
];
