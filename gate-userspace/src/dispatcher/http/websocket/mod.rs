//! WebSockets (RFC 6455), of clients over HTTP/1.1 and HTTP/2 (RFC 8441): the request is admitted like any other, and once the store,
//! over HTTP/1.1, has agreed with 101, bytes pass both ways.
//!
//! ```text
//! request ──► charge, admit, permit or queue ──► store ── 101 ──► tunnel.rs: bytes, charged and slowed, both ways
//!                                                      └─ else ──► an ordinary answer
//! ```
//!
//! - [`tunnel`]: the bytes, from 101 to the end. [`payment`]: whose they are, and their charge. [`frames`]: where one frame ends and
//!   the next begins. [`key`]: the key of a request whose client has none. What ends it is in [`super::websocket_state`].
//!
//! **Invariants.** No byte behind the request's head reaches the store before its 101. What has passed has been charged. A
//! WebSocket holds its client's connection, or stream, and a store connection of its tenant until its end, and no permit.

mod frames;
mod key;
mod payment;
pub(super) mod tunnel;

use hyper::header::{HeaderMap, SEC_WEBSOCKET_KEY};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};

use self::key::Key;
use self::payment::WebSocket;
use self::tunnel::Tunnel;
use super::answer::Refused;
use super::cached::Asking;
use super::forward::{Via, give, send};
use super::head;
use super::reply_body::ReplyBody;
use super::sender::RequestBody;
use super::upstreams::NoBody;
use crate::clock;
use crate::dispatcher::metrics::Event;

/// Answers a request to go on as a WebSocket, over HTTP/2 or not, which these `fields` name the tenant of: with the tunnel that
/// follows the answer if the store agrees.
pub(super) async fn answer(
    asking: Asking,
    mut parts: Parts,
    fields: HeaderMap,
    is_http2: bool,
) -> Result<(Response<ReplyBody>, Option<Tunnel>), Refused> {
    let service = &asking.service;
    let mut under_way = service.admit(&asking.client, &asking.offer, asking.now)?;
    under_way.permit().await?;
    let key = is_http2.then(Key::new);
    if let Some(key) = &key {
        parts.headers.insert(SEC_WEBSOCKET_KEY, key.sent());
    }
    let request = Request::from_parts(parts, Box::pin(NoBody) as RequestBody);
    let (response, mut connection) = send(&under_way, request, false, Via::Switching).await?;
    let lost = || {
        service.metrics.count(Event::StoreFailed);
        Refused::lost(StatusCode::BAD_GATEWAY)
    };
    if is_http2 && response.status().is_success() {
        // Its client would take it for an agreement.
        return Err(lost());
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return give(under_way, response, connection, &Method::GET).map(|response| (response, None));
    }
    let now = clock::monotonic();
    service.store.answered(now);
    under_way.call.progress(now);
    let mut parts = response.into_parts().0;
    let switched = connection.switched.take();
    let accept = key.map(|key| key.accepted());
    let (Some(switched), Ok(())) = (switched, head::prepare_switch(&mut parts, accept.as_ref())) else {
        return Err(lost());
    };
    let size = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    under_way.switch(size, if is_http2 { tunnel::MEMORY_HTTP2 } else { tunnel::MEMORY });
    let websocket = WebSocket::new(service, &asking.client, &asking.offer, fields, now);
    let tunnel = Tunnel::new(websocket, under_way, switched);
    Ok((Response::from_parts(parts, ReplyBody::whole(Vec::new())), Some(tunnel)))
}
