//! The line of a request in the access log. It is written when the last of its answer has been given, or the client has left.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hyper::Response;
use hyper::header::{HeaderMap, HeaderName};
use hyper::http::request::Parts;
use serde::Serialize;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::service::HttpService;
use crate::clock;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::logging::AccessLog;

/// A request that is logged when this is dropped.
#[derive(Debug)]
pub(super) struct AccessLine {
    service: Rc<HttpService>,
    log: Arc<AccessLog>,
    begun: Nanos,
    line: Line,
}

/// The fields of a line.
#[derive(Debug, Serialize)]
struct Line {
    /// When its head had come, in UTC (RFC 3339).
    time: String,
    service: String,
    tenant: String,
    client: IpAddr,
    method: String,
    path: String,
    /// Missing if the client has left before there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The length of the answer's body; of a WebSocket all that went to the client.
    bytes: u64,
    /// Until the head of the answer was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_ms: Option<f64>,
    /// Until the last of the answer was given.
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<String>,
}

impl AccessLine {
    /// The line of a request with this head; `None` if it is not logged.
    pub(super) fn of(service: &Rc<HttpService>, client: IpAddr, parts: &Parts) -> Option<Box<Self>> {
        let log = service.access_log.as_ref()?;
        let every = service.http().access_log.as_ref()?.sample;
        let is_logged = every == 1 || service.ledger.borrow_mut().draw() * f64::from(every) < 1.0;
        if !is_logged {
            return None;
        }
        let mut time = String::new();
        // Nothing but the memory can be missing.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let line = Line {
            time,
            service: service.settings.name.clone(),
            tenant: String::new(),
            client,
            method: shortened(parts.method.as_str(), LONGEST_METHOD),
            path: shortened(parts.uri.path(), LONGEST_PATH),
            status: None,
            bytes: 0,
            first_ms: None,
            ms: 0.0,
            reason: None,
            cache: None,
        };
        let begun = clock::monotonic();
        Some(Box::new(Self { service: Rc::clone(service), log: Arc::clone(log), begun, line }))
    }

    /// Notes whose request it is.
    pub(super) fn of_tenant(&mut self, tenant: TenantId) {
        self.line.tenant = self.service.tenants.borrow().name(tenant).unwrap_or("unknown").to_owned();
    }

    /// Notes the head of the answer, and why the request was refused if it was.
    pub(super) fn answered<B>(&mut self, response: &Response<B>, reason: Option<&'static str>) {
        self.line.status = Some(response.status().as_u16());
        self.line.first_ms = Some(self.elapsed_ms());
        self.line.reason = reason;
        self.line.cache = verdict(response.headers());
    }

    /// Notes why what followed the answer was ended.
    pub(super) fn refused(&mut self, reason: Reason) {
        self.line.reason = Some(reason.name());
    }

    /// Notes bytes of the answer's body that are being given.
    pub(super) fn given(&mut self, bytes: usize) {
        self.line.bytes += bytes as u64;
    }

    fn elapsed_ms(&self) -> f64 {
        let micros = clock::monotonic().saturating_sub(self.begun).0 / 1_000;
        micros as f64 / 1_000.0
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        self.line.ms = self.elapsed_ms();
        let Ok(mut line) = serde_json::to_vec(&self.line) else { return };
        line.push(b'\n');
        self.log.write(&line);
    }
}

/// The part of `Cache-Status` that is gate's; an origin may have one of its own before it.
fn verdict(headers: &HeaderMap) -> Option<String> {
    let last = headers.get_all(CACHE_STATUS).into_iter().next_back()?.to_str().ok()?;
    last.strip_prefix("gate; ").map(str::to_owned)
}

/// The first characters of a text that the client chose.
fn shortened(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// In characters: a line is bounded, however long the head is.
const LONGEST_METHOD: usize = 32;
const LONGEST_PATH: usize = 2_048;
