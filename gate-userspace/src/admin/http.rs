//! Requests over HTTP, and their documents.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tokio::time::timeout;

use super::cache::{self, Caches};
use super::change::{self, Order, Peer, Unchanged};
use super::document::{Document, Versioned};
use super::events::Events;
use super::explain;
use super::health::{Health, Live, Ready};
use super::history::Recorder;
use super::hotkeys::{self, Hotkeys};
use super::members;
use super::metrics::{CONTENT_TYPE, Metrics, OwnerMetrics};
use super::page;
use super::queues::Queues;
use super::reasons::Reasons;
use super::response::{failed, json, text};
use super::selection::Selection;
use super::sources::Sources;
use super::tcp::{Rules, guarded};
use super::verdicts;
use crate::clock;

/// The rights of whoever can open a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read and to change.
    Owner,
    /// To read.
    Read,
}

type Shared = State<Arc<Sources>>;

/// The viewers of the server, what their charts showed before, and the news that it ends.
#[derive(Clone, Debug)]
pub(super) struct Viewing {
    pub(super) events: Arc<Events>,
    pub(super) history: Arc<Recorder>,
    pub(super) stopped: watch::Receiver<()>,
}

fn follow(context: &Arc<Sources>, Extension(viewing): Extension<Viewing>, with_keys: bool) -> Response {
    viewing.events.follow(context, with_keys, viewing.stopped)
}

/// The paths of a socket.
pub(super) fn router(
    context: Arc<Sources>,
    metrics: Arc<Metrics>,
    viewing: Viewing,
    access: Access,
) -> Router {
    let set = match access {
        Access::Owner => post(set),
        Access::Read => post(async || {
            failed(
                StatusCode::FORBIDDEN,
                "nothing can be changed over this socket (`admin_read`); that of `admin` accepts changes",
            )
        }),
    };
    let all = open(metrics).merge(with_keys()).route("/v1/set", set);
    let all = match access {
        Access::Owner => all.route("/v1/cache/purge", post(purged)).route("/v1/cache/verify", post(verified)),
        Access::Read => all,
    };
    all.fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(viewing))
        .with_state(context)
}

/// The paths of a TCP port.
pub(super) fn port_router(
    context: Arc<Sources>,
    metrics: Arc<Metrics>,
    viewing: Viewing,
    rules: Rules,
) -> Router {
    let open = open(metrics).merge(page::router()).fallback(unknown).with_state(Arc::clone(&context));
    guarded(open, with_keys().with_state(context), rules).layer(Extension(viewing))
}

/// The paths of an owner of limits.
pub(super) fn owner_router(metrics: Arc<OwnerMetrics>) -> Router {
    let open = Router::new()
        .route("/metrics", get(async move || all_metrics(metrics.text())))
        .fallback(async || failed(StatusCode::NOT_FOUND, "an owner of limits has /metrics alone"));
    guarded(open, Router::new(), Rules::default())
}

/// The paths of what concerns services and tenants.
fn open(metrics: Arc<Metrics>) -> Router<Arc<Sources>> {
    Router::new()
        .route("/metrics", get(async move || all_metrics(metrics.text())))
        .route("/live", get(async |State(context): Shared| health(&Live::now(&context))))
        .route("/ready", get(async |State(context): Shared| health(&Ready::now(&context))))
        .route("/v1/status", get(async |State(context): Shared| document(context.status())))
        .route("/v1/tenants", get(tenants))
        .route("/v1/cache", get(async |State(context): Shared| document(Caches::read(&context.caches))))
        .route("/v1/reasons", get(async || document(Reasons::all())))
        .route("/v1/queues", get(async |State(context): Shared| document(queues(&context))))
        .route("/v1/events", get(async |State(context): Shared, viewing| follow(&context, viewing, false)))
        .route(
            "/v1/history",
            get(async |Extension(viewing): Extension<Viewing>| document(viewing.history.document())),
        )
}

/// The paths of what shows keys.
fn with_keys() -> Router<Arc<Sources>> {
    Router::new()
        .route("/v1/hotkeys", get(async |State(context): Shared| document(hotkeys(&context))))
        .route("/v1/explain", get(explained))
        .route("/v1/members", get(members))
        .route("/v1/sources", get(async |State(context): Shared| document(verdicts::sources(&context))))
        .route("/v1/watch", get(watched))
        .route(
            "/v1/events/keys",
            get(async |State(context): Shared, viewing| follow(&context, viewing, true)),
        )
}

fn all_metrics(metrics: Result<String, fmt::Error>) -> Response {
    match metrics {
        Ok(said) => text(CONTENT_TYPE, said),
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn tenants(State(context): Shared, uri: Uri) -> Response {
    match Selection::parse(uri.query().unwrap_or_default()) {
        Ok(wanted) => document(context.tenants(&wanted)),
        Err(wrong) => failed(StatusCode::UNPROCESSABLE_ENTITY, &wrong),
    }
}

fn hotkeys(context: &Sources) -> Hotkeys {
    Hotkeys { keys: hotkeys::read(&context.maps) }
}

fn queues(context: &Sources) -> Queues {
    let overrides = context.overrides.borrow().clone();
    Queues::read(&context.queues, &overrides, clock::monotonic())
}

async fn members(State(context): Shared, uri: Uri) -> Response {
    // There may be many to look at.
    let read = move || members::read(&context, uri.query().unwrap_or_default());
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(members)) => document(members),
        Ok(Err(wrong)) => failed(StatusCode::UNPROCESSABLE_ENTITY, &wrong),
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn watched(State(context): Shared, uri: Uri) -> Response {
    match verdicts::watch(&context, uri.query().unwrap_or_default()) {
        Ok(watched) => document(watched),
        Err(wrong) => failed(StatusCode::UNPROCESSABLE_ENTITY, &wrong),
    }
}

async fn explained(State(context): Shared, uri: Uri) -> Response {
    match explain::explain(&context, uri.query().unwrap_or_default()).await {
        Ok(explained) => document(explained),
        Err(wrong) => failed(StatusCode::UNPROCESSABLE_ENTITY, &wrong),
    }
}

async fn set(State(context): Shared, Extension(peer): Extension<Peer>, body: Body) -> Response {
    let body = match timeout(BODY_WITHIN, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            return failed(StatusCode::PAYLOAD_TOO_LARGE, &format!("an order has at most {MAX_BODY} bytes"));
        }
        Err(_) => return failed(StatusCode::REQUEST_TIMEOUT, "the order did not arrive within 2 s"),
    };
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let example = r#"{"set":[{"key":"gate.mode","value":"shadow"}]}"#;
            let said = format!("not an order: {error}; e.g. {example}, as `gate schema order` says");
            return failed(StatusCode::BAD_REQUEST, &said);
        }
    };
    match change::ask(&context.changes, order, peer).await {
        Ok(done) => json(StatusCode::OK, &Versioned::new(done)),
        Err(error @ Unchanged::Ends) => failed(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Err(error @ Unchanged::Refused(_)) => failed(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
    }
}

async fn purged(State(context): Shared, uri: Uri) -> Response {
    let url = uri.query().and_then(|query| query.strip_prefix("url=")).unwrap_or_default();
    let url = percent_decode_str(url).decode_utf8_lossy();
    match cache::purge(&context.caches, &url) {
        Ok(purged) => json(StatusCode::OK, &Versioned::new(purged)),
        Err(wrong) => failed(StatusCode::UNPROCESSABLE_ENTITY, &wrong),
    }
}

async fn verified(State(context): Shared) -> Response {
    let verified = tokio::task::spawn_blocking(move || cache::verify(&context.caches)).await;
    match verified.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(verified) => json(StatusCode::OK, &Versioned::new(verified)),
        Err(wrong) => failed(StatusCode::SERVICE_UNAVAILABLE, &wrong),
    }
}

async fn unknown(uri: Uri) -> Response {
    let said = format!(
        "gate {} has no {}; there are /live, /ready, /metrics, /v1/status, /v1/tenants, /v1/hotkeys, /v1/queues, /v1/explain, /v1/members, /v1/sources, /v1/watch, /v1/cache, /v1/events, /v1/history, /v1/reasons and, over the socket of `admin`, /v1/set, /v1/cache/purge and /v1/cache/verify",
        env!("CARGO_PKG_VERSION"),
        shortened(uri.path()),
    );
    failed(StatusCode::NOT_FOUND, &said)
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let right = if POSTED.contains(&uri.path()) { "POST" } else { "GET" };
    let said = format!("{} does not take {}, but {right}", shortened(uri.path()), shortened(method.as_str()));
    failed(StatusCode::METHOD_NOT_ALLOWED, &said)
}

/// So that no answer is as long as a request.
fn shortened(text: &str) -> &str {
    text.get(..MAX_SHOWN).unwrap_or(text)
}

fn health<T: Health>(document: &T) -> Response {
    let status = if document.is_well() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &Versioned::new(document))
}

fn document<T: Document>(document: T) -> Response {
    json(StatusCode::OK, &Versioned::new(document))
}

/// The paths that do something.
const POSTED: [&str; 3] = ["/v1/set", "/v1/cache/purge", "/v1/cache/verify"];
/// Longer orders are refused.
const MAX_BODY: usize = 64 << 10;
/// How long an order may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(2);
/// How much of a path or method is shown in an answer.
const MAX_SHOWN: usize = 100;
