//! A request, from its head to the head of its answer.
//!
//! The body of the request passes on its own while the answer is waited for, and that of the answer after this is done.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use super::access_line::AccessLine;
use super::answer::Refused;
use super::cached::Asking;
use super::client_body::ClientBody;
use super::connection::Connection;
use super::forward::SentBody;
use super::head::{self, HeadFault};
use super::identity::Origin;
use super::pace::Counted;
use super::reply_body::ReplyBody;
use super::service::HttpService;
use super::websocket::tunnel::Tunnel;
use super::{processed, websocket};
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::refusal_pace::PaceKey;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::tenants::members::Member;
use crate::dispatcher::tenants::membership::Lookup;

/// Answers a request of a client. A tunnel in `switched` is what follows the answer over HTTP/1.1; over HTTP/2 it runs beside other
/// requests.
pub(super) async fn answer(
    service: Rc<HttpService>,
    client: Rc<Connection>,
    mut request: Request<Incoming>,
    switched: Rc<RefCell<Option<Tunnel>>>,
) -> Result<Response<ReplyBody>, Infallible> {
    let in_flight = client.request();
    let version = request.version();
    // Over HTTP/2 it alone asks for a tunnel, and any answer of 2xx to it begins one.
    let is_connect = request.method() == Method::CONNECT;
    let stream = is_connect.then(|| hyper::upgrade::on(&mut request));
    let is_grpc = head::is_grpc(request.headers()) && !is_connect;
    service.metrics.count(Event::Request);
    let (mut parts, body) = request.into_parts();
    let length = body.size_hint().exact();
    let has_body = !body.is_end_stream();
    let mut body = Some(ClientBody::new(body, &service, &client, parts.headers.contains_key(EXPECT)));
    let mut line = AccessLine::of(&service, client.source, &parts);
    let mut origin = service.origin(&client, &parts.headers, Lookup::Charge);
    let (tenant, member) = match &origin {
        Ok(Origin { tenant, member, .. }) => (*tenant, member.clone()),
        Err(_) => (client.tenant.get(), None),
    };
    let payer = PaceKey { tenant, member: member.as_deref().map(Member::number) };
    let mut counted = Counted::new(&service, &client, payer, head::size(&parts));
    if counted.wait_for_turn().await {
        // It may be another's meanwhile.
        origin = service.origin(&client, &parts.headers, Lookup::Charge);
    }
    if let Some(line) = &mut line {
        line.of_tenant(origin.as_ref().map_or(client.tenant.get(), |origin| origin.tenant));
    }
    let names_none = origin.as_ref().is_ok_and(|origin| origin.names_none);
    let now = clock::monotonic();
    let may_switch = is_connect || parts.headers.contains_key(UPGRADE);
    let fields = may_switch.then(|| service.naming_fields(&parts.headers));
    let mut tunnel = None;
    let answer = match service.identify(&client, origin, &mut parts, length) {
        Err(refused) => Err(refused),
        Ok(offer) => {
            let body = body.take().filter(|body| !body.is_end_stream()).map(|body| (body, length));
            let asking = Asking { service: Rc::clone(&service), client: Rc::clone(&client), offer, now };
            let answered = answer_offer(asking, parts, fields, body, is_connect).await;
            answered.map(|(response, switched)| {
                tunnel = switched;
                response
            })
        }
    };
    if !answer.as_ref().is_err_and(Refused::is_for_the_tenant) {
        counted.served();
    }
    let closes = answer.as_ref().is_err_and(|refused| refused.closes);
    let reason = answer.as_ref().err().map(|refused| refused.refusal.reason.name());
    let mut response = answer.unwrap_or_else(|refused| {
        let refusal = Origin::refusal(names_none, refused.refusal);
        service.refusal(Refused { refusal, ..refused }, version, is_grpc)
    });
    drop(body);
    if has_body && closes {
        // Before its rest is read on.
        client.leave_unread();
    }
    if client.leaves_unread() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    service.add_rate_limit((tenant, member.as_deref()), response.headers_mut(), now);
    if let Some(line) = &mut line {
        line.answered(&response, reason);
    }
    if let Some(tunnel) = tunnel {
        let tunnel = tunnel.with(in_flight, line);
        match stream {
            None => drop(switched.replace(Some(tunnel))),
            Some(stream) => drop(tokio::task::spawn_local(run_over(stream, tunnel))),
        }
        return Ok(response);
    }
    Ok(response.map(|body| body.with(in_flight, line)))
}

/// Answers a request whose tenant is known, by these `fields` if it may go on as a WebSocket: with the tunnel that follows the answer
/// if it does.
async fn answer_offer(
    asking: Asking,
    mut parts: Parts,
    fields: Option<HeaderMap>,
    body: Option<SentBody>,
    is_connect: bool,
) -> Result<(Response<ReplyBody>, Option<Tunnel>), Refused> {
    let service = Rc::clone(&asking.service);
    let is_websocket = asking.offer.is_websocket;
    let is_processed = is_websocket && processed::target(&service, &parts, false).is_some();
    match fields.filter(|_| is_websocket) {
        Some(fields) if !is_processed => websocket::answer(asking, parts, fields, is_connect).await,
        // gate processes images there.
        _ if is_connect => Err(service.head_fault(&asking.offer.origin, HeadFault::WebSocket)),
        _ => {
            if is_websocket {
                // The offer is taken back, and the store is asked for an ordinary answer.
                head::withdraw_offer(&mut parts.headers);
            }
            processed::answer(asking, parts, body).await.map(|response| (response, None))
        }
    }
}

/// Runs a tunnel over a stream of HTTP/2, once its client has been told of it.
async fn run_over(stream: OnUpgrade, tunnel: Tunnel) {
    if let Ok(stream) = stream.await {
        // Its connection goes on.
        let _: CloseCause = tunnel.run(TokioIo::new(stream), Bytes::new()).await;
    }
}
