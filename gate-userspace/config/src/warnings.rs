//! Warnings about a valid configuration: consequences that its author may not have meant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::cache_warnings::warnings_of_cache;
use super::names::listed;
use super::values::{Action, Protocol};
use super::{Config, Service, Tenant};
use gate_protocol::memcached::Command;

/// Commands of Redis that concern all who share it.
const WHOLE_REDIS: [&str; 9] =
    ["config", "debug", "flushall", "flushdb", "keys", "migrate", "replicaof", "shutdown", "swapdb"];

impl Config {
    /// The warnings, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let unknown = self.services.iter().filter_map(|service| self.unknown_tcp(service));
        let others = self.services.iter().flat_map(|service| self.warnings_of(service));
        self.open_port().into_iter().chain(unknown).chain(others).collect()
    }

    /// A port of `admin_http` that others than this machine's processes may reach.
    fn open_port(&self) -> Option<String> {
        let address = self.gate.admin_http.filter(|address| !address.ip().is_loopback())?;
        Some(format!(
            "admin_http = \"{address}\": whoever reaches it reads the names of tenants and services and what they ask, and \
             nothing is encrypted: use an address of loopback, or filter who reaches it"
        ))
    }

    /// The TCP traffic that passes a guarded service without being charged to a tenant.
    fn unknown_tcp(&self, service: &Service) -> Option<String> {
        let every_source = |family: &IpAddr| {
            let sources = || self.tenants.iter().flat_map(|tenant| &tenant.sources);
            sources().any(|source| source.prefix_len() == 0 && source.addr().is_ipv4() == family.is_ipv4())
        };
        let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let everyone_is_known = match service.listen.iter().any(|address| address.ip().is_unspecified()) {
            true => any.iter().all(every_source),
            false => service.listen.iter().all(|address| every_source(&address.ip())),
        };
        let guarded = service.backend.is_none() && service.transports.tcp;
        let passes = guarded && service.unknown_syn == Action::Pass;
        (passes && service.default.is_none() && !everyone_is_known).then(|| {
            format!(
                "service {}: TCP of sources that no tenant names passes, and nobody is charged for it: set unknown_syn = \
                 \"drop\", or name a default tenant",
                service.name
            )
        })
    }

    fn warnings_of(&self, service: &Service) -> Vec<String> {
        match &service.backend {
            Some(_) => self.warnings_of_proxied(service),
            None => self.warnings_of_guarded(service),
        }
    }

    /// Tenants that are bound to keys of their own, or have limits by what is asked, and can reach a service of which gate
    /// sees neither keys nor commands; and a service that amplifies.
    fn warnings_of_guarded(&self, service: &Service) -> Vec<String> {
        let own_keys = self.listed_at(service, |tenant| tenant.keys.are_own()).map(|tenants| {
            format!(
                "service {}: gate guards it without reading keys, so that keys = \"own\" does not bind {tenants} there: give \
                 it a backend",
                service.name
            )
        });
        let limits = self.listed_at(service, |tenant| !tenant.limits.is_empty()).map(|tenants| {
            format!(
                "service {}: gate guards it without reading commands, so that limits do not bind {tenants} there: give it \
                 a backend",
                service.name
            )
        });
        let amplifies = service.protocol == Protocol::Memcached && service.transports.udp;
        let amplifies = amplifies.then(|| {
            format!(
                "service {}: a guarded memcached answers over UDP whoever forges a tenant's address, with all of a value: give it a \
                 backend, which bounds answers, set transports = \"tcp\", or let only true sources in",
                service.name
            )
        });
        own_keys.into_iter().chain(limits).chain(amplifies).collect()
    }

    /// The names of such tenants that can reach a guarded service.
    fn listed_at(&self, service: &Service, is_such: impl Fn(&Tenant) -> bool) -> Option<String> {
        let is_default = |place| service.default.is_some_and(|default| default.get() == place);
        let reaches = |place, tenant: &Tenant| !tenant.sources.is_empty() || is_default(place);
        let such = self
            .tenants
            .iter()
            .enumerate()
            .filter(|(place, tenant)| is_such(tenant) && reaches(*place, tenant));
        listed(&such.map(|(_, tenant)| &*tenant.name).collect::<Vec<_>>())
    }

    fn warnings_of_proxied(&self, service: &Service) -> Vec<String> {
        // What is denied to the whole is denied to its parts.
        // Whoever is bound to keys of its own may run none of these.
        let tenants = || {
            let free = |tenant: &&Tenant| tenant.part.is_none() && !tenant.refuse && !tenant.keys.are_own();
            self.tenants.iter().filter(free)
        };
        let name = &service.name;
        let names = |which: &dyn Fn(&Tenant) -> bool| {
            let names: Vec<&str> =
                tenants().filter(|tenant| which(tenant)).map(|tenant| &*tenant.name).collect();
            listed(&names)
        };
        let mut warnings = warnings_of_cache(self, service);
        // No command concerns all of several stores: each is refused.
        let has_several = service.backend.as_ref().is_some_and(|backend| backend.pool.is_some());
        if !has_several && let Some(named) = names(&|tenant| !allowed(service.protocol, tenant).is_empty()) {
            let mut all: Vec<&str> = tenants().flat_map(|tenant| allowed(service.protocol, tenant)).collect();
            all.sort_unstable();
            all.dedup();
            warnings.push(format!(
                "service {name}: {named} may run commands that concern all who share the store ({}): see deny",
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

/// True if a command of Redis is denied to a tenant that a script could call.
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
        Protocol::Opaque | Protocol::Http => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(protocol: &str, deny: &str) -> Vec<String> {
        warnings_before("backend = \"127.0.0.1:2\"", protocol, deny)
    }

    fn warnings_before(stores: &str, protocol: &str, deny: &str) -> Vec<String> {
        let text = format!(
            "[[service]]\nname = \"s\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:1\"\n{stores}\n\
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
        let pool = "backends = [\"127.0.0.1:2\", \"127.0.0.1:3\"]";
        assert!(warnings_before(pool, "memcached", "").is_empty(), "all of them are refused there");
    }

    const OWN: &str = "keys = \"own\"\nkey_prefixes = \"a:\"";

    #[test]
    fn whoever_is_bound_to_its_own_keys_runs_no_command_on_all() {
        assert!(warnings("resp", OWN).is_empty() && warnings("memcached", OWN).is_empty());
    }

    #[test]
    fn guarded_services_that_do_not_bind_a_tenant_are_warned_of() {
        let with = |bound: &str, guarded: &str, tenant: &str| {
            let text = format!(
                "[gate]\ninterface = \"eth1\"\n\
                 [[service]]\nname = \"p\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
                 [[service]]\nname = \"g\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:3\"\nunknown_syn = \"drop\"\ntransports = \"tcp\"\n{guarded}\n\
                 [[tenant]]\nname = \"t\"\nquota = \"unlimited\"\n{bound}\n{tenant}"
            );
            Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}")).warnings()
        };
        for (bound, warned) in [
            (OWN, "without reading keys, so that keys = \"own\" does not bind tenant t there"),
            (
                "limits = { GET = \"10/s\" }",
                "without reading commands, so that limits do not bind tenant t there",
            ),
        ] {
            let warned = format!("service g: gate guards it {warned}: give it a backend");
            let of_guarded = |warnings: Vec<String>| -> Vec<String> {
                warnings.into_iter().filter(|warning| warning.starts_with("service g")).collect()
            };
            assert_eq!(of_guarded(with(bound, "", "sources = \"10.0.0.0/8\"")), [&*warned]);
            assert_eq!(of_guarded(with(bound, "default = \"t\"", "")), [&*warned]);
            assert!(of_guarded(with(bound, "", "users = \"alice\"")).is_empty());
        }
        assert!(with(OWN, "", "users = \"alice\"").is_empty());
    }

    #[test]
    fn a_guarded_memcached_over_udp_is_warned_of() {
        let warned = |service: &str| {
            let text = format!(
                "[[service]]\nname = \"s\"\nlisten = \"127.0.0.1:1\"\nunknown_syn = \"drop\"\n{service}\n\
                 [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"\ndeny = [\"flush_all\", \"cache_memlimit\"]"
            );
            let config = Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
            config.warnings().iter().any(|warning| warning.contains("answers over UDP whoever forges"))
        };
        assert!(
            warned("protocol = \"memcached\"") && warned("protocol = \"memcached\"\ntransports = \"udp\"")
        );
        assert!(!warned("protocol = \"memcached\"\ntransports = \"tcp\""));
        assert!(
            !warned("protocol = \"memcached\"\nbackend = \"127.0.0.1:2\"") && !warned("protocol = \"resp\"")
        );
    }

    #[test]
    fn unknown_tcp_that_passes_a_guarded_service_is_warned_of() {
        let warned = |service: &str, sources: &str| {
            let text = format!(
                "[[service]]\nname = \"s\"\nprotocol = \"opaque\"\nlisten = \"127.0.0.1:1\"\n{service}\n\
                 [[tenant]]\nname = \"t\"\nsources = [{sources}]\nquota = \"unlimited\""
            );
            let config = Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
            let warnings = config.warnings();
            assert!(
                warnings.iter().all(|warning| warning.contains("unknown_syn = \"drop\"")),
                "{warnings:?}"
            );
            !warnings.is_empty()
        };
        for (service, sources, expected) in [
            ("", "\"10.0.0.0/8\"", true),
            ("unknown_syn = \"pass\"", "\"::/0\"", true),
            ("unknown_syn = \"drop\"", "\"10.0.0.0/8\"", false),
            ("transports = [\"udp\"]", "\"10.0.0.0/8\"", false),
            ("default = \"t\"", "\"10.0.0.0/8\"", false),
            ("", "\"0.0.0.0/0\"", false),
        ] {
            assert_eq!(warned(service, sources), expected, "{service} {sources}");
        }
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
