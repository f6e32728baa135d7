//! Tenants of many members: `name = "api/*"`, each member with a bucket of its own.
//!
//! A member is a value by which requests name themselves (`ids = "*"`), or a client's address or network (`sources = "each /32"`).
//! At the interface its source is the tenant's; the daemon tells members apart, so a member's requests all have to pass it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::raw::{Item, Section};
use super::units::{self, Wrong};
use super::values::{Members, NamedBy};
use super::{Service, Tenant, http, parsers};

impl Tenant {
    /// True for its name, and for one that may be a member's.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let stem = || self.members.and(self.name.strip_suffix('*'));
        self.name == name || stem().is_some_and(|stem| name.starts_with(stem))
    }
}

/// The sources and ids of a tenant, and its members if it has any.
#[derive(Default)]
pub(super) struct Reached {
    pub(super) sources: Vec<IpNet>,
    pub(super) ids: Vec<String>,
    pub(super) members: Option<Members>,
}

/// The lines of what no two tenants may share.
#[derive(Default)]
pub(super) struct Taken {
    sources: HashMap<IpNet, usize>,
    ids: HashMap<String, usize>,
}

/// Reads what a tenant with this name is reached by.
pub(super) fn read(section: &mut Section<'_>, name: &str, taken: &mut Taken) -> Reached {
    let sources = section.list("sources", source);
    let mut reached = Reached { ids: http::ids(section, &mut taken.ids), ..Reached::default() };
    let mut lengths = [None; 2];
    for item in &sources {
        let (source, length) = item.value;
        if let Some(line) = taken.sources.insert(source, item.line()) {
            item.fault(format!("is taken, on line {line}"));
        }
        lengths[usize::from(source.addr().is_ipv6())] = length;
        reached.sources.push(source);
    }
    let is_each = |item: &&Item<'_, (IpNet, Option<u8>)>| item.value.1.is_some();
    let by_id = reached.ids.iter().any(|id| id == http::ANY_ID);
    let by_source = sources.iter().any(|item| is_each(&item));
    if by_source && let Some(item) = sources.iter().find(|item| !is_each(item)) {
        item.fault("stands beside \"each\"; write a tenant of its own for it");
    }
    if by_id && reached.ids.len() > 1 {
        section.fault("ids", "has \"*\" beside others; write a tenant of its own for them".to_owned());
    }
    if by_id && section.has("sources") {
        let message = "stands beside ids = \"*\", and a request may be reached by either; write two tenants";
        section.fault("sources", message.to_owned());
    }
    let memory = section.get("member_memory", |text| units::size(text, 64 << 10, 16 << 30));
    let is_named = name.ends_with(SUFFIX);
    if !(by_id || by_source) {
        if is_named {
            let message = "ends in \"/*\", but nothing says of which members: write ids = \"*\", or sources = \"each /32\"";
            section.fault("name", message.to_owned());
        }
        if section.has("member_memory") {
            let message = "means something only beside ids = \"*\" or sources = \"each /32\"";
            section.fault("member_memory", message.to_owned());
        }
        return reached;
    }
    if !is_named && !name.is_empty() {
        let key = if by_id { "ids" } else { "sources" };
        let message =
            format!("makes each of many a tenant of its own; say so in its name: name = \"{name}/*\"");
        section.fault(key, message);
    }
    reached.ids.clear();
    let [v4, v6] = lengths;
    let named_by = if by_id { NamedBy::Id } else { NamedBy::Source { v4, v6 } };
    reached.members = Some(Members { named_by, memory: memory.unwrap_or(16 << 20) });
    for key in OF_ONE.into_iter().filter(|key| section.has(key)) {
        section.fault(key, "would be one for all members together; leave it out".to_owned());
    }
    reached
}

/// Reports tenants of many members that another section names as one, that no service can tell apart, or that a second one
/// would share its ids with.
pub(super) fn fit(
    tenant_sections: &[Section<'_>],
    tenants: &[Tenant],
    sections: &[Section<'_>],
    services: &[Service],
) {
    let of = |index: super::TenantIndex| tenants[index.get()].members.is_some();
    for (section, service) in sections.iter().zip(services) {
        if service.default.is_some_and(of) {
            section.fault("default", "has members, and no source would say which; name another".to_owned());
        }
    }
    let mut by_id: Option<usize> = None;
    let guarded = services.iter().find(|service| service.backend.is_none());
    let datagrams = services.iter().find(|service| service.backend.is_some() && service.transports.udp);
    for (section, tenant) in tenant_sections.iter().zip(tenants) {
        if tenant.charge.iter().copied().any(of) {
            let message = "has a tenant with members, and nothing would say which; name another";
            section.fault("charge", message.to_owned());
        }
        if tenant.part.as_ref().is_some_and(|part| of(part.part_of)) {
            section.fault("part_of", "has members, and no parts; name another".to_owned());
        }
        match tenant.members.map(|members| members.named_by) {
            None => {}
            Some(NamedBy::Id) => {
                if let Some(line) = by_id.replace(section.line("ids")) {
                    let message =
                        format!("is taken, on line {line}: a value could be a member of either tenant");
                    section.fault("ids", message);
                }
            }
            Some(NamedBy::Source { .. }) => {
                if let Some(service) = guarded {
                    let message = format!(
                        "needs a backend in every service, and {:?} has none: the interface tells no members apart",
                        service.name
                    );
                    section.fault("sources", message);
                } else if let Some(service) = datagrams {
                    let message = format!(
                        "needs connections, and service {:?} takes datagrams, whose sources may be forged; write \
                         transports = [\"tcp\"] there",
                        service.name
                    );
                    section.fault("sources", message);
                }
            }
        }
    }
}

/// True for a tenant whose members are named by what requests say.
pub(super) fn are_by_id(tenant: &Tenant) -> bool {
    tenant.members.is_some_and(|members| members.named_by == NamedBy::Id)
}

/// The name of a tenant: as any name, or with `/*` behind it for one of many members.
pub(super) fn tenant_name(text: &str) -> Result<String, Wrong> {
    match text.strip_suffix(SUFFIX) {
        None => parsers::name(text),
        Some(_) if text.len() > gate_common::abi::Name::MAX => parsers::name(text),
        Some(stem) => parsers::name(stem).map(|stem| stem + SUFFIX),
    }
}

/// A prefix, or every prefix of a length: those of its family, and the length.
fn source(text: &str) -> Result<(IpNet, Option<u8>), Wrong> {
    let Some(length) = text.strip_prefix("each ") else {
        return parsers::prefix(text).map(|prefix| (prefix, None));
    };
    let length = length.strip_prefix('/').and_then(|length| length.parse().ok());
    match length {
        Some(length @ 1..=32) => Ok((Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(), Some(length))),
        Some(length @ 33..=128) => Ok((Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into(), Some(length))),
        _ => Err(
            "must be \"each /N\", N from 1 to 32 for IPv4 and from 33 to 128 for IPv6, e.g. [\"each /32\", \
                  \"each /64\"]"
                .to_owned(),
        ),
    }
}

/// The end of the name of a tenant of many members.
const SUFFIX: &str = "/*";
/// The keys that hold for a tenant as a whole, where a reader would take them for each member's.
const OF_ONE: [&str; 9] = [
    "users",
    "keys",
    "key_prefixes",
    "part_of",
    "candidate",
    "limits",
    "tcp_quota",
    "syn_rate",
    "reply_budget",
];
