//! Many TLS connections of one tenant beside another: turns of handshakes, and memory.

use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::tls::{Authority, TlsClient};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use crate::tls::tls;

const NAME: &str = "logs.example";
const BUSY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const TWO: &str = "[[tenant]]\nname = \"busy\"\nsources = [\"127.0.0.5\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"polite\"\nsources = [\"127.0.0.6\"]\nquota = \"unlimited\"";
const GET: &[u8] = b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";

/// True if there is something to read.
fn is_answered(stream: &TcpStream) -> Result<bool> {
    stream.set_nonblocking(true)?;
    match stream.peek(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        read => Ok(read.context("the connection")? > 0),
    }
}

#[test]
fn a_crowd_of_handshakes_leaves_others_their_turn() -> Result<()> {
    const CROWD: usize = 300;
    let authority = Authority::new()?;
    // Its signatures take milliseconds.
    let of_gate = authority.issue_rsa("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Nginx::start(&[])?;
    for protocol in ["http", "resp"] {
        let service = format!("unknown_timeout = \"60s\"\n{}", tls(&of_gate));
        let gate = Listening::gate_with("threads = \"1\"", protocol, store.address, &service, TWO)?;
        let hello = TlsClient::hello(&authority.ca(), NAME)?;
        gate.stall()?;
        let begin = |source| -> Result<TcpStream> {
            let mut stream = gate.connect_from(source)?;
            stream.write_all(&hello)?;
            Ok(stream)
        };
        let crowd = (0..CROWD).map(|_| begin(BUSY)).collect::<Result<Vec<_>>>()?;
        let polite = begin(POLITE)?;
        gate.signal(Signal::SIGCONT)?;
        ensure!(polite.peek(&mut [0])? > 0, "it is closed");
        gate.stall()?;
        let answered = |_: &()| -> Result<usize> {
            let answered = crowd.iter().map(is_answered).collect::<Result<Vec<_>>>()?;
            Ok(answered.into_iter().filter(|&answered| answered).count())
        };
        let before = answered(&())?;
        ensure!(before < CROWD / 2, "{protocol}: {before} that came first were answered before it");
        gate.signal(Signal::SIGCONT)?;
        wait_until("the others are not answered", || Ok(answered(&())? == CROWD))?;
        ensure!(counter(&gate, "handshakes-paused")? > 0, "{protocol}");
        ensure!(counter(&gate, "tls-failed")? == 0, "{protocol}");
    }
    Ok(())
}

#[test]
fn idle_connections_over_tls_make_room_for_requests() -> Result<()> {
    const IDLE: u64 = 300;
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Nginx::start(&[])?;
    let service = format!("client_memory = \"2MiB\"\n{}", tls(&of_gate));
    let gate = Listening::gate_with("threads = \"1\"", "http", store.address, &service, TWO)?;
    let connect = |source| TlsClient::connect(&gate, source, &authority.ca(), NAME);
    let mut polite = connect(POLITE)?;
    polite.ask(GET, b"coding=\n")?;
    let mut idle = Vec::new();
    for number in 0..IDLE {
        let mut client = connect(BUSY)?;
        for client in
            [Some(&mut client), Some(&mut polite).filter(|_| number % 10 == 0)].into_iter().flatten()
        {
            let answer = client.ask(GET, b"coding=\n")?;
            ensure!(answer.starts_with(b"HTTP/1.1 200"), "{number}: {}", String::from_utf8_lossy(&answer));
        }
        idle.push(client);
    }
    // Half of 2 MiB, 10 KiB each, and room for a request.
    let remaining = || Ok::<_, anyhow::Error>(IDLE - counter(&gate, "idle")?);
    wait_until("too many remain", || Ok(remaining()? <= 105))?;
    ensure!(remaining()? >= 50, "{} remain", remaining()?);
    // Those that were used last, of the tenant that holds so much.
    polite.ask(GET, b"coding=\n")?;
    idle.last_mut().context("there are some")?.ask(GET, b"coding=\n")?;
    Ok(())
}
