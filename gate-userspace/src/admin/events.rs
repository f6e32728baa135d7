//! `/v1/events`: a snapshot a second, read once for all viewers.
//!
//! Each viewer has room for one snapshot that it has not read. One that reads none for [`MAX_MISSED`] of them in a row is
//! closed, and so is every viewer when the server ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::document::Versioned;
use super::response::failed;
use super::snapshot::Snapshot;
use super::sources::Sources;

/// The viewers of one server.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<Viewers>);

#[derive(Debug, Default)]
struct Viewers {
    all: Vec<Viewer>,
    /// True while snapshots are taken.
    is_running: bool,
}

#[derive(Debug)]
struct Viewer {
    snapshots: mpsc::Sender<Bytes>,
    with_keys: bool,
    /// Snapshots in a row for which there was no room.
    missed: u32,
    stalled: Stalled,
}

/// Set once a viewer does not read: its connection is to be closed. An answer that has this mark has no end.
#[derive(Clone, Debug, Default)]
pub(super) struct Stalled(Arc<AtomicBool>);

impl Stalled {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Events {
    /// Adds a viewer, who sees keys if it may, until `stopped` says that the server ends.
    pub(super) fn follow(
        self: &Arc<Self>,
        sources: &Arc<Sources>,
        with_keys: bool,
        stopped: watch::Receiver<()>,
    ) -> Response {
        let (snapshots, body) = mpsc::channel(1);
        let stalled = Stalled::default();
        {
            let mut viewers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            viewers.all.retain(|viewer| !viewer.snapshots.is_closed());
            if viewers.all.len() >= MAX_VIEWERS {
                return failed(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "all places of viewers are taken, 16 in all: close one",
                );
            }
            viewers.all.push(Viewer { snapshots, with_keys, missed: 0, stalled: stalled.clone() });
            if !std::mem::replace(&mut viewers.is_running, true) {
                tokio::spawn(Arc::clone(self).take_snapshots(Arc::clone(sources), stopped));
            }
        }
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        let mut response = (headers, Body::new(Stream(body))).into_response();
        response.extensions_mut().insert(stalled);
        response
    }

    /// Takes snapshots while there are viewers. The first comes at once.
    async fn take_snapshots(self: Arc<Self>, sources: Arc<Sources>, mut stopped: watch::Receiver<()>) {
        let mut times = tokio::time::interval(EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stopped.changed() => {
                    let mut viewers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    *viewers = Viewers::default();
                    return;
                }
                _ = times.tick() => {}
            }
            let mut viewers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !viewers.send(&sources) {
                viewers.is_running = false;
                return;
            }
        }
    }
}

impl Viewers {
    /// Sends a snapshot to all viewers. False if there are none.
    fn send(&mut self, sources: &Sources) -> bool {
        self.all.retain(|viewer| !viewer.snapshots.is_closed());
        if self.all.is_empty() {
            return false;
        }
        let snapshot = Snapshot::read(sources);
        let mut plain = None;
        let mut with_keys = None;
        self.all.retain_mut(|viewer| {
            let text = match viewer.with_keys {
                true => with_keys.get_or_insert_with(|| event(&snapshot.clone().with_keys(sources))),
                false => plain.get_or_insert_with(|| event(&snapshot)),
            };
            viewer.missed = match viewer.snapshots.try_send(text.clone()) {
                Ok(()) => 0,
                Err(_) => viewer.missed + 1,
            };
            let is_stalled = viewer.missed >= MAX_MISSED;
            viewer.stalled.0.store(is_stalled, Ordering::Relaxed);
            !is_stalled
        });
        true
    }
}

/// A snapshot as an event of `text/event-stream`.
fn event(snapshot: &Snapshot) -> Bytes {
    let text = match serde_json::to_string(&Versioned::new(snapshot)) {
        Ok(text) => text,
        Err(error) => return Bytes::from(format!(": {error}\n\n")),
    };
    Bytes::from(format!("data: {text}\n\n"))
}

/// The body of a viewer's response.
struct Stream(mpsc::Receiver<Bytes>);

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

const EVERY: Duration = Duration::from_secs(1);
const MAX_VIEWERS: usize = 16;
/// Seconds without reading. A page waits as long for gate.
const MAX_MISSED: u32 = 5;
