//! Tenants that a reload removes or changes, while their clients are connected.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http_client::HttpClient;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

fn tenant(name: &str, rest: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nquota = \"unlimited\"\n{rest}\n")
}

const SOURCE: &str = "sources = [\"127.0.0.5\"]";

fn tenants() -> String {
    tenant("first", SOURCE) + &tenant("other", "sources = [\"127.0.0.6\"]")
}

fn ask(client: &mut TcpStream) -> Result<Vec<u8>> {
    client.write_all(b"get a\r\n")?;
    read_until(client, b"\r\n")
}

/// Has the gate read another configuration.
fn reload(gate: &mut Listening, change: impl Fn(&str) -> String) -> Result<()> {
    let path = gate.files()?.0.to_owned();
    std::fs::write(&path, change(&std::fs::read_to_string(&path)?))?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for("configuration read again", gate_tests::proxy::PATIENCE).map(drop)
}

fn passed(gate: &Listening, name: &str) -> Result<u64> {
    gate.json(&["tenants", name])?["tenants"][0]["passed"].as_u64().context("no such tenant")
}

#[test]
fn what_gate_says_is_read_again_is_in_force_in_every_thread() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate_with("threads = \"4\"", "resp", store.address, "", &tenants())?;
    let mut clients = (0..16).map(|_| gate.connect_from(FIRST)).collect::<Result<Vec<_>>>()?;
    let denying = format!("{SOURCE}\ndeny = \"DBSIZE\"");
    for round in 0..20 {
        let denies = round % 2 == 0;
        let (from, to) = if denies { (SOURCE, &*denying) } else { (&*denying, SOURCE) };
        reload(&mut gate, |text| text.replace(from, to))?;
        for client in &mut clients {
            client.write_all(b"DBSIZE\r\n")?;
            let said = String::from_utf8(read_until(client, b"\r\n")?)?;
            ensure!(said.starts_with(if denies { "-DENIED" } else { ":0" }), "{round}: {said}");
        }
    }
    Ok(())
}

#[test]
fn a_reload_is_in_force_in_every_thread_over_http() -> Result<()> {
    let store = Nginx::start(&[])?;
    let service = "trusted = [\"127.0.0.5\"]\ntenant_header = \"X-Scope-OrgID\"";
    let named = tenant("named", "ids = [\"org-1\"]");
    let mut gate = Listening::gate_with("threads = \"4\"", "http", store.address, service, &named)?;
    let clients = (0..16).map(|_| Ok(HttpClient::new(gate.connect_from(FIRST)?)));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    for round in 0..20 {
        let is_known = round % 2 == 1;
        let ids = ["\"org-1\"", "\"org-2\""];
        let [from, to] = if is_known { [ids[1], ids[0]] } else { ids };
        reload(&mut gate, |text| text.replace(from, to))?;
        for client in &mut clients {
            let reply = client.ask("GET /echo", "x-scope-orgid: org-1\r\n")?;
            ensure!(reply.status == if is_known { 200 } else { 403 }, "{round}: {reply:?}");
        }
    }
    Ok(())
}

#[test]
fn clients_of_a_removed_tenant_never_become_the_next_ones() -> Result<()> {
    let store = Listening::memcached()?;
    let mut gate =
        Listening::gate_with("tick = \"10ms\"\nthreads = \"1\"", "memcached", store.address, "", &tenants())?;
    let mut client = gate.connect_from(FIRST)?;
    ensure!(ask(&mut client)? == b"END\r\n");
    reload(&mut gate, |text| text.replace(&tenant("first", SOURCE), ""))?;
    wait_until("it is still served", || Ok(ask(&mut client)?.ends_with(b"reason=unknown-source\r\n")))?;
    // Whoever comes next has its own number, and pays for its own requests.
    reload(&mut gate, |text| text.to_owned() + &tenant("next", "sources = [\"127.0.0.7\"]"))?;
    for _ in 0..10 {
        ensure!(ask(&mut client)?.ends_with(b"reason=unknown-source\r\n"));
    }
    ensure!(passed(&gate, "next")? == 0);
    Ok(())
}

#[test]
fn a_source_that_becomes_anothers_takes_its_clients_along() -> Result<()> {
    let store = Listening::memcached()?;
    let mut gate = Listening::gate_with("tick = \"10ms\"", "memcached", store.address, "", &tenants())?;
    let mut client = gate.connect_from(FIRST)?;
    let mut stays = gate.connect_from(OTHER)?;
    ensure!(ask(&mut client)? == b"END\r\n" && ask(&mut stays)? == b"END\r\n");
    let second = tenant("second", "sources = [\"127.0.0.5\"]\nmax_connections = \"1\"");
    reload(&mut gate, |text| text.replace(&tenant("first", SOURCE), &second))?;
    wait_until("it is charged to nobody", || {
        ensure!(ask(&mut client)?.ends_with(b"\r\n"));
        Ok(passed(&gate, "second")? > 0)
    })?;
    let before = passed(&gate, "other")?;
    ensure!(ask(&mut stays)? == b"END\r\n");
    wait_until("a client that stays is not charged", || Ok(passed(&gate, "other")? == before + 1))?;
    // It has the one connection that there may be.
    let mut third = gate.connect_from(FIRST)?;
    let mut said = String::new();
    third.read_to_string(&mut said)?;
    ensure!(said.ends_with("reason=limit\r\n"), "{said}");
    Ok(())
}

#[test]
fn a_client_of_a_removed_tenant_goes_to_the_default() -> Result<()> {
    let store = Listening::memcached()?;
    let service = "default = \"other\"";
    let mut gate = Listening::gate_with("tick = \"10ms\"", "memcached", store.address, service, &tenants())?;
    let mut client = gate.connect_from(FIRST)?;
    ensure!(ask(&mut client)? == b"END\r\n");
    reload(&mut gate, |text| text.replace(&tenant("first", SOURCE), ""))?;
    wait_until("it is not charged to the default", || {
        ask(&mut client)?;
        Ok(passed(&gate, "other")? > 0)
    })
}
