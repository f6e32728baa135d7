//! The page of the admin port, and the events that it shows.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::{Answer, curl, parse, say};
use gate_tests::proxy::{Listening, PATIENCE, address, read_until};
use gate_tests::schema;
use gate_tests::wait::{wait_until, within};
use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBuf;
use serde_json::Value;
use xtask::paths;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A gate with a port and a token, and this many tenants more than the one that asks.
struct Site {
    gate: Listening,
    _store: Listening,
    port: SocketAddr,
    token: PathBuf,
}

impl Site {
    fn new(more: usize) -> Result<Self> {
        let port = address();
        let token = std::env::temp_dir().join(format!("gate-page-{}-{}", std::process::id(), port.ip()));
        std::fs::write(&token, TOKEN)?;
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
        let store = Listening::embedded("memcached")?;
        let section = format!("threads = \"1\"\nadmin_http = \"{port}\"\nadmin_token_file = {token:?}");
        let tenants = (0..more).map(|place| {
            format!(
                "[[tenant]]\nname = \"{}-{place}\"\nsources = [\"198.18.{}.{}\"]\nquota = \"unlimited\"\n",
                "t".repeat(40),
                place / 250,
                place % 250
            )
        });
        let all =
            "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n".to_owned();
        let tenants: String = std::iter::once(all).chain(tenants).collect();
        let gate = Listening::gate_with(&section, "memcached", store.address, "", &tenants)?;
        Ok(Self { gate, _store: store, port, token })
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> Result<Answer> {
        curl(&[&[format!("http://{}{path}", self.port).as_str()], arguments].concat())
    }

    fn viewer(&self, path: &str, header: &str) -> Result<Viewer> {
        let mut stream = TcpStream::connect(self.port)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n")?;
        Ok(Viewer(BufReader::new(stream)))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.token);
    }
}

/// A client of `/v1/events`.
struct Viewer(BufReader<TcpStream>);

impl Viewer {
    /// The next event.
    fn next(&mut self) -> Result<Value> {
        let mut line = Vec::new();
        loop {
            line.clear();
            ensure!(self.0.read_until(b'\n', &mut line)? > 0, "it has ended");
            if let Some(event) = line.strip_prefix(b"data: ") {
                return Ok(serde_json::from_slice(event)?);
            }
        }
    }
}

#[test]
fn events_are_snapshots_as_their_schema_says() -> Result<()> {
    let site = Site::new(0)?;
    let mut viewer = site.viewer("/v1/events", "")?;
    let first = viewer.next()?;
    let printed = Command::new(paths::gate()).args(["schema", "events"]).output()?;
    schema::check(&serde_json::from_slice(&printed.stdout)?, &first)?;
    ensure!(first.get("hotkeys").is_none(), "keys without a token");
    let mut client = site.gate.connect()?;
    for _ in 0..10 {
        client.write_all(b"get a\r\n")?;
        read_until(&mut client, b"END\r\n")?;
    }
    let passed = |event: &Value| event["totals"]["passed"].as_u64();
    let mut last = first;
    while passed(&last) < Some(10) {
        let next = viewer.next()?;
        ensure!(next["at_ms"].as_u64() > last["at_ms"].as_u64(), "a snapshot of the past: {next}");
        last = next;
    }
    let tenants = site.gate.json(&["tenants"])?;
    let listed = tenants["tenants"].as_array().context("no tenants")?;
    ensure!(last["tenants"][0]["passed"] == listed[0]["passed"] && passed(&last) == Some(10), "{last}");
    Ok(())
}

#[test]
fn history_has_what_was_before_a_page_is_opened() -> Result<()> {
    let site = Site::new(0)?;
    let history = || -> Result<Value> { Ok(serde_json::from_str(&site.curl("/v1/history", &[])?.body)?) };
    let has_point_after = |passed: u64| {
        wait_until("a point", || {
            let history = history()?;
            let points = history["points"].as_array().context("no points")?;
            Ok(points.last().is_some_and(|last| last["totals"]["passed"] == passed))
        })
    };
    has_point_after(0)?;
    let mut client = site.gate.connect()?;
    for _ in 0..10 {
        client.write_all(b"get a\r\n")?;
        read_until(&mut client, b"END\r\n")?;
    }
    has_point_after(10)?;
    let history = history()?;
    let printed = Command::new(paths::gate()).args(["schema", "history"]).output()?;
    schema::check(&serde_json::from_slice(&printed.stdout)?, &history)?;
    let points = history["points"].as_array().context("no points")?;
    ensure!(points[0]["totals"]["passed"] == 0 && points[0]["services"][0]["waiting"] == 0, "{history}");
    ensure!(points.windows(2).all(|pair| pair[0]["at_ms"].as_u64() < pair[1]["at_ms"].as_u64()), "{history}");
    Ok(())
}

#[test]
fn keys_are_in_events_for_who_has_the_token() -> Result<()> {
    let site = Site::new(0)?;
    ensure!(site.curl("/v1/events/keys", &[])?.status == 401);
    let mut viewer = site.viewer("/v1/events/keys", &format!("authorization: Bearer {TOKEN}\r\n"))?;
    ensure!(viewer.next()?["hotkeys"].is_array());
    Ok(())
}

#[test]
fn sixteen_viewers_share_snapshots_and_others_are_told() -> Result<()> {
    let site = Site::new(0)?;
    let mut viewers: Vec<_> = (0..16).map(|_| site.viewer("/v1/events", "")).collect::<Result<_>>()?;
    let mut shared: Option<BTreeSet<u64>> = None;
    for viewer in &mut viewers {
        let times: Result<BTreeSet<_>> =
            (0..3).map(|_| viewer.next()?["at_ms"].as_u64().context("without a time")).collect();
        let times = times?;
        shared = Some(shared.map_or_else(|| times.clone(), |shared| &shared & &times));
    }
    ensure!(shared.is_some_and(|shared| !shared.is_empty()), "no snapshot was everyone's");
    let answer = site.curl("/v1/events", &[])?;
    ensure!(answer.status == 503 && answer.error()?.contains("16"), "{answer:?}");
    ensure!(site.curl("/v1/status", &[])?.status == 200, "documents are for others");
    drop(viewers.pop());
    wait_until("there is a place again", || {
        let mut viewer = site.viewer("/v1/events", "")?;
        Ok(viewer.next().is_ok())
    })?;
    Ok(())
}

#[test]
fn a_viewer_that_never_reads_is_closed_and_bounded() -> Result<()> {
    let site = Site::new(400)?;
    let before = site.gate.memory()?;
    let mut deaf: Vec<_> = (0..16).map(|_| site.viewer("/v1/events", "")).collect::<Result<_>>()?;
    for viewer in &mut deaf {
        setsockopt(viewer.0.get_ref(), RcvBuf, &4096)?;
    }
    wait_until("all places are taken", || {
        Ok(site.curl("/v1/events", &["--max-time", "2"]).is_ok_and(|answer| answer.status == 503))
    })?;
    within("one of them is closed", Duration::from_secs(60), || {
        let mut viewer = site.viewer("/v1/events", "")?;
        Ok(viewer.next().is_ok())
    })?;
    let grown = site.gate.memory()?.saturating_sub(before);
    ensure!(grown < 32 << 20, "{grown} bytes");
    Ok(())
}

#[test]
fn the_page_is_there_and_asks_nobody_else() -> Result<()> {
    let site = Site::new(0)?;
    let mut bytes = 0;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/uplot.js", "text/javascript"),
        ("/uplot.css", "text/css"),
    ] {
        let answer = site.curl(path, &[])?;
        ensure!(
            answer.status == 200 && answer.head.contains(&format!("content-type: {kind}")),
            "{path}: {}",
            answer.head
        );
        ensure!(
            answer.head.contains("script-src 'self'") && answer.head.contains("connect-src 'self'"),
            "{}",
            answer.head
        );
        bytes += answer.body.len();
    }
    ensure!(bytes <= 150_000, "{bytes}");
    let foreign = site.curl("/", &["--header", "Host: evil.example"])?;
    ensure!(foreign.status == 421, "{foreign:?}");
    Ok(())
}

#[test]
fn viewers_do_not_hold_up_the_end_of_gate() -> Result<()> {
    let mut site = Site::new(0)?;
    let mut viewer = site.viewer("/v1/events", "")?;
    viewer.next()?;
    site.gate.signal(Signal::SIGINT)?;
    let rest = say(viewer.0.into_inner(), b"")?;
    ensure!(parse(&format!("HTTP/1.1 200\r\n\r\n{rest}")).is_ok());
    wait_until("it ends", || Ok(!site.gate.program().is_running()?))
}

#[test]
fn web_prints_the_link_of_the_page() -> Result<()> {
    let site = Site::new(0)?;
    let (config, _) = site.gate.files()?;
    let web = |config: &std::path::Path| {
        Command::new(paths::gate()).arg("web").arg("--config").arg(config).output()
    };
    let printed = web(config)?;
    ensure!(String::from_utf8(printed.stdout)?.trim() == format!("http://{}/#token={TOKEN}", site.port));
    let other = config.with_extension("no-port.toml");
    let text = std::fs::read_to_string(config)?;
    let without: String =
        text.lines().filter(|line| !line.starts_with("admin_")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&other, without)?;
    let refused = web(&other)?;
    std::fs::remove_file(&other)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && said.contains("admin_http = \"127.0.0.1:9911\""), "{said}");
    Ok(())
}
