//! The body of a client's request, and what becomes of the part that nobody reads.
//!
//! **Problem.** A request may be answered before its body is there: it is refused, or its store wants no more of it. Over HTTP/1.1 the
//! next request comes behind the rest, and a connection that is closed with the rest unread is reset, which may cost its client
//! the answer. **Rule.** A short rest is read on, for `client_timeout` at most. A longer one is not, nor is one that its client keeps
//! back until it is told to go on (`Expect`): the connection ends, with `Connection: close` if the answer has not been given, and
//! politely ([`Connection::leaves_unread`]). Over HTTP/2 it is the stream alone that ends.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::timeout;

use super::connection::{Connection, InFlight};
use super::service::HttpService;

/// The body of a request. Dropped before its end, it has its rest be read, or its connection end.
#[derive(Debug)]
pub(super) struct ClientBody {
    /// `None` once another reads the rest.
    incoming: Option<Incoming>,
    service: Rc<HttpService>,
    client: Rc<Connection>,
    /// True if nothing of it comes before it is asked for.
    is_kept_back: bool,
    has_ended: bool,
}

/// The rest of a body that nobody wants. Its connection has no next request before its end.
#[derive(Debug)]
pub(super) struct Rest {
    incoming: Incoming,
    client: Rc<Connection>,
    has_ended: bool,
    _in_flight: InFlight,
}

impl ClientBody {
    /// A body that its client keeps back, or not, until it is asked for.
    pub(super) fn new(
        incoming: Incoming,
        service: &Rc<HttpService>,
        client: &Rc<Connection>,
        is_kept_back: bool,
    ) -> Self {
        let has_ended = incoming.is_end_stream();
        let service = Rc::clone(service);
        let client = Rc::clone(client);
        Self { incoming: Some(incoming), service, client, is_kept_back, has_ended }
    }

    /// Leaves the rest unread.
    pub(super) fn leave(&mut self) {
        if self.incoming.take().is_some() && !self.has_ended {
            self.client.leave_unread();
        }
    }

    /// The rest, if it is to be read: it has at most `most` bytes, as far as that is known, and comes by itself. Else it is left.
    pub(super) fn rest(&mut self, most: u64) -> Option<Rest> {
        let incoming = self.incoming.take().filter(|_| !self.has_ended)?;
        if self.is_kept_back || incoming.size_hint().lower() > most {
            self.client.leave_unread();
            return None;
        }
        let client = Rc::clone(&self.client);
        Some(Rest { incoming, _in_flight: client.request(), client, has_ended: false })
    }
}

impl Rest {
    /// Reads it to its end, unless `takes` refuses a piece of so many bytes, or its connection ends with the answer.
    pub(super) async fn read(mut self, mut takes: impl FnMut(usize) -> bool) {
        if self.client.leaves_unread() {
            return;
        }
        let incoming = &mut self.incoming;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await {
            let len = frame.ok().map(|frame| frame.data_ref().map_or(0, Bytes::len));
            if !len.is_some_and(&mut takes) {
                return;
            }
        }
        self.has_ended = true;
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if !self.has_ended {
            self.client.leave_unread();
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        let Some(rest) = self.rest(MOST_REFUSED) else { return };
        let patience = self.service.limits.get().client_timeout.into();
        let mut left = MOST_REFUSED as usize;
        let reading = rest.read(move |len| {
            let is_taken = len <= left;
            left = left.saturating_sub(len);
            is_taken
        });
        tokio::task::spawn_local(async move { drop(timeout(patience, reading).await) });
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        this.is_kept_back = false;
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        let polled = Pin::new(&mut *incoming).poll_frame(cx);
        this.has_ended = incoming.is_end_stream() || matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

/// A longer body of a request that is refused costs its client less by a new connection than by being sent: nobody pays for it.
const MOST_REFUSED: u64 = 64 << 10;
