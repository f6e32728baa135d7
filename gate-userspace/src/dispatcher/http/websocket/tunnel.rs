//! The bytes of a WebSocket, from the store's 101 to its end.
//!
//! Each direction reads at most [`PIECE`] bytes, has them paid KiB by KiB, and writes them before it reads on: whoever sends more
//! than is paid for or taken waits. What gate ends it ends with a close frame behind the last whole frame: to the client with the
//! reason, to the store with 1001.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::frames::{Frames, close_of_client, close_of_server};
use super::payment::WebSocket;
use crate::clock;
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::http::access_line::AccessLine;
use crate::dispatcher::http::connection::InFlight;
use crate::dispatcher::http::store::SwitchedStream;
use crate::dispatcher::http::under_way::UnderWay;
use crate::dispatcher::http::unread::Reading;
use crate::dispatcher::http::websocket_state::{Stop, WebSocketState};

/// A WebSocket whose client is about to be told that the store agrees.
#[derive(Debug)]
pub(in crate::dispatcher::http) struct Tunnel {
    websocket: WebSocket,
    /// The store connection of its tenant, and its memory.
    _under_way: UnderWay,
    switched: oneshot::Receiver<SwitchedStream>,
    /// The client's connection is not idle.
    _in_flight: Option<InFlight>,
    /// Its place among what a client over HTTP/2 reads beside each other; `None` over HTTP/1.1.
    reading: Option<Reading>,
    line: Option<Box<AccessLine>>,
}

/// The bytes that pass in one direction.
struct Direction {
    buffer: Vec<u8>,
    /// The bounds of those in the buffer that have not passed.
    at: usize,
    len: usize,
    frames: Frames,
    is_to_store: bool,
    reading: Option<Reading>,
}

impl Tunnel {
    pub(super) fn new(
        websocket: WebSocket,
        under_way: UnderWay,
        switched: oneshot::Receiver<SwitchedStream>,
    ) -> Self {
        Self { websocket, _under_way: under_way, switched, _in_flight: None, reading: None, line: None }
    }

    /// The same, which ends the request of its client when it ends, and logs it if it has a line.
    pub(in crate::dispatcher::http) fn with(
        self,
        in_flight: InFlight,
        line: Option<Box<AccessLine>>,
    ) -> Self {
        let reading = in_flight.is_http2().then(|| in_flight.reading(clock::monotonic()));
        reading.iter().for_each(Reading::pause);
        Self { _in_flight: Some(in_flight), reading, line, ..self }
    }

    /// Has bytes pass between the client, of which `early` ones have been read, and the store, to the end of either. Returns why the
    /// client's connection has ended.
    pub(in crate::dispatcher::http) async fn run<S>(self, client: S, early: Bytes) -> CloseCause
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { websocket, switched, reading, mut line, .. } = self;
        let state = &websocket.state;
        let switched = tokio::select! {
            biased;
            stop = poll_fn(|cx| state.poll_stop(cx).map_or(Poll::Pending, Poll::Ready)) => return stop.cause(),
            switched = switched => switched,
        };
        let Ok(SwitchedStream { stream, early: of_store, connected: _connected }) = switched else {
            return CloseCause::StoreFailed;
        };
        let (mut from_client, mut to_client) = tokio::io::split(client);
        let (mut from_store, mut to_store) = tokio::io::split(stream);
        let mut up = Direction::new(&early, true, None);
        let mut down = Direction::new(&of_store, false, reading);
        drop((early, of_store));
        let stop = {
            let up = pin!(up.run(&websocket, &mut from_client, &mut to_store, |_| {}));
            let count = |len| line.iter_mut().for_each(|line| line.given(len));
            let down = pin!(down.run(&websocket, &mut from_store, &mut to_client, count));
            run_both(&websocket, up, down).await
        };
        if let (Some(reason), Some(line)) = (websocket.count_refusal(stop), &mut line) {
            line.refused(reason);
        }
        if let Some((code, reason)) = stop.close() {
            let goodbye = async {
                if up.frames.is_between() {
                    // The store may be gone.
                    let _ = to_store.write_all(&close_of_client(GOING_AWAY)).await;
                    let _ = to_store.flush().await;
                }
                let close = close_of_server(code, reason);
                down.end(&websocket, &mut from_store, &mut to_client, &close).await?;
                drain(&mut from_client).await
            };
            // As far as the client takes it.
            let _ = timeout(LAST_WAIT, goodbye).await;
        }
        stop.cause()
    }
}

/// Runs both directions until something ends both.
async fn run_both(
    websocket: &WebSocket,
    mut up: Pin<&mut impl Future<Output = Stop>>,
    mut down: Pin<&mut impl Future<Output = Stop>>,
) -> Stop {
    let mut up_ended = false;
    let mut down_ended = false;
    poll_fn(|cx| {
        if let Some(stop) = websocket.state.poll_stop(cx) {
            return Poll::Ready(stop);
        }
        if websocket.state.must_look_at_tenant() && websocket.has_lost_tenant() {
            return Poll::Ready(Stop::NotAllowed);
        }
        for (is_up, ended) in [(true, &mut up_ended), (false, &mut down_ended)] {
            if *ended {
                continue;
            }
            match if is_up { up.as_mut().poll(cx) } else { down.as_mut().poll(cx) } {
                Poll::Pending => {}
                Poll::Ready(Stop::Ended) => {
                    *ended = true;
                    websocket.state.half_closed();
                }
                Poll::Ready(stop) => return Poll::Ready(stop),
            }
        }
        if up_ended && down_ended { Poll::Ready(Stop::Ended) } else { Poll::Pending }
    })
    .await
}

impl Direction {
    fn new(early: &[u8], is_to_store: bool, reading: Option<Reading>) -> Self {
        let mut buffer = early.to_vec();
        buffer.resize(PIECE.max(early.len()), 0);
        Self { buffer, at: 0, len: early.len(), frames: Frames::default(), is_to_store, reading }
    }

    /// Has bytes pass until their sender ends; [`Stop::Ended`] then.
    async fn run(
        &mut self,
        websocket: &WebSocket,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        mut count: impl FnMut(usize),
    ) -> Stop {
        let [sender, receiver] = match self.is_to_store {
            true => [Stop::Client(CloseCause::ClientLeft), Stop::Store],
            false => [Stop::Store, Stop::Client(CloseCause::ClientLeft)],
        };
        let state = &websocket.state;
        let mut since_yield = 0;
        loop {
            if since_yield >= TURN {
                since_yield = 0;
                yield_now().await;
            }
            if self.at == self.len {
                (self.at, self.len) = (0, 0);
                match from.read(&mut self.buffer).await {
                    Ok(0) => {
                        self.note_kept_waiting(true);
                        // The receiver may be gone.
                        let _ = to.shutdown().await;
                        self.note_kept_waiting(false);
                        return Stop::Ended;
                    }
                    Ok(len) => self.len = len,
                    Err(_) => return sender,
                }
            }
            state.passed();
            since_yield += self.len - self.at;
            let paid = match self.pay(websocket).await {
                Ok(paid) => paid,
                Err(stop) => return stop,
            };
            if self.is_to_store {
                state.store_keeps_waiting(true);
            }
            self.note_kept_waiting(true);
            let written = self.write(paid, to, state, &mut count).await;
            self.note_kept_waiting(false);
            if self.is_to_store {
                state.store_keeps_waiting(false);
            }
            if written.is_err() {
                return receiver;
            }
        }
    }

    /// Waits until some of what has been read may pass. Returns how many bytes.
    async fn pay(&self, websocket: &WebSocket) -> Result<usize, Stop> {
        let left = self.len - self.at;
        let mut paid = KIB.min(left);
        websocket.pay(paid).await?;
        while paid < left {
            let next = KIB.min(left - paid);
            if websocket.try_pay(next)?.is_err() {
                break;
            }
            paid += next;
        }
        Ok(paid)
    }

    async fn write(
        &mut self,
        len: usize,
        to: &mut (impl AsyncWrite + Unpin),
        state: &WebSocketState,
        mut count: impl FnMut(usize),
    ) -> io::Result<()> {
        let end = self.at + len;
        while self.at < end {
            let written = to.write(&self.buffer[self.at..end]).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.frames.pass(&self.buffer[self.at..self.at + written]);
            self.at += written;
            count(written);
            state.passed();
            if self.is_to_store {
                state.store_keeps_waiting(true);
            }
            self.note_kept_waiting(true);
        }
        to.flush().await
    }

    /// Notes whether its client keeps what is to pass to it waiting, if that is not seen by its connection.
    fn note_kept_waiting(&self, waits: bool) {
        if let Some(reading) = &self.reading {
            if waits { reading.progress(clock::monotonic()) } else { reading.pause() }
        }
    }

    /// Ends it with a close frame, behind the frame that has begun if that ends soon.
    async fn end(
        &mut self,
        websocket: &WebSocket,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        close: &[u8],
    ) -> io::Result<()> {
        let mut left = MOST_OF_FRAME;
        while !self.frames.is_between() {
            if self.at == self.len {
                (self.at, self.len) = (0, from.read(&mut self.buffer).await?);
            }
            let rest = self.frames.rest_in(&self.buffer[self.at..self.len]);
            if rest == 0 || rest > left {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let bytes = &self.buffer[self.at..self.at + rest];
            websocket.charge_as_debt(rest);
            to.write_all(bytes).await?;
            self.frames.pass(bytes);
            self.at += rest;
            left -= rest;
        }
        to.write_all(close).await?;
        to.flush().await?;
        to.shutdown().await
    }
}

/// Reads what the client still sends, so that its system does not drop the close frame that it has not read.
async fn drain(from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut piece = [0; 512];
    let mut left = MOST_OF_FRAME;
    while left > 0 {
        match from.read(&mut piece).await? {
            0 => break,
            len => left = left.saturating_sub(len),
        }
    }
    Ok(())
}

/// The bytes of one direction that gate holds at a time.
const PIECE: usize = 16 << 10;
/// The memory of a WebSocket: what is held in both directions, and what may have been read ahead of 101.
pub(super) const MEMORY: usize = 2 * PIECE + (64 << 10);
/// The same over HTTP/2, where the library holds as much of a stream's either direction as its window.
pub(super) const MEMORY_HTTP2: usize = MEMORY + 2 * (64 << 10);
/// The bytes of one direction after which its thread looks for what has come for others.
const TURN: usize = 64 << 10;
/// The bytes that are paid at a time: few enough that a small quota's debt holds their price.
const KIB: usize = 1 << 10;
/// The bytes of a frame that pass, without a wait, so that a close frame can follow.
const MOST_OF_FRAME: usize = 64 << 10;
/// The time that an end may take.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// As RFC 6455, 7.4.1, numbers a side that leaves.
const GOING_AWAY: u16 = 1_001;
