//! One request to a running gate, and its answer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{getsockopt, sockopt};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::cache::{Purged, VerifiedCaches};
use super::change::{Done, Order};
use super::document::{Document, Failure, SCHEMA_VERSION, Versioned};
use super::listing::Tenants;
use super::members::MemberList;
use super::selection::Selection;
use super::verdicts::Watched;
use crate::explanation::{Asker, Explanation, Question};
use crate::system_error::in_words;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no gate listens at {}: {}", path.display(), how_to_find(error))]
    NoDaemon {
        /// Where.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The daemon did not answer in time, or closed the connection.
    #[error("the gate at {} does not answer", path.display())]
    NoAnswer {
        /// Where.
        path: PathBuf,
        /// The error of the system or of HTTP.
        source: Cause,
    },
    /// The answer cannot be parsed: most likely the daemon is of another version.
    #[error(
        "the gate at {} answers something else than was asked: is it of another version than this one, {}?",
        path.display(), env!("CARGO_PKG_VERSION")
    )]
    Strange {
        /// Where.
        path: PathBuf,
        /// The parser's error.
        source: Cause,
    },
    /// The documents of the daemon have another meaning.
    #[error(
        "the gate at {} is of another version: its documents have version {theirs}, and this gate reads version {SCHEMA_VERSION}; \
         use the `gate` that is running", path.display()
    )]
    OtherVersion {
        /// Where.
        path: PathBuf,
        /// The version of its documents.
        theirs: u32,
    },
    /// The process that listens is not the one that answers, or is one of another PID namespace.
    #[error("the gate at {} runs in another container: end it there", path.display())]
    NotItself {
        /// Where.
        path: PathBuf,
    },
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
}

/// Reads a document of the gate at `path`.
///
/// # Errors
///
/// [`Error`].
pub fn read<D: Document>(path: &Path) -> Result<D, Error> {
    let request = Request::get(format!("/v1/{}", D::NAME)).body(Body::empty());
    ask(path, request, PATIENCE)
}

/// The process id of the gate at `path`, whichever version it has.
///
/// # Errors
///
/// [`Error`]; [`Error::NotItself`] if another process listens there than the one that answers.
pub fn daemon(path: &Path) -> Result<i32, Error> {
    let stream = connect(path)?;
    let listens = getsockopt(&stream, sockopt::PeerCredentials).map_or(0, |peer| peer.pid());
    let answer = exchange(path, stream, Request::get("/v1/status").body(Body::empty()), PATIENCE)?;
    let Owner { daemon } = serde_json::from_slice(&answer)
        .map_err(|source| Error::Strange { path: path.to_owned(), source: source.into() })?;
    if daemon != listens || daemon <= 1 {
        return Err(Error::NotItself { path: path.to_owned() });
    }
    Ok(daemon)
}

/// Reads the tenants of the gate at `path` that are selected.
///
/// # Errors
///
/// [`Error`].
pub fn tenants(path: &Path, wanted: &Selection) -> Result<Tenants, Error> {
    let request = Request::get(format!("/v1/{}?{}", Tenants::NAME, wanted.query())).body(Body::empty());
    ask(path, request, PATIENCE)
}

/// Reads the members of the gate's tenants that have least left; of one tenant alone if it is named.
///
/// # Errors
///
/// [`Error`].
pub fn members(path: &Path, tenant: Option<&str>) -> Result<MemberList, Error> {
    let query = tenant.map_or_else(String::new, |name| {
        format!("?tenant={}", percent_encode(name.as_bytes(), NON_ALPHANUMERIC))
    });
    ask(path, Request::get(format!("/v1/{}{query}", MemberList::NAME)).body(Body::empty()), PATIENCE)
}

/// Reads the sampled verdicts of the gate at `path`, from number `from` on.
///
/// # Errors
///
/// [`Error`].
pub fn watch(path: &Path, from: u64) -> Result<Watched, Error> {
    let request = Request::get(format!("/v1/{}?from={from}", Watched::NAME)).body(Body::empty());
    ask(path, request, PATIENCE)
}

/// Asks the gate at `path` what the next request of a client would get.
///
/// # Errors
///
/// [`Error`].
pub fn explain(path: &Path, service: &str, is_udp: bool, question: &Question) -> Result<Explanation, Error> {
    let encoded = |bytes: &[u8]| percent_encode(bytes, NON_ALPHANUMERIC).to_string();
    let mut query = format!("service={}", encoded(service.as_bytes()));
    let mut add = |key: &str, value: &[u8]| query.push_str(&format!("&{key}={}", encoded(value)));
    match &question.client {
        Asker::Source(source) => add("source", source.to_string().as_bytes()),
        Asker::Tenant(tenant) => add("tenant", tenant.as_bytes()),
    }
    question.user.iter().for_each(|user| add("user", user.as_bytes()));
    question.words.iter().for_each(|word| add("command", word));
    add("transport", if is_udp { b"udp" } else { b"tcp" });
    let request = Request::get(format!("/v1/{}?{query}", Explanation::NAME)).body(Body::empty());
    ask(path, request, PATIENCE)
}

/// Has the gate at `path` remove a URL from its caches.
///
/// # Errors
///
/// [`Error`].
pub fn purge(path: &Path, url: &str) -> Result<Purged, Error> {
    let url = percent_encode(url.as_bytes(), NON_ALPHANUMERIC);
    ask(path, Request::post(format!("/v1/cache/purge?url={url}")).body(Body::empty()), PATIENCE)
}

/// Has the gate at `path` look at all files of its caches.
///
/// # Errors
///
/// [`Error`].
pub fn verify(path: &Path) -> Result<VerifiedCaches, Error> {
    ask(path, Request::post("/v1/cache/verify").body(Body::empty()), VERIFIED_WITHIN)
}

/// Has the gate at `path` carry out an order.
///
/// # Errors
///
/// [`Error`]; then nothing is changed, unless there was no answer.
pub fn change(path: &Path, order: &Order) -> Result<Done, Error> {
    let no_order = |source| Error::Strange { path: path.to_owned(), source: Box::new(source) };
    let body = Body::from(serde_json::to_vec(order).map_err(no_order)?);
    let request = Request::builder().method(Method::POST).uri("/v1/set");
    ask(path, request.header(header::CONTENT_TYPE, "application/json").body(body), UNTIL_A_TICK)
}

fn ask<T: DeserializeOwned>(
    path: &Path,
    request: hyper::http::Result<Request<Body>>,
    patience: Duration,
) -> Result<T, Error> {
    let answer = exchange(path, connect(path)?, request, patience)?;
    let strange = |source: serde_json::Error| Error::Strange { path: path.to_owned(), source: source.into() };
    let Version { schema_version: theirs } = serde_json::from_slice(&answer).map_err(strange)?;
    if theirs != SCHEMA_VERSION {
        return Err(Error::OtherVersion { path: path.to_owned(), theirs });
    }
    let document: Versioned<T> = serde_json::from_slice(&answer).map_err(strange)?;
    Ok(document.document)
}

/// A remedy for a socket that nobody listens at, or that may not be opened.
fn how_to_find(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "start one with `gate run`, or name the socket of another with --socket (`admin` in its configuration)".to_owned()
        }
        _ => in_words(error),
    }
}

fn connect(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path).map_err(|error| Error::NoDaemon { path: path.to_owned(), error })
}

/// The answer to a request, if it is one that carries a document.
fn exchange(
    path: &Path,
    stream: UnixStream,
    request: hyper::http::Result<Request<Body>>,
    patience: Duration,
) -> Result<Vec<u8>, Error> {
    let strange = |source: Cause| Error::Strange { path: path.to_owned(), source };
    let no_answer = |source: Cause| match source.downcast_ref::<hyper::Error>() {
        Some(error) if error.is_parse() => strange(source),
        _ => Error::NoAnswer { path: path.to_owned(), source },
    };
    let (status, answer) = converse(stream, request, patience).map_err(no_answer)?;
    if status != StatusCode::OK {
        let failure: Failure = serde_json::from_slice(&answer).map_err(|source| strange(source.into()))?;
        return Err(Error::Refused(failure.error));
    }
    Ok(answer)
}

/// The field of a status that names the daemon, in all versions.
#[derive(Deserialize)]
struct Owner {
    daemon: i32,
}

/// The field that all versions have.
#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}

fn converse(
    stream: UnixStream,
    request: hyper::http::Result<Request<Body>>,
    patience: Duration,
) -> Result<(StatusCode, Vec<u8>), Cause> {
    let mut request = request?;
    request.headers_mut().insert(header::HOST, header::HeaderValue::from_static("gate"));
    stream.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let conversation = async {
        let stream = TokioIo::new(tokio::net::UnixStream::from_std(stream)?);
        let (mut sender, connection) = http1::handshake(stream).await?;
        drop(tokio::spawn(connection));
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), MAX_ANSWER).await?;
        Ok((status, body.to_vec()))
    };
    runtime.block_on(async { timeout(patience, conversation).await? })
}

/// A gate that is stopped accepts connections, and says nothing.
/// All files of a large cache are read.
const VERIFIED_WITHIN: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(5);
/// A change waits for the next tick or two, which may be 10 s each.
const UNTIL_A_TICK: Duration = Duration::from_secs(40);
/// Several times what 10,000 tenants take.
const MAX_ANSWER: usize = 256 << 20;
