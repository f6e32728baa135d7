//! Faults of what is said of reads of whole keys.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    (
        "\"memcached\"",
        "\"resp\"\nbackend = \"127.0.0.1:6380\"\nmax_rows = \"0\"\nask_sizes = \"some\"\nunlink = \"yes\"",
        &[
            r#"7: service[0].max_rows = "0": must be a whole number from 1 to 4294967295, or off"#,
            r#"8: service[0].ask_sizes = "some": must be "on" or "off""#,
            r#"9: service[0].unlink = "yes": must be "on" or "off""#,
        ],
    ),
    (
        "listen",
        "backend = \"127.0.0.1:11212\"\nmax_rows = \"10000\"\nunlink = \"off\"\nlisten",
        &[
            r#"7: service[0].max_rows = "10000": is about commands of Redis: it needs protocol = "resp"; leave it out"#,
            r#"8: service[0].unlink = "off": is about commands of Redis: it needs protocol = "resp"; leave it out"#,
        ],
    ),
];
