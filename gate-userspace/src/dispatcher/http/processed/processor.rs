//! The processor: asked for a spec of an original, which it fetches from gate.
//!
//! The processor is a stranger to gate: what it says is bounded in time and bytes, and only an answer that is whole counts. A 4xx is a
//! refusal of the content, and kept, only if the processor has fetched that.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue,
};
use hyper::{Request, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use super::upstream_body::{self, Whole};
use crate::cache::{Cache, CacheEvent, Digest, Holder, Processed};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::service::HttpService;
use crate::dispatcher::http::upstreams::{NoBody, Upstream};
use crate::processing::Processing;
use crate::processing::blobs::Published;
use crate::processing::permits::Permit;
use hyper::body::Bytes;

/// Has a spec of an original be made, with a permit.
///
/// # Errors
///
/// The refusal that the client is told. It is not kept.
pub(super) async fn process(
    service: &HttpService,
    processing: &Processing,
    (cache, holder): (&Arc<Cache>, Holder),
    spec: &str,
    (original, headers): (Bytes, &HeaderMap),
    permit: Permit,
) -> Result<(Processed, Bytes), Refused> {
    let begun = clock::monotonic();
    let published = processing.blobs.publish(original, of_body(headers));
    let asking = ask(service, processing, (cache, holder), spec, &published);
    let patience = Duration::from(processing.settings.timeout);
    let result = timeout(patience, asking).await;
    let result = result.unwrap_or(Err(Refused::lost(StatusCode::GATEWAY_TIMEOUT)));
    let took = clock::monotonic().saturating_sub(begun);
    permit.took(took);
    drop(permit);
    let (status, fields, whole) = result.inspect_err(|_| cache.count(CacheEvent::ProcessFailed))?;
    let now = clock::realtime();
    let is_done = status == StatusCode::OK;
    cache.count(if is_done { CacheEvent::Processed } else { CacheEvent::ContentRefused });
    let until = (!is_done).then(|| now + Duration::from(processing.settings.error_ttl));
    let body = if is_done { whole.bytes } else { refusal_text(status) };
    let digest = if is_done { whole.digest } else { Digest::of(&body) };
    let fields = if is_done { of_body(&fields) } else { plain_text() };
    let processed = Processed::new(status, fields, (digest, body.len() as u64), until, now);
    Ok((processed, body))
}

/// Asks until the processor has at least tried: while another gate listens at the same address it may have asked that one.
async fn ask(
    service: &HttpService,
    processing: &Processing,
    (cache, holder): (&Arc<Cache>, Holder),
    spec: &str,
    published: &Published,
) -> Result<(StatusCode, HeaderMap, Whole), Refused> {
    let failed = || Refused::lost(StatusCode::BAD_GATEWAY);
    for _ in 0..ATTEMPTS {
        let (head, whole) = ask_once(service, processing, (cache, holder), spec, published).await?;
        match head.status {
            StatusCode::OK => return Ok((head.status, head.headers, whole)),
            status if !published.was_fetched() && !status.is_success() => {}
            status if is_of_content(status) => return Ok((status, head.headers, whole)),
            _ => return Err(failed()),
        }
    }
    Err(failed())
}

async fn ask_once(
    service: &HttpService,
    processing: &Processing,
    (cache, holder): (&Arc<Cache>, Holder),
    spec: &str,
    published: &Published,
) -> Result<(hyper::http::response::Parts, Whole), Refused> {
    let failed = || Refused::lost(StatusCode::BAD_GATEWAY);
    let by = &processing.settings.by;
    let name = published.name();
    let url = format!("http://{}/{name}", processing.settings.blobs);
    let target = by.target(spec, &name, &utf8_percent_encode(&url, NON_ALPHANUMERIC).to_string());
    let request = || {
        let mut request = Request::get(target.as_str()).body(NoBody).ok()?;
        request.headers_mut().insert(HOST, HeaderValue::try_from(by.host.as_str()).ok()?);
        Some(request)
    };
    let origin = format!("processor {}", by.host);
    let kept = match service.upstreams.kept(&origin).await {
        None => None,
        Some(mut upstream) => {
            let response = upstream.ask(request().ok_or_else(failed)?).await;
            response.map(|response| (response, upstream))
        }
    };
    let (response, upstream) = match kept {
        Some(answered) => answered,
        None => {
            let addresses = match &service.settings.processor {
                Some(processor) => processor.addresses().await,
                None => Vec::new(),
            };
            let at = (&service.settings.own_connections, &addresses[..]);
            let mut upstream = Upstream::connect(&origin, at, None).await.map_err(|_| failed())?;
            let response = upstream.ask(request().ok_or_else(failed)?).await;
            (response.ok_or_else(failed)?, upstream)
        }
    };
    let (head, mut body) = response.into_parts();
    let whole = upstream_body::gather(cache, holder, &head, &mut body).await?;
    service.upstreams.keep(upstream);
    Ok((head, whole))
}

/// True for a refusal of what was to be processed, as opposed to one of who asks, or how often.
const fn is_of_content(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400..=499)
        && !matches!(status.as_u16(), 401 | 405 | 407 | 408 | 421 | 425 | 429)
}

/// The fields that say what a body is.
fn of_body(headers: &HeaderMap) -> HeaderMap {
    let field = |name: &HeaderName| Some((name.clone(), headers.get(name)?.clone()));
    OF_BODY.iter().filter_map(field).collect()
}

fn plain_text() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/plain"))])
}

fn refusal_text(status: StatusCode) -> Bytes {
    format!("the original cannot be processed: the processor answers {}\n", status.as_u16()).into()
}

const OF_BODY: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_DISPOSITION];
/// How often a processor is asked that does not fetch the original.
const ATTEMPTS: usize = 3;
