//! Tenants of many members: each value of a field, user of Redis, or address is limited for itself.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use gate_tests::http::curl_socket;
use gate_tests::http_client::HttpClient;
use gate_tests::metrics::Scrape;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::paths;

/// Ten requests of 1 RU for each member, and no more while a test runs.
const TEN: &str = "quota = \"0.01 RU/s\"\nburst = \"1000s\"\nmax_debt = \"0s\"\n";
const PRICE: &str =
    "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\", learn = \"off\" }\nparallelism = \"off\"\n";
const BY_KEY: &str = "trusted = [\"127.0.0.9\"]\ntenant_header = \"X-API-Key\"\n";
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// Tenants: ten requests for each key, and no limit for what is named by itself.
fn keys(members: &str) -> String {
    format!(
        "[[tenant]]\nname = \"api/*\"\nids = \"*\"\n{TEN}{members}\n[[tenant]]\nname = \"named\"\nids = [\"org-1\"]\n\
         quota = \"unlimited\"\n[[tenant]]\nname = \"proxy\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n"
    )
}

fn sources(each: &str) -> String {
    format!("[[tenant]]\nname = \"from/*\"\nsources = {each}\n{TEN}")
}

fn gate(protocol: &str, store: std::net::SocketAddr, service: &str, tenants: &str) -> Result<Listening> {
    Listening::gate_with("tick = \"10ms\"", protocol, store, &format!("{PRICE}{service}"), tenants)
}

/// The value of a metric of the tenant with members.
fn metric(gate: &Listening, tenant: &str, name: &str) -> Result<f64> {
    let said = curl_socket(&gate.files()?.1, "/metrics", &[])?.body;
    Ok(Scrape::parse(&said)?.sum(name, &[("tenant", tenant)]))
}

/// The status and the reason of a request with this key.
fn ask(client: &mut HttpClient, key: &str) -> Result<(u16, String)> {
    let reply = client.ask("GET /echo", &format!("x-api-key: {key}\r\n"))?;
    Ok((reply.status, reply.reason().to_owned()))
}

/// How many of so many requests with this key pass; the others are refused for the member's quota.
fn passed(client: &mut HttpClient, key: &str, requests: usize) -> Result<usize> {
    let mut passed = 0;
    for _ in 0..requests {
        let reply = client.ask("GET /echo", &format!("x-api-key: {key}\r\n"))?;
        match (reply.status, reply.reason()) {
            (200, _) => passed += 1,
            (429, "quota") => ensure!(reply.text().contains("bucket=api/*"), "{reply:?}"),
            _ => anyhow::bail!("{key}: {reply:?}"),
        }
    }
    Ok(passed)
}

fn explain(gate: &Listening, client: [&str; 2], words: &[&str]) -> Result<Value> {
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["explain", "--service", "store", "--json", "--socket"]).arg(socket);
    let output = command.args(client).arg("--").args(words).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn each_value_of_a_field_has_a_quota_of_its_own() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = gate("http", store.address, BY_KEY, &keys(""))?;
    let mut client = HttpClient::new(gate.connect_from(PROXY)?);
    ensure!(passed(&mut client, "alice", 15)? == 10);
    ensure!(passed(&mut client, "bob", 4)? == 4);
    ensure!(passed(&mut HttpClient::new(gate.connect_from(PROXY)?), "alice", 3)? == 0, "by any connection");
    ensure!(passed(&mut client, "org-1", 20)? == 20, "what is named is no member");
    ensure!(client.ask("GET /echo", "")?.status == 200, "without a value it is the source's");
    let long = "x".repeat(151);
    for nobody in ["", "a b", "a,b", &long] {
        ensure!(ask(&mut client, nobody)? == (403, "unknown-source".to_owned()), "{nobody}");
        client = HttpClient::new(gate.connect_from(PROXY)?);
    }
    // What the store is told is what the client's proxy said.
    ensure!(client.ask("GET /echo", "x-api-key: carol\r\n")?.status == 200);
    ensure!(metric(&gate, "api/*", "gate_tenant_members")? == 3.0);
    // Each is explained as it stands, and made by no question.
    let bucket = |explained: &Value| {
        let own = &explained["buckets"][0];
        (explained["tenant"].as_str().map(str::to_owned), own["name"].clone(), own["level"].as_f64())
    };
    let words = ["GET", "/echo"];
    for (name, level, verdict) in
        [("alice", 0.0, "refused"), ("bob", 6.0, "passes"), ("dave", 10.0, "passes")]
    {
        let asked = format!("api/{name}");
        let explained = explain(&gate, ["--tenant", &asked], &words)?;
        let (tenant, own, found) = bucket(&explained);
        let found = found.context("no level")?;
        ensure!(
            tenant.as_deref() == Some(&*asked) && own == asked && (found - level).abs() < 0.9,
            "{explained}"
        );
        ensure!(explained["verdict"] == verdict, "{explained}");
        let field = format!("x-api-key: {name}");
        let by_field = explain(&gate, ["--source", "127.0.0.9"], &[&words[..], &[&*field]].concat())?;
        ensure!(by_field["tenant"] == asked && by_field["verdict"] == verdict, "{by_field}");
    }
    ensure!(metric(&gate, "api/*", "gate_tenant_members")? == 3.0);
    let listed = gate.json(&["members", "api/*"])?;
    let [alice, bob, carol] = &listed["members"].as_array().context("no members")?[..] else {
        bail!("{listed}")
    };
    ensure!(alice["member"] == "api/alice" && alice["tenant"] == "api/*", "{listed}");
    for (member, name, left) in [(alice, "alice", 0.0), (bob, "bob", 0.6), (carol, "carol", 0.9)] {
        let is_left = member["burst_left"].as_f64().is_some_and(|found| (found - left).abs() < 0.09);
        ensure!(member["member"] == format!("api/{name}") && is_left, "{listed}");
    }
    let of_all = gate.json(&["members", "-n", "1"])?;
    ensure!(of_all["tenants"] == listed["tenants"] && listed["tenants"][0]["members"] == 3, "{of_all}");
    ensure!(of_all["members"].as_array().is_some_and(|members| members.len() == 1), "{of_all}");
    let whole = gate.json(&["tenants", "api/*"])?["tenants"][0].take();
    ensure!(whole["passed"] == 15 && whole["refused"]["quota"] == 8, "{whole}");
    Ok(())
}

#[test]
fn a_flood_of_values_takes_no_memory_and_nobodys_debt() -> Result<()> {
    const VALUES: usize = 3_000;
    let store = Nginx::start(&[])?;
    let gate = gate("http", store.address, BY_KEY, &keys("member_memory = \"64KiB\""))?;
    let mut client = HttpClient::new(gate.connect_from(PROXY)?);
    ensure!(passed(&mut client, "debtor", 11)? == 10);
    ensure!(passed(&mut client, "saver", 3)? == 3);
    for first in (0..VALUES).step_by(100) {
        let request = |value| format!("GET /echo HTTP/1.1\r\nhost: test\r\nx-api-key: flood-{value}\r\n\r\n");
        client.send((first..first + 100).map(request).collect::<String>().as_bytes())?;
        for _ in 0..100 {
            let reply = client.reply(false)?;
            ensure!(matches!((reply.status, reply.reason()), (200, _) | (429, "quota")), "{reply:?}");
        }
    }
    ensure!(metric(&gate, "api/*", "gate_tenant_member_memory_bytes")? <= 65_536.0);
    let members = metric(&gate, "api/*", "gate_tenant_members")?;
    ensure!(members > 150.0 && members < VALUES as f64 / 4.0, "{members}");
    ensure!(metric(&gate, "api/*", "gate_tenant_members_without_room_total")? > VALUES as f64 / 2.0);
    ensure!(metric(&gate, "api/*", "gate_tenant_members_evicted_total")? == 0.0, "nobody's bucket was full");
    ensure!(passed(&mut client, "debtor", 1)? == 0, "what it owes is not forgotten");
    ensure!(passed(&mut client, "saver", 10)? == 7, "what it has left is its own");
    ensure!(passed(&mut client, "late", 12)? == 0, "those without room have used up what they share");
    ensure!(passed(&mut client, "org-1", 20)? == 20, "named tenants notice nothing");
    Ok(())
}

/// So many replies of a line each.
fn lines(stream: &mut TcpStream, asked: &str, count: usize) -> Result<Vec<String>> {
    stream.write_all(asked.as_bytes())?;
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while said.iter().filter(|&&byte| byte == b'\n').count() < count {
        let len = stream.read(&mut piece)?;
        ensure!(len > 0, "closed after {}", shown(&said));
        said.extend_from_slice(&piece[..len]);
    }
    Ok(String::from_utf8(said)?.lines().map(str::to_owned).collect())
}

/// How many of so many of a Redis client's requests pass.
fn served(stream: &mut TcpStream, requests: usize) -> Result<usize> {
    let answers = lines(stream, &"STRLEN none\r\n".repeat(requests), requests)?;
    let served = answers.iter().filter(|answer| *answer == ":0").count();
    let refused = answers.iter().filter(|answer| answer.contains("reason=quota")).count();
    ensure!(served + refused == requests, "{answers:?}");
    Ok(served)
}

#[test]
fn each_user_of_redis_is_one_once_the_store_accepts_it() -> Result<()> {
    let store = Listening::redis()?;
    for user in ["alice", "bob", "named"] {
        store.ask(format!("ACL SETUSER {user} on >secret ~* &* +@all\r\n").as_bytes(), b"+OK\r\n")?;
    }
    let tenants = keys("").replace("ids = [\"org-1\"]", "users = [\"named\"]");
    let gate = gate("resp", store.address, "", &tenants)?;
    let mut guesses = gate.connect()?;
    for guess in 0..20 {
        let said = lines(&mut guesses, &format!("AUTH guess-{guess} wrong\r\n"), 1)?;
        ensure!(said[0].starts_with("-WRONGPASS"), "{said:?}");
    }
    ensure!(metric(&gate, "api/*", "gate_tenant_members")? == 0.0, "a guess makes no member");
    ensure!(served(&mut guesses, 30)? == 30, "who has not logged in is the source's");
    let login = |user: &str| -> Result<TcpStream> {
        let mut client = gate.connect()?;
        ensure!(lines(&mut client, &format!("AUTH {user} secret\r\n"), 1)? == ["+OK"]);
        Ok(client)
    };
    // The login itself is charged to whoever the client was before.
    let mut alice = login("alice")?;
    ensure!(served(&mut alice, 15)? == 10);
    let mut bob = login("bob")?;
    ensure!(served(&mut bob, 5)? == 5);
    ensure!(served(&mut login("named")?, 15)? == 15, "what is named is no member");
    ensure!(served(&mut login("alice")?, 5)? == 0, "by any connection");
    ensure!(metric(&gate, "api/*", "gate_tenant_members")? == 2.0);
    let explained = explain(&gate, ["--source", "127.0.0.1"], &["GET", "a"])?;
    ensure!(explained["tenant"] == "proxy", "{explained}");
    // Whoever is nobody's user any more is the source's again, and has paid for that.
    ensure!(lines(&mut bob, "RESET\r\n", 1)? == ["+RESET"]);
    ensure!(served(&mut bob, 15)? == 15);
    ensure!(served(&mut login("bob")?, 15)? == 4);
    Ok(())
}

#[test]
fn each_address_is_limited_for_itself() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants = sources("\"each /32\"")
        + "[[tenant]]\nname = \"named\"\nsources = [\"127.0.0.8\"]\nquota = \"unlimited\"\n";
    let gate = gate("memcached", store.address, "", &tenants)?;
    let served = |last: u8, requests: usize| -> Result<usize> {
        let mut client = gate.connect_from(Ipv4Addr::new(127, 0, 0, last))?;
        let answers = lines(&mut client, &"get none\r\n".repeat(requests), requests)?;
        let refused = answers.iter().filter(|answer| answer.ends_with("reason=quota bucket=from/*")).count();
        Ok(requests - refused)
    };
    ensure!(served(2, 15)? == 10);
    ensure!(served(3, 4)? == 4);
    ensure!(served(2, 5)? == 0, "a new connection is the same address");
    ensure!(served(8, 20)? == 20, "what is named is no member");
    ensure!(served(3, 15)? == 6);
    let explained = explain(&gate, ["--source", "127.0.0.2"], &["get", "a"])?;
    ensure!(explained["tenant"] == "from/127.0.0.2" && explained["verdict"] == "refused", "{explained}");
    // With the address from which it was tried whether gate listens.
    ensure!(metric(&gate, "from/*", "gate_tenant_members")? == 3.0);
    Ok(())
}

/// The header of a connection of this client's, version 1 of the protocol being refused.
fn header_of(client: std::net::IpAddr) -> Vec<u8> {
    let header = |family: u8, rest: &[u8]| {
        [b"\r\n\r\n\0\r\nQUIT\n", &[0x21, family][..], &(rest.len() as u16).to_be_bytes(), rest].concat()
    };
    match client {
        std::net::IpAddr::V4(client) => header(0x11, &[&client.octets()[..], &[0; 8]].concat()),
        std::net::IpAddr::V6(client) => header(0x21, &[&client.octets()[..], &[0; 20]].concat()),
    }
}

#[test]
fn addresses_that_a_proxy_names_are_grouped_by_their_network() -> Result<()> {
    let store = Listening::redis()?;
    let service = "proxy_protocol = \"on\"\ntrusted = [\"127.0.0.9\"]";
    let gate = gate("resp", store.address, service, &sources("[\"each /24\", \"each /64\"]"))?;
    for (client, requests, expected) in [
        ("198.18.7.1", 6, 6),
        ("198.18.7.200", 6, 4),
        ("198.18.8.1", 6, 6),
        ("fd00:1::7", 6, 6),
        ("fd00:1::8:1", 6, 4),
        ("fd00:1:0:1::7", 12, 10),
        ("::ffff:198.18.8.2", 6, 4),
    ] {
        let mut stream = gate.connect_from(PROXY)?;
        stream.write_all(&header_of(client.parse()?))?;
        ensure!(served(&mut stream, requests)? == expected, "{client}");
    }
    let explained = explain(&gate, ["--tenant", "from/198.18.7.0/24"], &["GET", "a"])?;
    ensure!(explained["tenant"] == "from/198.18.7.0/24" && explained["verdict"] == "refused", "{explained}");
    Ok(())
}

/// Changes a gate's configuration, and has it read again.
fn reload(gate: &mut Listening, from: &str, to: &str) -> Result<()> {
    let config: PathBuf = gate.files()?.0.to_owned();
    let text = fs::read_to_string(&config)?;
    ensure!(text.contains(from), "{text}");
    fs::write(&config, text.replace(from, to))?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for("configuration read again", PATIENCE)?;
    Ok(())
}

#[test]
fn a_reload_keeps_debts_and_its_quota_is_every_members() -> Result<()> {
    let store = Listening::memcached()?;
    let mut gate = gate("memcached", store.address, "", &sources("\"each /32\""))?;
    let connect = |gate: &Listening, last| gate.connect_from(Ipv4Addr::new(127, 0, 0, last));
    let get = |client: &mut TcpStream| -> Result<bool> {
        client.write_all(b"get none\r\n")?;
        Ok(read_until(client, b"\r\n")? == b"END\r\n")
    };
    let mut open = connect(&gate, 2)?;
    ensure!((0..12).filter_map(|_| get(&mut open).ok()).filter(|served| *served).count() == 10);
    // Ten of 100 s each are owed: with a burst of 1,200 s there is room for two more.
    reload(&mut gate, "burst = \"1000s\"", "burst = \"1200s\"")?;
    wait_until("the new burst is in force", || get(&mut open))?;
    ensure!(get(&mut open)? && !get(&mut open)?, "just two more");
    let mut again = connect(&gate, 2)?;
    ensure!(!get(&mut again)?, "a new connection finds the same bucket");
    let mut other = connect(&gate, 3)?;
    ensure!((0..15).filter_map(|_| get(&mut other).ok()).filter(|served| *served).count() == 12);
    // A tenant that is named by now is no member any more.
    let named = "[[tenant]]\nname = \"named\"\nsources = [\"127.0.0.2\"]\nquota = \"unlimited\"\n[[tenant]]\nname = \"from/*\"";
    reload(&mut gate, "[[tenant]]\nname = \"from/*\"", named)?;
    wait_until("it is named", || get(&mut open))?;
    ensure!((0..15).all(|_| get(&mut open).is_ok_and(|served| served)) && !get(&mut other)?);
    Ok(())
}
