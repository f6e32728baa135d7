//! Requests and answers that two readers could take for different ones: gate refuses them, or passes on one of one meaning.
//!
//! nginx logs what it has seen, line by line, which is compared with what each row says. `/bad` is a request that one of the
//! readings would have in the body of another; no store may see it.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::nginx::Nginx;
use gate_tests::wait::wait_until;

use super::{client, gate};

/// The fate of a row: refused with one of these statuses, or passed on with these lengths in the store's log.
enum Expected {
    Refused(&'static [u16]),
    Seen(&'static str),
}

use Expected::{Refused, Seen};

/// The hidden request, and its length with the end of chunks before it.
const BAD: &str = "GET /bad HTTP/1.1\r\nhost: a\r\n\r\n";

/// Heads behind `POST /echo HTTP/1.1` with a host, and the body. `BAD` stands for the hidden request.
const REQUESTS: &[(&str, &str, Expected)] = &[
    // Both lengths, in any order: chunks count, and nothing behind them is read.
    ("content-length: 0\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("transfer-encoding: chunked\r\ncontent-length: 0\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("content-length: 100\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("transfer-encoding: chunked\r\ncontent-length: 100\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("transfer-encoding: chunked\r\ncontent-length: 5\r\ncontent-length: 5\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("content-length: 5\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", "0\r\n\r\nBAD", CHUNKED),
    ("Content-Length: 5\r\nTransfer-Encoding: CHUNKED\r\n", "0\r\n\r\nBAD", CHUNKED),
    // Lengths that differ, or are none.
    ("content-length: 0\r\ncontent-length: 29\r\n", "BAD", Refused(&[400])),
    ("content-length: 29\r\ncontent-length: 0\r\n", "BAD", Refused(&[400])),
    ("content-length: 0, 29\r\n", "BAD", Refused(&[400])),
    ("content-length: 29, 29\r\n", "BAD", Refused(&[400])),
    ("content-length: +29\r\n", "BAD", Refused(&[400])),
    ("content-length: -1\r\n", "BAD", Refused(&[400])),
    ("content-length: 0x1d\r\n", "BAD", Refused(&[400])),
    ("content-length: 2 9\r\n", "BAD", Refused(&[400])),
    ("content-length: 29;x\r\n", "BAD", Refused(&[400])),
    ("content-length: \r\n", "BAD", Refused(&[400])),
    ("content-length: 18446744073709551616\r\n", "BAD", Refused(&[400])),
    ("content-length: 99999999999999999999999999\r\n", "BAD", Refused(&[400])),
    ("content-length: \u{b9}\r\n", "BAD", Refused(&[400])),
    // The same length twice is one.
    ("content-length: 3\r\ncontent-length: 3\r\n", "abc", Seen("[3] [-]")),
    ("content-length: 3\r\ncontent-length: 03\r\n", "abc", Seen("[3] [-]")),
    ("content-length: 03\r\n", "abc", Seen("[3] [-]")),
    // Codings that are not `chunked`.
    ("transfer-encoding: gzip\r\n", "BAD", Refused(&[400])),
    ("transfer-encoding: identity\r\n", "BAD", Refused(&[400])),
    ("transfer-encoding: xchunked\r\n", "BAD", Refused(&[400])),
    ("transfer-encoding: chunked, identity\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("transfer-encoding: gzip, chunked\r\n", "0\r\n\r\nBAD", Refused(&[403])),
    ("transfer-encoding: identity, chunked\r\n", "0\r\n\r\nBAD", Refused(&[403])),
    ("transfer-encoding: chunked, chunked\r\n", "0\r\n\r\nBAD", Refused(&[403])),
    ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\nBAD", Refused(&[403])),
    ("transfer-encoding: chunked\r\ntransfer-encoding: x\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("transfer-encoding: x\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\nBAD", Refused(&[403])),
    ("transfer-encoding: \"chunked\"\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("transfer-encoding: chunked;q=1\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("transfer-encoding: \u{b}chunked\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    // Names that one reader knows and another does not.
    ("transfer-encoding : chunked\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("content-length : 29\r\n", "BAD", Refused(&[400])),
    (" content-length: 29\r\n", "BAD", Refused(&[400])),
    ("x: y\r\n content-length: 29\r\n", "BAD", Refused(&[400])),
    ("x: y\r\n\ttransfer-encoding: chunked\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("transfer-encoding:\r\n chunked\r\n", "0\r\n\r\nBAD", Refused(&[400])),
    ("content-length:\r\n 29\r\n", "BAD", Refused(&[400])),
    ("content\u{0}-length: 29\r\n", "BAD", Refused(&[400])),
    ("x: y\u{0}\r\ncontent-length: 29\r\n", "BAD", Refused(&[400])),
    ("x: y\rcontent-length: 29\r\n", "BAD", Refused(&[400])),
    ("x: y\r\r\ncontent-length: 29\r\n", "BAD", Refused(&[400])),
    (": y\r\n", "", Refused(&[400])),
    ("x\r\n", "", Refused(&[400])),
    ("x y: z\r\n", "", Refused(&[400])),
    ("(x): z\r\n", "", Refused(&[400])),
    // A field of another name is one, and has no body.
    ("transfer_encoding: chunked\r\n", "", Seen("[-] [-]")),
    ("content_length: 29\r\n", "", Seen("[-] [-]")),
    // Ends of lines without a CR: gate writes its own.
    ("content-length: 3\n", "abc", Seen("[3] [-]")),
    ("x: y\ncontent-length: 3\n", "abc", Seen("[3] [-]")),
    // Hosts.
    ("host: b\r\n", "", Refused(&[400])),
    // No `Connection` has a length removed.
    ("connection: content-length\r\ncontent-length: 3\r\n", "abc", Seen("[3] [-]")),
    (
        "connection: transfer-encoding\r\ntransfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        Seen("[-] [chunked]"),
    ),
    // Chunks.
    ("transfer-encoding: chunked\r\n", "3;x=y\r\nabc\r\n0\r\n\r\n", Seen("[-] [chunked]")),
    ("transfer-encoding: chunked\r\n", "03\r\nabc\r\n0\r\n\r\n", Seen("[-] [chunked]")),
    ("transfer-encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "-3\r\nabc\r\n0\r\n\r\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "\r\nabc\r\n0\r\n\r\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "3\nabc\n0\n\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "3\rabc\r\n0\r\n\r\n", BROKEN),
    ("transfer-encoding: chunked\r\n", "fffffffffffffffff\r\nabc\r\n0\r\n\r\n", BROKEN),
    (
        "transfer-encoding: chunked\r\n",
        "3\r\nabc\r\n0\r\nx: y\r\ncontent-length: 9\r\n\r\n",
        Seen("[-] [chunked]"),
    ),
];

/// The chunks end the request, and its connection; what follows is not read.
const CHUNKED: Expected = Seen("[-] [chunked]");
/// The body is no body: the request is broken off.
const BROKEN: Expected = Refused(LATE);
const LATE: &[u16] = &[400, 408];

#[test]
fn ambiguous_requests_are_refused_or_of_one_meaning() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "client_timeout = \"2s\"")?;
    ensure!(REQUESTS.len() >= 60, "{}", REQUESTS.len());
    let mut expected = Vec::new();
    for (number, (fields, body, outcome)) in REQUESTS.iter().enumerate() {
        let body = body.replace("BAD", BAD);
        let mut client = client(&gate)?;
        // Each character of the row is one byte.
        let head = format!("POST /echo?{number}. HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        let bytes: Vec<u8> = head.chars().chain(body.chars()).map(|c| c as u8).collect();
        client.send(&bytes)?;
        let reply = client.reply(false).with_context(|| format!("{fields:?} {body:?}"))?;
        match outcome {
            Refused(statuses) => ensure!(statuses.contains(&reply.status), "{fields:?} {body:?}: {reply:?}"),
            Seen(lengths) => {
                ensure!(reply.status == 200, "{fields:?} {body:?}: {reply:?}");
                let line = format!("POST /echo?{number}. {lengths}");
                wait_until(&line, || Ok(store.seen()?.lines().any(|seen| seen == line)))?;
                expected.push(line);
            }
        }
        // Whatever follows is not taken for a request of the store's.
        let _ = client.stream().shutdown(Shutdown::Write);
        let mut rest = Vec::new();
        let _ = client.stream().read_to_end(&mut rest);
        ensure!(!String::from_utf8_lossy(&rest).contains("/bad"), "{fields:?} {body:?}");
    }
    // Of a body that is broken off the store may have seen the head.
    let is_broken = |line: &&str| {
        let number = line.split(['?', '.']).nth(1).and_then(|number| number.parse::<usize>().ok());
        let row = number.and_then(|number| REQUESTS.get(number));
        row.is_some_and(|(_, _, outcome)| matches!(outcome, Refused(statuses) if *statuses == LATE))
    };
    let seen = store.seen()?;
    let seen: Vec<_> = seen.lines().filter(|line| !is_broken(line)).collect();
    ensure!(seen == expected, "{seen:#?}\n{expected:#?}");
    Ok(())
}

#[test]
fn request_lines_of_two_meanings_are_refused() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate(store.address, "")?;
    for line in [
        "GET  /echo HTTP/1.1",
        "GET /echo  HTTP/1.1",
        "GET\t/echo HTTP/1.1",
        " GET /echo HTTP/1.1",
        "GET /echo HTTP/1.1 ",
        "GET /echo HTTP/1.2",
        "GET /echo HTTP/3.0",
        "GET /echo http/1.1",
        "GET /echo",
        "GET /e cho HTTP/1.1",
        "GET /echo\u{0} HTTP/1.1",
        "G(T /echo HTTP/1.1",
        "GET echo HTTP/1.1",
    ] {
        let mut client = client(&gate)?;
        client.send(format!("{line}\r\nhost: a\r\n\r\n").as_bytes())?;
        let reply = client.reply(false).with_context(|| line.to_owned())?;
        ensure!(reply.status == 400, "{line:?}: {reply:?}");
    }
    ensure!(store.seen()?.is_empty(), "{}", store.seen()?);
    Ok(())
}

#[test]
fn ambiguous_answers_are_refused_or_of_one_meaning() -> Result<()> {
    let store = FakeStore::start()?;
    let gate = gate(store.address, "")?;
    for (head, body, expected) in [
        ("content-length: 2\r\n", "ok", Ok("ok")),
        ("content-length: 2\r\ncontent-length: 2\r\n", "ok", Ok("ok")),
        ("content-length: 2, 2\r\n", "ok", Ok("ok")),
        ("transfer-encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", Ok("ok")),
        ("", "ok", Ok("ok")),
        ("content-length: 2\r\ntransfer-encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", Err(502)),
        ("transfer-encoding: chunked\r\ncontent-length: 2\r\n", "2\r\nok\r\n0\r\n\r\n", Err(502)),
        ("content-length: 2\r\ncontent-length: 3\r\n", "ok", Err(502)),
        ("content-length: 2, 3\r\n", "ok", Err(502)),
        ("content-length: +2\r\n", "ok", Err(502)),
        ("content-length: x\r\n", "ok", Err(502)),
        ("transfer-encoding: gzip, chunked\r\n", "2\r\nok\r\n0\r\n\r\n", Err(502)),
        ("transfer-encoding: chunked, chunked\r\n", "2\r\nok\r\n0\r\n\r\n", Err(502)),
        ("transfer-encoding: gzip\r\n", "ok", Err(502)),
        ("x : y\r\ncontent-length: 2\r\n", "ok", Err(502)),
        ("x: y\r\n z\r\ncontent-length: 2\r\n", "ok", Err(502)),
        ("x: y\u{0}\r\ncontent-length: 2\r\n", "ok", Err(502)),
        ("x: y\rz: 1\r\ncontent-length: 2\r\n", "ok", Err(502)),
    ] {
        let mut client = client(&gate)?;
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let (mut connection, _) = store.next()?;
        connection.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}").as_bytes())?;
        connection.shutdown(Shutdown::Write)?;
        let reply = client.reply(false).with_context(|| head.to_owned())?;
        match expected {
            Ok(text) => ensure!(reply.status == 200 && reply.text() == text, "{head:?}: {reply:?}"),
            Err(status) => ensure!(reply.status == status, "{head:?}: {reply:?}"),
        }
    }
    // What comes behind an answer is nobody's.
    let mut client = client(&gate)?;
    client.send(b"GET /one HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut connection, _) = store.next()?;
    let stray = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad";
    connection.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none{stray}").as_bytes())?;
    ensure!(client.reply(false)?.text() == "one");
    client.send(b"GET /two HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut connection, _) = store.next()?;
    super::respond(&mut connection, "two")?;
    ensure!(client.reply(false)?.text() == "two");
    Ok(())
}
