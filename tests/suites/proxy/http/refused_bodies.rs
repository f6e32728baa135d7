//! Bodies of requests that are refused: a short one is read, a long one is not, and its client learns why.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::Listening;
use hyper::Method;

use super::client_from;
use super::http2_client::{Http2Client, request};

const TENANTS: &str = "[[tenant]]\nname = \"bound\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\nkeys = \"own\"\n\
                       key_prefixes = [\"a\"]\n[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";
const BOUND: u8 = 8;

/// A gate that refuses what comes from [`BOUND`].
fn refusing_gate(max_request: &str) -> Result<(FakeStore, Listening)> {
    let store = FakeStore::start()?;
    let service = format!("websocket = \"on\"\nmax_request = \"{max_request}\"\nclient_timeout = \"60s\"");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, &service, TENANTS)?;
    Ok((store, gate))
}

fn post(fields: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n")
}

/// Asks for something, which is refused, and its connection goes on or not.
fn refused(client: &mut HttpClient, fields: &str, closes: bool) -> Result<()> {
    let reply = client.reply(false)?;
    ensure!(reply.status == 403, "{fields}: {reply:?}");
    ensure!((reply.field("connection") == Some("close")) == closes, "{fields}: {reply:?}");
    Ok(())
}

#[test]
fn a_short_body_behind_its_refusal_leaves_the_connection() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    let client = &mut client_from(&gate, BOUND)?;
    for (fields, body) in [
        ("content-length: 100\r\n", vec![b'x'; 100]),
        ("content-length: 60000\r\n", vec![b'x'; 60_000]),
        (
            "transfer-encoding: chunked\r\n",
            [&b"ea60\r\n"[..], &[b'x'; 60_000], b"\r\n0\r\nx-trailer: 1\r\n\r\n"].concat(),
        ),
    ] {
        // The body comes with the head, or once the answer is there.
        for comes_later in [false, true] {
            client.send(post(fields).as_bytes())?;
            if !comes_later {
                client.send(&body)?;
            }
            refused(client, fields, false)?;
            if comes_later {
                client.send(&body)?;
            }
        }
    }
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
    refused(client, "the next", false)
}

#[test]
fn a_client_that_sends_a_long_body_reads_its_refusal() -> Result<()> {
    let refuses = refusing_gate("10MiB")?.1;
    let takes_less = refusing_gate("64KiB")?.1;
    for (gate, last, fields, len, status) in [
        (&refuses, BOUND, "content-length: 900000\r\n", 900_000, 403),
        // More than a request may have.
        (&takes_less, 2, "content-length: 900000\r\n", 900_000, 413),
        (&takes_less, 2, "transfer-encoding: chunked\r\n", 900_000, 413),
    ] {
        let mut client = client_from(gate, last)?;
        let chunk = if fields.starts_with('t') { format!("{len:x}\r\n") } else { String::new() };
        client.send(&[post(fields).as_bytes(), chunk.as_bytes()].concat())?;
        // All of it is sent, in pieces, before anything is read.
        for _ in 0..len / 10_000 {
            client.send(&[b'x'; 10_000])?;
        }
        let reply = client.reply(false)?;
        ensure!(reply.status == status && reply.field("connection") == Some("close"), "{fields}: {reply:?}");
        ensure!(client.is_closed()?, "{fields}");
    }
    Ok(())
}

#[test]
fn a_body_that_is_kept_back_is_not_asked_for() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    for len in [100, 900_000] {
        let mut client = client_from(&gate, BOUND)?;
        let fields = format!("content-length: {len}\r\nexpect: 100-continue\r\n");
        client.send(post(&fields).as_bytes())?;
        refused(&mut client, &fields, true)?;
        ensure!(client.is_closed()?);
    }
    Ok(())
}

#[test]
fn a_connection_that_ends_waits_for_no_body() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    // Of the first nobody knows the length, and no body comes.
    for fields in ["transfer-encoding: gzip, chunked\r\n", "content-length: 100\r\nexpect: more\r\n"] {
        let mut client = client_from(&gate, 2)?;
        client.send(post(fields).as_bytes())?;
        let reply = client.reply(false)?;
        ensure!(
            [403, 417].contains(&reply.status) && reply.field("connection") == Some("close"),
            "{reply:?}"
        );
        // Sooner than `client_timeout`, for which a short body would be read.
        ensure!(client.is_closed()?, "{fields}");
    }
    Ok(())
}

#[test]
fn an_endless_body_behind_a_refusal_ends_its_connection() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    for (last, fields) in [
        (BOUND, "transfer-encoding: chunked\r\n"),
        (BOUND, "content-length: 100000000000\r\n"),
        (2, "content-length: 100000000000\r\n"),
    ] {
        let mut stream: TcpStream = gate.connect_from(Ipv4Addr::new(127, 0, 0, last))?;
        stream.write_all(post(fields).as_bytes())?;
        let piece = [&b"10000\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat();
        let mut sent = 0_usize;
        while sent < 100 << 20 && stream.write_all(&piece).is_ok() {
            sent += piece.len();
        }
        // What sockets hold is more than what is read.
        ensure!(sent < 20 << 20, "{fields}: {sent} bytes");
        let mut said = [0; 12];
        stream.read_exact(&mut said).context("its answer is lost")?;
        ensure!(&said == b"HTTP/1.1 403" || &said == b"HTTP/1.1 413");
    }
    ensure!(gate.memory()? < 64 << 20, "{} bytes", gate.memory()?);
    Ok(())
}

#[test]
fn curl_keeps_its_connection_where_bodies_are_refused() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    let directory = std::env::temp_dir();
    for (version, len, connections) in
        [("--http1.1", 50_000, "403 1\n403 0\n403 0\n"), ("--http1.1", 500_000, "403 1\n403 1\n403 1\n")]
    {
        let body = directory.join(format!("gate-refused-{}-{len}", std::process::id()));
        std::fs::write(&body, vec![b'x'; len])?;
        let mut curl = Command::new("curl");
        curl.args(["-s", "-S", "--noproxy", "*", "--max-time", "20", "--interface", "127.0.0.8", version]);
        curl.args(["-w", "%{http_code} %{num_connects}\n", "--data-binary"])
            .arg(format!("@{}", body.display()));
        for _ in 0..3 {
            curl.args(["-o", "/dev/null"]).arg(format!("http://{}/", gate.address));
        }
        let output = curl.output();
        std::fs::remove_file(&body)?;
        let output = output?;
        ensure!(output.stdout == connections.as_bytes(), "{version} {len}: {output:?}");
    }
    Ok(())
}

#[test]
fn over_http2_a_refused_body_costs_its_stream_alone() -> Result<()> {
    let (_store, gate) = refusing_gate("10MiB")?;
    let client = Http2Client::over_tcp(gate.connect_from(Ipv4Addr::new(127, 0, 0, BOUND))?)?;
    for len in [100, 60_000, 1_000_000, 5_000_000] {
        let request = request(Method::POST, "/", &[], None)?.map(|_| "x".repeat(len));
        ensure!(client.send(request)?.refusal()? == (403, "unsupported".to_owned()), "{len}");
    }
    ensure!(gate.memory()? < 64 << 20, "{} bytes", gate.memory()?);
    Ok(())
}
