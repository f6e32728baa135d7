//! The caches of HTTP services: their state, and what may be done to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, CacheEvent};

/// The document of all caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Caches {
    /// In the order of the configuration.
    pub caches: Vec<CacheState>,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheState {
    /// Its service.
    pub service: String,
    /// Its directory.
    pub dir: String,
    /// True if what is on disk can be read.
    pub open: bool,
    /// Records on disk: one for each URL, and for each spec of an original.
    pub records: u64,
    /// Distinct bodies on disk.
    pub blobs: u64,
    /// The bytes of both.
    pub disk_bytes: u64,
    /// The bytes that both may have.
    pub disk_limit: u64,
    /// The bytes in memory.
    pub memory_bytes: u64,
    /// The bytes that may be in memory.
    pub memory_limit: u64,
    /// How often each event has happened since the start.
    pub events: BTreeMap<String, u64>,
}

/// The result of a look at all files of the caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedCaches {
    /// In the order of the configuration.
    pub caches: Vec<VerifiedCache>,
}

/// The result of a look at all files of one cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedCache {
    /// Its service.
    pub service: String,
    /// Bodies that are what their name says.
    pub sound: u64,
    /// Bodies that are not; they have been removed.
    pub damaged: u64,
    /// Bodies that a record names and that are not there; they are fetched again when they are asked for.
    pub missing: u64,
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Purged {
    /// The URL that is not kept any more.
    pub url: String,
}

/// The caches that there are, by their services' names.
pub type ByService = Vec<(String, Arc<Cache>)>;

impl Caches {
    pub(super) fn read(caches: &ByService) -> Self {
        Self { caches: caches.iter().map(|(service, cache)| CacheState::read(service, cache)).collect() }
    }
}

impl CacheState {
    fn read(service: &str, cache: &Cache) -> Self {
        let usage = cache.usage();
        let events = CacheEvent::ALL.map(|event| (event.name().to_owned(), cache.counters().get(event)));
        Self {
            service: service.to_owned(),
            dir: cache.settings.dir.display().to_string(),
            open: usage.is_some(),
            records: usage.unwrap_or_default().records,
            blobs: usage.unwrap_or_default().blobs,
            disk_bytes: usage.unwrap_or_default().bytes,
            disk_limit: cache.settings.disk,
            memory_bytes: cache.memory(),
            memory_limit: cache.settings.memory,
            events: events.into_iter().collect(),
        }
    }
}

/// Looks at all files of all caches. Takes its time.
///
/// # Errors
///
/// If one of them cannot be read, with its service.
pub(super) fn verify(caches: &ByService) -> Result<VerifiedCaches, String> {
    let one = |(service, cache): &(String, Arc<Cache>)| {
        let verified = cache.verify().map_err(|error| format!("service {service}: {error}"))?;
        let service = service.clone();
        Ok(VerifiedCache {
            service,
            sound: verified.sound,
            damaged: verified.damaged,
            missing: verified.missing,
        })
    };
    Ok(VerifiedCaches { caches: caches.iter().map(one).collect::<Result<_, String>>()? })
}

/// Removes a URL from all caches.
///
/// # Errors
///
/// If it is none.
pub(super) fn purge(caches: &ByService, url: &str) -> Result<Purged, String> {
    let wrong = || format!("{url:?} is no URL with a host, e.g. \"http://images.example/a.jpg\"");
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let host = uri.authority().ok_or_else(wrong)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    caches.iter().for_each(|(_, cache)| cache.purge(host.as_str(), path));
    Ok(Purged { url: url.to_owned() })
}
