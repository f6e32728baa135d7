//! WebSockets (RFC 6455) over HTTP/1.1: the request is admitted like any other, and once the store has agreed with 101, bytes pass
//! both ways.
//!
//! ```text
//! request ──► charge, admit, permit or queue ──► store ── 101 ──► tunnel.rs: bytes, charged and slowed, both ways
//!                                                      └─ else ──► an ordinary answer
//! ```
//!
//! - [`tunnel`]: the bytes, from 101 to the end. [`payment`]: whose they are, and their charge. [`frames`]: where one frame ends and
//!   the next begins. What ends it is in [`super::websocket_state`].
//!
//! **Invariants.** No byte behind the request's head reaches the store before its 101. What has passed has been charged. A
//! WebSocket holds its client's connection and a store connection of its tenant until its end, and no permit.

mod frames;
mod payment;
pub(super) mod tunnel;

use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};

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

/// Answers a request to go on as a WebSocket, which these `fields` name the tenant of: with the tunnel that follows the answer if
/// the store agrees.
pub(super) async fn answer(
    asking: Asking,
    parts: Parts,
    fields: HeaderMap,
) -> Result<(Response<ReplyBody>, Option<Tunnel>), Refused> {
    let service = &asking.service;
    let mut under_way = service.admit(&asking.client, &asking.offer, asking.now)?;
    under_way.permit().await?;
    let request = Request::from_parts(parts, Box::pin(NoBody) as RequestBody);
    let (response, mut connection) = send(&under_way, request, false, Via::Switching).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return give(under_way, response, connection, &Method::GET).map(|response| (response, None));
    }
    let now = clock::monotonic();
    service.store.answered(now);
    under_way.call.progress(now);
    let mut parts = response.into_parts().0;
    let switched = connection.switched.take();
    let (Some(switched), Ok(())) = (switched, head::prepare_switch(&mut parts)) else {
        service.metrics.count(Event::StoreFailed);
        return Err(Refused::lost(StatusCode::BAD_GATEWAY));
    };
    let size = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    under_way.switch(size, tunnel::MEMORY);
    let websocket = WebSocket::new(service, &asking.client, &asking.offer, fields, now);
    let tunnel = Tunnel::new(websocket, under_way, switched);
    Ok((Response::from_parts(parts, ReplyBody::whole(Vec::new())), Some(tunnel)))
}
