//! The page of the admin port in a real browser: Debian's Chromium, driven over WebDriver.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fantoccini::{Client, ClientBuilder, Locator};
use gate_tests::proxy::{Listening, PATIENCE, address};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use xtask::lab::process::ChildProcess;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"acme\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n\
                       [[tenant]]\nname = \"other\"\nsources = [\"198.18.0.1\"]\nquota = \"700 RU/s\"\n";

/// A gate, and a browser that has its page open.
struct Site {
    gate: Listening,
    _store: Listening,
    page: Client,
    _driver: ChildProcess,
    port: std::net::SocketAddr,
}

impl Site {
    async fn new() -> Result<Self> {
        let port = address();
        let store = Listening::embedded("memcached")?;
        let section = format!("threads = \"1\"\nadmin_http = \"{port}\"");
        let gate = Listening::gate_with(&section, "memcached", store.address, "", TENANTS)?;
        let driver_port = address().port();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={driver_port}"));
        let mut driver = ChildProcess::start("chromedriver", command)?;
        driver.wait_for("started successfully", PATIENCE)?;
        let mut options = serde_json::Map::new();
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1200,1400",
        ];
        options.insert("goog:chromeOptions".to_owned(), json!({ "args": arguments }));
        let page = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(options)
            .connect(&format!("http://127.0.0.1:{driver_port}"))
            .await?;
        page.goto(&format!("http://{port}/")).await?;
        Ok(Self { gate, _store: store, page, _driver: driver, port })
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

    async fn end(self) -> Result<()> {
        Ok(self.page.close().await?)
    }
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
        let quota = site.until(&cell("acme", 4)).await?;
        ensure!(quota == "5,000", "{quota}");
        let other = site.until(&cell("other", 4)).await?;
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

#[test]
fn the_page_recovers_from_a_restart_without_a_reload() -> Result<()> {
    in_runtime(async {
        let mut site = Site::new().await?;
        site.until(&cell("acme", 4)).await?;
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

#[test]
fn the_page_obeys_a_keyboard_alone() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.until(&cell("acme", 4)).await?;
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
            site.page.active_element().await?.send_keys("\u{e004}").await?;
        }
        ensure!(site.script(focused).await? == "acme", "the tenant cannot be reached");
        site.page.active_element().await?.send_keys("\u{e007}").await?;
        let line = site.until("document.getElementById('set-line').value").await?;
        ensure!(line == "gate set tenant.acme.quota \"5000 RU/s\"", "{line}");
        site.end().await
    })
}
