//! WebSockets over TLS, and while another gate takes over.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use gate_tests::proxy::Listening;
pub(super) use gate_tests::proxy::PATIENCE;
use gate_tests::tls::{Authority, TlsClient};
use gate_tests::wait::wait_until;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};
use xtask::lab::process::ChildProcess;
use xtask::paths;

use super::OPEN;
use super::http2_client::{Http2Client, runtime};
use super::websocket::server;
use crate::tls::tls;

const NAME: &str = "chat.example";

fn open<S: Read + Write>(stream: S, scheme: &str) -> Result<WebSocket<S>> {
    let request = format!("{scheme}://{NAME}/").into_client_request()?;
    let opened = tungstenite::client(request, stream);
    opened.map(|(socket, _)| socket).map_err(|error| anyhow::anyhow!("no WebSocket: {error}"))
}

/// Has a message come back.
fn echo<S: Read + Write>(socket: &mut WebSocket<S>, len: usize) -> Result<()> {
    let sent = Message::binary((0..len).map(|at| (at % 249) as u8).collect::<Vec<_>>());
    socket.send(sent.clone())?;
    ensure!(socket.read()? == sent, "{len} bytes");
    Ok(())
}

fn secure_http2(authority: &Authority, stream: TcpStream) -> Result<Http2Client> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let runtime = runtime()?;
    stream.set_nonblocking(true)?;
    let stream = runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from(NAME)?, stream)
            .await
            .map_err(anyhow::Error::from)
    })?;
    Http2Client::over(runtime, stream)
}

#[test]
fn messages_pass_over_tls_while_another_gate_takes_over() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let service = format!("websocket = \"on\"\n{}", tls(&of_gate));
    let mut old = Listening::gate_with("drain = \"60s\"", "http", server()?, &service, OPEN)?;
    let secure = || TlsClient::over(old.connect()?, &authority.ca(), NAME);
    let mut before = open(secure()?, "wss")?;
    let streams = secure_http2(&authority, old.connect()?)?;
    let (_, mut stream) = streams.open("/", &[])?.agreed()?;
    for len in [0, 125, 16_384, 70_000, 1 << 20] {
        echo(&mut before, len)?;
        echo(&mut stream, len)?;
    }
    let (config, _) = old.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["run", "--takeover", "--config"]).arg(config);
    let new = ChildProcess::start("gate", command)?;
    let over = AtomicBool::new(false);
    let took_over = std::thread::scope(|scope| {
        // From its beginning to its end.
        let passing = scope.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                echo(&mut before, 1_000)?;
                echo(&mut stream, 1_000)?;
                count += 1;
            }
            anyhow::Ok(count)
        });
        let took_over = old.program().wait_for("no new connections", PATIENCE);
        over.store(true, Ordering::Relaxed);
        let passed = passing.join().expect("it does not panic")?;
        ensure!(passed > 10, "{passed}");
        took_over
    });
    took_over?;
    let secure = || TlsClient::over(old.connect()?, &authority.ca(), NAME);
    // New ones come to the new gate, and neither ends the others.
    let mut after = open(secure()?, "wss")?;
    for len in [0, 70_000] {
        echo(&mut after, len)?;
        echo(&mut before, len)?;
        echo(&mut stream, len)?;
    }
    // Over HTTP/2 the connection takes no more requests.
    ensure!(streams.get("/").is_err(), "it was told to go elsewhere");
    before.close(None)?;
    stream.close(None)?;
    while before.read().is_ok() {}
    while stream.read().is_ok() {}
    drop((before, stream, streams));
    wait_until("the old gate does not end", || Ok(!old.program().is_running()?))?;
    echo(&mut after, 1_000)?;
    drop(after);
    new.end().map(drop)
}
