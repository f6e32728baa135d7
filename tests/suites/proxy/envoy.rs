//! Real Envoys that ask a gate: their answers, and those of peers that speak it badly.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use gate_tests::envoy::{Envoy, Filter};
use gate_tests::http::{Answer, curl_socket};
use gate_tests::metrics::Scrape;
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// Of every user three requests at once, and then one in 100 seconds; the tenant has as many.
const LIMITS: &str = "[[tenant]]\nname = \"team\"\nsources = [\"127.0.0.0/8\"]\nquota = \"0.01 RU/s\"\nburst = \"300s\"\n\
                      [[limit]]\nname = \"shop/user=*\"\nquota = \"0.01 RU/s\"\nburst = \"300s\"\nmax_debt = \"0s\"\n";

/// A gate that Envoys ask there.
fn gate_at(listen: &str) -> Result<Listening> {
    let store = Listening::memcached()?;
    let price = "price = { base = \"0.001 RU\", row = \"0.001 RU\", kib = \"0.001 RU\" }";
    Listening::gate("memcached", store.address, price, &format!("{LIMITS}[envoy]\nlisten = \"{listen}\"\n"))
}

fn gate() -> Result<(Listening, SocketAddr)> {
    let envoys = address();
    Ok((gate_at(&envoys.to_string())?, envoys))
}

fn asks_each(gate: &str, failure_mode_deny: bool) -> Result<Envoy> {
    Envoy::start(gate, Filter::EachRequest { failure_mode_deny })
}

fn scrape(gate: &Listening) -> Result<Scrape> {
    Scrape::parse(&curl_socket(&gate.files()?.1, "/metrics", &[])?.body)
}

fn events(gate: &Listening, event: &str) -> Result<f64> {
    Ok(scrape(gate)?.sum("gate_envoy_events_total", &[("event", event)]))
}

fn statuses(envoy: &Envoy, field: &str, count: usize) -> Result<Vec<u16>> {
    (0..count).map(|_| Ok(envoy.ask(field)?.status)).collect()
}

fn has(answer: &Answer, field: &str) -> bool {
    answer.head.lines().any(|line| line.trim().starts_with(field))
}

#[test]
fn an_envoy_refuses_what_a_limit_does_not_hold() -> Result<()> {
    let (gate, envoys) = gate()?;
    let envoy = asks_each(&envoys.to_string(), false)?;
    let first = envoy.ask("x-user: alice")?;
    ensure!(first.status == 200 && has(&first, "x-ratelimit-remaining: 2"), "{first:?}");
    ensure!(has(&first, "x-ratelimit-limit: 36, 36;w=3600"), "{first:?}");
    ensure!(statuses(&envoy, "x-user: alice", 2)? == [200, 200]);
    let refused = envoy.ask("x-user: alice")?;
    ensure!(refused.status == 429 && has(&refused, "x-ratelimit-remaining: 0"), "{refused:?}");
    ensure!(has(&refused, "x-ratelimit-reset: 100") || has(&refused, "x-ratelimit-reset: 9"), "{refused:?}");
    // Each user has as many, so has the tenant, and who is not limited passes.
    ensure!(statuses(&envoy, "x-user: bob", 4)? == [200, 200, 200, 429]);
    ensure!(statuses(&envoy, "x-tenant: team", 4)? == [200, 200, 200, 429]);
    ensure!(statuses(&envoy, "x-tenant: nobody", 4)? == [200; 4]);
    ensure!(statuses(&envoy, "x-other: field", 4)? == [200; 4]);
    // A value that is too long for a name is one user all the same.
    let long = format!("x-user: {}", "x".repeat(8_000));
    ensure!(statuses(&envoy, &long, 4)? == [200, 200, 200, 429]);
    let tenant =
        scrape(&gate)?.sum("gate_tenant_refused_requests_total", &[("tenant", "team"), ("reason", "quota")]);
    ensure!(tenant == 1.0, "{tenant}");
    ensure!(events(&gate, "over-limit")? == 4.0 && events(&gate, "hashed")? == 4.0);
    Ok(())
}

#[test]
fn an_envoy_asks_over_a_unix_socket() -> Result<()> {
    let socket: PathBuf = std::env::temp_dir().join(format!("gate-envoy-{}.sock", std::process::id()));
    let gate = gate_at(&socket.display().to_string())?;
    let envoy = asks_each(&socket.display().to_string(), true)?;
    ensure!(statuses(&envoy, "x-user: alice", 4)? == [200, 200, 200, 429]);
    drop(gate);
    Ok(())
}

#[test]
fn without_gate_an_envoy_does_as_it_is_configured() -> Result<()> {
    let (gate, envoys) = gate()?;
    let allows = asks_each(&envoys.to_string(), false)?;
    let denies = asks_each(&envoys.to_string(), true)?;
    ensure!(statuses(&allows, "x-user: alice", 4)? == [200, 200, 200, 429]);
    ensure!(statuses(&denies, "x-user: alice", 1)? == [429], "both ask one gate");
    gate.signal(Signal::SIGKILL)?;
    wait_until("gate has gone", || Ok(TcpStream::connect(envoys).is_err()))?;
    ensure!(statuses(&allows, "x-user: alice", 4)? == [200; 4]);
    ensure!(statuses(&denies, "x-user: bob", 4)? == [500; 4]);
    Ok(())
}

#[test]
fn an_envoy_gives_out_its_share_by_itself() -> Result<()> {
    let (gate, envoys) = gate()?;
    let envoy = Envoy::start(&envoys.to_string(), Filter::Shares)?;
    // Until its first assignment, everything passes. Then it has three requests for a long time.
    wait_until("the share is spent", || Ok(envoy.ask("x-user: alice")?.status == 429))?;
    ensure!(statuses(&envoy, "x-user: alice", 5)? == [429; 5]);
    ensure!(events(&gate, "assignment")? >= 1.0 && events(&gate, "report")? >= 1.0);
    let streams = scrape(&gate)?.sum("gate_envoy_streams", &[]);
    ensure!(streams == 1.0, "{streams}");
    Ok(())
}

#[test]
fn a_reload_changes_the_limits_of_names() -> Result<()> {
    let (gate, envoys) = gate()?;
    let envoy = asks_each(&envoys.to_string(), false)?;
    ensure!(statuses(&envoy, "x-user: alice", 4)? == [200, 200, 200, 429]);
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    std::fs::write(config, text.replace("shop/user=*", "shop/user=bob"))?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("alice has no limit", || Ok(envoy.ask("x-user: alice")?.status == 200))?;
    ensure!(statuses(&envoy, "x-user: alice", 4)? == [200; 4]);
    ensure!(statuses(&envoy, "x-user: bob", 4)? == [200, 200, 200, 429]);
    Ok(())
}

#[test]
fn peers_that_speak_it_badly_trouble_nobody_else() -> Result<()> {
    let (gate, envoys) = gate()?;
    // More than there are places.
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(envoys)).collect::<Result<_, _>>()?;
    for said in [
        &b"GET / HTTP/1.1\r\nHost: gate\r\n\r\n"[..],
        &[0xff; 100],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x99",
    ] {
        let mut stream = TcpStream::connect(envoys)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(said)?;
        // It is closed, or told why.
        let mut answer = [0; 64];
        let _ = stream.read(&mut answer);
    }
    let envoy = asks_each(&envoys.to_string(), true)?;
    wait_until("others have a place", || Ok(envoy.ask("x-user: alice")?.status == 200))?;
    ensure!(events(&gate, "silent")? >= 40.0);
    drop(silent);
    Ok(())
}
