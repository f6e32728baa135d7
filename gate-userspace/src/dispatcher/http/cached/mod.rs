//! HTTP cache stage: a cached response, the client's own request to the origin, or one fetch shared by concurrent requests.
//!
//! ```text
//! asked.rs: what is it ──► charged as a hit ──► kept and fresh? ──► given (serve.rs)
//!                                               else charged in full (sharing.rs):
//!                                                 answers known to be shareable: leads a fetch (fetch.rs), or follows one
//!                                                 else: its own request, whole
//! ```
//!
//! - [`asked`]: which requests the cache is for, and what of them is the key. [`codings`]: one spelling of `Accept-Encoding`. Both pure.
//! - [`serve`]: the answer out of a kept one: conditions, ranges, `HEAD`. [`range`]: what a range selects. Both pure.
//! - [`sharing`]: who asks the origin, and with whose request. [`fetch`]: a fetch of what may be kept, in a task of its own.
//!
//! **Invariants.** A hit passes identity and quota, and takes no permit. Until an answer to a key has been shareable, a request is
//! answered by its own answer. Nothing of a client but its address is sent on a fetch of what is kept that is not part of the key.
//! Only whole answers are kept.

mod asked;
mod codings;
pub(super) mod fetch;
mod range;
pub(super) mod serve;
mod sharing;

use std::rc::Rc;
use std::sync::Arc;

use gate_common::units::Nanos;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LOCATION, HeaderMap, HeaderName, LOCATION};
use hyper::http::request::Parts;
use hyper::{Response, Uri};

use self::asked::{Lookup, PassesBy, Purpose};
use self::serve::Source;
use super::admitted::Offer;
use super::answer::Refused;
use super::connection::Connection;
use super::forward::{SentBody, pass_on};
use super::reply_body::ReplyBody;
use super::service::HttpService;
use super::under_way::Attending;
use crate::cache::{Cache, CacheEvent, Freshness, Holder, Key, StaleUse, StoredResponse};
use crate::clock;
use crate::dispatcher::request::Charged;
use crate::dispatcher::tenants::ledger::{Account, Ledger};
use crate::policy::rank::Rank;

/// A request with its client.
pub(super) struct Asking {
    pub(super) service: Rc<HttpService>,
    pub(super) client: Rc<Connection>,
    pub(super) offer: Offer,
    pub(super) now: Nanos,
}

/// Answers a request: from the cache if there is one and it is for this, else by the store.
pub(super) async fn answer(
    asking: Asking,
    parts: Parts,
    body: Option<SentBody>,
) -> Result<Response<ReplyBody>, Refused> {
    let Some(cache) = asking.service.cache.clone() else { return asking.pass(parts, body).await };
    match asking.purpose(&cache, &parts, body.is_some()) {
        Purpose::Read(asked) if cache.is_open() => asking.read(&cache, parts, *asked).await,
        Purpose::Change(key) => asking.change(&cache, &key, parts, body).await,
        // Another gate may still have the directory: what changes meanwhile counts all the same.
        Purpose::Read(_) | Purpose::Other(_) => {
            cache.count(CacheEvent::Passed);
            asking.pass(parts, body).await
        }
    }
}

impl Asking {
    /// Passes the request on as it is.
    async fn pass(&self, parts: Parts, body: Option<SentBody>) -> Result<Response<ReplyBody>, Refused> {
        let under_way = self.service.admit(&self.client, &self.offer, self.now)?;
        pass_on(under_way, parts, body).await
    }

    fn purpose(&self, cache: &Cache, parts: &Parts, has_body: bool) -> Purpose {
        let ledger = &mut *self.service.ledger.borrow_mut();
        purpose(&self.service, ledger, cache, self.offer.origin.account(), (parts, has_body))
    }

    /// Passes on a request that may change what is kept under a key, and removes that once it has been answered.
    async fn change(
        &self,
        cache: &Cache,
        key: &Key,
        parts: Parts,
        body: Option<SentBody>,
    ) -> Result<Response<ReplyBody>, Refused> {
        let result = self.pass(parts, body).await;
        match &result {
            Ok(response) if response.status().as_u16() < 400 => {
                cache.invalidate(key);
                of_same_host(key, response.headers())
                    .for_each(|path| cache.invalidate(&key.with_path(&path)));
            }
            // The store may have done it.
            Err(refused) if refused.is_uncertain() => cache.invalidate(key),
            _ => {}
        }
        result
    }

    /// Charges the request as a hit.
    pub(super) fn charge_hit(&self) -> Result<HitCharge<'_>, Refused> {
        let charged = self.service.charge_hit(&self.offer, self.now);
        let query_type = self.offer.class.query_type;
        self.service.sample_verdict(&self.offer.origin, query_type, charged.as_ref().err(), self.now);
        let (charged, attending) = charged?;
        Ok(HitCharge { asking: self, charged: Some(charged), attending: Some(attending) })
    }

    /// Answers a request that the cache is for.
    async fn read(
        &self,
        cache: &Arc<Cache>,
        parts: Parts,
        asked: Lookup,
    ) -> Result<Response<ReplyBody>, Refused> {
        let mut charge = self.charge_hit()?;
        let in_memory = cache.record_in_memory(&asked.key);
        let is_in_memory = in_memory.is_some();
        let record = match in_memory {
            Some(record) => Some(record),
            None => cache.record(&asked.key).await,
        };
        let stale = match record.as_ref().map_or((None, None), |record| asked.kept_in(record)) {
            (Some(kept), Some(Freshness::Fresh)) => {
                let in_memory = cache.body_in_memory(&kept.digest);
                let source = if is_in_memory && in_memory.is_some() { Source::Memory } else { Source::Disk };
                let body = if in_memory.is_some() { in_memory } else { cache.body(&kept).await };
                if let Some(body) = body {
                    cache.touch(&asked.key, &kept, clock::realtime());
                    cache.count(source.event());
                    return charge.give(&asked, &kept, &body, source);
                }
                None
            }
            (Some(kept), Some(Freshness::Stale(validators))) => {
                let stale = (kept, validators);
                match self.body_while_revalidating(cache, &asked, &stale).await {
                    None => Some(stale),
                    Some(body) => {
                        cache.count(CacheEvent::StaleGiven);
                        let source = Source::Stale(StaleUse::WhileRevalidating);
                        let response = charge.give(&asked, &stale.0, &body, source)?;
                        self.refresh(cache, parts, asked, stale);
                        return Ok(response);
                    }
                }
            }
            // Else its own answer is kept beside the others.
            (_, Some(Freshness::Mismatch)) if !cache.settings.keep_own => {
                cache.count(CacheEvent::Passed);
                drop(charge);
                return self.pass(parts, None).await;
            }
            (Some(_) | None, Some(Freshness::Mismatch) | None) | (None, Some(_)) => None,
        };
        cache.count(if stale.is_some() { CacheEvent::Stale } else { CacheEvent::Miss });
        if asked.only_if_cached {
            return Ok(charge.nothing_kept());
        }
        self.share(cache, parts, asked, stale, charge).await
    }

    /// The rank with which it goes to the store: its tenant's tier, or a lower one of its query type.
    pub(super) fn rank(&self) -> Rank {
        let tenant = self.offer.origin.tenant;
        let tier = self.service.ledger.borrow_mut().tier(tenant).max(self.offer.class.tier);
        self.service.admission.rank_of(tenant, tier)
    }

    /// On whose behalf what is fetched for it is held.
    pub(super) fn holder(&self) -> Holder {
        let is_only = !self.service.tenants.borrow().are_several();
        Holder { tenant: self.offer.origin.tenant.0, is_only }
    }
}

/// The part that the cache has in a request of this tenant, in words; `None` without a cache.
pub(super) fn explained(
    service: &HttpService,
    ledger: &mut Ledger,
    account: Account<'_>,
    request: (&Parts, bool),
) -> Option<String> {
    let cache = service.cache.as_ref()?;
    let passes_by = |why: PassesBy| format!("it passes by the cache: {}", why.reason());
    Some(match purpose(service, ledger, cache, account, request) {
        Purpose::Other(why) => passes_by(why),
        Purpose::Change(_) => {
            "once it is answered without an error, nothing of its URL is kept any more".to_owned()
        }
        Purpose::Read(_) if !cache.is_open() => passes_by(PassesBy::Closed),
        Purpose::Read(asked) => {
            let own: Vec<&str> = asked.own_fields().map(HeaderName::as_str).collect();
            let own = (!own.is_empty() && !cache.settings.keep_own).then(|| own.join(", "));
            let own = own.map(|own| format!("{FIRST_IS_OWN} ({own})"));
            [LOOKED_UP.to_owned()]
                .into_iter()
                .chain(asked.conditions().map(str::to_owned))
                .chain(own)
                .collect::<Vec<_>>()
                .join("; ")
        }
    })
}

/// The purpose of a request of this tenant, and whether it has a body.
fn purpose(
    service: &HttpService,
    ledger: &mut Ledger,
    cache: &Cache,
    account: Account<'_>,
    (parts, has_body): (&Parts, bool),
) -> Purpose {
    let tenants = service.tenants.borrow();
    let name = tenants.name_of(account);
    let own = name.as_deref().unwrap_or_default();
    match Purpose::of(&cache.settings, service.claims.tenant(), own, parts, has_body) {
        Purpose::Read(_) if name.is_none() || !ledger.may_cache(account.0) => {
            Purpose::Other(PassesBy::Tenant)
        }
        purpose => purpose,
    }
}

/// The charge of a request that may turn out to be a hit.
pub(super) struct HitCharge<'a> {
    asking: &'a Asking,
    charged: Option<Charged>,
    attending: Option<Attending>,
}

impl HitCharge<'_> {
    pub(super) fn is_held(&self) -> bool {
        self.charged.is_some()
    }

    /// Gives a kept answer, for its bytes.
    fn give(
        &mut self,
        asked: &Lookup,
        kept: &StoredResponse,
        body: &Bytes,
        source: Source,
    ) -> Result<Response<ReplyBody>, Refused> {
        self.give_response(serve::respond(asked, kept, body, source)?)
    }

    /// Gives an answer of gate's own, for its bytes.
    pub(super) fn give_response(
        &mut self,
        response: Response<ReplyBody>,
    ) -> Result<Response<ReplyBody>, Refused> {
        let service = &self.asking.service;
        let len = hyper::body::Body::size_hint(response.body()).lower();
        let payer = self.asking.offer.origin.payer();
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        service.admission.charge_more(payer, bytes, self.asking.offer.class, clock::monotonic())?;
        self.keep();
        Ok(response)
    }

    /// Charges the request in full, whatever becomes of it: gate or another does what it wants.
    pub(super) fn charge_in_full(&mut self) -> Result<(), Refused> {
        let Some(charged) = self.charged.take() else { return Ok(()) };
        let service = &self.asking.service;
        service.admission.give_back(&mut service.ledger.borrow_mut(), &charged);
        Ok(service.charge_in_full(&self.asking.offer, clock::monotonic())?)
    }

    /// Keeps the charge of a hit: gate has answered.
    pub(super) fn keep(&mut self) {
        if let Some(mut charged) = self.charged.take() {
            let service = &self.asking.service;
            service.admission.count_passed(&service.ledger.borrow(), &mut charged);
        }
    }

    /// Says that nothing is kept, to a request that wants nothing else.
    pub(super) fn nothing_kept(&mut self) -> Response<ReplyBody> {
        self.keep();
        serve::nothing_kept()
    }

    /// Gives back the charge and what the request holds, before it is charged in full.
    pub(super) fn give_back(&mut self) {
        self.attending = None;
        if let Some(charged) = self.charged.take() {
            let service = &self.asking.service;
            service.admission.give_back(&mut service.ledger.borrow_mut(), &charged);
        }
    }
}

impl Drop for HitCharge<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The paths, on the same host, that an answer to a change says it is about (RFC 9111, 4.4).
fn of_same_host<'h>(key: &'h Key, headers: &'h HeaderMap) -> impl Iterator<Item = String> + 'h {
    let uris = [LOCATION, CONTENT_LOCATION]
        .into_iter()
        .filter_map(|name| headers.get(name)?.to_str().ok()?.parse::<Uri>().ok());
    uris.filter_map(|uri| {
        let is_same = uri.authority().is_none_or(|host| host.as_str().eq_ignore_ascii_case(key.host()));
        let path = uri.path_and_query().map(|path| path.as_str().to_owned());
        path.filter(|path| is_same && path.starts_with('/'))
    })
}

const LOOKED_UP: &str = "if the cache has an answer that is fresh it is given, for the price of a hit";
const FIRST_IS_OWN: &str = "until an answer has shown that it may be shared (max-age, s-maxage or Expires, and no Vary outside \
                            cache.key) it is not kept, since the request has other fields than the key, and cache.keep_own is off";
