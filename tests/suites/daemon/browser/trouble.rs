//! The page when something is wrong: its first sentence, a tenant's refusals, and how it looks.

use std::io::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::read_until;
use nix::sys::signal::Signal;
use serde_json::json;
use xtask::paths;

use super::{Site, Window, cell, in_runtime};

/// The windows in which the page is looked at.
const WINDOWS: [Window; 2] = [(1_280, 1_400), (390, 1_400)];

#[test]
fn the_first_sentence_says_what_is_wrong_and_since_when() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        let says = |words: &str| format!("document.getElementById('state').innerText.includes({words:?})");
        site.until(&says("every store is well")).await?;
        site.store.signal(Signal::SIGKILL)?;
        // gate connects to a store only for a request.
        let mut client = site.gate.connect()?;
        client.write_all(b"get a\r\n")?;
        read_until(&mut client, b"\r\n")?;
        site.until(&says("store: its store is down for ")).await?;
        let is_marked = site.script("return document.getElementById('state').className").await?;
        ensure!(is_marked == "wrong", "{is_marked}");
        site.end().await
    })
}

#[test]
fn the_sentence_names_tiers_that_are_shed() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.until(&cell("acme", 5)).await?;
        let tier = |tier, rung, for_s| json!({ "tier": tier, "waiting": 0, "stands": rung == 7, "rung": rung, "rung_for_s": for_s });
        let service = json!({
            "name": "slow", "store": null, "types": [], "shedding": "shedding",
            "tiers": [tier("critical", 0, None), tier("batch", 2, Some(59.9)), tier("best-effort", 7, Some(131.0))],
        });
        let probed = json!({
            "name": "guarded", "up": true, "rungs": [0, 0, 0, 7], "rungs_for_s": [null, null, null, 8_000.0],
        });
        let snapshot = json!({
            "status": { "shadow": false, "stale": false, "interface": null }, "tenants": [], "tenants_in_all": 0,
            "queues": { "services": [service], "probed": [probed] },
        });
        let said = site.script(&format!("return sentence({snapshot})[0]")).await?;
        ensure!(
            said == "enforcing; slow: batch pays 4 times its price for 59 s, best-effort refused for 2 min, its queue stands; \
                     guarded: best-effort refused for 2 h; no interface, 0 tenants",
            "{said}"
        );
        site.end().await
    })
}

#[test]
fn a_chosen_tenant_shows_why_it_is_refused_and_what_helps() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.ask_until_shown().await?;
        let choose = "document.querySelector('#tenants tr[data-key=small] button').click(); return true";
        site.script(choose).await?;
        site.until("document.querySelector('#why tbody tr')").await?;
        let rows = site.rows("why").await?;
        let [row] = &rows[..] else { anyhow::bail!("{rows:?}") };
        ensure!(row[0] == "quota" && row[3].contains("does not hold the price"), "{row:?}");
        ensure!(row[4].contains("a higher quota"), "{row:?}");
        // A quota does its work: nothing of that is marked as trouble.
        let marked = "return document.querySelectorAll('td.wrong').length";
        ensure!(site.script(marked).await? == 0, "a refusal for a quota is marked");
        let line = site.until("document.getElementById('set-line').value").await?;
        ensure!(line == *row[5], "{line}, not {}", row[5]);
        // It is what a shell takes.
        let raised = row[5].replace("1 RU/s", "9 RU/s");
        let gate = paths::gate();
        let path = gate.parent().context("no folder")?;
        let run = Command::new("/bin/sh").arg("-c").arg(&raised).env("PATH", path).output();
        let run = run.with_context(|| raised.clone())?;
        ensure!(run.status.success(), "{raised}: {run:?}");
        site.until(&format!("{} === '9'", cell("small", 5))).await?;
        site.end().await
    })
}

#[test]
fn every_reason_has_its_words_on_the_page() -> Result<()> {
    in_runtime(async {
        let site = Site::new().await?;
        site.until("state.reasons.size").await?;
        let lines = site
            .script(
                "return [...state.reasons.values()].map(({ reason, command }) => \
                 [reason, commandFor(command, { name: 'a b', quota_ru_per_sec: 5, burst_ms: 7 })])",
            )
            .await?;
        let socket = site.socket_option()?;
        let lines: Vec<(String, String)> = serde_json::from_value(lines)?;
        ensure!(lines.len() == 18, "{lines:?}");
        for (reason, expected) in [
            ("quota", format!("gate set \"tenant.a b.quota\" \"5 RU/s\"{socket}")),
            ("too-large", format!("gate set \"tenant.a b.burst\" 7ms{socket}")),
            ("slo", format!("gate queues{socket}")),
        ] {
            ensure!(lines.contains(&(reason.to_owned(), expected.clone())), "{expected} in {lines:?}");
        }
        site.end().await
    })
}

#[test]
fn the_page_fits_a_wide_and_a_narrow_window_dark_and_light() -> Result<()> {
    in_runtime(async {
        let shots = paths::target().join("page");
        std::fs::create_dir_all(&shots)?;
        for window in WINDOWS {
            let site = Site::seen_in(window).await?;
            site.ask_until_shown().await?;
            site.script("document.querySelector('#tenants tr[data-key=small] button').click(); return true")
                .await?;
            site.until("document.querySelector('#why tbody tr')").await?;
            site.until("charts.requests.times.length > 1").await?;
            for theme in ["dark", "light"] {
                let other = if theme == "dark" { "light" } else { "dark" };
                let set = format!(
                    "document.documentElement.classList.add('{theme}'); \
                     document.documentElement.classList.remove('{other}'); drawCharts(); return true"
                );
                site.script(&set).await?;
                let beyond = "return document.documentElement.scrollWidth - innerWidth";
                let beyond = site.script(beyond).await?.as_i64().context("a width")?;
                ensure!(beyond <= 0, "the page is {beyond} pixels wider than its window");
                // A table that is wider scrolls by itself; what is written in lines is within sight.
                let beyond = site
                    .script(
                        "return [...document.querySelectorAll('header *, h2, #chosen > p, figure')] \
                         .filter((part) => part.offsetParent && part.getBoundingClientRect().right > innerWidth) \
                         .map((part) => part.outerHTML.slice(0, 80))",
                    )
                    .await?;
                ensure!(beyond == json!([]), "{beyond}");
                let shot = site.page.screenshot().await?;
                std::fs::write(shots.join(format!("{}-{theme}.png", window.0)), shot)?;
            }
            site.end().await?;
        }
        Ok(())
    })
}
