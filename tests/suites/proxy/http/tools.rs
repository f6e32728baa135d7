//! Load generators of others, as Debian has them, end without a failed request.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::nginx::Nginx;
use gate_tests::proxy::Listening;
use gate_tests::tls::Authority;

use super::gate;
use crate::tls::tls;

/// These tools ask for all that the machine can do, which sheds requests where it has other work beside.
const NOTHING_SHED: &str = "shedding.enabled = \"off\"\n";

/// A gate that speaks plainly, and one by TLS; with their addresses as these tools have them.
fn gates(authority: &Authority, store: &Nginx) -> Result<[(Listening, String); 2]> {
    let of_gate = authority.issue("gate", "IP:127.0.0.1", 30)?;
    let plain = gate(store.address, NOTHING_SHED)?;
    let secure = gate(store.address, &(NOTHING_SHED.to_owned() + &tls(&of_gate)))?;
    let urls = [format!("http://{}", plain.address), format!("https://{}", secure.address)];
    let [of_plain, of_secure] = urls;
    Ok([(plain, of_plain), (secure, of_secure)])
}

fn run(program: &str, arguments: &[&str], url: &str) -> Result<String> {
    let output = Command::new(program).args(arguments).arg(url).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{program} {arguments:?}: {said} {output:?}");
    Ok(said)
}

/// The requests that a gate has refused, by reason.
fn refused(gate: &Listening) -> Result<String> {
    Ok(gate.json(&["tenants"])?["totals"]["refused"].to_string())
}

/// A file that is sent as a body.
struct BodyFile(PathBuf);

impl BodyFile {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("gate-{}-body", std::process::id()));
        std::fs::write(&path, vec![b'x'; 20_000])?;
        Ok(Self(path))
    }

    fn path(&self) -> Result<&str> {
        self.0.to_str().context("a name that is text")
    }
}

impl Drop for BodyFile {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn h2load_ends_without_a_failed_request() -> Result<()> {
    let authority = Authority::new()?;
    let store = Nginx::start(&[1_000, 70_001])?;
    let body = BodyFile::new()?;
    let with_bodies = ["-n", "500", "-c", "5", "-m", "5", "-d", body.path()?];
    for (gate, url) in gates(&authority, &store)? {
        for arguments in [
            &["-n", "3000", "-c", "10", "-m", "10"][..],
            &["-n", "3000", "-c", "10", "--h1"],
            &["-n", "500", "-c", "1", "-m", "100"],
            &with_bodies,
        ] {
            let path = if arguments.contains(&"-d") { "/echo" } else { "/70001" };
            let said = run("h2load", arguments, &format!("{url}{path}"))?;
            let count = arguments[1];
            for says in [
                format!("{count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout"),
                format!("status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx"),
            ] {
                ensure!(said.contains(&says), "{url} {arguments:?}: {said} {}", refused(&gate)?);
            }
        }
    }
    Ok(())
}

#[test]
fn wrk_ends_without_a_failed_request() -> Result<()> {
    let authority = Authority::new()?;
    let store = Nginx::start(&[1_000])?;
    for (gate, url) in gates(&authority, &store)? {
        let said = run("wrk", &["-t", "2", "-c", "20", "-d", "1s"], &format!("{url}/1000"))?;
        let requests = said.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
        ensure!(requests.is_some_and(|requests: u64| requests > 100), "{url}: {said}");
        let has_failed = said.contains("Non-2xx") || said.contains("Socket errors");
        ensure!(!has_failed, "{url}: {said} {}", refused(&gate)?);
    }
    Ok(())
}
