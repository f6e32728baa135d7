//! Parts of tenants: what a tenant says that has a share of another's requests, by key.
//!
//! A part has no clients of its own: those of the whole ask for its keys. So whatever is about clients and where they
//! come from is the whole's.

use std::collections::HashMap;

use gate_common::token_bucket::Rate;
use gate_common::units::Nanos;

use super::buckets::default_tcp_quota;
use super::members::tenant_name;
use super::names::Names;
use super::raw::{Item, Section};
use super::units::Wrong;
use super::values::TenantIndex;
use super::{Part, Service, Tenant};

/// Reads the keys that make a tenant a part. `taken` holds the line of each prefix, by whole. A tenant that is bound to
/// keys of its own has prefixes without being a part.
pub(super) fn part(
    section: &mut Section<'_>,
    own_name: &str,
    tenants: &Names,
    owns_keys: bool,
    taken: &mut HashMap<(TenantIndex, String), usize>,
) -> Option<Part> {
    let part_of = section.get("part_of", tenant_name);
    if !section.has("part_of") {
        if !owns_keys {
            section.list("key_prefixes", prefix);
            if section.has("key_prefixes") {
                let message = "means something only beside part_of or keys = \"own\"";
                section.fault("key_prefixes", message.to_owned());
            }
        }
        return None;
    }
    let part_of = part_of.and_then(|part_of| {
        let index = tenants.find(&part_of).map_err(|wrong| section.fault("part_of", wrong)).ok()?;
        if part_of == own_name {
            section.fault("part_of", "is the tenant itself".to_owned());
        }
        Some(index)
    });
    let mut of_its_own = Vec::new();
    for item in section.need_list("key_prefixes", "[\"web:\", \"img:\"]", prefix) {
        // Without a whole, there is nobody to share one with.
        let Some(part_of) = part_of else { continue };
        if let Some(line) = taken.insert((part_of, item.value.clone()), item.line()) {
            item.fault(format!("is taken, on line {line}"));
        } else {
            of_its_own.push(item);
        }
    }
    let key_prefixes = up_to_the_most(of_its_own);
    for key in OF_CLIENTS.into_iter().filter(|key| section.has(key)) {
        section
            .fault(key, "belongs into the tenant that this is a part of, whose clients they are".to_owned());
    }
    Some(Part { part_of: part_of?, key_prefixes })
}

/// Reports parts of parts, services whose default is a part, and parts of what no service could tell.
pub(super) fn fit(
    tenant_sections: &[Section<'_>],
    tenants: &[Tenant],
    sections: &[Section<'_>],
    services: &[Service],
) {
    let proxies = services.iter().any(|service| service.backend.is_some());
    for (section, tenant) in tenant_sections.iter().zip(tenants) {
        let Some(part) = &tenant.part else { continue };
        let whole = &tenants[part.part_of.get()];
        if let Some(above) = whole.part.as_ref().filter(|_| whole.name != tenant.name) {
            let above = &tenants[above.part_of.get()].name;
            section.fault(
                "part_of",
                format!("is a part itself: of {above:?}, which its own parts would have to be of too"),
            );
        }
        if !proxies {
            let message =
                "means something only if a service has a backend: gate sees no other requests' keys";
            section.fault("part_of", message.to_owned());
        }
    }
    for (section, service) in sections.iter().zip(services) {
        let default = service.default.map(|default| &tenants[default.get()]);
        if let Some(part) = default.and_then(|default| default.part.as_ref()) {
            let whole = &tenants[part.part_of.get()].name;
            section.fault("default", format!("is a part, which has no clients of its own; name {whole:?}"));
        }
    }
}

/// Applies an operator's settings of a tenant to its parts as well: the higher multiplier, and every refusal.
pub(super) fn inherit(tenants: &mut [Tenant]) {
    for place in 0..tenants.len() {
        let Some(part) = &tenants[place].part else { continue };
        let Tenant { multiplier, refuse, .. } = tenants[part.part_of.get()];
        let tenant = &mut tenants[place];
        tenant.multiplier = tenant.multiplier.max(multiplier);
        tenant.refuse |= refuse;
    }
}

/// Requests of a part use the whole's connections: without a `tcp_quota` of its own, the whole gets room for them.
pub(super) fn leave_room(sections: &[Section<'_>], tenants: &mut [Tenant]) {
    let mut quotas: HashMap<usize, Option<u64>> = HashMap::new();
    for tenant in &*tenants {
        let Some(part) = &tenant.part else { continue };
        let quota = |tenant: &Tenant| tenant.quota.rate.units_per_sec();
        let total = quotas.entry(part.part_of.get()).or_insert_with(|| quota(&tenants[part.part_of.get()]));
        *total = total.zip(quota(tenant)).map(|(total, more)| total.saturating_add(more));
    }
    for (whole, total) in quotas.into_iter().filter(|(whole, _)| !sections[*whole].has("tcp_quota")) {
        let tenant = &mut tenants[whole];
        // One without a limit has none on its connections either.
        if tenant.quota.rate != Rate::UNLIMITED {
            tenant.tcp_quota = default_tcp_quota(total, Nanos(tenant.quota.burst_ns));
        }
    }
}

/// The prefixes that a tenant names, if they are not too many.
pub(super) fn up_to_the_most(items: Vec<Item<'_, String>>) -> Vec<String> {
    if let Some(item) = items.get(MAX_PREFIXES) {
        item.fault(format!("is one too many: there may be {MAX_PREFIXES}"));
    }
    items.into_iter().map(|item| item.value).collect()
}

pub(super) fn prefix(text: &str) -> Result<String, Wrong> {
    if (1..=MAX_LEN).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {MAX_LEN} bytes; what begins with none is charged to the whole anyway"))
}

const MAX_PREFIXES: usize = 256;
/// As long as memcached's keys.
const MAX_LEN: usize = 250;
/// The keys that only a tenant with clients can have.
const OF_CLIENTS: [&str; 8] = [
    "sources",
    "users",
    "keys",
    "max_connections",
    "max_outstanding",
    "reply_budget",
    "tcp_quota",
    "syn_rate",
];
