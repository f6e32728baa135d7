//! HTTP over TLS: curl in every version, a store that speaks it, and what does not speak it as it should.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::http_client::HttpClient;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, PATIENCE, shown};
use gate_tests::tls::{Authority, Issued, TlsClient};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use xtask::lab::process::ChildProcess;
use xtask::paths;

use super::{OPEN, client, gate, respond};
use crate::tls::{backend_tls, tls};

const NAME: &str = "logs.example";
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 8);

/// The answer that curl gets at this path, with the version that it has spoken behind it.
fn curl(gate: &Listening, ca: &Path, path: &str, arguments: &[&str]) -> Result<Output> {
    let port = gate.address.port();
    let mut curl = Command::new("curl");
    curl.args([
        "-s",
        "-S",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "-w",
        "\nHTTP/%{http_version}",
        "--resolve",
    ]);
    curl.arg(format!("{NAME}:{port}:{}", gate.address.ip())).arg("--cacert").arg(ca).args(arguments);
    Ok(curl.arg(format!("https://{NAME}:{port}{path}")).output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_speaks_either_version_over_tls() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Nginx::start(&[70_001])?;
    let gate = gate(store.address, &tls(&of_gate))?;
    for (arguments, version) in [
        (&["--http1.0"][..], "HTTP/1"),
        (&["--http1.1"], "HTTP/1.1"),
        (&["--http2"], "HTTP/2"),
        // Without a choice in the handshake it is HTTP/1.1.
        (&["--no-alpn"], "HTTP/1.1"),
        (&["--http2", "--tlsv1.2", "--tls-max", "1.2"], "HTTP/2"),
    ] {
        let output = curl(&gate, &authority.ca(), "/echo", &[arguments, &["--data", "abc"]].concat())?;
        let text = said(&output);
        let host = format!("proto=https host={NAME}:{}", gate.address.port());
        ensure!(text.contains("POST /echo") && text.contains("length=3"), "{arguments:?}: {output:?}");
        ensure!(text.contains(&host) && text.ends_with(version), "{arguments:?}: {text}");
        let output = curl(&gate, &authority.ca(), "/70001", &[arguments, &["--range", "1-70000"]].concat())?;
        ensure!(output.stdout.len() == 70_000 + 1 + version.len(), "{arguments:?}: {output:?}");
    }
    ensure!(counter(&gate, "tls-failed")? == 0);
    Ok(())
}

#[test]
fn curl_does_not_take_a_certificate_of_another() -> Result<()> {
    let authority = Authority::new()?;
    let foreign = Authority::new()?;
    let store = Nginx::start(&[])?;
    for (shown, ca) in [
        (authority.issue("other", "DNS:other.example", 30)?, authority.ca()),
        (authority.issue("expired", &format!("DNS:{NAME}"), -1)?, authority.ca()),
        (authority.issue("gate", &format!("DNS:{NAME}"), 30)?, foreign.ca()),
    ] {
        let gate = gate(store.address, &tls(&shown))?;
        let output = curl(&gate, &ca, "/echo", &[])?;
        ensure!(output.status.code() == Some(60), "{output:?}");
    }
    ensure!(store.seen()?.is_empty());
    Ok(())
}

#[test]
fn whoever_mistakes_plain_for_tls_or_the_version_gets_an_end() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, &tls(&of_gate))?;
    let reply = client(&gate)?.ask("GET /echo", "")?;
    ensure!((reply.status, reply.reason()) == (400, "unsupported"), "{reply:?}");
    wait_until("it is not counted", || Ok(counter(&gate, "tls-failed")? == 1))?;
    // A choice in the handshake without one that gate speaks.
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-alpn", "spdy/1", "-connect", &gate.address.to_string()]);
    let output = openssl.stdin(Stdio::null()).output()?;
    ensure!(!output.status.success(), "{output:?}");
    wait_until("it is not counted", || Ok(counter(&gate, "tls-failed")? == 2))?;
    // HTTP/2 that was not chosen.
    let mut unchosen = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
    unchosen.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    let ended = unchosen.read_until(b"never").err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(!ended.contains("temporarily unavailable"), "it is spoken, and waited on: {ended}");
    // Many requests on one connection, all at once.
    let mut many = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
    many.send(&b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n".repeat(20))?;
    let mut answers = 0;
    while answers < 20 {
        let said = many.read_until(b"coding=\n")?;
        answers += String::from_utf8_lossy(&said).matches("coding=\n").count();
    }
    // TLS where plain is spoken.
    let plain = super::gate(store.address, "")?;
    let output = curl(&plain, &authority.ca(), "/echo", &[])?;
    ensure!(!output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn certificates_are_read_again_with_the_choice_of_versions() -> Result<()> {
    let authority = Authority::new()?;
    let old = authority.issue("old", &format!("DNS:{NAME}"), 30)?;
    let new = authority.issue("new", &format!("DNS:{NAME}"), 30)?;
    let used = authority.issue("used", &format!("DNS:{NAME}"), 30)?;
    let take = |issued: &Issued| -> Result<()> {
        std::fs::copy(&issued.certificate, &used.certificate)?;
        std::fs::copy(&issued.key, &used.key)?;
        Ok(())
    };
    take(&old)?;
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, &tls(&used))?;
    const GET: &[u8] = b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";
    let connect = || -> Result<TlsClient> {
        let mut client = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
        client.ask(GET, b"coding=\n")?;
        Ok(client)
    };
    let mut first = connect()?;
    ensure!(first.shown() == Some(old.der()?));
    take(&new)?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("the new certificate is not shown", || Ok(connect()?.shown() == Some(new.der()?)))?;
    first.ask(GET, b"coding=\n")?;
    let text = said(&curl(&gate, &authority.ca(), "/echo", &["--http2"])?);
    ensure!(text.ends_with("HTTP/2"), "{text}");
    Ok(())
}

#[test]
fn a_takeover_leaves_no_request_over_tls_unanswered() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = FakeStore::start()?;
    // One thread: they learn of it together.
    let mut first = Listening::gate_with("threads = \"1\"", "http", store.address, &tls(&of_gate), OPEN)?;
    let mut idle = TlsClient::connect(&first, CLIENT, &authority.ca(), NAME)?;
    idle.send(b"GET /idle HTTP/1.1\r\nhost: a\r\n\r\n")?;
    respond(&mut store.next()?.0, "idle")?;
    idle.read_until(b"idle")?;
    let mut busy = TlsClient::connect(&first, CLIENT, &authority.ca(), NAME)?;
    busy.send(b"GET /busy HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut asked, _) = store.next()?;
    let (config, _) = first.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["run", "--takeover", "--config"]).arg(config);
    let mut next = ChildProcess::start("gate", command)?;
    next.wait_for("running without XDP", PATIENCE)?;
    first.signal(Signal::SIGUSR2)?;
    ensure!(idle.read_until(b"never").is_err(), "there is nothing to wait for");
    respond(&mut asked, "answered")?;
    let answer = busy.read_until(b"answered")?;
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    ensure!(answer.contains("connection: close"), "{answer}");
    wait_until("the old one ends", || Ok(!first.program().is_running()?))?;
    let mut new = TlsClient::connect(&first, CLIENT, &authority.ca(), NAME)?;
    new.send(b"GET /new HTTP/1.1\r\nhost: a\r\n\r\n")?;
    respond(&mut store.next()?.0, "by the next")?;
    new.read_until(b"by the next")?;
    next.end()?;
    Ok(())
}

#[test]
fn a_store_over_tls_is_asked_if_its_certificate_is_right() -> Result<()> {
    let authority = Authority::new()?;
    let foreign = Authority::new()?;
    let name = "DNS:store.example";
    let right = Nginx::start_with_tls(&[70_001], &authority.issue("right", name, 30)?)?;
    let service = backend_tls(&authority.ca(), "store.example");
    let gate = super::gate(right.address, &service)?;
    let mut asked = client(&gate)?;
    for _ in 0..3 {
        ensure!(asked.ask("GET /echo", "")?.text().contains("proto=http "));
        ensure!(asked.ask("GET /70001", "")?.body.len() == 70_001);
    }
    ensure!(counter(&gate, "store-connected")? == 1, "its connection is used again");
    for (shown, says) in [
        (authority.issue("other", "DNS:other.example", 30)?, "not valid for name"),
        (authority.issue("expired", name, -1)?, "Expired"),
        (foreign.issue("stranger", name, 30)?, "invalid peer certificate"),
    ] {
        let store = Nginx::start_with_tls(&[], &shown)?;
        let mut gate = super::gate(store.address, &service)?;
        let reply = client(&gate)?.ask("GET /echo", "")?;
        ensure!((reply.status, reply.reason()) == (503, "store-down"), "{says}: {reply:?}");
        let line = gate.program().wait_for("no TLS with the store", PATIENCE)?;
        ensure!(line.contains(says), "{line}");
        ensure!(store.seen()?.is_empty());
    }
    // One of both speaks plainly.
    let plain = Nginx::start(&[])?;
    for (store, service) in [(&plain, &*service), (&right, "")] {
        let gate = super::gate(store.address, service)?;
        let reply = client(&gate)?.ask("GET /echo", "")?;
        ensure!([400, 502, 503].contains(&reply.status), "{reply:?}");
    }
    Ok(())
}

/// Answers one request over TLS without a length, and says that nothing more comes or not.
fn answer_once(listener: &TcpListener, shown: &Issued, says_end: bool) -> Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let key = PrivateKeyDer::from_pem_file(&shown.key)?;
    let config = config.with_no_client_auth().with_single_cert(vec![shown.der()?], key)?;
    let stream = listener.accept()?.0;
    let mut stream = StreamOwned::new(ServerConnection::new(Arc::new(config))?, stream);
    let mut request = [0; 1_024];
    ensure!(stream.read(&mut request)? > 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe first half")?;
    if says_end {
        stream.conn.send_close_notify();
    }
    stream.flush()?;
    stream.sock.shutdown(std::net::Shutdown::Write)?;
    Ok(())
}

#[test]
fn an_answer_that_is_cut_off_is_not_taken_for_a_whole_one() -> Result<()> {
    let authority = Authority::new()?;
    let of_store = authority.issue("store", "DNS:store.example", 30)?;
    for says_end in [true, false] {
        let listener = TcpListener::bind(gate_tests::proxy::address())?;
        let gate = gate(listener.local_addr()?, &backend_tls(&authority.ca(), "store.example"))?;
        let mut asked: HttpClient = client(&gate)?;
        asked.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
        answer_once(&listener, &of_store, says_end).context("the store")?;
        let reply = asked.reply(false);
        match says_end {
            true => {
                let reply = reply?;
                ensure!(reply.text() == "the first half", "{}", shown(&reply.body));
            }
            false => {
                ensure!(reply.as_ref().is_err() || reply.as_ref().is_ok_and(|r| r.status == 502), "{reply:?}")
            }
        }
    }
    Ok(())
}
