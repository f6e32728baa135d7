//! The body of an answer on its way to the client: as fast as the client reads, and no faster.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use gate_common::units::Nanos;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::task::yield_now;

use super::access_line::AccessLine;
use super::call::{Failure, Side, WaitsFor};
use super::connection::InFlight;
use super::request_body::BrokenOff;
use super::sender::BodyError;
use super::store::StoreConnection;
use super::under_way::UnderWay;
use super::unread::Reading;
use crate::cache::Gathered;
use crate::clock;

/// The body of an answer. The request is under way until it is dropped.
#[derive(Debug)]
pub(super) struct ReplyBody {
    source: Source,
    /// `None` if the client has all the time that its connection has.
    reading: Option<Reading>,
    _in_flight: Option<InFlight>,
    /// The request's line in the access log, if it is logged.
    line: Option<Box<AccessLine>>,
}

#[derive(Debug)]
enum Source {
    /// gate's own, or none.
    Whole(Option<Bytes>),
    /// gate's own, given in pieces as the client reads.
    Long(LongReply),
    Store(Box<StoreReply>),
    /// Pieces that came before the rest.
    After(VecDeque<Bytes>, Gathered, Box<ReplyBody>),
}

/// An answer of gate's own that is given in pieces.
#[derive(Debug)]
struct LongReply {
    rest: Bytes,
    /// Ends before the next piece, when the runtime has looked for what has come for others.
    yielding: Option<Yielding>,
}

/// A turn in which the runtime looks for what has come.
struct Yielding(Pin<Box<dyn Future<Output = ()>>>);

impl fmt::Debug for Yielding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Yielding").finish_non_exhaustive()
    }
}

/// An answer that the store is giving.
#[derive(Debug)]
struct StoreReply {
    incoming: Incoming,
    under_way: UnderWay,
    connection: Option<StoreConnection>,
    received: usize,
}

impl ReplyBody {
    /// One of gate's own.
    pub(super) fn whole(text: Vec<u8>) -> Self {
        Self::of_bytes(text.into())
    }

    /// One that is all there.
    pub(super) fn of_bytes(bytes: Bytes) -> Self {
        let source = match bytes.len() {
            0 => Source::Whole(None),
            1..=AT_ONCE => Source::Whole(Some(bytes)),
            _ => Source::Long(LongReply { rest: bytes, yielding: None }),
        };
        Self { source, reading: None, _in_flight: None, line: None }
    }

    /// The rest of a body, after the pieces of it that have been gathered.
    pub(super) fn after(self, pieces: VecDeque<Bytes>, gathered: Gathered) -> Self {
        let source = Source::After(pieces, gathered, Box::new(self));
        Self { source, reading: None, _in_flight: None, line: None }
    }

    /// Notes that the client has taken a piece of what came before.
    fn taken(&self, now: Nanos) {
        if let Source::Store(reply) = &self.source {
            reply.under_way.call.waits_for(WaitsFor::Reader, now);
            reply.under_way.call.progress(now);
        }
    }

    /// That of the store's answer, whose head has so many bytes.
    pub(super) fn of_store(
        incoming: Incoming,
        under_way: UnderWay,
        connection: StoreConnection,
        head: usize,
    ) -> Self {
        let mut reply = StoreReply { incoming, under_way, connection: Some(connection), received: head };
        if reply.incoming.is_end_stream() {
            reply.complete();
            return Self::whole(Vec::new());
        }
        // It is the client's turn until it asks for more.
        reply.under_way.call.waits_for(WaitsFor::Reader, clock::monotonic());
        Self { source: Source::Store(Box::new(reply)), reading: None, _in_flight: None, line: None }
    }

    /// The same, which ends the request of its client when it is dropped, and logs it if it has a line. A body that the client may leave unread beside
    /// others that it reads is watched by itself.
    pub(super) fn with(self, in_flight: InFlight, line: Option<Box<AccessLine>>) -> Self {
        let is_watched = match &self.source {
            Source::Whole(None) => false,
            Source::Long(_) => true,
            Source::Whole(Some(_)) | Source::Store(_) | Source::After(..) => in_flight.is_http2(),
        };
        let reading = is_watched.then(|| in_flight.reading(clock::monotonic()));
        Self { source: self.source, reading, _in_flight: Some(in_flight), line }
    }
}

impl LongReply {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(yielding) = &mut self.yielding {
            ready!(yielding.0.as_mut().poll(cx));
        }
        self.yielding = Some(Yielding(Box::pin(yield_now())));
        Poll::Ready(Some(self.rest.split_to(PIECE.min(self.rest.len()))))
    }
}

impl StoreReply {
    fn complete(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.under_way.complete(self.received);
            let call = &self.under_way.call;
            call.waits_for(WaitsFor::Gate, clock::monotonic());
            // One that was answered before its body was there leaves the rest of that on the connection.
            if call.has_body_ended.get() {
                call.store.keep(connection);
            } else if connection.sender.is_http2() {
                // Else it would go on to the store beside the next requests, without a slot.
                call.fail(Failure::Answered);
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.connection.is_none() {
            return Poll::Ready(None);
        }
        let call = &self.under_way.call;
        if call.poll_failure(Side::Reply, cx).is_some() {
            return Poll::Ready(Some(Err(BrokenOff.into())));
        }
        let now = clock::monotonic();
        call.waits_for(WaitsFor::Store, now);
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                self.complete();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.received += frame.data_ref().map_or(0, Bytes::len);
                // Until it is asked for more.
                call.waits_for(WaitsFor::Reader, now);
                if self.incoming.is_end_stream() {
                    self.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.source {
            Source::Whole(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Source::Long(long) => long.poll(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece)))),
            Source::Store(reply) => reply.poll(cx),
            Source::After(pieces, gathered, rest) => match pieces.pop_front() {
                Some(piece) => {
                    gathered.release(piece.len() as u64);
                    rest.taken(clock::monotonic());
                    Poll::Ready(Some(Ok(Frame::data(piece))))
                }
                None => Pin::new(&mut **rest).poll_frame(cx),
            },
        };
        if let (Some(line), Poll::Ready(Some(Ok(frame)))) = (&mut self.line, &polled) {
            line.given(frame.data_ref().map_or(0, Bytes::len));
        }
        if let Some(reading) = &self.reading {
            if polled.is_ready() { reading.progress(clock::monotonic()) } else { reading.pause() }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(text) => text.is_none(),
            Source::Long(long) => long.rest.is_empty(),
            Source::Store(reply) => reply.connection.is_none(),
            Source::After(pieces, _, rest) => pieces.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Source::Long(long) => SizeHint::with_exact(long.rest.len() as u64),
            Source::Store(reply) => reply.incoming.size_hint(),
            Source::After(pieces, _, rest) => {
                let before: usize = pieces.iter().map(Bytes::len).sum();
                match rest.size_hint().exact() {
                    Some(rest) => SizeHint::with_exact(before as u64 + rest),
                    None => SizeHint::default(),
                }
            }
        }
    }
}

/// Answers of gate's own up to this are given at once.
const AT_ONCE: usize = 64 << 10;
/// The bytes of a longer one that a client takes at a time: while they are copied others wait.
const PIECE: usize = 16 << 10;
