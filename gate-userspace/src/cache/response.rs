//! An answer without its body, and what RFC 9111 lets a shared cache do with it. Pure.
//!
//! Deviations, all of them towards less: an answer without an explicit lifetime is asked about each time (no heuristics); one
//! with `Set-Cookie`, or whose `Cache-Control` has `private` or `no-store` in whatever place, is not kept; one that could neither be given again nor be asked about is not kept. A kept answer was
//! fetched with the fields of its key alone, or by a client's own request: a request with another value of a field that `Vary`
//! names does not match it.
//!
//! `CDN-Cache-Control` counts in the place of `Cache-Control` and `Expires` ([`targeted`]).
//!
//! An answer with an explicit lifetime is kept whatever its status, but for a 304, a part (206), and those that no cache may
//! keep (RFC 6585).
//!
//! A stale answer is given where its origin says so (`stale-while-revalidate`, `stale-if-error`: RFC 5861), and neither
//! `must-revalidate`, `proxy-revalidate` nor `no-cache`; to requests that say nothing of freshness themselves.

mod said;
mod targeted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};
use hyper::header::{
    AGE, CACHE_CONTROL, CONTENT_RANGE, DATE, ETAG, EXPIRES, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, SET_COOKIE, VARY,
};
use hyper::http::{request, response};
use hyper::{Request, StatusCode};

use self::said::{
    bound_age, bound_lifetimes, directives, name_of, number, rewrite_dates, says_any, value_of,
};
pub(crate) use self::said::{lower_case, says_of_freshness};
pub(crate) use self::targeted::CDN_CACHE_CONTROL;
use super::digest::Digest;

/// Fields of a request that are part of its key, by name; several values of one are joined.
pub(crate) type Fields = Vec<(HeaderName, HeaderValue)>;

/// An answer that is kept, without its body.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    /// Fields of the request that are part of the key.
    pub(crate) fields: Fields,
    pub(crate) status: StatusCode,
    /// Those of the origin that concern no connection.
    pub(crate) headers: HeaderMap,
    pub(crate) received: SystemTime,
    pub(crate) digest: Digest,
    pub(crate) len: u64,
    policy: CachePolicy,
    fresh_until: SystemTime,
    /// Until when it may be given while the origin is asked, and if the origin fails.
    usable_until: [SystemTime; 2],
    /// True if its origin gave it a lifetime, and says nothing of the time after.
    is_silent_on_stale: bool,
    /// True if every request with its key matches it.
    matches_all: bool,
    /// The values that fields beside those of the key had, on which it depends; `None` for one that was not there.
    varied: Vec<(HeaderName, Option<HeaderValue>)>,
    /// When its use was noted, in seconds since 1970.
    noted: Arc<AtomicU64>,
}

/// The use that a request may make of a kept answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The answer may be given.
    Fresh,
    /// The origin has to be asked first, with these fields.
    Stale(Fields),
    /// The answer is for other requests.
    Mismatch,
}

/// An occasion on which a stale answer may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StaleUse {
    /// The origin is asked meanwhile.
    WhileRevalidating = 0,
    /// The origin cannot be asked, or fails.
    OnError = 1,
}

impl StoredResponse {
    /// The answer with this head and body to `request`, as its origin saw it. `None` if it is not to be kept.
    pub(crate) fn new(
        request: &request::Parts,
        fields: Fields,
        (status, mut headers): (StatusCode, HeaderMap),
        received: SystemTime,
        (digest, len): (Digest, u64),
    ) -> Option<Self> {
        bound_age(&mut headers);
        let mut said = headers.clone();
        targeted::apply(&mut said);
        if headers.contains_key(SET_COOKIE) || headers.contains_key(CONTENT_RANGE) || forbids(&said) {
            return None;
        }
        let names: Vec<_> = vary(&headers).collect();
        if names.contains(&"*") {
            return None;
        }
        let is_same_in_all = |name: &&str| {
            let known = fields.iter().map(|(known, _)| known.as_str()).chain(SAME_IN_ALL);
            known.into_iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        let matches_all = names.iter().all(is_same_in_all);
        let varied = names.iter().filter(|name| !is_same_in_all(name));
        let varied: Option<Vec<_>> = varied.map(|name| value_of(&request.headers, name)).collect();
        let varied = varied?;
        let mut answer = hyper::Response::new(());
        *answer.status_mut() = if may_be_of(status, &said) { StatusCode::OK } else { status };
        *answer.headers_mut() = said;
        lower_case(answer.headers_mut());
        bound_lifetimes(answer.headers_mut());
        rewrite_dates(answer.headers_mut());
        let mut selected = keyed_parts(request, &fields)?;
        for (name, value) in &varied {
            value.iter().for_each(|value| drop(selected.headers.insert(name, value.clone())));
        }
        let policy = CachePolicy::new_options(&selected, &answer, received, OPTIONS);
        let ttl = policy.time_to_live(received).min(LONGEST);
        let fresh_until = received + ttl;
        let may_be_stale = !says_any(answer.headers(), &NOT_STALE);
        let usable_until = [StaleUse::WhileRevalidating, StaleUse::OnError]
            .map(|stale_use| fresh_until + extension(answer.headers(), stale_use, may_be_stale));
        let is_silent_on_stale =
            may_be_stale && ttl > Duration::ZERO && !says_any(answer.headers(), &OF_STALE);
        let has_validator = headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED);
        let is_of_use = has_validator || usable_until.iter().any(|&until| until > received);
        if !policy.is_storable() || !is_of_use {
            return None;
        }
        let noted = Arc::new(AtomicU64::new(secs(received)));
        Some(Self {
            fields,
            status,
            headers,
            received,
            digest,
            len,
            policy,
            fresh_until,
            usable_until,
            is_silent_on_stale,
            matches_all,
            varied,
            noted,
        })
    }

    /// True if a request with these fields has those values on which it depends.
    pub(super) fn is_selected_by(&self, headers: &HeaderMap) -> bool {
        self.varied
            .iter()
            .all(|(name, value)| value_of(headers, name.as_str()).is_some_and(|(_, said)| said == *value))
    }

    /// True if it is an answer to the same requests as `other`.
    pub(super) fn is_to_the_same(&self, other: &Self) -> bool {
        self.fields == other.fields && self.varied == other.varied
    }

    /// The fields beside those of the key on which it depends, as far as they were there.
    pub(super) fn varied(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.varied.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }

    /// True unless it is for some of those who ask for the same: its `Vary` names a field that is not part of the key.
    pub(crate) fn is_for_all(&self) -> bool {
        self.matches_all
    }

    /// True if it was given to be used again, by all who ask for the same.
    pub(crate) fn is_shareable(&self) -> bool {
        self.matches_all && self.usable_until[StaleUse::WhileRevalidating as usize] > self.received
    }

    /// True if it may be given while its origin fails, to this request; for so long where its origin says nothing.
    pub(crate) fn may_be_given_on_error(
        &self,
        request: &request::Parts,
        silent: Duration,
        now: SystemTime,
    ) -> bool {
        let is_young = self.received <= now && now < self.fresh_until + silent;
        let by_default = is_young && self.is_silent_on_stale && self.takes_any(request);
        by_default || self.may_be_stale(request, StaleUse::OnError, now)
    }

    /// True if it may be given on this occasion, though it is stale, to this request.
    pub(crate) fn may_be_stale(
        &self,
        request: &request::Parts,
        stale_use: StaleUse,
        now: SystemTime,
    ) -> bool {
        self.takes_any(request) && self.received <= now && now < self.usable_until[stale_use as usize]
    }

    /// True for a request that it is an answer to, and that says nothing of freshness.
    fn takes_any(&self, request: &request::Parts) -> bool {
        !says_of_freshness(&request.headers) && self.is_selected_by(&request.headers)
    }

    /// The use that this request, with all its fields, may make of it.
    pub(crate) fn freshness(&self, request: &request::Parts, now: SystemTime) -> Freshness {
        if !self.is_selected_by(&request.headers) {
            return Freshness::Mismatch;
        }
        let is_fresh = now < self.fresh_until && self.received <= now;
        // The usual way, without the copies of the other.
        if is_fresh && !says_of_freshness(&request.headers) {
            return Freshness::Fresh;
        }
        match self.policy.before_request(request, now) {
            BeforeRequest::Fresh(_) => Freshness::Fresh,
            BeforeRequest::Stale { matches: true, .. } => Freshness::Stale(self.validators()),
            BeforeRequest::Stale { matches: false, .. } => Freshness::Mismatch,
        }
    }

    /// True if its use has not been noted for so long; it is now.
    pub(super) fn is_use_due(&self, now: SystemTime, every: Duration) -> bool {
        let is_due = secs(now).saturating_sub(self.noted.load(Relaxed)) >= every.as_secs();
        if is_due {
            self.noted.store(secs(now), Relaxed);
        }
        is_due
    }

    /// True if a restart does as well with `before`, the answer that its origin has confirmed: it has to be asked about at each
    /// request all the same.
    pub(super) fn is_as_good_as(&self, before: &Self) -> bool {
        let is_stale = |answer: &Self| answer.fresh_until <= answer.received;
        let lasting = |answer: &Self| {
            let mut headers = answer.headers.clone();
            OF_TIME.iter().for_each(|name| drop(headers.remove(name)));
            headers
        };
        is_stale(self)
            && is_stale(before)
            && (self.status, self.digest, self.len) == (before.status, before.digest, before.len)
            && self.is_to_the_same(before)
            && lasting(self) == lasting(before)
    }

    /// The use that was noted of another is noted of this one.
    pub(super) fn note_as(&self, other: &Self) {
        self.noted.store(other.noted.load(Relaxed), Relaxed);
    }

    /// The time since it was made, in seconds.
    pub(crate) fn age(&self, now: SystemTime) -> u64 {
        self.policy.age(now).as_secs()
    }

    /// The same, with what a 304 says of it. `None` if that is about another, or it is not to be kept any more.
    pub(crate) fn revalidated(
        &self,
        request: &request::Parts,
        head: &response::Parts,
        now: SystemTime,
    ) -> Option<Self> {
        let headers = self.merged(&head.headers)?;
        Self::new(request, self.fields.clone(), (self.status, headers), now, (self.digest, self.len))
    }

    /// Its fields with those of a 304; `None` if that is about another answer.
    pub(crate) fn merged(&self, newer: &HeaderMap) -> Option<HeaderMap> {
        // It was asked with the validators of this one alone, so a 304 without any is about it.
        for name in [ETAG, LAST_MODIFIED] {
            let differ =
                newer.get(&name).zip(self.headers.get(&name)).is_some_and(|(a, b)| opaque(a) != opaque(b));
            if differ {
                return None;
            }
        }
        let mut merged = self.headers.clone();
        for name in newer.keys().filter(|name| !OF_BODY.contains(&name.as_str())) {
            merged.remove(name);
            merged.extend(newer.get_all(name).into_iter().map(|value| (name.clone(), value.clone())));
        }
        if !newer.contains_key(AGE) {
            merged.remove(AGE);
        }
        Some(merged)
    }

    /// The fields that ask the origin if it still holds.
    fn validators(&self) -> Fields {
        let field = |name: &HeaderName, of: HeaderName| Some((of, self.headers.get(name)?.clone()));
        [field(&ETAG, IF_NONE_MATCH), field(&LAST_MODIFIED, IF_MODIFIED_SINCE)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The request that a kept answer was the answer to, as its policy sees it.
pub(crate) fn keyed_request(path: &str, host: &HeaderValue, fields: &Fields) -> Option<request::Parts> {
    let mut parts = Request::get(path).body(()).ok()?.into_parts().0;
    parts.headers.insert(hyper::header::HOST, host.clone());
    fields.iter().for_each(|(name, value)| drop(parts.headers.insert(name, value.clone())));
    Some(parts)
}

/// A request with no other fields than these and its host.
fn keyed_parts(request: &request::Parts, fields: &Fields) -> Option<request::Parts> {
    let host = request.headers.get(HOST).cloned();
    keyed_request(
        request.uri.path_and_query()?.as_str(),
        &host.unwrap_or(HeaderValue::from_static("")),
        fields,
    )
}

/// True if an origin says something of how its answer may be kept.
pub(crate) fn says_of_keeping(headers: &HeaderMap) -> bool {
    OF_KEEPING.iter().any(|name| headers.contains_key(name))
}

/// True if an origin wants nothing of its answer to be kept.
pub(crate) fn forbids_keeping(headers: &HeaderMap) -> bool {
    let mut said = headers.clone();
    targeted::apply(&mut said);
    forbids(&said)
}

/// True for an answer that may be kept though its status is not known: one with an explicit lifetime (RFC 9111, 3).
fn may_be_of(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_explicit = headers.contains_key(EXPIRES)
        || directives(headers)
            .any(|said| LIFETIMES.iter().any(|name| name_of(said).eq_ignore_ascii_case(name)));
    let must_be_known = directives(headers).any(|said| name_of(said).eq_ignore_ascii_case("must-understand"));
    is_explicit && !must_be_known && !NEVER_KEPT.contains(&status.as_u16()) && !status.is_informational()
}

/// True if `Cache-Control` keeps an answer from others.
fn forbids(headers: &HeaderMap) -> bool {
    !headers.get_all(CACHE_CONTROL).iter().all(may_be_shared)
}

/// False if a value of `Cache-Control` has a word that keeps an answer from others, however the rest is to be read.
fn may_be_shared(value: &HeaderValue) -> bool {
    let has = |word: &[u8]| value.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    value.to_str().is_ok() && !has(b"private") && !has(b"no-store")
}

fn secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The names of the fields that an answer depends on.
fn vary(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(VARY).into_iter();
    let items = values.flat_map(|value| value.to_str().unwrap_or("*").split(','));
    items.map(str::trim).filter(|name| !name.is_empty())
}

/// A validator without the mark of weak ones.
fn opaque(value: &HeaderValue) -> &[u8] {
    let value = value.as_bytes().trim_ascii();
    value.strip_prefix(b"W/").unwrap_or(value)
}

/// The time for which a stale answer may be given on an occasion; none where the origin says two.
fn extension(headers: &HeaderMap, stale_use: StaleUse, may_be_stale: bool) -> Duration {
    let wanted = match stale_use {
        StaleUse::WhileRevalidating => "stale-while-revalidate",
        StaleUse::OnError => "stale-if-error",
    };
    let mut said = directives(headers).filter_map(|said| {
        let (name, value) = said.split_once('=')?;
        (name.trim() == wanted).then(|| number(value.trim().as_bytes()).unwrap_or(0))
    });
    let secs = match (said.next(), said.next()) {
        (Some(secs), None) if may_be_stale => secs,
        _ => 0,
    };
    Duration::from_secs(secs).min(LONGEST)
}

const OPTIONS: CacheOptions = CacheOptions {
    shared: true,
    cache_heuristic: 0.0,
    immutable_min_time_to_live: Duration::ZERO,
    ignore_cargo_cult: false,
};
/// Ten years: longer lifetimes are no different.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Directives that forbid to give a stale answer (RFC 9111, 4.2.4). `s-maxage` does as well, but says no more than the extensions
/// beside it.
const NOT_STALE: [&str; 3] = ["must-revalidate", "no-cache", "proxy-revalidate"];
/// Directives that say, by themselves, how an answer is used when it is stale.
const OF_STALE: [&str; 2] = ["s-maxage", "stale-if-error"];
/// Fields that a request that finds the key has like all others, or has not: it passes by with them.
const SAME_IN_ALL: [&str; 3] = ["authorization", "cookie", "host"];
const LIFETIMES: [&str; 2] = ["max-age", "s-maxage"];
/// A part and a 304, which gate keeps by other means, and those of RFC 6585: about one client, or not the origin's.
const NEVER_KEPT: [u16; 6] = [206, 304, 428, 429, 431, 511];
/// Fields that say when an answer was given.
const OF_TIME: [HeaderName; 3] = [AGE, DATE, EXPIRES];
/// Fields that say for how long, and for whom, an answer may be kept.
const OF_KEEPING: [HeaderName; 3] = [CACHE_CONTROL, CDN_CACHE_CONTROL, EXPIRES];
/// Fields of a body, which a 304 does not change.
const OF_BODY: [&str; 5] =
    ["content-length", "content-encoding", "content-range", "content-md5", "transfer-encoding"];

#[cfg(test)]
mod tests;
