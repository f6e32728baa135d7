//! A request, from its head to the head of its answer.
//!
//! The body of the request passes on its own while the answer is waited for, and that of the answer after this is done.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::{Body as _, Incoming};
use hyper::header::UPGRADE;
use hyper::{Request, Response};

use super::access_line::AccessLine;
use super::answer::Refused;
use super::cached::Asking;
use super::connection::Connection;
use super::head;
use super::identity::Origin;
use super::pace::Counted;
use super::reply_body::ReplyBody;
use super::service::HttpService;
use super::websocket::tunnel::Tunnel;
use super::{processed, websocket};
use crate::clock;
use crate::dispatcher::clients::refusal_pace::PaceKey;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::tenants::members::Member;
use crate::dispatcher::tenants::membership::Lookup;

/// Answers a request of a client. A tunnel in `switched` is what follows the answer.
pub(super) async fn answer(
    service: Rc<HttpService>,
    client: Rc<Connection>,
    request: Request<Incoming>,
    switched: Rc<RefCell<Option<Tunnel>>>,
) -> Result<Response<ReplyBody>, Infallible> {
    let in_flight = client.request();
    let version = request.version();
    let is_grpc = head::is_grpc(request.headers());
    service.metrics.count(Event::Request);
    let (mut parts, body) = request.into_parts();
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
    let length = body.size_hint().exact();
    let fields = parts.headers.contains_key(UPGRADE).then(|| service.naming_fields(&parts.headers));
    let mut tunnel = None;
    let answer = match service.identify(&client, origin, &mut parts, length) {
        Err(refused) => Err(refused),
        Ok(offer) => {
            let body = (!body.is_end_stream()).then_some((body, length));
            let is_websocket = offer.is_websocket;
            let asking = Asking { service: Rc::clone(&service), client: Rc::clone(&client), offer, now };
            let fields = fields.filter(|_| is_websocket);
            match fields.filter(|_| processed::target(&service, &parts, false).is_none()) {
                Some(fields) => websocket::answer(asking, parts, fields).await.map(|(response, switched)| {
                    tunnel = switched;
                    response
                }),
                None => {
                    if is_websocket {
                        // The offer is taken back: gate processes images, and the store is asked for an ordinary answer.
                        head::withdraw_offer(&mut parts.headers);
                    }
                    processed::answer(asking, parts, body).await
                }
            }
        }
    };
    if !answer.as_ref().is_err_and(Refused::is_for_the_tenant) {
        counted.served();
    }
    let reason = answer.as_ref().err().map(|refused| refused.refusal.reason.name());
    let mut response = answer.unwrap_or_else(|refused| {
        let refusal = Origin::refusal(names_none, refused.refusal);
        service.refusal(Refused { refusal, ..refused }, version, is_grpc)
    });
    service.add_rate_limit((tenant, member.as_deref()), response.headers_mut(), now);
    if let Some(line) = &mut line {
        line.answered(&response, reason);
    }
    if let Some(tunnel) = tunnel {
        switched.replace(Some(tunnel.with(in_flight, line)));
        return Ok(response);
    }
    Ok(response.map(|body| body.with(in_flight, line)))
}
