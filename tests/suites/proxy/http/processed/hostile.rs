//! Originals, processors and clients that mean harm.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::http_server::{HttpServer, target, whole};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;

use super::{Answers, Directory, FRESH, OPEN, Site, client, fetch, prefix, process, put, wait_open};

#[test]
fn paths_that_are_no_spec_of_an_origin_are_refused() -> Result<()> {
    let directory = Directory::new("processed-paths");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    let origin = site.origin.address;
    let long = "w".repeat(65);
    let far = format!("http://{origin}/{}", "x".repeat(2_100));
    let own = format!("http://{origin}/a");
    for (spec, url, status) in [
        ("..", own.as_str(), 400),
        (".", &own, 400),
        ("a..b", &own, 400),
        ("", &own, 400),
        ("%2e%2e", &own, 400),
        ("a%2fb", &own, 400),
        ("w%00", &own, 400),
        ("w%0d%0ax", &own, 400),
        ("w;x", &own, 400),
        (&long, &own, 400),
        ("w", "", 400),
        ("w", "a", 400),
        ("w", "file:///etc/passwd", 400),
        ("w", "gopher://127.0.0.1/", 400),
        ("w", &far, 400),
        ("w", &format!("http://u@{origin}/a"), 400),
        ("w", &format!("http://{origin}/a?query"), 400),
        ("w", &format!("http://{origin}/a%0d%0aevil:1"), 400),
        ("w", &format!("http://{origin}/a%00"), 400),
        ("w", &format!("http://{origin}%5c@evil/a"), 400),
        ("w", "http://127.0.0.1:1/a", 403),
        ("w", "http://169.254.169.254/latest/meta-data", 403),
        ("w", "http://[::1]/a", 403),
        ("w", &format!("http://{}/a", site.blobs), 403),
        ("w", &format!("https://{origin}/a"), 403),
        ("w", &format!("http://{origin}.evil.example/a"), 400),
        ("w", "http%253A%252F%252F127.0.0.1%252Fa", 400),
    ] {
        let reply = client(&site.gate)?.ask(&format!("GET /img/{spec}/{url}"), "")?;
        ensure!(reply.status == status, "{spec:?} {url:?}: {reply:?}");
    }
    for (method, fields, status) in [("DELETE", "", 405), ("POST", "content-length: 0\r\n", 405)] {
        let reply = client(&site.gate)?.ask(&site.line("w", "/a").replace("GET", method), fields)?;
        ensure!(reply.status == status, "{method}: {reply:?}");
    }
    ensure!(site.asked() == (0, 0), "nobody was asked");
    ensure!(site.event("origin-refused")? == 5);
    // Nothing of a client reaches the origin or the processor.
    let fields = "cookie: a=1\r\nauthorization: b\r\nx-forwarded-for: 1.2.3.4\r\naccept: evil/1\r\n";
    ensure!(client(&site.gate)?.ask(&site.line("w", "/a"), fields)?.text() == "w:a");
    for head in [site.origin.asked(), site.processor.asked()].concat() {
        for field in ["cookie", "authorization", "forwarded", "evil"] {
            ensure!(!head.to_lowercase().contains(field), "{head}");
        }
    }
    Ok(())
}

#[test]
fn only_listed_specs_are_made() -> Result<()> {
    let directory = Directory::new("processed-specs");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let site = Site::new(&directory, &answers, ", specs = [\"w1\", \"w2\"]", OPEN, Box::new(prefix))?;
    ensure!(site.ask("w2", "/a")?.status == 200 && site.ask("w3", "/a")?.status == 403);
    Ok(())
}

#[test]
fn a_redirect_leads_to_configured_origins_alone() -> Result<()> {
    let directory = Directory::new("processed-redirect");
    let secret = HttpServer::start(|_| Some(whole(200, "", b"secret")))?;
    let foreign = secret.address;
    let origin = HttpServer::start(move |head| {
        let to = |location: &str| Some(whole(302, &format!("location: {location}\r\n"), b""));
        match target(head) {
            "/near" => to("/there"),
            "/there" => Some(whole(200, "cache-control: max-age=600\r\n", b"there")),
            "/far" => to(&format!("http://{foreign}/")),
            "/scheme" => to("file:///etc/passwd"),
            "/round" => to("/round"),
            _ => to(""),
        }
    })?;
    let site = Site::with_origin(&directory, origin, "", OPEN, Box::new(prefix))?;
    ensure!(site.ask("w", "/near")?.text() == "w:there");
    for (path, status) in [("/far", 403), ("/scheme", 502), ("/round", 502), ("/nowhere", 502)] {
        let reply = site.ask("w", path)?;
        ensure!(reply.status == status, "{path}: {reply:?}");
    }
    ensure!(secret.asked().is_empty() && site.processor.asked().len() == 1);
    Ok(())
}

#[test]
fn a_name_that_stands_for_an_inner_address_is_refused() -> Result<()> {
    let origin = HttpServer::start(|_| Some(whole(200, "", b"secret")))?;
    let processor = HttpServer::start(|_| Some(whole(200, "", b"made")))?;
    let port = origin.address.port();
    for (name, networks, status) in
        [("closed", "", 403), ("open", ", networks = [\"127.0.0.0/8\", \"::1\"]", 502)]
    {
        let directory = Directory::new(&format!("processed-inner-{name}"));
        let blobs = address();
        let process = process(processor.address, blobs, &[], networks);
        let process = process.replace("origins = []", &format!("origins = [\"http://localhost:{port}\"]"));
        let service = format!("{}\n{process}", directory.cache(""));
        let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
        wait_open(&gate)?;
        // Where it may be asked, nobody listens at that address.
        let reply = client(&gate)?.ask(&format!("GET /img/w/http://localhost:{port}/a"), "")?;
        ensure!(reply.status == status, "{name}: {reply:?}");
    }
    ensure!(origin.asked().is_empty());
    Ok(())
}

#[test]
fn a_processor_that_fails_fails_one_request_alone() -> Result<()> {
    let directory = Directory::new("processed-fails");
    let answers = Answers::default();
    for path in ["/5xx", "/hang", "/endless", "/garbage", "/short", "/two", "/close", "/redirect", "/good"] {
        put(&answers, path, FRESH, path);
    }
    let work = |spec: &str, original: &str| {
        match original {
        "/5xx" => Some(whole(500, "", b"")),
        "/hang" => None,
        "/endless" => Some([&b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..], &endless()].concat()),
        "/garbage" => Some(b"\0\x01 what? connection: close\r\n\r\n".to_vec()),
        "/short" => Some(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 10\r\n\r\nshort".to_vec()),
        "/two" => Some(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".to_vec()),
        "/close" => Some(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nperhaps a part".to_vec()),
        "/redirect" => Some(whole(302, "location: /evil\r\n", b"")),
        _ => prefix(spec, original),
    }
    };
    let site = Site::new(&directory, &answers, ", timeout = \"2s\"", OPEN, Box::new(work))?;
    for (path, status) in [
        ("/5xx", 502),
        ("/hang", 504),
        ("/endless", 422),
        ("/garbage", 502),
        ("/short", 502),
        ("/two", 502),
        ("/close", 502),
        ("/redirect", 502),
    ] {
        for _ in 0..2 {
            let reply = site.ask("w", path)?;
            ensure!(reply.status == status, "{path}: {reply:?}");
            ensure!(!site.processor.asked().is_empty(), "{path}: it is not kept");
        }
    }
    ensure!(site.ask("w", "/good")?.text() == "w:/good");
    ensure!((site.event("processed")?, site.event("content-refused")?) == (1, 0));
    Ok(())
}

#[test]
fn a_refusal_by_who_has_not_fetched_the_original_is_not_kept() -> Result<()> {
    let origin = HttpServer::start(|_| Some(whole(200, FRESH, b"a")))?;
    let processor = HttpServer::start(|_| Some(whole(404, "", b"")))?;
    let directory = Directory::new("processed-unfetched");
    let process = process(processor.address, address(), &[origin.address], "");
    let service = format!("{}\n{process}", directory.cache(""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    for _ in 0..2 {
        let reply = client(&gate)?.ask(&format!("GET /img/w/http://{}/a", origin.address), "")?;
        ensure!(reply.status == 502 && processor.asked().len() == 3, "{reply:?}");
    }
    ensure!(origin.asked().len() == 1);
    Ok(())
}

/// More chunks than may be kept.
fn endless() -> Vec<u8> {
    let chunk = [&b"1000\r\n"[..], &[b'x'; 4_096], b"\r\n"].concat();
    chunk.repeat(32)
}

#[test]
fn an_original_that_is_no_whole_answer_is_not_processed() -> Result<()> {
    let directory = Directory::new("processed-origins");
    let origin = HttpServer::start(|head| {
        let cut = |head: &str| {
            Some(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{head}\r\n\r\npart").into_bytes())
        };
        match target(head) {
            "/short" => cut("content-length: 9"),
            "/close" => cut("x: y"),
            "/long" => Some(whole(200, FRESH, &[b'x'; 70_000])),
            "/500" => Some(whole(500, "", b"")),
            "/404" => Some(whole(404, "", b"evil")),
            "/204" => Some(b"HTTP/1.1 204 None\r\n\r\n".to_vec()),
            _ => Some(b"garbage\r\n\r\n".to_vec()),
        }
    })?;
    let site = Site::with_origin(&directory, origin, "", OPEN, Box::new(prefix))?;
    for (path, status) in [
        ("/short", 502),
        ("/close", 502),
        ("/long", 422),
        ("/500", 502),
        ("/404", 404),
        ("/204", 502),
        ("/", 502),
    ] {
        let reply = site.ask("w", path)?;
        ensure!(reply.status == status && !reply.text().contains("evil"), "{path}: {reply:?}");
    }
    ensure!(site.processor.asked().is_empty());
    Ok(())
}

#[test]
fn a_blob_is_known_to_its_processor_while_it_works() -> Result<()> {
    let directory = Directory::new("processed-names");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    ensure!(site.ask("w", "/a")?.text() == "w:a");
    let asked = site.processor.asked();
    let name =
        target(asked.first().context("nobody was asked")?).rsplit('/').next().context("no name")?.to_owned();
    ensure!(name.len() == 48, "{name}");
    // It is gone, and others were never there.
    let before = site.event("unknown-blobs")?;
    let number = &name[..16];
    for guess in
        [name.as_str(), number, "", "..", &format!("{number}{}", "0".repeat(32)), "%2e%2e/index.redb"]
    {
        ensure!(fetch(site.blobs, guess)?.status == 404, "{guess}");
    }
    ensure!(site.event("unknown-blobs")? == before + 6);
    for method in ["POST", "DELETE", "PUT", "OPTIONS"] {
        let mut client = HttpClient::new(TcpStream::connect(site.blobs)?);
        ensure!(client.ask(&format!("{method} /{name}"), "content-length: 0\r\n")?.status == 405, "{method}");
    }
    Ok(())
}

#[test]
fn clients_that_say_nothing_do_not_keep_a_processor_out() -> Result<()> {
    let directory = Directory::new("processed-silent");
    let answers = Answers::default();
    put(&answers, "/a", FRESH, "a");
    let site = Site::new(&directory, &answers, "", OPEN, Box::new(prefix))?;
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(site.blobs)).collect::<Result<_, _>>()?;
    ensure!(site.ask("w", "/a")?.text() == "w:a");
    drop(silent);
    Ok(())
}

#[test]
fn one_tenant_does_not_keep_the_others_waiting() -> Result<()> {
    let directory = Directory::new("processed-tenants");
    let many = Arc::new(AtomicUsize::new(0));
    let origin = HttpServer::start(|head| Some(whole(200, FRESH, target(head).as_bytes())))?;
    let working = Arc::clone(&many);
    let work = move |spec: &str, original: &str| {
        if original == "/good" {
            return prefix(spec, original);
        }
        working.fetch_add(1, Ordering::Relaxed);
        None
    };
    let tenants = "[[tenant]]\nname = \"bad\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"good\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\n";
    let more = ", concurrency = \"4\", queue = \"8\", timeout = \"20s\", objective = \"20s\"";
    let site = Site::with_origin(&directory, origin, more, tenants, Box::new(work))?;
    let mut hung = Vec::new();
    for place in 0..30 {
        let stream = site.gate.connect_from([127, 0, 0, 7].into())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut one = HttpClient::new(stream);
        one.send(
            format!("{} HTTP/1.1\r\nhost: test\r\n\r\n", site.line("w", &format!("/{place}"))).as_bytes(),
        )?;
        hung.push(one);
    }
    wait_until("the queue is full", || Ok(site.event("process-refused")? == 20))?;
    // What has a permit is at the processor a little later.
    wait_until("half of the permits are used", || Ok(many.load(Ordering::Relaxed) == 2))?;
    let mut good = HttpClient::new(site.gate.connect_from([127, 0, 0, 8].into())?);
    let reply = good.ask(&site.line("w", "/good"), "")?;
    ensure!(reply.text() == "w:/good", "{reply:?}");
    ensure!(many.load(Ordering::Relaxed) == 2, "half of the permits");
    Ok(())
}

#[test]
fn slow_originals_of_one_tenant_leave_others_their_share() -> Result<()> {
    const LEN: usize = 60_000;
    let tenants = "[[tenant]]\nname = \"bad\"\nsources = [\"127.0.0.7\"]\nquota = \"unlimited\"\n\
                   [[tenant]]\nname = \"good\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\n";
    // Of 4 MiB, and of few downloads at a time.
    for (downloads, reason) in [("200", "limit"), ("4", "queue-full")] {
        let directory = Directory::new(&format!("processed-slow-{downloads}"));
        let origin = HttpServer::start(|head| {
            let answer = whole(200, FRESH, &[b'x'; LEN]);
            let is_slow = target(head).starts_with("/slow");
            // All but its last bytes.
            Some(if is_slow { answer[..answer.len() - 10].to_vec() } else { answer })
        })?;
        let more = format!(", downloads = \"{downloads}\", queue = \"8\", timeout = \"20s\"");
        let work = |_: &str, original: &str| Some(whole(200, "", &original.as_bytes()[..10]));
        let site = Site::with_origin(&directory, origin, &more, tenants, Box::new(work))?;
        let mut slow = Vec::new();
        for place in 0..90 {
            let stream = site.gate.connect_from([127, 0, 0, 7].into())?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut one = HttpClient::new(stream);
            let line = site.line("w", &format!("/slow{place}"));
            one.send(format!("{line} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes())?;
            slow.push(one);
        }
        let refused = || Ok::<_, anyhow::Error>(site.event("no-room")? + site.event("process-refused")?);
        wait_until("it may have all", || Ok(refused()? >= 50))?;
        let mut good = HttpClient::new(site.gate.connect_from([127, 0, 0, 8].into())?);
        for place in 0..10 {
            let reply = good.ask(&site.line("w", &format!("/good{place}")), "")?;
            ensure!(reply.status == 200, "{downloads}: {reply:?}");
        }
        let of_bad = site.gate.json(&["tenants", "bad"])?["tenants"][0]["refused"][reason].as_u64();
        ensure!(of_bad >= Some(50), "{downloads}: {of_bad:?} refused for {reason}");
        ensure!(site.gate.memory()? < 64 << 20, "{}", site.gate.memory()?);
    }
    Ok(())
}
