//! A request that has been admitted, on its way to the store and back to the head of its answer.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use gate_common::abi::Reason;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, StatusCode, Version};

use super::answer::Refused;
use super::call::{Failure, Side};
use super::client_body::ClientBody;
use super::head::{self, UntilClosed};
use super::reply_body::ReplyBody;
use super::request_body::PassingBody;
use super::sender::RequestBody;
use super::store::StoreConnection;
use super::under_way::UnderWay;
use super::upstreams::NoBody;
use crate::clock;
use crate::dispatcher::metrics::Event;
use crate::protocol::Refusal;

/// The body of a request, with its length if it says that.
pub(super) type SentBody = (ClientBody, Option<u64>);

/// Waits for a permit, and for the head of the store's answer.
pub(super) async fn pass_on(
    mut under_way: UnderWay,
    mut parts: hyper::http::request::Parts,
    body: Option<SentBody>,
) -> Result<Response<ReplyBody>, Refused> {
    under_way.permit().await?;
    let service = Rc::clone(&under_way.service);
    let has_body = body.is_some();
    let body: RequestBody = match body {
        None => Box::pin(NoBody),
        Some((body, length)) => {
            if !parts.headers.contains_key(CONTENT_LENGTH) {
                // For any method: hyper would take a GET for one without a body.
                parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            let most = service.limits.get().max_request;
            let call = Rc::clone(&under_way.call);
            let paid = length.unwrap_or(0);
            Box::pin(PassingBody::new(body, Rc::clone(&service), call, paid, most))
        }
    };
    let method = parts.method.clone();
    let request = Request::from_parts(parts, body);
    let (response, connection) = send(&under_way, request, has_body, Via::Kept).await?;
    give(under_way, response, connection, &method)
}

/// The answer of the store to a request by this method, on its way to the client.
pub(super) fn give(
    under_way: UnderWay,
    response: Response<Incoming>,
    connection: StoreConnection,
    method: &Method,
) -> Result<Response<ReplyBody>, Refused> {
    let service = Rc::clone(&under_way.service);
    let now = clock::monotonic();
    service.store.answered(now);
    under_way.call.progress(now);
    let (mut parts, incoming) = response.into_parts();
    let ends_itself = parts.version == Version::HTTP_2
        || parts.headers.contains_key(CONTENT_LENGTH)
        || parts.headers.contains_key(TRANSFER_ENCODING);
    let length = (method != Method::HEAD).then(|| incoming.size_hint().exact()).flatten();
    let length = length.filter(|_| parts.status != StatusCode::NOT_MODIFIED);
    if head::prepare_answer(&mut parts, length).is_err() {
        service.metrics.count(Event::StoreFailed);
        return Err(Refused::lost(StatusCode::BAD_GATEWAY));
    }
    if !ends_itself && !incoming.is_end_stream() {
        parts.extensions.insert(UntilClosed);
    }
    let size = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    Ok(Response::from_parts(parts, ReplyBody::of_store(incoming, under_way, connection, size)))
}

/// The connection that a request is sent over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// One that is kept, if there is one.
    Kept,
    /// One that is made for it.
    New,
    /// One that is made for it, on which the store may go on with another protocol.
    Switching,
}

/// Sends a request over a connection of the store. One that the store has closed meanwhile is replaced: as often as nothing
/// of the request has been written, and once, by a new one, for a request that may be done twice (RFC 9110, 9.2.2).
pub(super) async fn send(
    under_way: &UnderWay,
    mut request: Request<RequestBody>,
    has_body: bool,
    mut via: Via,
) -> Result<(Response<Incoming>, StoreConnection), Refused> {
    let call = &under_way.call;
    let admission = &under_way.service.admission;
    let tenant = call.payer.tenant;
    let lost = |status| {
        admission.count_refusal(tenant, Reason::StoreDown);
        Refused::lost(status)
    };
    loop {
        let connection = match via {
            Via::Kept => call.store.connection(tenant).await,
            Via::New => call.store.new_connection(tenant).await,
            Via::Switching => call.store.connection_to_switch(tenant).await,
        };
        let mut connection = connection.map_err(|error| {
            let refusal = error.refusal();
            admission.count_refusal(tenant, refusal.reason);
            Refused::from(refusal)
        })?;
        under_way.sent(has_body);
        let again = if connection.is_reused && !has_body { copy_if_idempotent(&request) } else { None };
        let sending = connection.sender.send(request);
        let mut sending = pin!(sending);
        let result = poll_fn(|cx| {
            // What the store has said counts before what its client has not.
            if let Poll::Ready(result) = sending.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            call.poll_failure(Side::Reply, cx).map_or(Poll::Pending, |failure| Poll::Ready(Err(failure)))
        });
        match result.await {
            Ok(Ok(response)) => return Ok((response, connection)),
            Ok(Err(mut error)) => match (error.take_message(), call.failure()) {
                (_, Some(failure)) => return Err(ended_early(under_way, failure, lost)),
                (Some(unsent), None) if connection.is_reused => request = unsent,
                (Some(_), None) => {
                    let refusal = Refusal::of(Reason::StoreDown);
                    admission.count_refusal(tenant, refusal.reason);
                    return Err(refusal.into());
                }
                (None, None) => match again.filter(|_| has_ended(error.error())) {
                    Some(copy) => {
                        via = Via::New;
                        request = copy;
                    }
                    None => {
                        under_way.service.metrics.count(Event::StoreFailed);
                        return Err(lost(StatusCode::BAD_GATEWAY));
                    }
                },
            },
            Err(failure) => {
                if failure == Failure::Timeout {
                    connection.sender.retire();
                }
                return Err(ended_early(under_way, failure, lost));
            }
        }
    }
}

/// The same request, if its method may be done twice. It has no body.
fn copy_if_idempotent(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let method = request.method();
    let is_idempotent = method.is_safe() || *method == Method::PUT || *method == Method::DELETE;
    is_idempotent.then(|| {
        let mut copy = Request::new(Box::pin(NoBody) as RequestBody);
        *copy.method_mut() = method.clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

/// True if a connection has ended before it had an answer, which is not one that is garbled.
fn has_ended(error: &hyper::Error) -> bool {
    let is_of_socket = || error.source().is_some_and(|cause| cause.is::<io::Error>());
    error.is_incomplete_message() || error.is_closed() || error.is_canceled() || is_of_socket()
}

/// The answer to a request that ends before the store has answered. An incomplete request does nothing.
fn ended_early(under_way: &UnderWay, failure: Failure, lost: impl Fn(StatusCode) -> Refused) -> Refused {
    match failure {
        Failure::Refused(refusal) => Refused { closes: true, ..refusal.into() },
        Failure::MalformedBody => {
            under_way.service.admission.count_refusal(under_way.call.payer.tenant, Reason::Malformed);
            Refused::with_status(Reason::Malformed, StatusCode::BAD_REQUEST)
        }
        // Once it has been answered nobody waits for its head.
        Failure::SlowBody | Failure::BrokenBody | Failure::Answered => {
            under_way.service.admission.count_refusal(under_way.call.payer.tenant, Reason::Limit);
            Refused::with_status(Reason::Limit, StatusCode::REQUEST_TIMEOUT)
        }
        Failure::Timeout => {
            under_way.call.store.timed_out(under_way.call.sent.get());
            lost(StatusCode::GATEWAY_TIMEOUT)
        }
    }
}
