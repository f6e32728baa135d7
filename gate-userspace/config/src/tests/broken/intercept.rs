//! Faults of a `[[service]]` whose store keeps its address.

use super::Broken;

pub(super) const ROWS: &[Broken] = &[
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"198.18.0.1:11211\"\nlocal = \"on\"\non_lost = \"pass\"",
        &[
            r#"7: service[0].local = "on": means something only beside intercept = "on""#,
            r#"8: service[0].on_lost = "pass": means something only beside intercept = "on""#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"198.18.0.1:11211\"\nintercept = \"on\"\ntransports = [\"tcp\", \"udp\"]",
        &[
            r#"7: service[0].intercept = "on": takes connections alone; write transports = ["tcp"], and guard UDP by a service of its own without it"#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"198.18.0.1:11211\"\nintercept = \"on\"\nbackend = \"198.18.0.2:11211\"",
        &[
            r#"8: service[0].backend = "198.18.0.2:11211": must be the store on this machine: leave it out, or write an address of listen or a loopback address, e.g. "127.0.0.1:6379""#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"198.18.0.1:11211\"\nintercept = \"on\"\nbackend = \"store.example:11211\"",
        &[
            r#"8: service[0].backend = "store.example:11211": must be the store on this machine: leave it out, or write an address of listen or a loopback address, e.g. "127.0.0.1:6379""#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"127.0.0.1:11211\"\nintercept = \"on\"",
        &[
            r#"7: service[0].intercept = "on": leaves nobody to intercept at 127.0.0.1:11211, which only this machine reaches; write local = "on", or the address that clients use"#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"[::]:11211\"\nintercept = \"on\"\nlocal = \"on\"",
        &[
            r#"8: service[0].local = "on": tells gate's own connections from others over IPv4 alone; list no IPv6 address in listen, or write "off""#,
        ],
    ),
    (
        "protocol = \"memcached\"\nlisten = \"198.18.0.1:11211\"",
        "protocol = \"opaque\"\nlisten = \"198.18.0.1:11211\"\nintercept = \"on\"",
        &[
            r#"7: service[0].intercept = "on": what is opaque cannot be proxied; protocol = "memcached", "resp" or "http" can"#,
        ],
    ),
    (
        "listen = \"198.18.0.1:11211\"",
        "listen = \"198.18.0.1:11211\"\nintercept = \"yes\"\non_lost = \"drop\"",
        &[
            r#"7: service[0].intercept = "yes": must be "on" or "off""#,
            r#"8: service[0].on_lost = "drop": means something only beside intercept = "on""#,
            r#"8: service[0].on_lost = "drop": must be "pass" or "refuse""#,
        ],
    ),
];
