//! Originals that are downloaded and processed, each once, in the way of a request.
//!
//! ```text
//! path: spec and URL ──► original, by its URL: kept and fresh? ──► processed, by (digest, spec): kept? ──► given
//!  target.rs             else one download for all (download.rs)   else one processing for all (processor.rs)
//! ```
//!
//! - [`original`]: the original of a URL, kept or downloaded. [`download`]: from its origin.
//! - [`making`]: the processing of an original that nobody else has processed. [`processor`]: who is asked for it.
//! - [`work`]: a request for one. [`upstream_body`]: bodies of answers of either, gathered whole.
//!
//! **Invariants.** A hit takes no permit. Nothing of a client's request reaches an origin or the processor but the URL and the
//! spec. A client never waits in the queue of another tenant. Only an answer that is whole is kept.

mod download;
mod making;
mod original;
mod processor;
mod upstream_body;
mod work;

use gate_common::abi::Reason;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use std::borrow::Cow;

use self::making::Made;
use self::original::Original;
use self::work::Work;
use super::answer::Refused;
use super::cached::serve::{Given, Source, respond_with, tag};
use super::cached::{self, Asking, HitCharge};
use super::forward::SentBody;
use super::reply_body::ReplyBody;
use super::service::HttpService;
use crate::cache::{CDN_CACHE_CONTROL, CacheEvent, Digest, Key, Processed};
use crate::clock;
use crate::config::Dedup;
use crate::processing::target::{Target, TargetFault};

/// Answers a request: with a spec of an original if it asks for one, else from the cache or by the store.
pub(super) async fn answer(
    asking: Asking,
    parts: Parts,
    body: Option<SentBody>,
) -> Result<Response<ReplyBody>, Refused> {
    let service = &asking.service;
    let (Some((cache, processing)), Some(target)) =
        (service.cache.clone().zip(service.processing.clone()), target(service, &parts, body.is_some()))
    else {
        return cached::answer(asking, parts, body).await;
    };
    let mut charge = asking.charge_hit()?;
    let target = match target {
        Ok(target) => target,
        Err(fault) => {
            if fault == TargetFault::Origin {
                cache.count(CacheEvent::OriginRefused);
            }
            charge.keep();
            let refused = refused(fault);
            service.admission.count_refusal(asking.offer.origin.tenant, refused.refusal.reason);
            return Err(Refused { closes: body.is_some(), ..refused });
        }
    };
    let tenant = asking.offer.origin.tenant;
    let name = match cache.settings.dedup {
        Dedup::Service => Some(String::new()),
        Dedup::Tenant => {
            let tenants = service.tenants.borrow();
            tenants.name_of(asking.offer.origin.account()).map(Cow::into_owned)
        }
    };
    let is_shared = cache.is_open() && name.is_some() && service.ledger.borrow_mut().may_cache(tenant);
    let name = name.unwrap_or_default();
    let is_head = parts.method == Method::HEAD;
    let work = Work {
        asking: &asking,
        processing,
        cache,
        target,
        fields: parts.headers,
        is_head,
        is_shared,
        tenant: name,
    };
    work.answer(charge).await
}

/// The target of a request that wants something to be made; `None` of others.
pub(super) fn target(
    service: &HttpService,
    parts: &Parts,
    has_body: bool,
) -> Option<Result<Target, TargetFault>> {
    let processing = service.processing.as_ref()?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let target = Target::of(&processing.settings, path)?;
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    Some(if is_read && !has_body { target } else { Err(TargetFault::Method) })
}

/// The answer to a request for what cannot be made.
pub(super) fn refused(fault: TargetFault) -> Refused {
    let (reason, status) = match fault {
        TargetFault::Malformed => (Reason::Malformed, StatusCode::BAD_REQUEST),
        TargetFault::Spec | TargetFault::Origin => (Reason::Unsupported, StatusCode::FORBIDDEN),
        TargetFault::Method => (Reason::Unsupported, StatusCode::METHOD_NOT_ALLOWED),
    };
    Refused::with_status(reason, status)
}

impl Work<'_> {
    async fn answer(&self, mut charge: HitCharge<'_>) -> Result<Response<ReplyBody>, Refused> {
        for _ in 0..ATTEMPTS {
            let Some(mut original) = self.original(&mut charge).await? else {
                if self.takes_only_kept() {
                    return Ok(charge.nothing_kept());
                }
                continue;
            };
            if original.status != StatusCode::OK {
                return self.give(&mut charge, origin_refuses(original.status, &original));
            }
            let key = Key::of_processed(&original.digest, &self.target.spec, &self.tenant);
            if let Some((processed, body, source)) = self.kept(&key, &original).await {
                let response = self.respond(&original, &processed, &body, source);
                return self.give(&mut charge, response);
            }
            if self.takes_only_kept() {
                return Ok(charge.nothing_kept());
            }
            match self.make(&key, &mut original, &mut charge).await? {
                Made::Whole(processed, body, source) => {
                    let response = self.respond(&original, &processed, &body, source);
                    return self.give(&mut charge, response);
                }
                Made::Again => {}
            }
        }
        Err(Refused::lost(StatusCode::BAD_GATEWAY))
    }

    /// Gives an answer. One that is no hit has been charged.
    fn give(
        &self,
        charge: &mut HitCharge<'_>,
        response: Response<ReplyBody>,
    ) -> Result<Response<ReplyBody>, Refused> {
        if charge.is_held() { charge.give_response(response) } else { Ok(response) }
    }

    /// The answer out of what was processed: for as long as its original is fresh, or the refusal of its content holds.
    fn respond(
        &self,
        original: &Original,
        processed: &Processed,
        body: &Bytes,
        source: Source,
    ) -> Response<ReplyBody> {
        let mut headers = processed.headers.clone();
        let mut age = original.age;
        match processed.left(clock::realtime()) {
            None => {
                let field = |name: &HeaderName| Some((name.clone(), original.headers.get(name)?.clone()));
                headers.extend(OF_FRESHNESS.iter().filter_map(field));
            }
            Some(left) => {
                age = 0;
                let value = HeaderValue::try_from(format!("max-age={}", left.as_secs()));
                headers.extend(value.ok().map(|value| (CACHE_CONTROL, value)));
            }
        }
        headers.insert(ETAG, tag(&processed.digest));
        let given = Given { status: processed.status, headers, age };
        respond_with((&self.fields, self.is_head), given, body, source)
    }
}

/// The answer to a request for an original that its origin does not give.
fn origin_refuses(status: StatusCode, original: &Original) -> Response<ReplyBody> {
    let text = format!("the origin answers {}\n", status.as_u16());
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/plain"))]);
    for name in [CACHE_CONTROL, CDN_CACHE_CONTROL] {
        let freshness = original.headers.get(&name).cloned();
        headers.extend(freshness.map(|value| (name, value)));
    }
    let body = Bytes::from(text);
    headers.insert(ETAG, tag(&Digest::of(&body)));
    let given = Given { status, headers, age: original.age };
    respond_with((&HeaderMap::new(), false), given, &body, original.source)
}

/// The fields that say for how long an answer holds.
const OF_FRESHNESS: [HeaderName; 4] = [CACHE_CONTROL, CDN_CACHE_CONTROL, EXPIRES, LAST_MODIFIED];
/// How often a request begins anew: another's work has failed, or what was kept is gone.
const ATTEMPTS: usize = 3;
