//! `gate top` on a terminal of its own, beside a running gate.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::slow_store::slow_store;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::paths;

use super::terminal::Terminal;

const TENANTS: &str = "[[tenant]]\nname = \"acme\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n";

fn gate() -> Result<Listening> {
    Listening::gate_with("threads = \"1\"", "memcached", slow_store(Duration::from_millis(1))?, "", TENANTS)
}

fn top(gate: &Listening, columns: u16) -> Result<Terminal> {
    Terminal::new(gate, &["top", "--every", "200ms"], columns)
}

#[test]
fn top_shows_rates_and_obeys_keys() -> Result<()> {
    let gate = gate()?;
    let mut terminal = top(&gate, 100)?;
    terminal.shows("acme")?;
    terminal.shows("quota RU/s")?;
    let mut client = gate.connect()?;
    let mut requests = 0;
    // Rates last as long as the traffic: until one is seen.
    wait_until("a rate above zero", || {
        client.write_all(b"get a\r\n")?;
        gate_tests::proxy::read_until(&mut client, b"END\r\n")?;
        requests += 1;
        let contents = terminal.contents();
        let summary = contents.lines().next().unwrap_or_default().to_owned();
        let rate =
            summary.split_whitespace().nth(1).and_then(|rate| rate.replace(',', "").parse::<f64>().ok());
        Ok(rate.is_some_and(|rate| rate > 0.0))
    })?;
    ensure!(requests > 0);
    terminal.types("\r")?;
    terminal.shows("How much of its quota it may have saved up")?;
    terminal.types("\x1b")?;
    terminal.shows("quota RU/s")?;
    terminal.types("2")?;
    terminal.shows("up for")?;
    terminal.types("?")?;
    terminal.shows("hold still")?;
    terminal.types("qq")?;
    terminal.ends()
}

#[test]
fn top_fits_a_terminal_of_twenty_columns() -> Result<()> {
    let gate = gate()?;
    let mut terminal = top(&gate, 20)?;
    terminal.shows("acme")?;
    terminal.shows("[1]tenants")?;
    terminal.types("\x03")?;
    terminal.ends()
}

/// The columns that an operator needs first are there in a narrow terminal, and the others follow as there is room.
#[test]
fn top_leaves_out_what_matters_least() -> Result<()> {
    let gate = gate()?;
    for (columns, there, not_there) in [
        (60, &["[1]tenants", "why refused", "passed/s"][..], &["by hand", "segments/s", "tier"][..]),
        (80, &["[5]sources", "why refused", "quota RU/s", "burst left"], &["segments/s"]),
        (120, &["why refused", "quota RU/s", "tier", "by hand", "segments/s"], &[]),
    ] {
        let mut terminal = top(&gate, columns)?;
        terminal.shows("acme")?;
        there.iter().try_for_each(|text| terminal.shows(text))?;
        let contents = terminal.contents();
        ensure!(!not_there.iter().any(|text| contents.contains(text)), "{columns}:\n{contents}");
        terminal.types("q")?;
        terminal.ends()?;
    }
    Ok(())
}

#[test]
fn top_says_that_gate_is_gone_and_finds_the_next_one() -> Result<()> {
    let mut gate = gate()?;
    let mut terminal = top(&gate, 100)?;
    terminal.shows("acme")?;
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    gate.signal(Signal::SIGKILL)?;
    wait_until("it ends", || Ok(!gate.program().is_running().unwrap_or(false)))?;
    terminal.shows("no gate listens at")?;
    terminal.shows("acme")?;
    let mut command = Command::new(paths::gate());
    command.arg("run").arg("--config").arg(config);
    let next = xtask::lab::process::ChildProcess::start("gate", command)?;
    terminal.shows("Tab view")?;
    terminal.types("q")?;
    terminal.ends()?;
    next.end()?;
    Ok(())
}

#[test]
fn top_without_a_terminal_or_a_gate_says_so() -> Result<()> {
    let gate = gate()?;
    let said = |output: std::process::Output| {
        ensure!(output.status.code() == Some(1), "{output:?}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let piped = said(gate.command(&["top"])?)?;
    ensure!(piped.contains("needs a terminal") && piped.contains("gate tenants"), "{piped}");
    let json = said(gate.command(&["top", "--json"])?)?;
    ensure!(json.contains("gate queues --json"), "{json}");
    Ok(())
}
