//! The keys of proxied services with `protocol = "http"`: who names tenants and tiers, and how refusals are answered.

use std::collections::HashMap;
use std::path::PathBuf;

use ipnet::IpNet;

use super::parsers::{SWITCH, absolute_path, number, one_of};
use super::raw::Section;
use super::units::Wrong;
use super::values::Protocol;
use gate_protocol::http::routes::Pattern;

/// The settings of a service that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Sources whose word counts on where a request comes from and whose it is; at most 64, none of length 0.
    pub trusted: Vec<IpNet>,
    /// The field that names a request's tenant by one of its `ids`, in lower case.
    pub tenant_header: Option<String>,
    /// The field by which a request may lower its own tier, in lower case.
    pub tier_header: Option<String>,
    /// The status of refusals that are the store's fault.
    pub overload_status: u16,
    /// True if answers say what is left of the quota.
    pub rate_limit_fields: bool,
    /// True if the store is spoken to by HTTP/2, false if by HTTP/1.1.
    pub is_http2_to_store: bool,
    /// True if clients may go on as WebSockets.
    pub websocket: bool,
    /// The log of its requests; `None` if there is none.
    pub access_log: Option<AccessLog>,
    /// The patterns of routes, each with the name of its query type.
    pub routes: Vec<(Pattern, String)>,
    /// By the places of the query types: the rows that a request counts for; 1 to 1,000,000.
    pub rows: Vec<u32>,
}

/// The log of a service's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// An absolute path.
    pub path: PathBuf,
    /// One of so many requests is logged; 1 to 1,000,000.
    pub sample: u32,
}

/// The keys that mean something only over HTTP.
const KEYS: [&str; 9] = [
    "tenant_header",
    "tier_header",
    "overload_status",
    "rate_limit_fields",
    "websocket",
    "backend_http",
    "rows",
    "access_log",
    "access_log_sample",
];

/// The keys that mean nothing over HTTP, and why.
const OTHERS: [(&str, &str); 8] = [
    ("hot_keys", "there are no keys; leave it out"),
    ("connections", "each request takes a connection of its own; leave it out"),
    (
        "max_depth",
        "requests of one connection are answered one after the other, or bounded by gate; leave it out",
    ),
    ("max_output", "answers are passed on as they are read; leave it out"),
    ("max_datagrams", "there are no datagrams; leave it out"),
    ("max_pools", "there are no logins; leave it out"),
    ("store_user", "there are no logins; leave it out"),
    ("store_password_file", "there are no logins; leave it out"),
];

/// Reads them; `names` are the query types' by their places.
pub(super) fn read<'d>(
    s: &mut Section<'d>,
    protocol: Protocol,
    names: &[&'d str],
    routes: Vec<(Pattern, String)>,
    trusted: Vec<IpNet>,
) -> Option<Http> {
    let is_http = protocol == Protocol::Http;
    for key in KEYS {
        if s.has(key) && !is_http {
            s.fault(key, "means something only with protocol = \"http\"".to_owned());
        }
    }
    for (key, why) in OTHERS {
        if s.has(key) && is_http {
            s.fault(key, format!("means nothing with protocol = \"http\": {why}"));
        }
    }
    let tenant_header = s.get("tenant_header", field_name);
    if tenant_header.is_some() && trusted.is_empty() && is_http && !s.has("trusted") {
        let message = "is believed from nobody; write trusted as well, e.g. trusted = [\"198.18.3.0/24\"]";
        s.fault("tenant_header", message.to_owned());
    }
    let tier_header = s.get("tier_header", field_name);
    if tier_header.is_some() && tier_header == tenant_header {
        s.fault("tier_header", "is the field that names the tenant; choose another".to_owned());
    }
    let overload_status = s.get("overload_status", overload_status).unwrap_or(503);
    let rate_limit_fields = s.get("rate_limit_fields", one_of(&SWITCH)).unwrap_or(false);
    let websocket = s.get("websocket", one_of(&SWITCH)).unwrap_or(false);
    let is_http2_to_store = s.get("backend_http", one_of(&VERSIONS)).unwrap_or(false);
    if is_http2_to_store && websocket {
        let message = "goes by HTTP/1.1, which backend_http = \"h2\" does not speak; leave out one of them";
        s.fault("websocket", message.to_owned());
    }
    let access_log = access_log(s);
    let mut section = s.section("rows");
    let rows = names.iter().map(|name| section.get(name, number(1, 1_000_000)).unwrap_or(1) as u32).collect();
    section.finish();
    let settings = Http {
        trusted,
        tenant_header,
        tier_header,
        overload_status,
        rate_limit_fields,
        is_http2_to_store,
        websocket,
        access_log,
        routes,
        rows,
    };
    is_http.then_some(settings)
}

fn access_log(s: &mut Section<'_>) -> Option<AccessLog> {
    let path = s.get("access_log", absolute_path);
    let sample = s.get("access_log_sample", number(1, 1_000_000));
    if sample.is_some() && !s.has("access_log") {
        s.fault("access_log_sample", "means something only beside access_log".to_owned());
    }
    Some(AccessLog { path: path?, sample: sample.unwrap_or(1) as u32 })
}

/// The values of the fields that name a tenant. `taken` holds the line of each, but for the one that stands for any.
pub(super) fn ids(section: &mut Section<'_>, taken: &mut HashMap<String, usize>) -> Vec<String> {
    let mut ids = Vec::new();
    for item in section.list("ids", id) {
        if item.value == ANY_ID {
            // Two tenants of many members are reported as such.
        } else if let Some(line) = taken.insert(item.value.clone(), item.line()) {
            item.fault(format!("is taken, on line {line}"));
        }
        ids.push(item.value);
    }
    ids
}

/// True for the value of a field that may name a tenant.
pub fn is_id(text: &[u8]) -> bool {
    let plain = text.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',');
    (1..=MAX_ID).contains(&text.len()) && plain
}

fn id(text: &str) -> Result<String, Wrong> {
    if is_id(text.as_bytes()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must be the value of a field, 1 to {MAX_ID} letters without blanks and commas, e.g. \"org-1\""
    ))
}

/// The name of a field that no part of HTTP itself, nor gate, gives a meaning of its own.
pub(super) fn field_name(text: &str) -> Result<String, Wrong> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let name = text.to_ascii_lowercase();
    if !(1..=MAX_NAME).contains(&text.len()) || !text.bytes().all(is_token) {
        return Err(format!(
            "must be the name of a field, 1 to {MAX_NAME} letters, digits, \"-\" and \"_\", e.g. \"X-Scope-OrgID\""
        ));
    }
    let is_taken = TAKEN.contains(&name.as_str()) || name.starts_with("x-forwarded-");
    if is_taken {
        Err("is a field with another meaning; choose one of your own".to_owned())
    } else {
        Ok(name)
    }
}

fn overload_status(text: &str) -> Result<u16, Wrong> {
    let status = text.parse().ok().filter(|status| STATUSES.contains(status));
    status.ok_or_else(|| "must be \"429\", \"503\" or \"529\"".to_owned())
}

/// The versions that a store may be spoken to by; true for HTTP/2.
const VERSIONS: [(&str, bool); 2] = [("1.1", false), ("h2", true)];
const STATUSES: [u16; 3] = [429, 503, 529];
/// Fields that frame or route a message, or say where it comes from.
const TAKEN: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-real-ip",
];
const MAX_NAME: usize = 64;
const MAX_ID: usize = 150;
/// The id that stands for any.
pub(super) const ANY_ID: &str = "*";
