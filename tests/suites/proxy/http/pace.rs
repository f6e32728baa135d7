//! A tenant whose requests over HTTP are refused is not read without end, and its heads are no memory for nothing.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::http_client::HttpClient;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;

/// One tenant whose requests are all refused, one with a limit for a route, and another that may do all.
const TENANTS: &str = "[[tenant]]\nname = \"bound\"\nsources = [\"127.0.0.5\"]\nquota = \"unlimited\"\nkeys = \"own\"\n\
                       key_prefixes = [\"a\"]\n[[tenant]]\nname = \"limited\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\n\
                       limits = { dear = \"1/s\" }\n[[tenant]]\nname = \"polite\"\nsources = [\"127.0.0.6\"]\nquota = \"unlimited\"\n";
const SERVICE: &str = "query_types = { dear = \"GET /echo/dear\" }";
const BOUND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const LIMITED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);

fn gate(store: &Nginx, service: &str) -> Result<Listening> {
    Listening::gate_with("threads = \"1\"", "http", store.address, service, TENANTS)
}

fn pauses(gate: &Listening) -> Result<u64> {
    counter(gate, "reads-paused")
}

/// Sends requests at once and reads as many replies; returns how many were refused.
fn ask(client: &mut HttpClient, requests: &[u8], replies: usize) -> Result<usize> {
    let mut writer = client.stream().try_clone()?;
    std::thread::scope(|scope| {
        // The reader fails if not all of it is answered.
        scope.spawn(move || drop(writer.write_all(requests)));
        let mut refused = 0;
        for _ in 0..replies {
            let reply = client.reply(false)?;
            ensure!([200, 403, 429].contains(&reply.status), "{reply:?}");
            refused += usize::from(reply.status != 200);
        }
        Ok(refused)
    })
}

fn get(path: &str, times: usize) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").repeat(times).into_bytes()
}

#[test]
fn a_flood_of_refusals_waits_and_others_do_not() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(&store, SERVICE)?;
    let mut flood = HttpClient::new(gate.connect_from(BOUND)?);
    let mut polite = HttpClient::new(gate.connect_from(POLITE)?);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| ask(&mut flood, &get("/echo", 1_000), 1_000));
        wait_until("it is not paused", || {
            ensure!(polite.ask("GET /echo", "")?.status == 200);
            Ok(pauses(&gate)? >= 10)
        })?;
        let refused = flooding.join().expect("it does not panic")?;
        ensure!(refused == 1_000, "each is answered: {refused}");
        Ok(())
    })
}

#[test]
fn a_tenant_that_is_served_as_well_is_paced_by_its_refusals() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(&store, SERVICE)?;
    let mut client = HttpClient::new(gate.connect_from(LIMITED)?);
    // The first of the dear ones takes what there is.
    ask(&mut client, &get("/echo/dear", 1), 1)?;
    let three_to_one = [get("/echo", 1), get("/echo/dear", 3)].concat().repeat(100);
    let refused = ask(&mut client, &three_to_one, 400)?;
    ensure!(refused >= 280, "{refused}");
    ensure!(pauses(&gate)? == 0, "{}", pauses(&gate)?);
    ask(&mut client, &get("/echo/dear", 400), 400)?;
    ensure!(pauses(&gate)? > 0, "it is not paused at all");
    Ok(())
}

#[test]
fn every_client_of_a_paused_tenant_is_answered() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(&store, SERVICE)?;
    std::thread::scope(|scope| {
        let clients = (0..100).map(|_| {
            let stream = gate.connect_from(BOUND)?;
            Ok(scope.spawn(move || ask(&mut HttpClient::new(stream), &get("/echo", 10), 10)))
        });
        let clients = clients.collect::<Result<Vec<_>>>()?;
        clients.into_iter().try_for_each(|client| {
            let refused = client.join().expect("it does not panic")?;
            ensure!(refused == 10, "{refused}");
            Ok(())
        })
    })?;
    ensure!(pauses(&gate)? > 0, "nobody is paused");
    // Gone before they are answered.
    for _ in 0..20 {
        gate.connect_from(BOUND)?.write_all(&get("/echo", 100))?;
    }
    wait_until("some have not left", || Ok(counter(&gate, "left")? >= 120))
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn streams_of_http2_wait_and_their_connection_is_not_read() -> Result<()> {
    const STREAMS: u32 = 5_000;
    let store = Nginx::start(&[])?;
    let gate = gate(&store, SERVICE)?;
    let mut stream: TcpStream = gate.connect_from(BOUND)?;
    stream.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, b"")].concat())?;
    // 50 at a time, each answered before the next 50.
    let mut answered = 0;
    for batch in 0..STREAMS / 50 {
        let numbers = (batch * 50..(batch + 1) * 50).map(|number| 2 * number + 1);
        let requests: Vec<u8> =
            numbers.flat_map(|number| frame(1, 5, number, b"\x82\x86\x84\x41\x01a")).collect();
        stream.write_all(&requests)?;
        let mut head = [0; 9];
        let mut ended = 0;
        while ended < 50 {
            stream.read_exact(&mut head).with_context(|| format!("after {answered} answers"))?;
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            stream.read_exact(&mut vec![0; len])?;
            ensure!(head[3] != 7, "it is told to go after {answered} answers");
            let is_end = head[4] & 1 == 1 && head[3] < 2;
            ended += u32::from(is_end);
            answered += u32::from(is_end);
        }
        if pauses(&gate)? >= 20 {
            return Ok(());
        }
    }
    anyhow::bail!("{answered} refusals, and it was paused {} times", pauses(&gate)?)
}

#[test]
fn heads_that_do_not_come_whole_count_for_the_memory_of_clients() -> Result<()> {
    const CLIENTS: usize = 100;
    let store = Nginx::start(&[])?;
    let gate = gate(&store, &format!("{SERVICE}\nclient_memory = \"2MiB\"\nclient_timeout = \"60s\""))?;
    let head = [&b"GET /echo HTTP/1.1\r\nhost: a\r\nx: "[..], &[b'x'; 60_000]].concat();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = gate.connect_from(POLITE)?;
        // It may be ended before it has said all.
        let _ = client.write_all(&head);
        clients.push(client);
    }
    wait_until("they hold what they like", || Ok(counter(&gate, "slow-writer")? >= 60))?;
    drop(clients);
    wait_until("their memory is not given back", || {
        let mut client = HttpClient::new(gate.connect_from(POLITE)?);
        Ok(client.ask("GET /echo", "")?.status == 200)
    })
}
