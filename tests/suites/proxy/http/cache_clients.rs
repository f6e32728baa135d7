//! The cache and its clients: versions and TLS, what is never shared between two of them, and attempts to have one keep
//! something for another.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::proxy::Listening;
use gate_tests::tls::Authority;
use gate_tests::wait::wait_until;

use super::cache::{Directory, FRESH, Origin, gate, show_that_it_is_shared, status, wait_open};
use super::{OPEN, client, client_from};
use crate::tls::tls;

const NAME: &str = "logs.example";

/// The head and the body that curl gets.
fn curl(gate: &Listening, ca: Option<&Path>, arguments: &[&str]) -> Result<(String, String)> {
    let port = gate.address.port();
    let mut curl = Command::new("curl");
    curl.args(["-s", "-S", "-i", "--noproxy", "*", "--max-time", "20", "--resolve"]);
    curl.arg(format!("{NAME}:{port}:{}", gate.address.ip()));
    if let Some(ca) = ca {
        curl.arg("--cacert").arg(ca);
    }
    let scheme = if ca.is_some() { "https" } else { "http" };
    let output = curl.args(arguments).arg(format!("{scheme}://{NAME}:{port}/a")).output()?;
    ensure!(output.status.success(), "{arguments:?}: {output:?}");
    let said = String::from_utf8_lossy(&output.stdout).to_lowercase();
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
    Ok((head.to_owned(), body.to_owned()))
}

#[test]
fn clients_of_either_version_by_tls_or_not_are_answered_alike() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let origin = Origin::start()?;
    let tag = "\"own\"";
    origin.put("/a", &format!("{FRESH}etag: {tag}\r\n"), "0123456789");
    let matches = format!("if-none-match: {tag}");
    let ca = authority.ca();
    for (ca, versions) in [
        (Some(&*ca), &[["--http1.1"], ["--http2"], ["--http1.0"]][..]),
        (None, &[["--http2-prior-knowledge"], ["--http1.1"]]),
    ] {
        let directory = Directory::new(if ca.is_some() { "of-tls" } else { "of-plain" });
        let of_tls = if ca.is_some() { tls(&of_gate) } else { String::new() };
        let service = directory.cache("") + "\n" + &of_tls;
        let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
        wait_open(&gate)?;
        origin.asked();
        // The first answer tells that it may be shared, and the second is kept.
        let (head, _) = curl(&gate, ca, &[])?;
        ensure!(!head.contains("cache-status"), "{head}");
        let mut expected = "gate; fwd=uri-miss; stored";
        for version in versions {
            for (arguments, code, body) in [
                (&[][..], "200", "0123456789"),
                (&["--head"], "200", ""),
                (&["--range", "2-4"], "206", "234"),
                (&["--range", "-2"], "206", "89"),
                (&["--range", "10-"], "416", ""),
                (&["--header", &matches], "304", ""),
                (&["--compressed", "--range", "0-0"], "206", "0"),
            ] {
                // With another coding it is another key.
                let arguments: Vec<_> =
                    arguments.iter().filter(|&&one| one != "--compressed").copied().collect();
                let (head, said) = curl(&gate, ca, &[&version[..], &arguments].concat())?;
                let line = head.lines().next().unwrap_or_default().to_owned();
                let is_so = line.split(' ').nth(1) == Some(code) && said == body;
                ensure!(
                    is_so && head.contains(&format!("cache-status: {expected}")),
                    "{arguments:?}: {head}"
                );
                ensure!(head.contains(&format!("etag: {tag}")), "{arguments:?}: {head}");
                expected = "gate; hit";
            }
        }
        let asked = origin.asked();
        let scheme = if ca.is_some() { "x-forwarded-proto: https" } else { "x-forwarded-proto: http\r" };
        ensure!(asked.len() == 2 && asked.iter().all(|head| head.contains(scheme)), "{asked:?}");
    }
    Ok(())
}

#[test]
fn an_answer_by_one_scheme_is_not_one_by_another() -> Result<()> {
    let directory = Directory::new("scheme");
    let origin = Origin::start()?;
    let service = format!("trusted = [\"127.0.0.9\"]\n{}", directory.cache(""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let proxy = &mut client_from(&gate, 9)?;
    for (scheme, expected) in [("https", "stored"), ("http", "stored"), ("https", "hit"), ("http", "hit")] {
        origin.put("/a", FRESH, &format!("by {scheme}"));
        let reply = proxy.ask("GET /a", &format!("x-forwarded-proto: {scheme}\r\n"))?;
        ensure!(status(&reply).ends_with(expected), "{scheme}: {reply:?}");
        ensure!(reply.text() == format!("by {scheme}"), "{scheme}: {reply:?}");
    }
    Ok(())
}

#[test]
fn an_answer_for_one_client_never_reaches_another() -> Result<()> {
    let directory = Directory::new("others");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let rows: &[(&str, &str, &str)] = &[
        ("", "cache-control: private, max-age=60\r\n", ""),
        ("", "cache-control: max-age=60, PRIVATE\r\n", ""),
        ("", "cache-control: max-age=60\r\ncache-control: private\r\n", ""),
        ("", "cache-control: max-age=60; Private\r\n", ""),
        ("", "cache-control: private=\"x-a\", max-age=60\r\n", ""),
        ("", "cache-control: private, x=\"\u{e9}\"\r\ncache-control: max-age=60\r\n", ""),
        ("", "cache-control: no-store\r\n", ""),
        ("", "cache-control: No-Store, Max-Age=60\r\netag: \"1\"\r\n", ""),
        ("", "cache-control: No-Cache, max-age=60\r\n", ""),
        ("", "cache-control: max-age=60, S-MaxAge=0\r\n", ""),
        ("", FRESH, "cache-control: No-Cache\r\n"),
        ("", FRESH, "cache-control: Max-Age=0\r\n"),
        ("", "cache-control: max-age=60\r\nvary: User-Agent\r\n", "user-agent: other\r\n"),
        ("", "cache-control: no-store, max-age=60\r\netag: \"1\"\r\n", ""),
        ("", "cache-control: no-cache, max-age=60\r\n", ""),
        ("", "cache-control: max-age=60, s-maxage=0\r\n", ""),
        ("", "cache-control: max-age=0\r\n", ""),
        ("", "expires: Mon, 23 Nov 2009 00:00:00 GMT\r\n", ""),
        ("", "expires: 0\r\n", ""),
        ("", "cache-control: public, max-age=60\r\nset-cookie: id=1\r\n", ""),
        ("", "cache-control: max-age=60\r\nvary: *\r\n", ""),
        ("", "cache-control: max-age=60\r\nvary: accept-encoding\r\nvary: *\r\n", ""),
        ("cookie: id=1\r\n", FRESH, ""),
        ("cookie: id=1\r\n", "cache-control: public, max-age=60\r\nvary: cookie\r\n", "cookie: id=2\r\n"),
        ("authorization: Basic x\r\n", FRESH, ""),
        ("authorization: Basic x\r\n", FRESH, "authorization: Basic y\r\n"),
        ("authorization: Basic x\r\n", "cache-control: public, max-age=60\r\n", "authorization: Basic y\r\n"),
        ("authorization: Basic x\r\n", "cache-control: s-maxage=60\r\n", ""),
        ("authorization: Basic x\r\n", "cache-control: must-revalidate, max-age=60\r\n", ""),
        ("", FRESH, "authorization: Basic y\r\n"),
        ("", FRESH, "cookie: id=2\r\n"),
        ("cache-control: no-store\r\n", FRESH, ""),
        ("", "cache-control: max-age=60\r\nvary: user-agent\r\n", "user-agent: other\r\n"),
        ("", "cache-control: max-age=60\r\nvary: x-a\r\nvary: x-b\r\n", "x-b: 1\r\n"),
        ("accept-encoding: gzip\r\n", FRESH, "accept-encoding: br\r\n"),
        ("accept-encoding: gzip\r\n", FRESH, ""),
    ];
    for (number, (first, answer, second)) in rows.iter().enumerate() {
        let path = format!("/{number}");
        origin.put(&path, answer, "for the first");
        let reply = client_from(&gate, 2)?.ask(&format!("GET {path}"), first)?;
        ensure!(reply.text() == "for the first", "{number}: {reply:?}");
        origin.put(&path, answer, "for the second");
        let reply = client_from(&gate, 3)?.ask(&format!("GET {path}"), second)?;
        ensure!(reply.text() == "for the second", "{first:?} {answer:?} {second:?}: {reply:?}");
    }
    Ok(())
}

#[test]
fn another_query_is_another_answer() -> Result<()> {
    let directory = Directory::new("query");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    let client = &mut client(&gate)?;
    let rows =
        [("/a", "none"), ("/a?x=1", "one"), ("/a?x=2", "two"), ("/a?x=1&y", "one and y"), ("/a?", "empty")];
    rows.iter().for_each(|(path, body)| origin.put(path, FRESH, body));
    for expected in ["gate; fwd=uri-miss; stored", "gate; hit"] {
        for (path, body) in rows {
            let reply = client.ask(&format!("GET {path}"), "")?;
            ensure!((status(&reply), reply.text().as_str()) == (expected, body), "{path}: {reply:?}");
        }
    }
    Ok(())
}

#[test]
fn a_read_with_a_body_passes_by_with_it() -> Result<()> {
    let directory = Directory::new("with-body");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    for (path, fields, body) in [
        ("/length", "content-length: 4\r\n", "more"),
        ("/chunked", "transfer-encoding: chunked\r\n", "4\r\nmore\r\n0\r\n\r\n"),
    ] {
        origin.put(path, FRESH, "one");
        for _ in 0..2 {
            client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n{fields}\r\n{body}").as_bytes())?;
            let reply = client.reply(false)?;
            ensure!(status(&reply) == "none" && reply.text() == "one", "{path}: {reply:?}");
        }
        let asked = origin.asked();
        ensure!(asked.len() == 2 && asked.iter().all(|head| head.contains(fields)), "{path}: {asked:?}");
        let reply = client.ask(&format!("GET {path}"), "")?;
        ensure!(status(&reply) == "gate; fwd=uri-miss; stored", "{path}: it was kept: {reply:?}");
        origin.asked();
    }
    Ok(())
}

#[test]
fn whoever_follows_a_fetch_gets_nothing_stale() -> Result<()> {
    let directory = Directory::new("stale-follower");
    let store = FakeStore::start()?;
    let gate = gate(store.address, &directory)?;
    show_that_it_is_shared(&gate, &store, "/a")?;
    let mut leader = client(&gate)?;
    let mut follower = client(&gate)?;
    let request = b"GET /a HTTP/1.1\r\nhost: test\r\n\r\n";
    leader.send(request)?;
    let (mut stream, _) = store.next()?;
    follower.send(request)?;
    wait_until("both are there", || {
        Ok(gate.json(&["cache", "status"])?["caches"][0]["events"]["misses"] == 1 + 2)
    })?;
    let answer = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=0\r\netag: \"{body}\"\r\ncontent-length: 3\r\n\r\n{body}"
        )
    };
    stream.write_all(answer("one").as_bytes())?;
    ensure!(leader.reply(false)?.text() == "one");
    let (mut stream, _) = store.next()?;
    stream.write_all(answer("two").as_bytes())?;
    let reply = follower.reply(false)?;
    ensure!(reply.text() == "two", "{reply:?}");
    Ok(())
}

/// Other ways to write a path that ends in `line-` and its number.
const LINES: [&str; 11] = [
    "GET http://evil/reflected/line-0",
    "GET http://evil@test/reflected/line-1",
    "GET /reflected/line-2?evil",
    "GET /reflected/line-3?b=1&a=2",
    "GET //evil/reflected/line-4",
    "GET /reflected/./line-5",
    "GET /reflected/%6cine-6",
    "GET /reflected/line-7#evil",
    "GET /reflected/line-8;evil",
    "GET /reflected/line-9%00",
    "get /reflected/line-10",
];

#[test]
fn nobody_has_anything_kept_that_others_did_not_ask_for() -> Result<()> {
    let directory = Directory::new("poison");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let long = format!("x-long: {}\r\n", "x".repeat(30_000));
    let ask = |line: &str, host: &str, fields: &str, body: &str| -> Result<Option<u16>> {
        let mut client = client_from(&gate, 2)?;
        client.send(format!("{line} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n{body}").as_bytes())?;
        Ok(client.reply(line.starts_with("HEAD")).ok().map(|reply| reply.status))
    };
    let plain = |path: &str| -> Result<(String, String)> {
        let reply = client(&gate)?.ask(&format!("GET {path}"), "")?;
        // The address goes along on every fetch: an origin that refuses it refuses the fetch.
        let said = reply
            .text()
            .replace(path, "PATH")
            .replace("x-forwarded-for: 127.0.0.2", "x-forwarded-for: 127.0.0.1");
        Ok((status(&reply).to_owned(), format!("{} {said}", reply.status)))
    };
    // The origin answers with what it is asked.
    let (_, expected) = plain("/reflected/plain")?;
    ensure!(expected.starts_with("200 GET PATH HTTP/1.1\r\nhost: test\r\n"), "{expected}");
    let of_test = |fields: &'static str| ("GET", "test", fields, "");
    let rows = [
        of_test("x-forwarded-host: evil\r\n"),
        of_test("x-forwarded-host: evil\r\nconnection: x-forwarded-host\r\n"),
        of_test("connection: host, accept-encoding, x-forwarded-proto\r\n"),
        of_test("x_forwarded_host: evil\r\nx-host: evil\r\nx-forwarded-server: evil\r\n"),
        of_test("forwarded: host=evil;proto=https\r\n"),
        of_test("x-forwarded-proto: https\r\nx-forwarded-scheme: nothttps\r\nx-forwarded-port: 1\r\n"),
        of_test("x-forwarded-for: 1.2.3.4\r\ntrue-client-ip: 1.2.3.4\r\n"),
        of_test("x-original-url: /admin\r\nx-rewrite-url: /admin\r\nx-forwarded-prefix: /admin\r\n"),
        of_test("x-http-method-override: DELETE\r\nx-http-method: PUT\r\nx-method-override: POST\r\n"),
        of_test(
            "user-agent: <script>\r\nreferer: evil\r\norigin: evil\r\naccept-language: evil\r\naccept: evil\r\n",
        ),
        of_test("range: bytes=0-0\r\n"),
        of_test("range: bytes=900000-\r\n"),
        of_test("if-none-match: *\r\nif-modified-since: Mon, 23 Nov 2099 00:00:00 GMT\r\n"),
        of_test("if-match: \"none\"\r\nexpect: 100-continue\r\n"),
        of_test("upgrade: h2c\r\nconnection: upgrade\r\ntrailer: x\r\nte: trailers\r\nmax-forwards: 0\r\n"),
        of_test("pragma: evil\r\ncache-control: no-cache, evil\r\n"),
        of_test("cookie: evil=1\r\n"),
        of_test("authorization: evil\r\n"),
        // A GET with a body.
        ("GET", "test", "content-length: 4\r\n", "evil"),
        ("GET", "test", "transfer-encoding: chunked\r\n", "4\r\nevil\r\n0\r\n\r\n"),
        ("HEAD", "test", "x-evil: 1\r\n", ""),
        ("POST", "test", "content-length: 4\r\n", "evil"),
        // Other ways to write the host.
        ("GET", "TeSt", "", ""),
        ("GET", "test\r\nhost: evil", "", ""),
        ("GET", "evil", "", ""),
        ("GET", "test:80", "", ""),
        ("GET", "test@evil", "", ""),
        ("GET", "test ", "", ""),
    ];
    for (number, (method, host, fields, body)) in rows.into_iter().enumerate() {
        let path = format!("/reflected/{number}");
        ask(&format!("{method} {path}"), host, fields, body)?;
        let (_, said) = plain(&path)?;
        ensure!(said == expected, "{method} {host:?} {fields:?}: {said}");
    }
    for (number, line) in LINES.into_iter().enumerate() {
        ask(line, "test", "", "")?;
        let (_, said) = plain(&format!("/reflected/line-{number}"))?;
        ensure!(said == expected, "{line}: {said}");
    }
    ensure!(ask("GET /reflected/long", "test", &long, "")? == Some(200));
    ensure!(plain("/reflected/long")? == ("gate; fwd=uri-miss; stored".to_owned(), expected), "it was kept");
    Ok(())
}
