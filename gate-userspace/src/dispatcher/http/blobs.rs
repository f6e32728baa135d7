//! Where the processor fetches originals: `GET` and `HEAD` of a name that gate has told it, and nothing else.
//!
//! A connection carries one request, and has as long as a processing may take.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_LENGTH, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::reply_body::ReplyBody;
use super::service::HttpService;
use crate::cache::CacheEvent;
use crate::processing::Processing;

/// Serves originals to whoever knows their names, for ever.
pub(in crate::dispatcher) async fn serve(service: Rc<HttpService>, listener: TcpListener) {
    let Some(processing) = service.processing.clone() else { return };
    let patience = Duration::from(processing.settings.timeout);
    let open = Rc::new(Cell::new(0));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(BACKOFF).await;
            continue;
        };
        if open.get() == MOST {
            continue;
        }
        let held = OpenConnection::new(&open);
        let service = Rc::clone(&service);
        let processing = Arc::clone(&processing);
        let answer = service_fn(move |request: Request<Incoming>| {
            let response = respond(&service, &processing, &request);
            async { Ok::<_, Infallible>(response) }
        });
        let mut server = http1::Builder::new();
        server.keep_alive(false).max_buf_size(LONGEST_HEAD).timer(TokioTimer::new());
        server.header_read_timeout(patience);
        tokio::task::spawn_local(async move {
            let _held = held;
            // A processor that leaves is no fault of gate's.
            let _ = timeout(patience, server.serve_connection(TokioIo::new(socket), answer)).await;
        });
    }
}

fn respond(
    service: &HttpService,
    processing: &Processing,
    request: &Request<Incoming>,
) -> Response<ReplyBody> {
    let empty = |status| {
        let mut response = Response::new(ReplyBody::whole(Vec::new()));
        *response.status_mut() = status;
        response
    };
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let name = request.uri().path().strip_prefix('/').unwrap_or_default();
    let Some(blob) = processing.blobs.find(name) else {
        service.cache.iter().for_each(|cache| cache.count(CacheEvent::UnknownBlob));
        return empty(StatusCode::NOT_FOUND);
    };
    if !is_head {
        blob.note_fetched();
    }
    let body = if is_head { Bytes::new() } else { blob.bytes.clone() };
    let mut response = Response::new(ReplyBody::of_bytes(body));
    *response.headers_mut() = blob.headers.clone();
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(blob.bytes.len()));
    response
}

/// One of the connections that there may be.
struct OpenConnection(Rc<Cell<usize>>);

impl OpenConnection {
    fn new(open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(Rc::clone(open))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Connections of a thread at a time: one for each original that may be processed, and for its retries.
const MOST: usize = 2_048;
/// The longest head.
const LONGEST_HEAD: usize = 16 << 10;
/// Out of descriptors or memory, accepting would fail at once again.
const BACKOFF: Duration = Duration::from_millis(100);
