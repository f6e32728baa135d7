//! The cache of an HTTP service: where it is, and what it may take.

use std::path::PathBuf;

use gate_common::units::Nanos;

use super::http::{Http, field_name};
use super::parsers::{absolute_path, one_of, time};
use super::raw::Section;
use super::units::{self, Wrong};
use super::values::Protocol;

/// The cache of an HTTP service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// An absolute path, no other service's.
    pub dir: PathBuf,
    /// The bytes that are kept in memory: bodies, and the records that lead to them; 1 MiB to 1 TiB.
    pub memory: u64,
    /// The bytes that are kept on disk, the database's own pages aside; 16 MiB to 1 PiB.
    pub disk: u64,
    /// The longest body that is kept, in bytes; 1 KiB to 1 GiB, and at most a quarter of `disk`.
    pub max_object: u64,
    /// Fields of requests that are part of the key; in lower case.
    pub key: Vec<String>,
    /// True if the configuration names them.
    pub is_key_named: bool,
    /// True if the answer to a client's own request is kept too, though the request had fields that are not part of the key.
    pub keep_own: bool,
    /// For how long beyond its lifetime an answer is given while its origin fails, if that says nothing of it; at most 30 days.
    pub stale: Nanos,
    /// With whom a tenant shares what is kept for it.
    pub dedup: Dedup,
    /// True if the configuration says so.
    pub is_dedup_said: bool,
}

/// With whom a tenant shares what is kept for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// With all tenants of the service.
    Service,
    /// With nobody.
    Tenant,
}

/// Reads `cache`, if it is there.
pub(super) fn read(section: &mut Section<'_>, protocol: Protocol, http: Option<&Http>) -> Option<Cache> {
    if section.has("cache") && protocol != Protocol::Http {
        let message = "means something only with protocol = \"http\"; others have hot_keys";
        section.fault("cache", message.to_owned());
    }
    let is_there = section.has_table("cache");
    let names_tenant = http.is_some_and(|http| http.tenant_header.is_some());
    let mut s = section.section("cache");
    let cache = is_there.then(|| of_table(&mut s, names_tenant)).flatten();
    s.finish();
    cache
}

fn of_table(s: &mut Section<'_>, names_tenant: bool) -> Option<Cache> {
    let dir = s.need("dir", "\"/var/cache/gate/images\"", absolute_path);
    let memory = s.get("memory", |text| units::size(text, 1 << 20, 1 << 40)).unwrap_or(64 << 20);
    let disk = s.get("disk", |text| units::size(text, 16 << 20, 1 << 50)).unwrap_or(1 << 30);
    let max_object = s.get("max_object", |text| units::size(text, 1 << 10, 1 << 30));
    if max_object.is_some_and(|most| most > disk / 4) {
        s.fault("max_object", format!("must be at most a quarter of disk ({})", units::print_size(disk)));
    }
    let max_object = max_object.unwrap_or((16 << 20).min(disk / 4));
    let given = s.has("key");
    let mut key: Vec<_> = s.list("key", key_field).into_iter().map(|item| item.value).collect();
    if !given {
        key.push("accept-encoding".to_owned());
    }
    key.sort_unstable();
    key.dedup();
    let keep_own = s.get("keep_own", one_of(&SWITCH)).unwrap_or(false);
    let stale = s.get("stale", time((Nanos::ZERO, Nanos::from_secs(30 * 86_400)))).unwrap_or(Nanos::ZERO);
    let dedup = s.get("dedup", one_of(&DEDUP));
    if dedup == Some(Dedup::Service) && names_tenant {
        let message = "would give one tenant the answers that the store has for another, which it knows by \
                       tenant_header; write \"tenant\", or leave it out";
        s.fault("dedup", message.to_owned());
    }
    let is_dedup_said = dedup.is_some();
    let dedup = dedup.unwrap_or(if names_tenant { Dedup::Tenant } else { Dedup::Service });
    Some(Cache {
        dir: dir?,
        memory,
        disk,
        max_object,
        key,
        is_key_named: given,
        keep_own,
        stale,
        dedup,
        is_dedup_said,
    })
}

/// A field that may be part of a key: one that says who asks would make each answer one client's.
fn key_field(text: &str) -> Result<String, Wrong> {
    let name = field_name(text)?;
    if UNFIT.contains(&name.as_str()) {
        return Err("is a field that gate answers itself, or that makes an answer one client's own; \
                    requests with it pass by the cache, or need no key"
            .to_owned());
    }
    Ok(name)
}

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const DEDUP: [(&str, Dedup); 2] = [("service", Dedup::Service), ("tenant", Dedup::Tenant)];
const UNFIT: [&str; 14] = [
    "authorization",
    "cache-control",
    "cookie",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "pragma",
    "proxy-authorization",
    "range",
    "date",
    "age",
    "via",
];
