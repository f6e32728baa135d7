//! The body of a request on its way to the store: bounded, charged and watched as it passes.
//!
//! **Early answers.** A store may answer before it has all of a body, and take no more of it. The client has the answer, and goes on
//! sending: its connection has no next request before the end of this one. So gate reads on for a while, and charges for it.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use gate_common::abi::Reason;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::timeout;

use super::call::{Call, Failure, Side, WaitsFor};
use super::client_body::ClientBody;
use super::sender::BodyError;
use super::service::HttpService;
use crate::clock;
use crate::protocol::{Refusal, Rule};

/// A body that passes.
#[derive(Debug)]
pub(super) struct PassingBody {
    body: ClientBody,
    toll: Toll,
    has_ended: bool,
}

/// The bounds and the charge of what passes.
#[derive(Clone, Debug)]
struct Toll {
    service: Rc<HttpService>,
    call: Rc<Call>,
    /// The bytes that have passed, and those that have been paid for.
    passed: u64,
    paid: u64,
    most: u64,
}

/// The request ends before its body does; why, its call says.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request is broken off")]
pub(super) struct BrokenOff;

impl Toll {
    /// Bounds and charges `len` more bytes.
    fn charge(&mut self, len: usize) -> Result<(), Refusal> {
        self.passed += len as u64;
        let payer = &self.call.payer;
        if self.passed > self.most && self.service.admission.refuse_unpriced(payer, Reason::TooLarge) {
            return Err(Refusal::by(Reason::TooLarge, Rule::Size));
        }
        let unpaid = self.passed.saturating_sub(self.paid);
        if unpaid == 0 {
            return Ok(());
        }
        self.paid = self.passed;
        let class = self.call.charged.borrow().class;
        self.service.admission.charge_more(payer.clone(), unpaid as usize, class, clock::monotonic())
    }
}

impl PassingBody {
    /// The body of a call, of which so many bytes have been paid for, and that may have `most`.
    pub(super) fn new(
        body: ClientBody,
        service: Rc<HttpService>,
        call: Rc<Call>,
        paid: u64,
        most: usize,
    ) -> Self {
        let toll = Toll { service, call, passed: 0, paid, most: most as u64 };
        Self { body, toll, has_ended: false }
    }

    fn fail<T>(&self, why: Failure) -> Poll<Option<Result<T, BodyError>>> {
        self.toll.call.fail(why);
        Poll::Ready(Some(Err(BrokenOff.into())))
    }

    /// The store has all of it.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let now = clock::monotonic();
            self.toll.call.sent.set(now);
            self.toll.call.has_body_ended.set(true);
            self.toll.call.waits_for(WaitsFor::Store, now);
            self.toll.service.take_back_permit(&self.toll.call);
        }
    }
}

/// Why a body has no next piece: its framing is wrong, or its client has left.
fn why_broken(error: &hyper::Error) -> Failure {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(ErrorKind::InvalidData | ErrorKind::InvalidInput) => Failure::MalformedBody,
        _ => Failure::BrokenBody,
    }
}

impl Body for PassingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.toll.call.poll_failure(Side::Request, cx).is_some() {
            return Poll::Ready(Some(Err(BrokenOff.into())));
        }
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                self.toll.call.waits_for(WaitsFor::Body, clock::monotonic());
                return Poll::Pending;
            }
        };
        let Some(frame) = frame else {
            self.end();
            return Poll::Ready(None);
        };
        let mut frame = match frame {
            Ok(frame) => frame,
            Err(error) => return self.fail(why_broken(&error)),
        };
        if let Some(trailers) = frame.trailers_mut() {
            self.toll.service.claims.remove_from_trailers(trailers);
        }
        let len = frame.data_ref().map_or(0, Bytes::len);
        self.toll.call.body_came(len, clock::monotonic());
        if let Err(refusal) = self.toll.charge(len) {
            return self.fail(Failure::Refused(refusal));
        }
        if self.is_end_stream() {
            self.end();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for PassingBody {
    /// The store takes no more of it.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if !matches!(self.toll.call.failure(), None | Some(Failure::Answered)) {
            return self.body.leave();
        }
        let Some(rest) = self.body.rest(MOST_UNWANTED) else { return };
        let patience = self.toll.service.limits.get().client_timeout.into();
        let most = self.toll.passed.saturating_add(MOST_UNWANTED);
        let mut toll = self.toll.clone();
        let reading = rest.read(move |len| toll.charge(len).is_ok() && toll.passed <= most);
        // However it ends: a connection whose body is not read to its end has no next request.
        tokio::task::spawn_local(async move { timeout(patience, reading).await });
    }
}

/// A longer rest costs a client less by a new connection than by being sent.
const MOST_UNWANTED: u64 = 256 << 10;
