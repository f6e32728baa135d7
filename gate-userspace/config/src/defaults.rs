//! Defaults that have changed, as far as a configuration relies on them.

use serde::Serialize;

use super::intercept::is_proxied;
use super::raw::{self, Section};

/// A key that a configuration leaves out, and whose default was another once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedDefault {
    /// Its section and name, such as `service.cache.slow_timeout`.
    pub key: String,
    /// The line that comes closest to the old default.
    pub restore: &'static str,
}

/// Those that a valid document relies on.
#[must_use]
pub fn changed_defaults(text: &str) -> Vec<ChangedDefault> {
    raw::parse("", text, read).unwrap_or_default()
}

fn read(mut root: Section<'_>) -> Vec<ChangedDefault> {
    let mut found = Found(Vec::new());
    let mut gate = root.section("gate");
    let mut services = root.sections("service");
    let mut tenants = root.sections("tenant");
    let value =
        |section: &mut Section<'_>, key| section.get(key, |text| Ok(text.to_owned())).unwrap_or_default();
    let has_xdp = value(&mut gate, "xdp") != "off";
    let proxies = services.iter().any(|service| is_proxied(service));
    for (key, restore, matters) in [
        ("fragments", "fragments = \"pass\"", has_xdp),
        ("counter_memory", "counter_memory = \"16GiB\"", has_xdp),
        ("charged_mark", "charged_mark = \"off\"", has_xdp && proxies),
        ("drain", "drain = \"0ms\"", proxies),
    ] {
        found.add(&gate, "gate", key, restore, matters);
    }
    let are_several = tenants.iter().filter(|tenant| !tenant.has("part_of")).nth(1).is_some();
    for service in services.iter_mut().filter(|service| is_proxied(service)) {
        let name = format!("service.{}", value(service, "name"));
        let is_redis = value(service, "protocol") == "resp";
        let queues = service.has("parallelism") && value(service, "parallelism") != "off";
        for (key, restore, matters) in [
            ("slow_timeout", "slow_timeout = \"1s\"", true),
            ("client_timeout", "client_timeout = \"1h\"", true),
            ("max_unknown_clients", "max_unknown_clients = \"10000\"", true),
            ("unknown_timeout", "unknown_timeout = \"1h\"", true),
            ("max_request", "max_request = \"2MiB\"", is_redis),
            ("max_dedicated", "max_dedicated = \"1000000\"", is_redis),
            ("tenant_memory", "tenant_memory = \"100%\"", are_several),
            ("histogram_values", "histogram_values = \"1000\"", queues),
            ("parallelism", "parallelism = \"off\"", true),
            ("connections", "connections = \"2\"", true),
            ("queue_memory", "queue_memory = \"256MiB\"", queues),
        ] {
            found.add(service, &name, key, restore, matters);
        }
        let price = service.section("price");
        found.add(&price, &format!("{name}.price"), "learn", "price.learn = \"off\"", true);
    }
    for tenant in tenants.iter_mut().filter(|tenant| !tenant.has("part_of")) {
        let name = format!("tenant.{}", value(tenant, "name"));
        found.add(
            tenant,
            &name,
            "max_connections",
            "max_connections = \"unlimited\"",
            proxies && are_several,
        );
        found.add(tenant, &name, "reply_budget", "reply_budget = \"1GiB/s\"", true);
    }
    found.0
}

struct Found(Vec<ChangedDefault>);

impl Found {
    fn add(&mut self, section: &Section<'_>, name: &str, key: &str, restore: &'static str, matters: bool) {
        if matters && !section.has(key) {
            self.0.push(ChangedDefault { key: format!("{name}.{key}"), restore });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn what_is_left_out_is_relied_on_and_what_is_written_is_not() {
        let service = "[[service]]\nname = \"s\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n";
        let tenant = |name: u8| {
            format!("[[tenant]]\nname = \"t{name}\"\nsources = \"10.0.0.{name}\"\nquota = \"unlimited\"\n")
        };
        let names = |text: &str| {
            let keys: Vec<_> = changed_defaults(text).into_iter().map(|default| default.key).collect();
            keys.join(" ")
        };
        let off = "[gate]\nxdp = \"off\"\ndrain = \"1s\"\n";
        assert_eq!(
            names(&format!("{off}{service}{}", tenant(1))),
            "service.s.slow_timeout service.s.client_timeout service.s.max_unknown_clients service.s.unknown_timeout \
             service.s.max_request service.s.max_dedicated service.s.parallelism service.s.connections service.s.price.learn tenant.t1.reply_budget"
        );
        let written = "slow_timeout = \"1s\"\nclient_timeout = \"1h\"\nmax_unknown_clients = \"7\"\nunknown_timeout = \"1h\"\n\
                       max_request = \"2MiB\"\nmax_dedicated = \"7\"\nparallelism = \"4\"\n";
        assert_eq!(
            names(&format!("{off}{service}{written}{}reply_budget = \"0B/s\"\n{}", tenant(1), tenant(2))),
            "service.s.tenant_memory service.s.histogram_values service.s.connections service.s.queue_memory service.s.price.learn tenant.t1.max_connections tenant.t2.max_connections tenant.t2.reply_budget"
        );
        let guarded = "[gate]\ninterface = \"eth1\"\n[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\n";
        assert_eq!(
            names(&format!("{guarded}{}", tenant(1))),
            "gate.fragments gate.counter_memory tenant.t1.reply_budget"
        );
        assert_eq!(names("nonsense"), "");
    }

    #[test]
    fn what_restores_a_default_is_valid() {
        let text = "[gate]\nGATE\n[[service]]\nname = \"s\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
                    parallelism = \"1\"\nSERVICE\n[[tenant]]\nname = \"t\"\nsources = \"10.0.0.1\"\nquota = \"unlimited\"\nTENANT\n\
                    [[tenant]]\nname = \"u\"\nsources = \"10.0.0.2\"\nquota = \"unlimited\"\n";
        for default in
            changed_defaults(&text.replace("GATE", "").replace("SERVICE", "").replace("TENANT", ""))
        {
            let section = default.key.split('.').next().unwrap().to_uppercase();
            let mut restored = text.replacen(&section, default.restore, 1);
            ["GATE", "SERVICE", "TENANT"].iter().for_each(|other| restored = restored.replace(other, ""));
            Config::parse("test.toml", &restored)
                .unwrap_or_else(|faults| panic!("{}: {faults}", default.key));
        }
    }
}
