//! The keys that a running gate cannot change.

use super::admission::{Admission, AdmissionPolicy};
use super::backend::{Backend, HotKeys};
use super::intercept::Intercept;
use super::store_address::StoreAddress;
use super::{Cache, Config, Fleet, Http, Process, Service};
use gate_protocol::query_types::QueryTypes;

impl Config {
    /// The keys whose new values count from the next start only, if gate was started with this configuration.
    #[must_use]
    pub fn from_next_start(&self, new: &Self) -> Vec<String> {
        let mut keys = Vec::new();
        let mut differs = |differs: bool, key: String| keys.extend(differs.then_some(key));
        let gate = &self.gate;
        let other = &new.gate;
        for (key, changed) in [
            ("xdp", gate.xdp != other.xdp),
            ("tick", gate.tick != other.tick),
            ("stale_after", gate.stale_after != other.stale_after),
            ("prefix_memory", gate.prefix_memory != other.prefix_memory),
            ("counter_memory", gate.counter_memory != other.counter_memory),
            ("pin_dir", gate.pin_dir != other.pin_dir),
            ("admin", gate.admin != other.admin),
            ("admin_read", gate.admin_read != other.admin_read),
            ("admin_http", gate.admin_http != other.admin_http),
            ("admin_hosts", gate.admin_hosts != other.admin_hosts),
            ("admin_token_file", gate.admin_token_file != other.admin_token_file),
            ("charged_mark", gate.charged_mark != other.charged_mark),
            ("threads", gate.threads != other.threads),
        ] {
            differs(changed, format!("gate.{key}"));
        }
        differs(self.envoy != new.envoy, "envoy".to_owned());
        // The files of certificates may be others: they are read again.
        let fleet = |config: &Self| {
            config.fleet.clone().map(|fleet| (fleet.tls.is_some(), Fleet { tls: None, ..fleet }))
        };
        differs(fleet(self) != fleet(new), "fleet".to_owned());
        for service in &self.services {
            let Some(other) = new.services.iter().find(|other| other.name == service.name) else {
                // Its sockets stay open.
                differs(service.backend.is_some(), format!("service.{}", service.name));
                continue;
            };
            of_service(service, other)
                .for_each(|key| differs(true, format!("service.{}.{key}", service.name)));
        }
        for service in &new.services {
            let is_new = self.services.iter().all(|old| old.name != service.name);
            differs(is_new && service.backend.is_some(), format!("service.{}", service.name));
        }
        keys
    }
}

fn has_several(of: &Backend) -> bool {
    of.pool.is_some() || of.cluster.is_some()
}

fn seeds(of: &Backend) -> Option<&[StoreAddress]> {
    of.cluster.as_ref().map(|cluster| &cluster.seeds[..])
}

fn redirects(of: &Backend) -> Option<u8> {
    of.cluster.as_ref().map(|cluster| cluster.max_redirects)
}

fn splits_writes(of: &Backend) -> Option<bool> {
    of.cluster.as_ref().map(|cluster| cluster.split_writes)
}

fn of_service(old: &Service, new: &Service) -> impl Iterator<Item = &'static str> {
    let (Some(backend), Some(other)) = (&old.backend, &new.backend) else {
        return changed(&[("backend", old.backend.is_some() != new.backend.is_some())]);
    };
    // A field without `_` is a key whose value a thread takes over when it starts.
    let Backend {
        address,
        pool,
        cluster,
        connections,
        max_datagrams,
        max_pools,
        store_login,
        trusted,
        http,
        cache,
        process,
        tls,
        backend_tls,
        hot_keys,
        admission,
        store_timeout: _,
        slow_timeout: _,
        max_request: _,
        max_depth: _,
        max_output: _,
        client_memory: _,
        tenant_memory: _,
        max_clients: _,
        max_unknown_clients: _,
        max_dedicated: _,
        unknown_timeout: _,
        idle_timeout: _,
        client_timeout: _,
        query_types,
        tiers: _,
        whole_keys: _,
    } = backend;
    // Routes and rows may change, as commands of types may.
    let of_http = |differs: fn(&Http, &Http) -> bool| {
        http.as_ref().zip(other.http.as_ref()).is_some_and(|(old, new)| differs(old, new))
    };
    let parallelism =
        |admission: &Option<Admission>| admission.as_ref().map(|admission| admission.parallelism);
    let processing = |process: &Option<Process>| Some(Process { origins_ca: None, ..process.clone()? });
    changed(&[
        ("protocol", old.protocol != new.protocol),
        ("listen", old.listen != new.listen),
        ("intercept", Intercept::differs(old.intercept, new.intercept)),
        ("transports", old.transports != new.transports),
        ("backend", *address != other.address && !has_several(backend) && !has_several(other)),
        ("backends", *pool != other.pool || seeds(backend) != seeds(other)),
        ("cluster", cluster.is_some() != other.cluster.is_some()),
        ("max_redirects", redirects(backend) != redirects(other)),
        ("split_writes", splits_writes(backend) != splits_writes(other)),
        ("connections", *connections != other.connections),
        ("max_datagrams", *max_datagrams != other.max_datagrams),
        // Which commands are of a type may change, but not what types there are.
        ("query_types", !other.query_types.names().all(|name| query_types.place(name).is_some())),
        ("max_pools", *max_pools != other.max_pools),
        ("store_user", *store_login != other.store_login),
        ("proxy_protocol", trusted.is_some() != other.trusted.is_some()),
        ("trusted", *trusted != other.trusted || of_http(|old, new| old.trusted != new.trusted)),
        ("tenant_header", of_http(|old, new| old.tenant_header != new.tenant_header)),
        ("tier_header", of_http(|old, new| old.tier_header != new.tier_header)),
        ("overload_status", of_http(|old, new| old.overload_status != new.overload_status)),
        ("rate_limit_fields", of_http(|old, new| old.rate_limit_fields != new.rate_limit_fields)),
        ("websocket", of_http(|old, new| old.websocket != new.websocket)),
        ("backend_http", of_http(|old, new| old.is_http2_to_store != new.is_http2_to_store)),
        ("access_log", of_http(|old, new| old.access_log != new.access_log)),
        ("cache", kept(cache) != kept(&other.cache)),
        ("process", processing(process) != processing(&other.process)),
        // The files may be others: they are read again.
        ("tls", tls.is_some() != other.tls.is_some()),
        ("backend_tls", backend_tls.is_some() != other.backend_tls.is_some()),
        ("hot_keys", HotKeys { threshold: 0, ..*hot_keys } != HotKeys { threshold: 0, ..other.hot_keys }),
        ("parallelism", parallelism(admission) != parallelism(&other.admission)),
        ("admission", policies(backend, &other.query_types) != policies(other, &other.query_types)),
    ])
}

/// The policies, with what they say by query type in the order of `types`.
fn policies(backend: &Backend, types: &QueryTypes) -> Option<Vec<AdmissionPolicy>> {
    let mut policies = backend.admission.as_ref()?.policies.clone();
    for policy in &mut policies {
        if let AdmissionPolicy::MaxQueueWait(limits) = policy {
            let of_type =
                |name| backend.query_types.place(name).map_or(limits.default, |place| limits.types[place]);
            limits.types = types.names().map(of_type).collect();
        }
    }
    Some(policies)
}

fn changed(keys: &[(&'static str, bool)]) -> std::vec::IntoIter<&'static str> {
    let changed: Vec<_> = keys.iter().filter(|(_, changed)| *changed).map(|(key, _)| *key).collect();
    changed.into_iter()
}

/// A cache, whichever of its keys are spelled out.
fn kept(cache: &Option<Cache>) -> Option<Cache> {
    Some(Cache { is_key_named: false, is_dedup_said: false, ..cache.clone()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [gate]
        interface = "eth1"
        [[service]]
        name = "proxied"
        protocol = "memcached"
        listen = "127.0.0.1:1"
        backend = "127.0.0.1:2"
        transports = ["tcp"]
        parallelism = "4"
        [[service]]
        name = "guarded"
        protocol = "memcached"
        listen = "127.0.0.1:3"
        [[tenant]]
        name = "a"
        sources = ["10.0.0.0/8"]
        quota = "1000 RU/s"
    "#;

    fn parse(text: &str) -> Config {
        Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn keys_read_at_the_start_count_from_the_next_start() {
        for (from, to, keys) in [
            ("eth1\"", "eth2\"", &[][..]),
            (
                "[gate]",
                "[gate]\ntick = \"50ms\"\nthreads = \"1\"\nmode = \"shadow\"",
                &["gate.tick", "gate.threads"],
            ),
            ("127.0.0.1:2", "127.0.0.1:9", &["service.proxied.backend"]),
            (
                "backend = \"127.0.0.1:2\"",
                "backends = [\"127.0.0.1:2\", \"127.0.0.1:8\"]",
                &["service.proxied.backends"],
            ),
            ("127.0.0.1:1", "127.0.0.1:9", &["service.proxied.listen"]),
            ("127.0.0.1:3", "127.0.0.1:9", &[]),
            ("\"4\"", "\"5\"", &["service.proxied.parallelism"]),
            ("\"4\"", "\"4\"\nadmission = \"off\"", &["service.proxied.admission"]),
            (
                "\"4\"",
                "\"4\"\nadmission = \"max-queue-wait\"\nmax_queue_wait.get = \"1ms\"",
                &["service.proxied.admission"],
            ),
            (
                "\"4\"",
                "\"4\"\nadmission = [\"bouncer\", \"accept-fraction\"]",
                &["service.proxied.admission"],
            ),
            ("\"4\"", "\"4\"\nadmission = [\"bouncer\"]", &[]),
            (
                "\"4\"",
                "\"4\"\nqueue_limit = \"7\"\ndeadline = \"1s\"\ncodel.law = \"off\"\nobjectives.get.p50 = \"1s\"",
                &[],
            ),
            (
                "\"4\"",
                "\"4\"\nstore_timeout = \"7s\"\nmax_clients = \"7\"\nmax_depth = \"7\"\nmax_request = \"1KiB\"\nclient_memory = \"1MiB\"\ntenant_memory = \"7%\"",
                &[],
            ),
            (
                "\"4\"",
                "\"4\"\nconnections = \"7\"\nmax_datagrams = \"7\"",
                &["service.proxied.connections", "service.proxied.max_datagrams"],
            ),
            ("\"4\"", "\"4\"\nquery_types.scan = [\"get\"]", &[]),
            ("\"4\"", "\"4\"\nquery_types.mine = [\"get\"]", &["service.proxied.query_types"]),
            ("\"4\"", "\"4\"\nhot_keys.threshold = \"7\"", &[]),
            ("\"4\"", "\"4\"\nhot_keys.ttl = \"7ms\"", &["service.proxied.hot_keys"]),
            (
                "\"4\"",
                "\"4\"\ntls = { certificate = \"/c\", key = \"/k\" }\nbackend_tls = { ca = \"/a\" }",
                &["service.proxied.tls", "service.proxied.backend_tls"],
            ),
            ("\"proxied\"", "\"other\"", &["service.proxied", "service.other"]),
            ("\"guarded\"", "\"other\"", &[]),
            ("127.0.0.1:3\"", "127.0.0.1:3\"\nbackend = \"127.0.0.1:4\"", &["service.guarded.backend"]),
            ("\"1000 RU/s\"", "\"2000 RU/s\"\ndeny = [\"KEYS\"]", &[]),
        ] {
            assert!(TEXT.contains(from), "{from}");
            assert_eq!(parse(TEXT).from_next_start(&parse(&TEXT.replacen(from, to, 1))), keys, "{to}");
        }
    }

    #[test]
    fn limits_by_query_type_are_compared_by_the_types_names() {
        let with = |types: &str, waits: &str| {
            let added = format!(
                "\"4\"\nadmission = \"max-queue-wait\"\nquery_types = {{ {types} }}\nmax_queue_wait = {{ {waits} }}"
            );
            parse(&TEXT.replacen("\"4\"", &added, 1))
        };
        let both = "a = \"get\", b = \"set\"";
        let waits = "a = \"1ms\", b = \"2ms\"";
        let started = with(both, waits);
        assert_eq!(started.from_next_start(&with("b = \"set\"", "b = \"2ms\"")), [""; 0]);
        assert_eq!(
            started.from_next_start(&with("b = \"set\"", "b = \"1ms\"")),
            ["service.proxied.admission"]
        );
    }
}
