//! Originals over HTTPS, from Debian's nginx.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_server::{HttpServer, target, whole};
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, address};
use gate_tests::tls::Authority;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{client, fetch, process};
use crate::http::OPEN;
use crate::http::cache::{Directory, wait_open};

/// Has gate start with these origins, before a processor that says what it was asked for.
fn gate_of(directory: &Directory, origins: &[&Nginx], ca: &Path) -> Result<(Listening, HttpServer)> {
    let blobs = address();
    let processor = HttpServer::start(move |head| {
        let name = target(head).rsplit('/').next()?;
        Some(whole(200, "", &fetch(blobs, name).ok()?.body))
    })?;
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    let process = process(processor.address, blobs, &addresses, &format!(", origins_ca = {ca:?}"));
    let service = format!(
        "{}\n{}",
        directory.cache(""),
        process.replace("[\"http:", "[\"https:").replace(", \"http:", ", \"https:")
    );
    let gate = Listening::gate_with("tick = \"10ms\"", "http", processor.address, &service, OPEN)?;
    wait_open(&gate)?;
    Ok((gate, processor))
}

fn line(origin: &Nginx, file: &str) -> String {
    format!("GET /img/w/https://{}/{file}", origin.address)
}

#[test]
fn originals_come_over_https_by_the_right_certificate() -> Result<()> {
    let authority = Authority::new()?;
    let foreign = Authority::new()?;
    let addresses = [(); 4].map(|()| address());
    let name = |place: usize| format!("IP:{}", addresses[place].ip());
    let shown = [
        authority.issue("right", &name(0), 30)?,
        foreign.issue("foreign", &name(1), 30)?,
        authority.issue("other", "IP:198.51.100.1", 30)?,
        authority.issue("expired", &name(3), -1)?,
    ];
    let origins: Vec<_> = (0..4)
        .map(|place| Nginx::start_with_tls_at(addresses[place], &[100, 50_000], &shown[place]))
        .collect::<Result<_>>()?;
    let directory = Directory::new("processed-https");
    let (gate, processor) = gate_of(&directory, &origins.iter().collect::<Vec<_>>(), &authority.ca())?;
    for (file, len) in [("100", 100), ("50000", 50_000)] {
        for _ in 0..2 {
            let reply = client(&gate)?.ask(&line(&origins[0], file), "")?;
            ensure!(reply.status == 200 && reply.body.len() == len, "{file}: {reply:?}");
        }
    }
    // nginx writes its log behind an answer.
    let downloads = "200 /100\n304 /100\n200 /50000\n304 /50000\n";
    wait_until(downloads, || Ok(origins[0].statuses()? == downloads))?;
    ensure!(processor.asked().len() == 2);
    for wrong in &origins[1..] {
        let reply = client(&gate)?.ask(&line(wrong, "100"), "")?;
        ensure!(reply.status == 502, "{reply:?}");
        ensure!(wrong.statuses()?.is_empty(), "it was asked");
    }
    let events = &gate.json(&["cache", "status"])?["caches"][0]["events"];
    ensure!(events["download-failed"] == 3, "{events}");
    // The same place is another origin over plain HTTP.
    let plain = line(&origins[0], "100").replace("https", "http");
    ensure!(client(&gate)?.ask(&plain, "")?.status == 403);
    Ok(())
}

#[test]
fn the_certificates_of_origins_are_read_again() -> Result<()> {
    let old = Authority::new()?;
    let new = Authority::new()?;
    let at = address();
    let origin = Nginx::start_with_tls_at(at, &[100], &new.issue("new", &format!("IP:{}", at.ip()), 30)?)?;
    let ca = old.ca().with_file_name("origins.pem");
    fs::copy(old.ca(), &ca)?;
    let directory = Directory::new("processed-reread");
    let (gate, _processor) = gate_of(&directory, &[&origin], &ca)?;
    ensure!(client(&gate)?.ask(&line(&origin, "100"), "")?.status == 502);
    fs::write(&ca, "no certificate")?;
    gate.signal(Signal::SIGHUP)?;
    fs::copy(new.ca(), &ca)?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("the certificates are read again", || {
        let reply = client(&gate)?.ask(&line(&origin, "100"), "")?;
        ensure!([200, 502].contains(&reply.status), "{reply:?}");
        Ok(reply.status == 200)
    })
    .context("after a file that was none")
}
