//! The download of an original from its origin.
//!
//! An origin is asked only if it is configured, and so is each that it redirects to. What a name stands for is looked up and
//! judged first, and the connection is made to an address that was judged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gate_common::abi::Reason;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::http::response;
use hyper::{Request, Response, StatusCode};
use tokio::time::timeout;

use super::upstream_body::{self, Whole};
use crate::cache::{Cache, CacheEvent, Fields, Holder};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::service::HttpService;
use crate::dispatcher::http::upstreams::{NoBody, Upstream};
use crate::logging::once_a_minute;
use crate::processing::Processing;
use crate::processing::target::{Url, may_fetch};

/// The answer of an origin.
pub(super) enum Downloaded {
    /// All of an answer.
    Whole(response::Parts, Whole),
    /// The one that is kept still holds.
    NotModified(response::Parts),
}

/// Downloads an original, or asks with these fields whether the one that is kept still holds.
///
/// # Errors
///
/// The refusal that the client is told.
pub(super) async fn download(
    service: &HttpService,
    processing: &Processing,
    (cache, holder): (&Arc<Cache>, Holder),
    url: &Url,
    validators: &Fields,
) -> Result<Downloaded, Refused> {
    cache.count(CacheEvent::Fetched);
    let patience = processing.settings.timeout.into();
    let downloading = follow(service, processing, (cache, holder), url, validators);
    let result = timeout(patience, downloading).await;
    let result = result.unwrap_or(Err(Refused::lost(StatusCode::GATEWAY_TIMEOUT)));
    result.inspect_err(|refused| {
        if !refused.is_for_the_tenant() {
            cache.count(CacheEvent::DownloadFailed);
        }
    })
}

/// Asks an origin, and those that it redirects to.
async fn follow(
    service: &HttpService,
    processing: &Processing,
    (cache, holder): (&Arc<Cache>, Holder),
    url: &Url,
    validators: &Fields,
) -> Result<Downloaded, Refused> {
    let mut url = url.clone();
    for _ in 0..=REDIRECTS {
        let (response, upstream) = ask(service, processing, cache, &url, validators).await?;
        let (head, mut body) = response.into_parts();
        if head.status == StatusCode::NOT_MODIFIED && !validators.is_empty() {
            service.upstreams.keep(upstream);
            return Ok(Downloaded::NotModified(head));
        }
        if !is_redirect(head.status) {
            let whole = upstream_body::gather(cache, holder, &head, &mut body).await?;
            service.upstreams.keep(upstream);
            return Ok(Downloaded::Whole(head, whole));
        }
        let location = head.headers.get(LOCATION).and_then(|location| url.join(location.to_str().ok()?));
        url = location.ok_or_else(unusable)?;
        if !url.is_of(&processing.settings) {
            return Err(refused(cache));
        }
    }
    Err(unusable())
}

/// Asks an origin over a connection that is kept, or a new one.
async fn ask(
    service: &HttpService,
    processing: &Processing,
    cache: &Cache,
    url: &Url,
    validators: &Fields,
) -> Result<(Response<Incoming>, Upstream), Refused> {
    let origin = url.origin();
    if let Some(mut upstream) = service.upstreams.kept(&origin).await
        && let Some(response) = upstream.ask(request(url, validators).ok_or_else(unusable)?).await
    {
        return Ok((response, upstream));
    }
    let addresses = addresses(processing, cache, url).await?;
    let tls = match (url.is_https, &service.settings.origin_tls) {
        (false, _) => None,
        (true, Some(tls)) => Some((tls.borrow().clone(), url.host.as_str())),
        // No such origin is configured.
        (true, None) => return Err(unusable()),
    };
    let own_connections = &service.settings.own_connections;
    let connected = Upstream::connect(&origin, (own_connections, &addresses), tls).await;
    let mut upstream = connected.map_err(|error| {
        if once_a_minute(&LAST_WARNING, clock::monotonic()) {
            tracing::warn!(service = service.settings.name, origin, %error, "cannot connect to an origin; said once a minute");
        }
        unusable()
    })?;
    let response = upstream.ask(request(url, validators).ok_or_else(unusable)?).await;
    Ok((response.ok_or_else(unusable)?, upstream))
}

/// The addresses that an origin may be asked at.
async fn addresses(processing: &Processing, cache: &Cache, url: &Url) -> Result<Vec<SocketAddr>, Refused> {
    // One that is configured itself.
    if let Some(address) = url.address() {
        return Ok(vec![SocketAddr::new(address, url.port)]);
    }
    let found: Vec<_> =
        tokio::net::lookup_host((url.host.as_str(), url.port)).await.map_err(|_| unusable())?.collect();
    let is_known = !found.is_empty();
    let networks = &processing.settings.networks;
    let may: Vec<_> = found.into_iter().filter(|address| may_fetch(address.ip(), networks)).collect();
    match may.is_empty() {
        true if is_known => Err(refused(cache)),
        true => Err(unusable()),
        false => Ok(may),
    }
}

fn request(url: &Url, validators: &Fields) -> Option<Request<NoBody>> {
    let mut request = Request::get(url.path.as_str()).body(NoBody).ok()?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(url.authority()).ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static("gate"));
    headers.extend(validators.iter().cloned());
    Some(request)
}

const fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The answer if the origin gave none that can be used.
fn unusable() -> Refused {
    Refused::lost(StatusCode::BAD_GATEWAY)
}

/// The answer if the origin may not be asked.
pub(super) fn refused(cache: &Cache) -> Refused {
    cache.count(CacheEvent::OriginRefused);
    Refused { closes: false, ..Refused::with_status(Reason::Unsupported, StatusCode::FORBIDDEN) }
}

static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
/// So many redirects are followed.
const REDIRECTS: usize = 3;
