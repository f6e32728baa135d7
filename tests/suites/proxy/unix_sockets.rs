//! Stores at Unix sockets: served as those on the network, and named where there is none.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::unix_store::{UnixStore, socket_path};
use gate_tests::wait::wait_until;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn a_memcached_at_a_socket_is_lost_named_and_found_again() -> Result<()> {
    let path = socket_path("memcached");
    let store = UnixStore::memcached(path.clone())?;
    let mut gate = Listening::gate_with("", "memcached", store.backend(), "connections = \"1\"", EVERYONE)?;
    gate.ask(b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nmn\r\n", b"MN\r\n")?;
    let said = gate.ask(b"get a b c\r\n", b"END\r\n")?;
    ensure!(said == b"VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n", "{}", shown(&said));
    store.kill()?;
    gate.program().wait_for(&format!("store=unix:{}", path.display()), PATIENCE)?;
    wait_until("it is not refused", || Ok(gate.ask(b"get a\r\n", b"\r\n")?.ends_with(b"store-down\r\n")))?;
    let again = UnixStore::memcached(path)?;
    wait_until("it does not come back", || Ok(gate.ask(b"get a\r\n", b"\r\n")? == b"END\r\n"))?;
    gate.program().wait_for("the store is up again", PATIENCE)?;
    drop((store, again));
    Ok(())
}

#[test]
fn a_redis_at_a_socket_serves_shared_and_dedicated_requests() -> Result<()> {
    let store = UnixStore::redis(socket_path("redis"))?;
    let gate = Listening::gate_with("", "resp", store.backend(), "", EVERYONE)?;
    let mut client = gate.connect()?;
    for (asked, answer) in [
        ("SET a 1\r\n", "+OK\r\n"),
        ("GET a\r\n", "$1\r\n1\r\n"),
        ("MULTI\r\nINCR a\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n:2\r\n"),
        ("BLPOP none 0.01\r\n", "*-1\r\n"),
        ("SELECT 3\r\nGET a\r\n", "+OK\r\n$-1\r\n"),
        ("SUBSCRIBE c\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    ] {
        client.write_all(asked.as_bytes())?;
        let said = read_until(&mut client, answer.as_bytes())?;
        ensure!(said == answer.as_bytes(), "{asked:?}: {}", shown(&said));
    }
    let (_, socket) = gate.files()?;
    let mut explain = Command::new(paths::gate());
    explain.args(["explain", "--service", "store", "--tenant", "all", "--socket"]).arg(socket);
    let explained = explain.args(["--", "GET", "a"]).output()?;
    ensure!(explained.status.success(), "{}", shown(&explained.stderr));
    let reached = gate.json(&["queues"])?["services"][0]["store"]["up"].clone();
    ensure!(reached == true, "{reached}");
    Ok(())
}

#[test]
fn hot_keys_of_a_socket_are_never_older_than_a_write() -> Result<()> {
    const EAGER: &str = "threads = \"2\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let store = UnixStore::memcached(socket_path("hot"))?;
    let service = "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"";
    let gate = Listening::gate_with(EAGER, "memcached", store.backend(), service, EVERYONE)?;
    let mut clients = (0..8).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    let mut round = 0_u32;
    wait_until("no read is answered from memory", || {
        round += 1;
        let value = format!("{round:06}");
        clients[0].write_all(format!("set k 0 0 6\r\n{value}\r\n").as_bytes())?;
        read_until(&mut clients[0], b"STORED\r\n")?;
        for client in &mut clients {
            for _ in 0..4 {
                client.write_all(b"get k\r\n")?;
                let said = read_until(client, b"END\r\n")?;
                ensure!(said == format!("VALUE k 0 6\r\n{value}\r\nEND\r\n").as_bytes(), "{}", shown(&said));
            }
        }
        Ok(counter(&gate, "cache-hits")? > 0)
    })
}

#[test]
fn an_http_store_at_a_socket_is_asked_over_kept_connections() -> Result<()> {
    let path = socket_path("http");
    let listener = UnixListener::bind(&path)?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut received = Vec::new();
                let mut piece = [0; 4096];
                loop {
                    let len = stream.read(&mut piece)?;
                    received.extend_from_slice(&piece[..len]);
                    if len == 0 {
                        return Ok(());
                    }
                    if received.ends_with(b"\r\n\r\n") {
                        let head = String::from_utf8_lossy(&received).to_lowercase();
                        let host = head.lines().find(|line| line.starts_with("host:")).unwrap_or("none");
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{host}", host.len());
                        stream.write_all(head.as_bytes())?;
                        received.clear();
                    }
                }
            });
        }
    });
    let gate = Listening::gate_with("", "http", format!("unix:{}", path.display()), "", EVERYONE)?;
    let mut client = HttpClient::new(gate.connect()?);
    for _ in 0..3 {
        ensure!(client.ask("GET /a", "")?.text() == "host: test");
    }
    let without = gate.ask(b"GET /a HTTP/1.0\r\n\r\n", b"host: localhost")?;
    ensure!(
        without.starts_with(b"HTTP/1.0 200") || without.starts_with(b"HTTP/1.1 200"),
        "{}",
        shown(&without)
    );
    drop(gate);
    Ok(std::fs::remove_file(path)?)
}

#[test]
fn a_takeover_leads_to_the_same_socket() -> Result<()> {
    let store = UnixStore::memcached(socket_path("takeover"))?;
    let mut first = Listening::gate_with("threads = \"1\"", "memcached", store.backend(), "", EVERYONE)?;
    first.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n")?;
    let (config, _) = first.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["run", "--takeover", "--config"]).arg(config);
    let mut next = ChildProcess::start("gate", command)?;
    next.wait_for("running without XDP", PATIENCE)?;
    wait_until("the old one ends", || {
        ensure!(first.ask(b"get a\r\n", b"END\r\n")?.starts_with(b"VALUE a 0 1\r\n1\r\n"));
        Ok(!first.program().is_running()?)
    })?;
    first.ask(b"get a\r\n", b"END\r\n")?;
    next.end()?;
    Ok(())
}

/// The answer of `gate check` for a store at this place: valid or not, and its faults and warnings.
fn checked(backend: &str) -> Result<(bool, String)> {
    let config = socket_path("check").with_extension(format!("{}.toml", backend.len()));
    let text = format!(
        "[gate]\nxdp = \"off\"\n[[service]]\nname = \"store\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\n\
         backend = \"{backend}\"\n{EVERYONE}\n"
    );
    std::fs::write(&config, text)?;
    let output = Command::new(paths::gate()).arg("check").arg(&config).output()?;
    std::fs::remove_file(&config)?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn check_says(path: &Path, warning: &str) -> Result<()> {
    let (valid, said) = checked(&format!("unix:{}", path.display()))?;
    let expected = format!("warning: service store: backend unix:{}: {warning}", path.display());
    ensure!(valid && said.contains(&expected), "{expected}\n{said}");
    Ok(())
}

#[test]
fn check_names_what_is_wrong_with_a_socket() -> Result<()> {
    let path = socket_path("checked");
    check_says(&path, "there is no such file: requests are refused until a store listens there")?;
    std::fs::write(&path, "")?;
    check_says(&path, "that is no socket")?;
    check_says(&path.join("below"), "Not a directory")?;
    std::fs::remove_file(&path)?;
    let store = UnixStore::memcached(path)?;
    let (valid, said) = checked(&store.backend())?;
    ensure!(valid && !said.contains("backend"), "{said}");
    for (backend, fault) in [
        ("unix:redis.sock".to_owned(), "must be the whole path of a socket".to_owned()),
        (format!("unix:/{}", "a".repeat(107)), "has a path of 108 bytes: the system takes 107".to_owned()),
    ] {
        let (valid, said) = checked(&backend)?;
        ensure!(!valid && said.contains("service[0].backend") && said.contains(&fault), "{said}");
    }
    Ok(())
}
