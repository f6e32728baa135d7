//! Heads: what may be in them, and what of them is passed on.
//!
//! **Lengths.** A message has one length: by `Content-Length`, or by the transfer coding `chunked`, and no other coding. hyper
//! reads a request that says both as `chunked` and closes its connection; an answer that says both is refused here, as nginx
//! does. Neither is passed on as it came: lengths are written anew.
//!
//! **Hop by hop.** Fields that concern one connection (RFC 9110, 7.6.1) end here, as does whatever `Connection` names, but for
//! those that frame or route a message. `Trailer` and `TE: trailers` are passed on, since trailers are.
//!
//! **Offers.** A server passes over an `Upgrade` that it does not want (RFC 9110, 7.8). gate wants none but a WebSocket's, and that
//! only where it is configured; elsewhere it is refused, since a client's next bytes depend on it. Both sides' fields are written anew.
//! HTTP/2 has `CONNECT` with `:protocol` for that (RFC 8441), which is such a `GET` from here on.

use hyper::ext::Protocol;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_ACCEPT, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::PathAndQuery;
use hyper::http::{request, response};
use hyper::{Method, StatusCode, Uri, Version};

/// Why a request cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// The request has two meanings, or none.
    Malformed,
    /// The request wants what gate does not do: a tunnel, another protocol, another transfer coding.
    Unsupported,
    /// The request wants to go on as a WebSocket, which it may not here.
    WebSocket,
    /// The request wants a tunnel for a protocol that gate does not know.
    Protocol,
    /// The request expects something else than `100-continue`.
    Expectation,
}

/// Checks a request, and removes what is not passed on. Afterwards it has a host, which is `store` where an old client names
/// none, and the path of an origin. `Connection` removes no field for which `keeps` is true. True if its client wants to go on as a
/// WebSocket, which it may where `websockets` is true.
///
/// # Errors
///
/// [`HeadFault`].
pub(super) fn prepare_request(
    parts: &mut request::Parts,
    store: impl Fn() -> String,
    keeps: impl Fn(&HeaderName) -> bool,
    websockets: bool,
) -> Result<bool, HeadFault> {
    let is_extended = parts.method == Method::CONNECT;
    if is_extended {
        let protocol = parts.extensions.get::<Protocol>().ok_or(HeadFault::Unsupported)?;
        if !protocol.as_str().eq_ignore_ascii_case("websocket") {
            return Err(HeadFault::Protocol);
        }
        parts.method = Method::GET;
    }
    if !is_of_origin(parts) {
        return Err(HeadFault::Malformed);
    }
    let headers = &mut parts.headers;
    let is_chunked = check_length(headers).ok_or(HeadFault::Unsupported)?;
    if is_chunked && headers.contains_key(CONTENT_LENGTH) {
        return Err(HeadFault::Malformed);
    }
    unite_lengths(headers).map_err(|Garbled| HeadFault::Malformed)?;
    // A server passes over the offers of HTTP/1.0 (RFC 9110, 7.8).
    let is_websocket = is_extended || parts.version == Version::HTTP_11 && wants_websocket(headers);
    let has_body = is_chunked || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    if is_websocket && (parts.method != Method::GET || has_body) {
        return Err(HeadFault::Unsupported);
    }
    if is_websocket && !websockets {
        return Err(HeadFault::WebSocket);
    }
    if headers.get_all(EXPECT).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(HeadFault::Expectation);
    }
    let host = host(&parts.uri, parts.version, headers, store).ok_or(HeadFault::Malformed)?;
    let takes_trailers = takes_trailers(headers);
    remove_hop_by_hop(headers, keeps);
    headers.remove(EXPECT);
    join_cookies(headers)?;
    if let Some(host) = host {
        headers.insert(HOST, host);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if is_websocket {
        offer_websocket(headers);
    }
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = Uri::from(path);
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    Ok(is_websocket)
}

/// Takes back the offer of a request that has been prepared to go on as a WebSocket.
pub(super) fn withdraw_offer(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(UPGRADE);
}

/// Checks an answer of the store with status 101 to such an offer, and removes what is not passed on. `accept` is what it has to say to
/// a key of gate's own, which stands for a client that has none: over HTTP/2.
///
/// # Errors
///
/// If the store does not say that it goes on as a WebSocket.
pub(super) fn prepare_switch(
    parts: &mut response::Parts,
    accept: Option<&HeaderValue>,
) -> Result<(), Garbled> {
    let headers = &mut parts.headers;
    let mut accepts = headers.get_all(SEC_WEBSOCKET_ACCEPT).iter();
    let accepted = accepts.next().filter(|said| accept.is_none_or(|accept| accept == said));
    let is_only = tokens(headers, &UPGRADE).all(|item| item.eq_ignore_ascii_case(b"websocket"));
    if accepted.is_none() || accepts.next().is_some() || !wants_websocket(headers) || !is_only {
        return Err(Garbled);
    }
    remove_hop_by_hop(headers, |_| false);
    headers.remove(CONTENT_LENGTH);
    if accept.is_some() {
        headers.remove(SEC_WEBSOCKET_ACCEPT);
        parts.status = StatusCode::OK;
    } else {
        offer_websocket(headers);
    }
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    Ok(())
}

/// Checks an answer of the store to a request by this method, and removes what is not passed on.
///
/// # Errors
///
/// If it has no meaning, or two.
pub(super) fn prepare_answer(parts: &mut response::Parts, length: Option<u64>) -> Result<(), Garbled> {
    let headers = &mut parts.headers;
    let is_chunked = check_length(headers).ok_or(Garbled)?;
    if parts.status.is_informational() || (is_chunked && headers.contains_key(CONTENT_LENGTH)) {
        return Err(Garbled);
    }
    unite_lengths(headers)?;
    if parts.status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers, |_| false);
    if let Some(length) = length.filter(|_| headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    Ok(())
}

/// An answer that could mean several things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled;

/// The mark of an answer whose body ends with its connection: nobody can say that it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct UntilClosed;

/// True for a message of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return false };
    let (name, rest) = kind.as_bytes().split_at_checked(GRPC.len()).unwrap_or_default();
    name.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// The bytes that a head takes, about.
pub(super) fn size(parts: &request::Parts) -> usize {
    let fields: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let path = parts.uri.path_and_query().map_or(1, |path| path.as_str().len());
    parts.method.as_str().len() + path + REQUEST_LINE + fields
}

/// True if the target is a path, an absolute URL or, of `OPTIONS`, an asterisk: a host without a scheme is for tunnels.
fn is_of_origin(parts: &request::Parts) -> bool {
    let is_host = parts.uri.authority().is_some() && parts.uri.scheme().is_none();
    let path = parts.uri.path();
    !is_host && (path.starts_with('/') || path.is_empty() || path == "*" && parts.method == Method::OPTIONS)
}

/// True if the length is that of chunks; `None` if there is a transfer coding that gate does not know.
fn check_length(headers: &HeaderMap) -> Option<bool> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Some(false) };
    (coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") && codings.next().is_none())
        .then_some(true)
}

/// Writes several equal lengths as one, in its only spelling.
fn unite_lengths(headers: &mut HeaderMap) -> Result<(), Garbled> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(()) };
    let is_plain = |value: &HeaderValue| {
        let digits = value.as_bytes();
        digits.iter().all(u8::is_ascii_digit)
            && (digits.len() == 1 || digits.first().is_some_and(|&byte| byte != b'0'))
    };
    if lengths.next().is_none() && is_plain(first) {
        return Ok(());
    }
    let items = headers
        .get_all(CONTENT_LENGTH)
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut numbers = items.map(|item| {
        let item = item.trim_ascii();
        let is_number = !item.is_empty() && item.iter().all(u8::is_ascii_digit);
        str::from_utf8(item).ok().filter(|_| is_number)?.parse::<u64>().ok()
    });
    let length = numbers.next().flatten().ok_or(Garbled)?;
    if !numbers.all(|other| other == Some(length)) {
        return Err(Garbled);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(())
}

/// Joins the lines of `Cookie`, of which HTTP/2 makes several and HTTP/1.1 has one (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) -> Result<(), HeadFault> {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return Ok(());
    }
    let lines: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let joined = HeaderValue::from_bytes(&lines.join(&b"; "[..])).map_err(|_| HeadFault::Malformed)?;
    headers.insert(COOKIE, joined);
    Ok(())
}

fn offer_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// True if the sender goes on as a WebSocket. Other offers are passed over, and one that `Connection` does not name is none.
fn wants_websocket(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &[u8]| tokens(headers, name).any(|item| item.eq_ignore_ascii_case(wanted));
    has(&UPGRADE, b"websocket") && has(&CONNECTION, b"upgrade")
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    tokens(headers, &TE).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// The items of a field that is a list.
fn tokens<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let items =
        headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    items.map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// The host that a request is for, if it is not in its field already. `None` if there is none, or more than one.
fn host(
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
    store: impl Fn() -> String,
) -> Option<Option<HeaderValue>> {
    let mut fields = headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() || field.is_some_and(|field| !is_host(field.as_bytes())) {
        return None;
    }
    match (uri.authority(), field) {
        (Some(authority), field) => {
            // What an absolute target says counts in HTTP/1.1 (RFC 9112, 3.2.2). In HTTP/2 both must agree.
            let agrees =
                |field: &HeaderValue| field.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
            if version == Version::HTTP_2 && !field.is_none_or(agrees) {
                return None;
            }
            let host = HeaderValue::from_str(authority.as_str()).ok()?;
            is_host(host.as_bytes()).then_some(Some(host))
        }
        (None, Some(_)) => Some(None),
        // HTTP/1.1 has to name one (RFC 9112, 3.2).
        (None, None) if version == Version::HTTP_10 => HeaderValue::try_from(store()).ok().map(Some),
        (None, None) => None,
    }
}

/// True for what can be a host and a port. Users, paths and lists cannot.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|&byte| byte.is_ascii_alphanumeric() || b".-_:[]%~!$&'()*+;=".contains(&byte))
}

fn remove_hop_by_hop(headers: &mut HeaderMap, keeps: impl Fn(&HeaderName) -> bool) {
    let named: Vec<HeaderName> =
        tokens(headers, &CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    for name in named.iter().filter(|name| !FRAMING.contains(name) && !keeps(name)) {
        headers.remove(name);
    }
    for name in [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "http2-settings"] {
        headers.remove(name);
    }
}

/// The media type of gRPC, behind which that of its messages may stand.
const GRPC: &[u8] = b"application/grpc";
/// The most that is read or written at once, and the longest head.
pub(super) const BUFFER: usize = 64 << 10;
/// Fields that no `Connection` can have removed.
const FRAMING: [HeaderName; 4] = [CONTENT_LENGTH, TRANSFER_ENCODING, HOST, EXPECT];
/// The blanks, the version and the ends of lines.
const REQUEST_LINE: usize = 14;

#[cfg(test)]
mod tests;
