//! Warnings about the cache of an HTTP service: what of its answers may be another client's, and what keeps it from being used.

use super::cache::Dedup;
use super::http::Http;
use super::names::listed;
use super::{Cache, Config, Service, Tenant};

/// The warnings about the cache of a service, a sentence each.
pub(super) fn warnings_of_cache(config: &Config, service: &Service) -> Vec<String> {
    let backend = service.backend.as_ref();
    let Some((cache, http)) = backend.and_then(|backend| backend.cache.as_ref().zip(backend.http.as_ref()))
    else {
        return Vec::new();
    };
    let all: Vec<&Tenant> = clients(config, service, http).collect();
    let those_that_may: Vec<&Tenant> = all.iter().copied().filter(|tenant| tenant.cache).collect();
    let warnings = [
        unused(&all, &those_that_may),
        shared(cache, http, &those_that_may),
        kept_for_others(cache),
        each_its_own(cache),
        named_by_own_field(http),
    ];
    warnings.into_iter().flatten().map(|warning| format!("service {}: {warning}", service.name)).collect()
}

/// The tenants whose requests may reach a service.
fn clients<'c>(
    config: &'c Config,
    service: &'c Service,
    http: &'c Http,
) -> impl Iterator<Item = &'c Tenant> + 'c {
    let is_default = |place| service.default.is_some_and(|default| default.get() == place);
    let tenants = config.tenants.iter().enumerate().filter(move |(place, tenant)| {
        let is_named = http.tenant_header.is_some() && !tenant.ids.is_empty();
        let may_come = !tenant.sources.is_empty() || is_named || is_default(*place);
        may_come && !tenant.refuse && tenant.part.is_none()
    });
    tenants.map(|(_, tenant)| tenant)
}

fn unused(all: &[&Tenant], those_that_may: &[&Tenant]) -> Option<String> {
    (those_that_may.is_empty() && !all.is_empty()).then(|| {
        "no tenant may use its cache, since each has cache = \"off\": leave cache out, or one of those"
            .to_owned()
    })
}

/// Clients of several tenants that get each other's answers, though nobody has said so.
fn shared(cache: &Cache, http: &Http, those_that_may: &[&Tenant]) -> Option<String> {
    let are_several =
        those_that_may.len() > 1 || those_that_may.iter().any(|tenant| tenant.members.is_some());
    if !are_several || cache.dedup == Dedup::Tenant || cache.is_dedup_said || http.tenant_header.is_some() {
        return None;
    }
    let names: Vec<&str> = those_that_may.iter().map(|tenant| &*tenant.name).collect();
    Some(format!(
        "what its cache keeps for one of {} is given to all, also where the application would refuse their addresses: set \
         cache.dedup = \"tenant\", or \"service\" if such answers say private",
        listed(&names)?
    ))
}

/// Answers that were selected by what one client has said, and are given to others.
fn kept_for_others(cache: &Cache) -> Option<String> {
    (cache.keep_own && !cache.is_key_named).then(|| {
        "with cache.keep_own a client gets what another's fields have selected, unless Vary names each field that the \
         application reads (Accept-Language, X-API-Key): name such fields in cache.key (key = [\"accept-encoding\"] if there \
         are none), or leave keep_own out"
            .to_owned()
    })
}

/// Parts of the key that are another for nearly each client.
fn each_its_own(cache: &Cache) -> Option<String> {
    let such: Vec<&str> =
        cache.key.iter().map(String::as_str).filter(|name| VARIOUS.contains(name)).collect();
    (!such.is_empty()).then(|| {
        format!(
            "cache.key names {}, of which nearly each client, or request, has another value, so that what is kept is hardly ever \
             given again: leave it out of key",
            such.join(", ")
        )
    })
}

/// A field that names the tenant, and has each request that it is in pass by the cache.
fn named_by_own_field(http: &Http) -> Option<String> {
    let field = http.tenant_header.as_deref().filter(|field| OF_ONE_CLIENT.contains(field))?;
    Some(format!(
        "requests whose tenant is named by tenant_header = \"{field}\" pass by its cache, since answers to them are one client's own: \
         have the proxy name tenants by another field, or leave cache out"
    ))
}

/// Fields that tell programs, pages or requests apart.
const VARIOUS: [&str; 8] = [
    "baggage",
    "origin",
    "referer",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
];
/// Fields with which a request passes by the cache.
const OF_ONE_CLIENT: [&str; 2] = ["authorization", "cookie"];

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[tenant]]\nname = \"a\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"\n";
    const OTHER: &str = "[[tenant]]\nname = \"b\"\nsources = \"11.0.0.0/8\"\nquota = \"unlimited\"\n";
    const NAMED: &str = "[[tenant]]\nname = \"n\"\nids = \"n\"\nquota = \"unlimited\"\n";
    const MANY: &str =
        "[[tenant]]\nname = \"m/*\"\nsources = \"each /32\"\nquota = \"100 RU/s\"\nburst = \"10s\"\n";

    #[test]
    fn each_warning_of_a_cache_has_its_remedy() {
        let off = |tenant: &str| format!("{tenant}cache = \"off\"\n");
        let both = |tenant: &str| format!("{ONE}{tenant}");
        let of_trusted = |field: &str| format!("trusted = [\"10.9.0.0/16\"]\ntenant_header = \"{field}\"\n");
        for (cache, service, tenants, warned) in [
            ("", "", ONE.to_owned(), ""),
            ("", "", off(ONE), "each has cache = \"off\""),
            ("", "", off(ONE) + OTHER, ""),
            ("", "", both(OTHER), "tenants a, b is given to all"),
            ("", "", MANY.to_owned(), "tenant m/* is given to all"),
            (", dedup = \"tenant\"", "", both(OTHER), ""),
            (", dedup = \"service\"", "", both(OTHER), ""),
            ("", &of_trusted("x-org"), both(NAMED), ""),
            (
                "",
                &of_trusted("authorization"),
                both(NAMED),
                "tenant_header = \"authorization\" pass by its cache",
            ),
            (", keep_own = \"on\"", "", ONE.to_owned(), "key = [\"accept-encoding\"] if there are none"),
            (", keep_own = \"on\", key = [\"accept-encoding\"]", "", ONE.to_owned(), ""),
            (", key = [\"accept\", \"User-Agent\"]", "", ONE.to_owned(), "names user-agent, of which"),
            (", key = [\"accept\"]", "", ONE.to_owned(), ""),
        ] {
            let text = format!(
                "[gate]\nxdp = \"off\"\n[[service]]\nname = \"s\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:1\"\n\
                 backend = \"127.0.0.1:2\"\n{service}cache = {{ dir = \"/c\"{cache} }}\n{tenants}"
            );
            let config =
                Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
            let warnings = config.warnings();
            assert_eq!(warnings.len(), usize::from(!warned.is_empty()), "{cache} {service}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.contains(warned)), "{cache}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.starts_with("service s: ")), "{warnings:?}");
        }
    }
}
