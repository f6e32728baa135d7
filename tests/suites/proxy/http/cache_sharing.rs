//! Requests that an origin gets, and the clients that its answers are for.

use std::io::Write as _;

use anyhow::{Result, ensure};
use gate_tests::fake_store::FakeStore;
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;

use super::cache::{self, Directory, FRESH, Origin, gate, status, wait_open};
use super::{OPEN, client, client_from};

/// Fields that a browser sends and that are part of no key.
const OWN: &str = "user-agent: me\r\naccept-language: de\r\n";
/// For a second, which is over.
const STALE: &str = "age: 1\r\ncache-control: max-age=1";

fn answer(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

/// Has an origin answer a path so that it may be shared; what is kept of it is gone afterwards.
fn show_that_it_is_shared(client: &mut HttpClient, origin: &Origin, path: &str) -> Result<()> {
    origin.put(path, FRESH, "shared");
    ensure!(client.ask(&format!("GET {path}"), OWN)?.text() == "shared");
    client.ask(&format!("POST {path}"), "")?;
    origin.asked();
    Ok(())
}

#[test]
fn a_request_is_its_own_until_its_answer_may_be_shared() -> Result<()> {
    let directory = Directory::new("own");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client_from(&gate, 2)?;
    for (number, answer) in [
        answer("200 OK", "cache-control: private, no-store\r\n", "x"),
        answer("200 OK", "cache-control: max-age=60\r\nvary: accept-language\r\n", "x"),
        answer("200 OK", "etag: \"mine\"\r\n", "x"),
        answer("200 OK", "cache-control: no-cache\r\netag: \"mine\"\r\n", "x"),
        answer("302 There", "location: /\r\n", "x"),
        answer("403 No", "", "x"),
        answer("404 No", "etag: \"none\"\r\n", "x"),
        answer("500 No", "", "x"),
        answer("503 No", "", "x"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/{number}");
        origin.put_raw(&path, answer.clone());
        for _ in 0..4 {
            let reply = client.ask(&format!("GET {path}"), OWN)?;
            ensure!(reply.text() == "x" && status(&reply) == "none", "{answer}: {reply:?}");
            let asked = origin.asked();
            let is_whole = |head: &str| OWN.lines().all(|line| head.contains(line));
            ensure!(asked.len() == 1 && is_whole(&asked[0]), "{answer}: {asked:?}");
            ensure!(asked[0].contains("x-forwarded-for: 127.0.0.2\r\n"), "{asked:?}");
        }
    }
    Ok(())
}

#[test]
fn what_an_origin_says_to_gate_by_name_counts() -> Result<()> {
    const KEPT: &str = "gate; fwd=uri-miss; stored";
    let directory = Directory::new("targeted");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    for (number, (fields, own, seen)) in [
        (
            "cdn-cache-control: max-age=60\r\ncache-control: no-store\r\nexpires: 0\r\n",
            "",
            [KEPT, "gate; hit"],
        ),
        ("cdn-cache-control: max-age=60\r\n", OWN, ["none", KEPT]),
        ("cdn-cache-control: no-store\r\ncache-control: max-age=60\r\n", "", ["none", "none"]),
        // No dictionary.
        ("cdn-cache-control: no-store,\r\ncache-control: max-age=60\r\n", "", [KEPT, "gate; hit"]),
        ("cdn-cache-control: Max-Age=60\r\ncache-control: no-store\r\n", "", ["none", "none"]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/{number}");
        origin.put(&path, fields, "x");
        for seen in seen {
            let reply = client.ask(&format!("GET {path}"), own)?;
            ensure!(reply.text() == "x" && status(&reply) == seen, "{fields}: {reply:?}");
            for field in fields.lines() {
                let (name, value) = field.split_once(": ").unwrap_or_default();
                ensure!(reply.field(name) == Some(value), "passed on: {reply:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_client_with_other_fields_is_answered_by_them() -> Result<()> {
    let directory = Directory::new("validated");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    // It may be kept to be asked about, since its request says nothing else.
    origin.put("/a", "etag: \"1\"\r\n", "one");
    client.ask("GET /a", "")?;
    origin.asked();
    for (fields, code, body) in
        [("x-api-key: k\r\n", 200, "one"), ("x-api-key: k\r\nrange: bytes=1-\r\n", 206, "ne")]
    {
        let reply = client.ask("GET /a", fields)?;
        ensure!((reply.status, reply.text().as_str()) == (code, body), "{reply:?}");
        ensure!(status(&reply) == "gate; fwd=stale; fwd-status=304", "{reply:?}");
        let asked = origin.asked();
        let has_both = asked[0].contains("x-api-key: k\r\n") && asked[0].contains("if-none-match: \"1\"\r\n");
        ensure!(asked.len() == 1 && has_both, "{asked:?}");
    }
    // Another answer is this client's.
    origin.put("/a", "etag: \"2\"\r\n", "two");
    ensure!(client.ask("GET /a", "x-api-key: k\r\n")?.text() == "two" && origin.asked().len() == 1);
    Ok(())
}

#[test]
fn a_shared_fetch_answers_nobody_whom_its_answer_excludes() -> Result<()> {
    let directory = Directory::new("excluded");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client_from(&gate, 3)?;
    for (number, (answer, fetches)) in [
        (answer("200 OK", "cache-control: private, max-age=60\r\n", "x"), 2),
        (answer("200 OK", "cache-control: max-age=60\r\nset-cookie: a=1\r\n", "x"), 2),
        (answer("200 OK", "cache-control: max-age=60\r\nvary: accept-language\r\n", "x"), 2),
        (answer("200 OK", "", "x"), 2),
        (answer("403 No", "", "x"), 2),
        (answer("404 No", "", "x"), 2),
        // An origin that fails says nothing of the request, and is not asked again.
        (answer("500 No", "", "x"), 1),
        (answer("503 No", "", "x"), 1),
        (answer("429 Slowly", "", "x"), 1),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/{number}");
        show_that_it_is_shared(client, &origin, &path)?;
        origin.put_raw(&path, answer.clone());
        let reply = client.ask(&format!("GET {path}"), OWN)?;
        ensure!(reply.text() == "x" && status(&reply) == "none", "{answer}: {reply:?}");
        let asked = origin.asked();
        ensure!(asked.len() == fetches && !asked[0].contains("user-agent"), "{answer}: {asked:?}");
        ensure!(asked.iter().all(|head| head.contains("x-forwarded-for: 127.0.0.3\r\n")), "{asked:?}");
        ensure!(fetches == 1 || asked[1].contains("user-agent: me"), "{answer}: {asked:?}");
        // From then on it is known.
        client.ask(&format!("GET {path}"), OWN)?;
        ensure!(origin.asked().len() == 1, "{answer}: it was asked twice again");
    }
    Ok(())
}

#[test]
fn a_stale_answer_is_given_while_its_origin_fails() -> Result<()> {
    let directory = Directory::new("stale-if-error");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    // It ends in the middle of its head.
    let lost = "HTTP/1.1 200 OK\r\nx: connection: close\r\n".to_owned();
    for (number, failure) in
        [answer("500 No", "", ""), answer("503 No", "", ""), answer("504 No", "", ""), lost]
            .into_iter()
            .enumerate()
    {
        let path = format!("/{number}");
        origin.put(&path, &format!("{STALE}, stale-if-error=600\r\n"), "old");
        client.ask(&format!("GET {path}"), "")?;
        origin.put_raw(&path, failure.clone());
        for fields in ["", OWN, "range: bytes=0-\r\n"] {
            let reply = client.ask(&format!("GET {path}"), fields)?;
            let is_given = reply.text() == "old" && status(&reply) == "gate; hit; detail=stale-if-error";
            ensure!(is_given && reply.field("age").is_some(), "{failure}: {reply:?}");
        }
        let reply = client.ask(&format!("GET {path}"), "cache-control: no-cache\r\n")?;
        ensure!(reply.status >= 500, "it is asked for a new one: {reply:?}");
        origin.put(&path, FRESH, "new");
        origin.asked();
        ensure!(client.ask(&format!("GET {path}"), "")?.text() == "new" && origin.asked().len() == 1);
    }
    origin.put("/must", &format!("{STALE}, stale-if-error=600, must-revalidate\r\netag: \"1\"\r\n"), "old");
    client.ask("GET /must", "")?;
    origin.put_raw("/must", answer("503 No", "", ""));
    ensure!(client.ask("GET /must", "")?.status == 503);
    Ok(())
}

#[test]
fn a_stale_answer_is_given_while_one_refresh_is_made() -> Result<()> {
    let directory = Directory::new("stale-while-revalidate");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    origin.put("/a", &format!("{STALE}, stale-while-revalidate=600\r\n"), "old");
    client.ask("GET /a", "")?;
    origin.put("/a", FRESH, "new");
    let reply = client.ask("GET /a", OWN)?;
    let expected = "gate; hit; detail=stale-while-revalidate";
    ensure!(reply.text() == "old" && status(&reply) == expected, "{reply:?}");
    wait_until("it is not refreshed", || {
        let reply = client.ask("GET /a", OWN)?;
        ensure!(status(&reply) == expected || status(&reply) == "gate; hit", "{reply:?}");
        Ok(reply.text() == "new")
    })?;
    let asked = origin.asked();
    ensure!(asked.len() == 2 && !asked[1].contains("user-agent"), "{asked:?}");
    Ok(())
}

#[test]
fn codings_that_mean_the_same_are_fetched_once() -> Result<()> {
    let directory = Directory::new("codings");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    origin.put("/a", FRESH, "x");
    for coding in ["br, gzip", "gzip,br", "GZIP;q=1.0, br;q=0.5", "br,unknown,gzip"] {
        client.ask("GET /a", &format!("accept-encoding: {coding}\r\n"))?;
    }
    let asked = origin.asked();
    ensure!(asked.len() == 1 && asked[0].contains("accept-encoding: br, gzip\r\n"), "{asked:?}");
    Ok(())
}

#[test]
fn the_answer_to_an_own_request_is_kept_where_that_is_wanted() -> Result<()> {
    let directory = Directory::new("keep-own");
    let origin = Origin::start()?;
    let service = directory.cache(", keep_own = \"on\"");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    for (number, (fields, fetches)) in [
        (FRESH, 1),
        ("cache-control: max-age=60\r\nvary: accept-language\r\n", 1),
        ("cache-control: private\r\n", 3),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/{number}");
        origin.put(&path, fields, "x");
        for _ in 0..3 {
            ensure!(client.ask(&format!("GET {path}"), OWN)?.text() == "x");
        }
        let asked = origin.asked();
        ensure!(asked.len() == fetches, "{fields}: {asked:?}");
        ensure!(asked.iter().all(|head| head.contains("user-agent: me")), "{fields}: {asked:?}");
    }
    // Of what depends on the language each is kept, for whom it is.
    for (language, body) in [("en", "two"), ("de", "x"), ("en", "two")] {
        origin.put("/1", "cache-control: max-age=60\r\nvary: accept-language\r\n", "two");
        let reply = client.ask("GET /1", &format!("accept-language: {language}\r\n"))?;
        ensure!(reply.text() == body, "{language}: {reply:?}");
    }
    ensure!(origin.asked().len() == 1);
    Ok(())
}

#[test]
fn no_request_is_made_that_no_client_has_made_with_keep_own() -> Result<()> {
    let directory = Directory::new("keep-own-shared");
    let origin = Origin::start()?;
    let service = directory.cache(", keep_own = \"on\"");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    show_that_it_is_shared(client, &origin, "/a")?;
    for answer in [
        answer("200 OK", "cache-control: private, max-age=60\r\n", "x"),
        answer("404 No", "", "x"),
        answer("200 OK", "cache-control: max-age=0\r\netag: \"1\"\r\n", "x"),
        answer("200 OK", "cache-control: max-age=60\r\n", "x"),
    ] {
        origin.put_raw("/a", answer.clone());
        ensure!(client.ask("GET /a", OWN)?.text() == "x");
        let asked = origin.asked();
        ensure!(asked.len() == 1 && OWN.lines().all(|line| asked[0].contains(line)), "{answer}: {asked:?}");
    }
    Ok(())
}

#[test]
fn a_critical_read_does_not_follow_a_fetch_of_a_lower_tier() -> Result<()> {
    const TENANTS: &str = "[[tenant]]\nname = \"low\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\ntier = \"best-effort\"\n\
                           [[tenant]]\nname = \"high\"\nsources = [\"127.0.0.1\", \"127.0.0.7\"]\nquota = \"unlimited\"\n\
                           tier = \"critical\"\n";
    let directory = Directory::new("tiers");
    let store = FakeStore::start()?;
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, &directory.cache(""), TENANTS)?;
    cache::show_that_it_is_shared(&gate, &store, "/a")?;
    let request = b"GET /a HTTP/1.1\r\nhost: test\r\n\r\n";
    let answer =
        |body: &str| format!("HTTP/1.1 200 OK\r\n{FRESH}content-length: {}\r\n\r\n{body}", body.len());
    let mut low = client_from(&gate, 8)?;
    low.send(request)?;
    // The store does not answer it before the other is answered.
    let (mut for_low, _) = store.next()?;
    let mut high = client_from(&gate, 7)?;
    high.send(request)?;
    let (mut for_high, _) = store.next()?;
    for_high.write_all(answer("high").as_bytes())?;
    ensure!(high.reply(false)?.text() == "high");
    for_low.write_all(answer("low").as_bytes())?;
    ensure!(low.reply(false)?.text() == "low");
    Ok(())
}

#[test]
fn a_stale_answer_is_given_where_the_operator_says_so() -> Result<()> {
    let directory = Directory::new("stale");
    let origin = Origin::start()?;
    let service = directory.cache(", stale = \"10min\"");
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let client = &mut client(&gate)?;
    origin.put("/a", "cache-control: max-age=1\r\n", "old");
    client.ask("GET /a", "")?;
    origin.put_raw("/a", answer("503 No", "", ""));
    wait_until("it is not stale", || Ok(status(&client.ask("GET /a", OWN)?) != "gate; hit"))?;
    origin.asked();
    for _ in 0..50 {
        let reply = client.ask("GET /a", OWN)?;
        let is_given = reply.text() == "old" && status(&reply) == "gate; hit; detail=stale-if-error";
        ensure!(is_given && reply.field("age").is_some_and(|age| age != "0"), "{reply:?}");
    }
    ensure!(origin.asked().len() == 50, "each failing answer is one fetch");
    // One fetch brings it back.
    origin.put("/a", FRESH, "new");
    for _ in 0..5 {
        ensure!(client.ask("GET /a", OWN)?.text() == "new");
    }
    ensure!(origin.asked().len() == 1);
    Ok(())
}
