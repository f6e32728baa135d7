//! TLS of a proxied service, and of gates that share limits.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntls = { certificate = \"cache.pem\", keys = \"/k\" }\nlisten",
        &[
            r#"7: service[0].tls.certificate = "cache.pem": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"7: service[0].tls.keys = "/k": unknown key; did you mean key?"#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntls = \"on\"\nlisten",
        &[r#"7: service[0].tls = "on": must be a table: tls = { ... }"#],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nbackend_tls = { name = \"a b\" }\nlisten",
        &[
            r#"7: service[0].backend_tls.ca: is missing, e.g. ca = "/etc/gate/store-ca.pem""#,
            r#"7: service[0].backend_tls.name = "a b": must be a host name or an address, e.g. "cache.example""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntransports = [\"udp\", \"tcp\"]\ntls = { certificate = \"/c\", key = \"/k\" }\nlisten",
        &["8: service[0].tls: means nothing over UDP; write transports = [\"tcp\"]"],
    ),
    (
        "listen",
        "tls = { certificate = \"/c\", key = \"/k\" }\nbackend_tls = { ca = \"/c\" }\nlisten",
        &[
            "6: service[0].tls: means something only beside backend",
            "7: service[0].backend_tls: means something only beside backend",
        ],
    ),
    (
        "[[service]]",
        "[fleet]\nowners = [\"198.18.0.1:9920\", \"quota.example:9920\", \"127.0.0.1:9920\", \"quota.example\"]\n[[service]]",
        &[
            r#"4: fleet.owners[0] = "198.18.0.1:9920": is no loopback address, where reports are neither encrypted nor signed without TLS: write tls = { ca = ..., certificate = ..., key = ... } as well, or name "127.0.0.1:9920""#,
            r#"4: fleet.owners[1] = "quota.example:9920": is no loopback address, where reports are neither encrypted nor signed without TLS: write tls = { ca = ..., certificate = ..., key = ... } as well, or name "127.0.0.1:9920""#,
            r#"4: fleet.owners[3] = "quota.example": must be an address and a port or a host name and a port, e.g. "198.18.0.1:11211" or "cache.example:11211""#,
        ],
    ),
    (
        "[[service]]",
        "[fleet]\nowners = [\"quota.example:9920\"]\ntls = { ca = \"ca.pem\", certificate = \"/c\" }\n[[service]]",
        &[
            r#"5: fleet.tls.ca = "ca.pem": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"5: fleet.tls.key: is missing, e.g. key = "/etc/gate/fleet.key""#,
        ],
    ),
    (
        "[[service]]",
        "[fleet]\nowners = [\"127.0.0.1:9920\", \"dns:///localhost:9921\", \"dns:///127.0.0.1:9920\"]\n[[service]]",
        &[
            r#"4: fleet.owners[1] = "dns:///localhost:9921": stands for all owners: name no other beside it"#,
            r#"4: fleet.owners[2] = "dns:///127.0.0.1:9920": is an address, no name: write "127.0.0.1:9920""#,
        ],
    ),
    (
        "[[service]]",
        "[fleet]\nowners = [\"dns:///quota.example:9920\"]\n[[service]]",
        &[
            r#"4: fleet.owners[0] = "dns:///quota.example:9920": is no loopback address, where reports are neither encrypted nor signed without TLS: write tls = { ca = ..., certificate = ..., key = ... } as well, or name "127.0.0.1:9920""#,
        ],
    ),
    (
        "[[service]]",
        "[fleet]\nowners = [\"198.18.0.1:9920\"]\nname = \"gate 1\"\ntls = { ca = \"/a\", certificate = \"/c\", key = \"/k\" }\n[[service]]",
        &[
            r#"5: fleet.name = "gate 1": must be a DNS name beside tls, since gate's certificate has to be for it, e.g. "gate-1.example""#,
        ],
    ),
];
