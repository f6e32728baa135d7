//! What a valid configuration allows that its author may not have meant.

use super::{Config, Protocol, Service, Tenant};
use crate::protocol::memcached::Command;

/// Commands of Redis that concern all who share it.
const WHOLE_REDIS: [&str; 9] =
    ["config", "debug", "flushall", "flushdb", "keys", "migrate", "replicaof", "shutdown", "swapdb"];

impl Config {
    /// What to warn of, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let proxied = self.services.iter().filter(|service| service.backend.is_some());
        proxied.flat_map(|service| self.warnings_of(service)).collect()
    }

    fn warnings_of(&self, service: &Service) -> Vec<String> {
        // What is denied to the whole is denied to its parts.
        let tenants = || self.tenants.iter().filter(|tenant| tenant.part.is_none() && !tenant.refuse);
        let name = &service.name;
        let names = |which: &dyn Fn(&Tenant) -> bool| {
            let names: Vec<&str> =
                tenants().filter(|tenant| which(tenant)).map(|tenant| &*tenant.name).collect();
            listed(&names)
        };
        let mut warnings = Vec::new();
        if let Some(tenants) = names(&|tenant| !allowed(service.protocol, tenant).is_empty()) {
            let mut all: Vec<&str> =
                self.tenants.iter().flat_map(|tenant| allowed(service.protocol, tenant)).collect();
            all.sort_unstable();
            all.dedup();
            warnings.push(format!(
                "service {name}: {tenants} may run commands that concern all who share the store ({}): see deny",
                all.join(", "),
            ));
        }
        let evades = |tenant: &Tenant| denies_something(tenant) && !tenant.deny.denies_scripts();
        if service.protocol == Protocol::Resp
            && let Some(tenants) = names(&evades)
        {
            warnings.push(format!(
                "service {name}: what is denied to {tenants} can be called by a script: set deny_scripts = \"on\", \
                 unless the store's own ACL refuses it",
            ));
        }
        warnings
    }
}

/// Whether something of Redis is denied to a tenant that a script could call.
fn denies_something(tenant: &Tenant) -> bool {
    WHOLE_REDIS.iter().any(|name| tenant.deny.denies_redis(name))
}

/// The commands that concern all who share a store, as far as a tenant may run them.
fn allowed(protocol: Protocol, tenant: &Tenant) -> Vec<&'static str> {
    match protocol {
        Protocol::Resp => WHOLE_REDIS.into_iter().filter(|name| !tenant.deny.denies_redis(name)).collect(),
        Protocol::Memcached => [Command::FlushAll, Command::CacheMemlimit]
            .into_iter()
            .filter(|command| !tenant.deny.memcached.contains(command))
            .map(Command::name)
            .collect(),
        Protocol::Opaque => Vec::new(),
    }
}

/// Names of tenants in a sentence: some of them, if they are many.
fn listed(names: &[&str]) -> Option<String> {
    const MOST: usize = 3;
    match names {
        [] => None,
        [name] => Some(format!("tenant {name}")),
        _ if names.len() <= MOST => Some(format!("tenants {}", names.join(", "))),
        _ => Some(format!("tenants {} and {} more", names[..MOST].join(", "), names.len() - MOST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(protocol: &str, deny: &str) -> Vec<String> {
        let text = format!(
            "[[service]]\nname = \"s\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
             [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"\n{deny}"
        );
        Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}")).warnings()
    }

    const ALL: &str = "\"CONFIG\", \"DEBUG\", \"FLUSHALL\", \"FLUSHDB\", \"KEYS\", \"MIGRATE\", \"REPLICAOF\", \
                       \"SHUTDOWN\", \"SWAPDB\"";

    #[test]
    fn what_concerns_all_who_share_a_store_is_warned_of() {
        let all = warnings("resp", "");
        assert_eq!(
            all,
            [
                "service s: tenant t may run commands that concern all who share the store (config, debug, flushall, \
              flushdb, keys, migrate, replicaof, shutdown, swapdb): see deny"
            ]
        );
        let memcached = warnings("memcached", "deny = [\"cache_memlimit\"]");
        assert_eq!(memcached.len(), 1);
        assert!(memcached[0].contains("(flush_all)"), "{memcached:?}");
        assert!(warnings("memcached", "deny = [\"flush_all\", \"cache_memlimit\"]").is_empty());
    }

    #[test]
    fn a_list_that_scripts_get_round_is_warned_of() {
        let with_scripts = warnings("resp", &format!("deny = [{ALL}]"));
        assert_eq!(with_scripts.len(), 1);
        assert!(with_scripts[0].contains("deny_scripts"), "{with_scripts:?}");
        assert!(warnings("resp", &format!("deny = [{ALL}]\ndeny_scripts = \"on\"")).is_empty());
        assert!(
            warnings("memcached", &format!("deny = [{ALL}, \"flush_all\", \"cache_memlimit\"]")).is_empty()
        );
    }
}
