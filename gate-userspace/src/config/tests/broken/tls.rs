//! TLS of a proxied service.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\ntls = { certificate = \"cache.pem\", keys = \"/k\" }\nlisten",
        &[
            r#"7: service[0].tls.certificate = "cache.pem": must be an absolute path without "..", e.g. "/sys/fs/bpf/gate""#,
            r#"7: service[0].tls.key: is missing, e.g. key = "/etc/gate/cache.key""#,
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
];
