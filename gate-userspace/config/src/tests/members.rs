//! Tenants with members, as they are read.

use super::broken::GOOD;
use super::*;

#[test]
fn members_are_values_or_networks_and_the_interface_limits_none() {
    let proxied = GOOD.replace("memcached", "resp").replace("11211\"", "11211\"\nbackend = \"127.0.0.1:1\"");
    let v4 = Some(32);
    for (second, named_by, memory, sources) in [
        ("ids = \"*\"", NamedBy::Id, 16 << 20, &[][..]),
        ("sources = \"each /32\"", NamedBy::Source { v4, v6: None }, 16 << 20, &["0.0.0.0/0"]),
        (
            "sources = [\"each /64\", \"each /32\"]\nmember_memory = \"64KiB\"",
            NamedBy::Source { v4, v6: Some(64) },
            64 << 10,
            &["::/0", "0.0.0.0/0"],
        ),
    ] {
        let text =
            proxied.replace("\"hostile\"\nsources = [\"198.18.2.1\"]", &format!("\"each/*\"\n{second}"));
        let config = Config::parse("gate.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
        let tenant = &config.tenants[1];
        assert_eq!(tenant.members, Some(Members { named_by, memory }));
        let found: Vec<_> = tenant.sources.iter().map(ToString::to_string).collect();
        assert_eq!((found, tenant.ids.len()), (sources.iter().map(ToString::to_string).collect(), 0));
        assert_eq!((tenant.tcp_quota.rate, tenant.syn_rate), (Limits::UNLIMITED.rate, Limits::UNLIMITED));
    }
}
