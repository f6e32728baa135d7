//! A client of HTTP/2 that goes on as WebSockets beside other requests (RFC 8441): hyper's.

use std::future::poll_fn;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::pin::Pin;

use anyhow::{Context as _, Result};
use gate_tests::proxy::PATIENCE;
use hyper::body::{Body as _, Bytes};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::ext::Protocol;
use hyper::http::response::Parts;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tungstenite::WebSocket;
use tungstenite::protocol::Role;

/// A connection.
pub(super) struct Http2Client {
    runtime: Runtime,
    sender: SendRequest<String>,
}

impl Http2Client {
    pub(super) fn over_tcp(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        let runtime = runtime()?;
        let stream = runtime.block_on(async { tokio::net::TcpStream::from_std(stream) })?;
        Self::over(runtime, stream)
    }

    pub(super) fn over<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        runtime: Runtime,
        stream: S,
    ) -> Result<Self> {
        let sender = runtime.block_on(async {
            let handshake = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
            let (sender, connection) = timeout(PATIENCE, handshake).await??;
            // Before that it may ask for no WebSocket.
            let is_offered = async {
                while !connection.is_extended_connect_protocol_enabled() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, is_offered).await?;
            // Its requests learn of its end.
            tokio::spawn(async move { drop(connection.await) });
            anyhow::Ok(sender)
        })?;
        Ok(Self { runtime, sender })
    }

    /// A WebSocket at this path, if that is agreed to, with the head of the answer; else the answer.
    pub(super) fn open(&self, path: &str, fields: &[(&str, &str)]) -> Result<Opened> {
        let fields = [&[("sec-websocket-version", "13")], fields].concat();
        self.send(request(Method::CONNECT, path, &fields, Some("websocket"))?)
    }

    /// The answer to a request.
    pub(super) fn get(&self, path: &str) -> Result<(Parts, String)> {
        self.send(request(Method::GET, path, &[], None)?)?.refused()
    }

    pub(super) fn send(&self, request: Request<String>) -> Result<Opened> {
        let is_connect = request.method() == Method::CONNECT;
        let mut sender = self.sender.clone();
        let work = async move {
            sender.ready().await?;
            let mut response = sender.send_request(request).await?;
            if is_connect && response.status() == StatusCode::OK {
                let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await?);
                let (near, far) = UnixStream::pair()?;
                far.set_nonblocking(true)?;
                let mut far = tokio::net::UnixStream::from_std(far)?;
                tokio::spawn(async move { drop(copy_bidirectional(&mut stream, &mut far).await) });
                near.set_read_timeout(Some(PATIENCE))?;
                let (parts, _) = response.into_parts();
                let socket = WebSocket::from_raw_socket(near, Role::Client, None);
                return Ok(Opened::WebSocket(parts, Box::new(socket)));
            }
            let (parts, mut body) = response.into_parts();
            let mut text = Vec::new();
            while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                text.extend_from_slice(&frame?.into_data().unwrap_or(Bytes::new()));
            }
            Ok(Opened::Answer(parts, String::from_utf8(text)?))
        };
        self.runtime.block_on(async { timeout(PATIENCE, work).await? })
    }
}

/// The end of an attempt to open a WebSocket.
pub(super) enum Opened {
    WebSocket(Parts, Box<WebSocket<UnixStream>>),
    Answer(Parts, String),
}

impl Opened {
    pub(super) fn agreed(self) -> Result<(Parts, WebSocket<UnixStream>)> {
        match self {
            Self::WebSocket(parts, socket) => Ok((parts, *socket)),
            Self::Answer(parts, text) => anyhow::bail!("not agreed to: {parts:?} {text}"),
        }
    }

    pub(super) fn refused(self) -> Result<(Parts, String)> {
        match self {
            Self::Answer(parts, text) => Ok((parts, text)),
            Self::WebSocket(parts, _) => anyhow::bail!("agreed to: {parts:?}"),
        }
    }

    /// The status, and gate's reason.
    pub(super) fn refusal(self) -> Result<(u16, String)> {
        let (parts, _) = self.refused()?;
        let reason = parts.headers.get("gate-reason").map_or(Ok(""), |reason| reason.to_str())?;
        Ok((parts.status.as_u16(), reason.to_owned()))
    }
}

pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().context("no runtime")
}

/// A request to the host `a`.
pub(super) fn request(
    method: Method,
    path: &str,
    fields: &[(&str, &str)],
    protocol: Option<&'static str>,
) -> Result<Request<String>> {
    let mut request = Request::builder().method(method).uri(format!("http://a{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    if let Some(protocol) = protocol {
        request = request.extension(Protocol::from_static(protocol));
    }
    Ok(request.body(String::new())?)
}
