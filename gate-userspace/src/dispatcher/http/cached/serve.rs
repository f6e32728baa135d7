//! The answer to a request out of a kept one: conditions, ranges, `HEAD`. Pure but for the time that is now.

use std::time::SystemTime;

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_RANGES, AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use hyper::{Response, StatusCode};

use super::asked::Lookup;
use super::range::Slice;
use crate::cache::{CacheEvent, Digest, StaleUse, StoredResponse};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::reply_body::ReplyBody;

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatcher::http) enum Source {
    Memory,
    Disk,
    /// Another's fetch.
    Followed,
    /// The origin, with a body that may be kept.
    Origin,
    /// The origin, which said that the kept one still holds.
    Revalidated,
    /// The origin, of what is not kept for this client.
    Bypassed,
    /// Memory or disk, though it is stale.
    Stale(StaleUse),
}

impl Source {
    /// The event of a hit.
    pub(in crate::dispatcher::http) const fn event(self) -> CacheEvent {
        match self {
            Self::Memory => CacheEvent::MemoryHit,
            Self::Disk
            | Self::Followed
            | Self::Origin
            | Self::Revalidated
            | Self::Bypassed
            | Self::Stale(_) => CacheEvent::DiskHit,
        }
    }

    /// As clients are told (RFC 9211).
    const fn status(self) -> &'static str {
        match self {
            Self::Memory | Self::Disk => "gate; hit",
            Self::Followed => "gate; fwd=uri-miss; collapsed",
            Self::Origin => "gate; fwd=uri-miss; stored",
            Self::Revalidated => "gate; fwd=stale; fwd-status=304",
            Self::Bypassed => "gate; fwd=bypass",
            Self::Stale(StaleUse::WhileRevalidating) => "gate; hit; detail=stale-while-revalidate",
            Self::Stale(StaleUse::OnError) => "gate; hit; detail=stale-if-error",
        }
    }
}

/// Answers a request out of a kept answer.
///
/// # Errors
///
/// None: a request that can have nothing of it is answered so.
pub(super) fn respond(
    asked: &Lookup,
    kept: &StoredResponse,
    body: &Bytes,
    source: Source,
) -> Result<Response<ReplyBody>, Refused> {
    let age = kept.age(clock::realtime());
    let given = Given { status: kept.status, headers: kept.headers.clone(), age };
    Ok(respond_with((&asked.request.headers, asked.is_head), given, body, source))
}

/// The parts of an answer but its body.
pub(in crate::dispatcher::http) struct Given {
    pub(in crate::dispatcher::http) status: StatusCode,
    pub(in crate::dispatcher::http) headers: HeaderMap,
    /// In seconds.
    pub(in crate::dispatcher::http) age: u64,
}

/// Answers a request with these fields, and for a head only if so.
pub(in crate::dispatcher::http) fn respond_with(
    asked: (&HeaderMap, bool),
    given: Given,
    body: &Bytes,
    source: Source,
) -> Response<ReplyBody> {
    let mut response = of_kept(asked, given, body);
    response.headers_mut().append(CACHE_STATUS, HeaderValue::from_static(source.status()));
    response.map(ReplyBody::of_bytes)
}

/// The answer to a request that wants a kept answer or none.
pub(super) fn nothing_kept() -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(Vec::new()));
    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    response
        .headers_mut()
        .insert(CACHE_STATUS, HeaderValue::from_static("gate; fwd=request; detail=not-kept"));
    response
}

/// The tag of a body that gate answers with as its origin.
pub(in crate::dispatcher::http) fn tag(digest: &Digest) -> HeaderValue {
    HeaderValue::try_from(format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

fn of_kept((fields, is_head): (&HeaderMap, bool), kept: Given, body: &Bytes) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let mut headers = kept.headers;
    headers.insert(AGE, HeaderValue::from(kept.age));
    let is_whole = kept.status == StatusCode::OK;
    if is_whole {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    let condition = if kept.status.is_success() { condition(fields, &headers) } else { None };
    let status = condition.unwrap_or(kept.status);
    let has_range = status == StatusCode::OK && !is_head && may_take_part(fields, &headers);
    let slice = fields.get(RANGE).filter(|_| has_range).map(|field| Slice::of(field.as_bytes(), body.len()));
    let (status, body) = match slice.unwrap_or(Slice::Whole) {
        _ if condition.is_some() => {
            OF_BODY.iter().for_each(|name| drop(headers.remove(name)));
            (status, Bytes::new())
        }
        Slice::Whole => (status, body.clone()),
        Slice::Part(part) => {
            let text = format!("bytes {}-{}/{}", part.start, part.end - 1, body.len());
            headers.extend(HeaderValue::try_from(text).ok().map(|text| (CONTENT_RANGE, text)));
            (StatusCode::PARTIAL_CONTENT, body.slice(part))
        }
        Slice::Unsatisfiable => {
            OF_BODY.iter().for_each(|name| drop(headers.remove(name)));
            let text = format!("bytes */{}", body.len());
            headers.extend(HeaderValue::try_from(text).ok().map(|text| (CONTENT_RANGE, text)));
            (StatusCode::RANGE_NOT_SATISFIABLE, Bytes::new())
        }
    };
    if status != StatusCode::NOT_MODIFIED && status != StatusCode::NO_CONTENT {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if !is_head {
        *response.body_mut() = body;
    }
    response
}

/// The status that the conditions of a GET or HEAD end in, if they do (RFC 9110, 13.2.2).
fn condition(fields: &HeaderMap, kept: &HeaderMap) -> Option<StatusCode> {
    let modified = date(kept, &LAST_MODIFIED);
    if fields.contains_key(IF_MATCH) {
        if !names(fields, &IF_MATCH, kept.get(ETAG), true) {
            return Some(StatusCode::PRECONDITION_FAILED);
        }
    } else if let Some((modified, since)) = modified.zip(date(fields, &IF_UNMODIFIED_SINCE))
        && modified > since
    {
        return Some(StatusCode::PRECONDITION_FAILED);
    }
    let is_same = match fields.contains_key(IF_NONE_MATCH) {
        true => names(fields, &IF_NONE_MATCH, kept.get(ETAG), false),
        false => {
            modified.zip(date(fields, &IF_MODIFIED_SINCE)).is_some_and(|(modified, since)| modified <= since)
        }
    };
    is_same.then_some(StatusCode::NOT_MODIFIED)
}

/// True unless the range is for another body than this one. A weak tag may be that of several.
fn may_take_part(fields: &HeaderMap, kept: &HeaderMap) -> bool {
    let Some(wanted) = fields.get(IF_RANGE) else { return true };
    let is_same = |name| kept.get(name).is_some_and(|kept| kept == wanted);
    is_same(ETAG) && !wanted.as_bytes().starts_with(WEAK) || is_same(LAST_MODIFIED)
}

/// True if a list of tags has this one, or is an asterisk. Weak ones count unless the comparison is strong.
fn names(fields: &HeaderMap, field: &HeaderName, tag: Option<&HeaderValue>, is_strong: bool) -> bool {
    let opaque = |tag| if is_strong { tag } else { <[u8]>::strip_prefix(tag, WEAK).unwrap_or(tag) };
    let tag = tag.map(|tag| opaque(tag.as_bytes().trim_ascii()));
    let tag = tag.filter(|tag| !tag.starts_with(WEAK));
    let values = fields.get_all(field).into_iter();
    values.flat_map(|value| tags(value.as_bytes())).any(|one| one == b"*" || Some(opaque(one)) == tag)
}

/// The items of a list of tags. A tag may have commas in it.
fn tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    let items = list.split(move |&byte| {
        is_quoted ^= byte == b'"';
        byte == b',' && !is_quoted
    });
    items.map(<[u8]>::trim_ascii)
}

fn date(fields: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(fields.get(name)?.to_str().ok()?).ok()
}

/// The mark of a weak tag.
const WEAK: &[u8] = b"W/";
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Fields that say what a body is; without one they are left out.
const OF_BODY: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_judged_by_the_tag_of_the_origin() {
        let none = None;
        for (tag, field, said, expected) in [
            (Some("\"1\""), IF_NONE_MATCH, "\"1\"", Some(StatusCode::NOT_MODIFIED)),
            (Some("\"1\""), IF_NONE_MATCH, "\"0\", W/\"1\"", Some(StatusCode::NOT_MODIFIED)),
            (Some("W/\"1\""), IF_NONE_MATCH, "\"1\"", Some(StatusCode::NOT_MODIFIED)),
            (Some("\"a,b\""), IF_NONE_MATCH, "\"x,y\", \"a,b\"", Some(StatusCode::NOT_MODIFIED)),
            (Some("\"a\""), IF_NONE_MATCH, "\"x,\"a\",y\"", none),
            (Some("\"1\""), IF_NONE_MATCH, "\"2\"", none),
            (None, IF_NONE_MATCH, "\"1\"", none),
            (None, IF_NONE_MATCH, "*", Some(StatusCode::NOT_MODIFIED)),
            (Some("\"1\""), IF_MATCH, "\"1\"", none),
            (Some("\"1\""), IF_MATCH, "W/\"1\"", Some(StatusCode::PRECONDITION_FAILED)),
            (Some("W/\"1\""), IF_MATCH, "W/\"1\"", Some(StatusCode::PRECONDITION_FAILED)),
            (None, IF_MATCH, "\"1\"", Some(StatusCode::PRECONDITION_FAILED)),
            (None, IF_MATCH, "*", none),
        ] {
            let value = |text: &str| HeaderValue::from_str(text).unwrap();
            let kept: HeaderMap = tag.into_iter().map(|tag| (ETAG, value(tag))).collect();
            let fields: HeaderMap = [(field.clone(), value(said))].into_iter().collect();
            assert_eq!(condition(&fields, &kept), expected, "{tag:?} {field}: {said}");
        }
    }
}
