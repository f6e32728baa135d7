//! The page of the admin port in a real browser: Debian's Chromium, driven over WebDriver.

use std::io::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fantoccini::{Client, ClientBuilder, Locator};
use gate_tests::packet::Packet;
use gate_tests::proxy::{Listening, PATIENCE, address, read_until};
use gate_tests::raw::RawSender;
use gate_tests::{daemon, privilege};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use xtask::lab::process::ChildProcess;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"acme\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n\
                       [[tenant]]\nname = \"other\"\nsources = [\"198.18.0.1\"]\nquota = \"700 RU/s\"\n\
                       [[tenant]]\nname = \"small\"\nsources = [\"127.0.7.7\"]\nquota = \"1 RU/s\"\nburst = \"4s\"\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// An address of the tenant `small`.
const SMALL: Ipv4Addr = Ipv4Addr::new(127, 0, 7, 7);
/// Width and height in pixels.
type Window = (u32, u32);
const WIDE: Window = (1_280, 1_400);
/// A window of the browser by itself is not narrower.
const LEAST_WINDOW: u32 = 500;
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

mod trouble;

/// A gate, and a browser that has its page open.
struct Site {
    gate: Listening,
    store: Listening,
    page: Client,
    _driver: ChildProcess,
    port: SocketAddr,
    token: PathBuf,
}

impl Site {
    async fn new() -> Result<Self> {
        Self::seen_in(WIDE).await
    }

    /// In a window of so many pixels.
    async fn seen_in(window: Window) -> Result<Self> {
        let port = address();
        let store = Listening::embedded("memcached")?;
        let token = std::env::temp_dir().join(format!("gate-browser-{}-{}", std::process::id(), port.ip()));
        std::fs::write(&token, TOKEN)?;
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
        let section = format!(
            "threads = \"1\"\nsample = \"1/1\"\nadmin_http = \"{port}\"\nadmin_token_file = {token:?}"
        );
        let gate = Listening::gate_with(&section, "memcached", store.address, "", TENANTS)?;
        let mut command = Command::new("chromedriver");
        // One that is free, for both families of addresses.
        command.arg("--port=0");
        let (page, driver) = browser(command, window).await?;
        page.goto(&format!("http://{port}/")).await?;
        Ok(Self { gate, store, page, _driver: driver, port, token })
    }

    /// Has the tenant `small` ask for more than it may have.
    fn ask(&self, requests: usize) -> Result<()> {
        let mut client = self.gate.connect_from(SMALL)?;
        client.write_all(&b"get a\r\n".repeat(requests))?;
        let mut lines = 0;
        while lines < requests {
            lines += read_until(&mut client, b"\r\n")?.iter().filter(|&&byte| byte == b'\n').count();
        }
        Ok(())
    }

    /// Has the tenant `small` ask for more than it may have until the page shows its refusals, as it does for a second after each.
    async fn ask_until_shown(&self) -> Result<()> {
        let shown = format!("return {}", cell("small", 7));
        let asking = async {
            loop {
                self.ask(50)?;
                if self.script(&shown).await?.as_str().is_some_and(|shown| !shown.is_empty()) {
                    return anyhow::Ok(());
                }
            }
        };
        timeout(PATIENCE, asking).await.context("the page shows no refusals")?
    }

    /// The texts of a table's rows, cell by cell.
    async fn rows(&self, table: &str) -> Result<Vec<Vec<String>>> {
        let script = format!(
            "return [...document.querySelectorAll('#{table} tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
        );
        Ok(serde_json::from_value(self.script(&script).await?)?)
    }

    async fn script(&self, script: &str) -> Result<Value> {
        Ok(self.page.execute(script, Vec::new()).await?)
    }

    /// Waits until this expression has a value that is true, and returns it.
    async fn until(&self, expression: &str) -> Result<Value> {
        let script = format!("return {expression}");
        let holds = async {
            loop {
                let value = self.script(&script).await?;
                let is_false = matches!(value, Value::Null | Value::Bool(false)) || value == "" || value == 0;
                if !is_false {
                    return anyhow::Ok(value);
                }
                // The page has no way to say that it has changed.
                sleep(Duration::from_millis(50)).await;
            }
        };
        match timeout(PATIENCE, holds).await {
            Ok(value) => value,
            Err(_) => anyhow::bail!(
                "never true: {expression}; {}",
                self.script("return document.body.innerText").await?
            ),
        }
    }

    /// The option by which a command finds this gate.
    fn socket_option(&self) -> Result<String> {
        let status = self.gate.json(&["status"])?;
        let listens = status["listens"].as_array().context("nowhere")?;
        let admin = listens.iter().find(|listens| listens["key"] == "admin").context("no admin socket")?;
        Ok(format!(" --socket {}", admin["address"].as_str().context("no path")?))
    }

    async fn end(self) -> Result<()> {
        Ok(self.page.clone().close().await?)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.token);
    }
}

/// A browser, and the driver that this command starts.
async fn browser(driver: Command, (width, height): Window) -> Result<(Client, ChildProcess)> {
    let mut driver = ChildProcess::start("chromedriver", driver)?;
    let started = driver.wait_for("started successfully on port", PATIENCE)?;
    let driver_port = started.trim_end_matches('.').rsplit(' ').next().context("no port")?;
    let mut options = serde_json::Map::new();
    let size = format!("--window-size={width},{height}");
    let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &size];
    let mut chrome = json!({ "args": arguments });
    if width < LEAST_WINDOW {
        let metrics = json!({ "width": width, "height": height, "pixelRatio": 1.0, "touch": false });
        chrome["mobileEmulation"] = json!({ "deviceMetrics": metrics });
    }
    options.insert("goog:chromeOptions".to_owned(), chrome);
    let page = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
        .capabilities(options)
        .connect(&format!("http://127.0.0.1:{driver_port}"))
        .await?;
    Ok((page, driver))
}

fn in_runtime(test: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

/// The text of a tenant's cell.
fn cell(tenant: &str, column: usize) -> String {
    format!(
        "([...document.querySelectorAll('#tenants tbody tr')].find((row) => row.dataset.key === {tenant:?}) ?? {{cells: []}}).cells[{column}]?.innerText"
    )
}

#[test]
fn the_page_shows_what_the_documents_say() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        let quota = site.until(&cell("acme", 5)).await?;
        ensure!(quota == "5,000", "{quota}");
        let other = site.until(&cell("other", 5)).await?;
        ensure!(other == "700", "{other}");
        let status = site.gate.json(&["status"])?;
        let said = site.until("document.getElementById('state').innerText").await?;
        let tenants = format!("{} tenants", status["tenants"]);
        ensure!(said.as_str().is_some_and(|said| said.contains(&tenants)), "{said} without {tenants}");
        let store =
            site.until("document.querySelector('#services tbody td:nth-child(2)')?.innerText").await?;
        ensure!(store.as_str().is_some_and(|store| store.starts_with("up for")), "{store}");
        let outside = "return performance.getEntriesByType('resource').map((entry) => entry.name)";
        let asked = site.script(outside).await?;
        let own = format!("http://{}/", site.port);
        let asked = asked.as_array().context("no list")?;
        ensure!(asked.iter().all(|url| url.as_str().is_some_and(|url| url.starts_with(&own))), "{asked:?}");
        site.end().await
    })
}

/// A count as the page writes it.
fn grouped(count: &Value) -> Result<String> {
    let digits = count.as_u64().context("no count")?.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
    Ok(String::from_utf8(groups.join(&b','))?)
}

#[test]
fn the_page_counts_by_tenant_layer_and_reason() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.ask(1_500)?;
        let tenants = site.gate.json(&["tenants", "small"])?;
        let counted = &tenants["tenants"][0]["layers"]["proxy"];
        let refused = counted["refused"].as_object().context("nothing is refused")?;
        let passed = std::iter::once(("passed".to_owned(), &counted["passed"]));
        let refused = refused.iter().map(|(reason, count)| (format!("refused {reason}"), count));
        let expected: Result<Vec<_>> = passed
            .chain(refused)
            .map(|(verdict, count)| Ok(["small", "proxy", &verdict, &grouped(count)?].map(str::to_owned)))
            .collect();
        let mut expected = expected?;
        ensure!(expected.len() > 1, "{tenants}");
        let last = &expected[expected.len() - 1];
        let shown = format!(
            "[...document.querySelectorAll('#verdicts tbody tr')].some((row) => row.cells[2].innerText === {:?} && row.cells[4].innerText === {:?})",
            last[2], last[3]
        );
        site.until(&shown).await?;
        let mut rows: Vec<_> = site
            .rows("verdicts")
            .await?
            .into_iter()
            .map(|row| [0, 1, 2, 4].map(|place| row[place].clone()))
            .collect();
        rows.sort();
        expected.sort();
        ensure!(rows == expected, "{rows:?}, not {expected:?}");
        let status = site.gate.json(&["status"])?;
        let services = status["services"].as_array().context("no services")?;
        let services: Vec<_> = services.iter().map(|service| service["name"].clone()).collect();
        let shown: Vec<_> =
            site.rows("services").await?.into_iter().map(|row| Value::from(row[0].clone())).collect();
        ensure!(shown == services, "{shown:?}, not {services:?}");
        site.end().await
    })
}

#[test]
fn the_page_counts_packets_as_status_does() -> Result<()> {
    if !privilege::root("browser::the_page_counts_packets_as_status_does") {
        return Ok(());
    }
    const PORT: u16 = 9_911;
    let site = daemon::Site::new(&format!(
        "[gate]\nadmin_http = \"127.0.0.1:{PORT}\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:11211\"\n\
         [[tenant]]\nname = \"small\"\nsources = \"198.18.9.1\"\nquota = \"1 RU/s\"\nburst = \"4s\"\n"
    ))?;
    let _gate = site.start(&[])?;
    let sender = RawSender::open(&site.net)?;
    for (source, times) in [("198.18.9.1", 1_300), ("198.18.9.2", 70)] {
        let frame = Packet::memcached(source, "198.18.0.1", 11_211, 7, b"get a\r\n").bytes();
        (0..times).try_for_each(|_| sender.send(&frame))?;
    }
    // The gate's loopback is that of its namespace.
    let mut command = site.net.server.command("chromedriver");
    command.arg("--port=0");
    let run = || {
        in_runtime(async {
            let (page, _driver) = browser(command, WIDE).await?;
            page.goto(&format!("http://127.0.0.1:{PORT}/")).await?;
            let rows = "return [...document.querySelectorAll('#packets tbody tr')].map((row) => [row.cells[0].innerText, row.cells[2].innerText])";
            let equal = async {
                loop {
                    let mut shown: Vec<[String; 2]> =
                        serde_json::from_value(page.execute(rows, Vec::new()).await?)?;
                    let status = site.json(&["status"])?;
                    let mut counted = Vec::new();
                    for group in ["exits", "events"] {
                        for (name, count) in status[group].as_object().context("no counters")? {
                            if *count != 0 {
                                counted.push([name.clone(), grouped(count)?]);
                            }
                        }
                    }
                    shown.sort();
                    counted.sort();
                    let of_flood = |row: &[String; 2]| row[0] == "unknown-source" && row[1] == "70";
                    if shown == counted && shown.iter().any(of_flood) {
                        return anyhow::Ok(());
                    }
                    // The page shows a snapshot a second, and has no way to say that it has changed.
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(PATIENCE, equal).await.context("the page never shows what status says")??;
            Ok(page.close().await?)
        })
    };
    site.net.server.enter(run)?
}

#[test]
fn refusals_come_with_their_source_for_the_token_alone() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.ask(20)?;
        site.until("document.querySelector('#refusals tbody tr')").await?;
        for row in site.rows("refusals").await? {
            ensure!(row[1..] == ["proxy", "store", "small", "get", "quota", "small", "", "1"], "{row:?}");
        }
        site.until("document.getElementById('refusals-note').innerText.includes('gate web')").await?;
        site.page.goto(&format!("http://{}/#token={TOKEN}", site.port)).await?;
        site.page.refresh().await?;
        site.until("document.querySelector('#refusals tbody tr')").await?;
        for row in site.rows("refusals").await? {
            ensure!(row[7] == SMALL.to_string(), "{row:?}");
        }
        let note = site.script("return document.getElementById('refusals-note').innerText").await?;
        ensure!(note == "", "{note}");
        let before = site.rows("refusals").await?.len();
        site.ask(5)?;
        site.until(&format!("document.querySelectorAll('#refusals tbody tr').length > {before}")).await?;
        site.end().await
    })
}

#[test]
fn overrides_are_listed_with_the_line_that_sets_them() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        let set = site.gate.command(&["set", "tenant.other.quota", "650 RU/s"])?;
        ensure!(set.status.success(), "{set:?}");
        site.until("document.querySelector('#overrides tbody tr')").await?;
        let socket = site.socket_option()?;
        let line = format!("gate set tenant.other.quota \"650 RU/s\"{socket}");
        let rows = site.rows("overrides").await?;
        ensure!(rows == [["tenant.other.quota", "650 RU/s", &line]], "{rows:?}");
        let overrides = &site.gate.json(&["status"])?["overrides"];
        ensure!(*overrides == json!([{"key": rows[0][0], "value": rows[0][1]}]), "{overrides}");
        site.page.find(Locator::Css("#overrides td button")).await?.click().await?;
        let shown = site.until("document.getElementById('set-line').value").await?;
        ensure!(shown == *line, "{shown}");
        // It is what the command takes.
        let quoted = site.script("return setLine('tenant.a.deny', '[\"a$b\"]')").await?;
        ensure!(quoted == format!("gate set tenant.a.deny '[\"a$b\"]'{socket}"), "{quoted}");
        site.end().await
    })
}

#[test]
fn the_page_recovers_from_a_restart_without_a_reload() -> Result<()> {
    in_runtime(async {
        let mut site = Site::new().await?;
        site.until(&cell("acme", 5)).await?;
        site.script("window.marked = true; return true").await?;
        let (config, _) = site.gate.files()?;
        let config = config.to_owned();
        site.gate.signal(Signal::SIGKILL)?;
        site.until("document.getElementById('state').classList.contains('wrong')").await?;
        // That it was killed is an error there.
        gate_tests::wait::wait_until("it ends", || Ok(!site.gate.program().is_running().unwrap_or(false)))?;
        let mut command = Command::new(paths::gate());
        command.arg("run").arg("--config").arg(config);
        let next = ChildProcess::start("gate", command)?;
        site.until("!document.getElementById('state').classList.contains('wrong')").await?;
        ensure!(site.script("return window.marked").await? == true, "it was loaded again");
        site.end().await?;
        next.end()?;
        Ok(())
    })
}

/// Has a gate stand still once a page that is opened there asks for the first document; returns where that is, and how often a page
/// asks for its history from then on.
fn standing_still(gate: SocketAddr, process: u32) -> Result<(SocketAddr, Arc<AtomicU32>)> {
    let listener = TcpListener::bind(address())?;
    let port = listener.local_addr()?;
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let has_asked = Arc::<AtomicBool>::default();
    let relay = move |mut page: TcpStream| -> Result<()> {
        let head = read_until(&mut page, b"\r\n\r\n")?;
        if head.starts_with(b"GET /v1/") && !has_asked.swap(true, Ordering::Relaxed) {
            kill(Pid::from_raw(process.try_into()?), Signal::SIGSTOP)?;
        } else if head.starts_with(b"GET /v1/history ") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let mut gate = TcpStream::connect(gate)?;
        gate.write_all(&head)?;
        // The page's end of a request says that it has given up.
        let mut from = page.try_clone()?;
        let to = gate.try_clone()?;
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut &to);
            to.shutdown(Shutdown::Both)
        });
        std::io::copy(&mut gate, &mut page)?;
        Ok(page.shutdown(Shutdown::Both)?)
    };
    std::thread::spawn(move || {
        for page in listener.incoming().map_while(Result::ok) {
            let relay = relay.clone();
            // A connection that fails is the page's to notice.
            std::thread::spawn(move || relay(page));
        }
    });
    Ok((port, asked))
}

#[test]
fn the_page_says_that_gate_stands_still_and_recovers() -> Result<()> {
    in_runtime(async {
        let mut site = Site::new().await?;
        let says = "document.getElementById('state').innerText.includes('gate says nothing')";
        let is_well = "document.getElementById('state').innerText.includes('every store is well')";
        let gone = "document.body.classList.contains('gone')";
        site.until(is_well).await?;
        let process = site.gate.program().id();
        let (relay, asked) = standing_still(site.port, process)?;
        // One that is opened before gate stands still, and one that was there.
        site.page.goto(&format!("http://{relay}/")).await?;
        for opened in [true, false] {
            if !opened {
                site.gate.signal(Signal::SIGSTOP)?;
            }
            let said = site.until(says).await;
            let greyed = site.script(&format!("return {gone}")).await;
            site.gate.signal(Signal::SIGCONT)?;
            said?;
            ensure!(greyed? == true, "what it shows looks like news");
            site.until(&format!("{is_well} && !{gone}")).await?;
            site.until(&cell("acme", 5)).await?;
        }
        ensure!(asked.load(Ordering::Relaxed) > 0, "its charts never began with what was before");
        site.end().await
    })
}

#[test]
fn charts_of_a_new_page_begin_with_what_was_before() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.ask(10)?;
        let points = "(fetch('v1/history').then((response) => response.json())\
                      .then((history) => { window.points = history.points.length; }), window.points)";
        site.until(&format!("{points} >= 3")).await?;
        site.page.refresh().await?;
        // The first point has the rates since one before, and the last is at most 5 s old.
        site.until("charts.requests.times[0] < performance.timeOrigin / 1000 - 3").await?;
        let names = site.script("return [...charts.requests.values.keys()].sort()").await?;
        ensure!(names == json!(["proxy passed", "proxy refused", "segments"]), "{names}");
        let drawn = site.script("return document.querySelectorAll('#chart-requests canvas').length").await?;
        ensure!(drawn == 1, "{drawn}");
        site.end().await
    })
}

#[test]
fn the_page_obeys_a_keyboard_alone() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.until(&cell("acme", 5)).await?;
        let body = site.page.find(Locator::Css("body")).await?;
        body.send_keys("/").await?;
        site.until("document.activeElement.id === 'filter'").await?;
        site.page.active_element().await?.send_keys("acme").await?;
        site.until("document.querySelectorAll('#tenants tbody tr').length === 1").await?;
        let focused = "return document.activeElement.closest('tr')?.dataset.key ?? ''";
        // Tab, as far as the tenant's own button.
        for _ in 0..40 {
            if site.script(focused).await? == "acme" {
                break;
            }
            site.page.active_element().await?.send_keys(TAB).await?;
        }
        ensure!(site.script(focused).await? == "acme", "the tenant cannot be reached");
        site.page.active_element().await?.send_keys(ENTER).await?;
        let line = site.until("document.getElementById('set-line').value").await?;
        let expected = format!("gate set tenant.acme.quota \"5000 RU/s\"{}", site.socket_option()?);
        ensure!(line == *expected, "{line}");
        site.end().await
    })
}

#[test]
fn every_control_is_reached_by_tab_and_obeys_enter() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.until(&cell("acme", 5)).await?;
        // Nothing comes or goes while it is held still.
        site.script("document.getElementById('hold').click(); return true").await?;
        let controls =
            "[...document.querySelectorAll('button, input')].filter((control) => control.offsetParent)";
        let count = site.script(&format!("return {controls}.length")).await?.as_u64().context("a count")?;
        // Columns and sections without anything are left out.
        ensure!(count > 20, "{count}");
        for _ in 0..=count {
            site.page.active_element().await?.send_keys(TAB).await?;
            site.script("document.activeElement.reached = true; return true").await?;
        }
        let missed = format!(
            "return {controls}.filter((control) => !control.reached).map((control) => control.outerHTML)"
        );
        let missed = site.script(&missed).await?;
        ensure!(missed == json!([]), "{missed}");
        let colour = "return getComputedStyle(document.body).backgroundColor";
        let before = site.script(colour).await?;
        site.script("document.getElementById('theme').focus(); return true").await?;
        site.page.active_element().await?.send_keys(ENTER).await?;
        let after = site.script(colour).await?;
        ensure!(before != after, "{before} in dark and light");
        site.script("document.querySelector('#tenants th button').focus(); return true").await?;
        site.page.active_element().await?.send_keys(ENTER).await?;
        let names = |rows: Vec<Vec<String>>| rows.into_iter().map(|row| row[0].clone()).collect::<Vec<_>>();
        let sorted = names(site.rows("tenants").await?);
        ensure!(sorted == ["acme", "other", "small"], "{sorted:?}");
        site.page.active_element().await?.send_keys(ENTER).await?;
        let turned = names(site.rows("tenants").await?);
        ensure!(turned == ["small", "other", "acme"], "{turned:?}");
        let moved = "const row = document.querySelector('#tenants tr[data-key=acme]'); row.querySelector('button').focus(); \
                     state.sorted.tenants.turned = false; drawTable('tenants'); \
                     return row.rowIndex === 1 && document.activeElement.closest('tr') === row";
        ensure!(site.script(moved).await? == true, "a row that moves keeps the focus");
        site.end().await
    })
}
