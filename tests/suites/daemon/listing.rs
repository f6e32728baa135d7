//! `gate tenants` and `gate queues` on terminals and in pipes: their order, what is left of them, and how they are shown again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use super::terminal::Terminal;

const TENANTS: &str = "[[tenant]]\nname = \"acme\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n\
                       [[tenant]]\nname = \"batch\"\nsources = [\"198.18.0.1\"]\nquota = \"unlimited\"\n\
                       [[tenant]]\nname = \"crawl\"\nsources = [\"198.18.0.2\"]\nquota = \"700 RU/s\"\ntier = \"batch\"\n";

fn gate() -> Result<(Listening, Listening)> {
    let store = Listening::embedded("memcached")?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, "", TENANTS)?;
    Ok((gate, store))
}

fn ask(gate: &Listening, requests: usize) -> Result<()> {
    let mut client = gate.connect()?;
    for _ in 0..requests {
        client.write_all(b"get a\r\n")?;
        read_until(&mut client, b"END\r\n")?;
    }
    Ok(())
}

/// The first words of the lines that a command prints, without the heading.
fn names(gate: &Listening, arguments: &[&str]) -> Result<Vec<String>> {
    let output = gate.command(arguments)?;
    ensure!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

#[test]
fn tenants_are_sorted_by_a_column_and_filtered_by_a_text() -> Result<()> {
    let (gate, _store) = gate()?;
    ask(&gate, 3)?;
    for (arguments, expected) in [
        (&["tenants"][..], &["acme", "batch", "crawl"][..]),
        (&["tenants", "--sort", "quota"], &["batch", "acme", "crawl"]),
        (&["tenants", "--sort", "tier"], &["crawl", "acme", "batch"]),
        (&["tenants", "--sort", "PASSED"], &["acme", "batch", "crawl"]),
        (&["tenants", "--filter", "BATCH"], &["batch", "crawl"]),
        (&["tenants", "--filter", "batch", "--sort", "tier"], &["crawl", "batch"]),
        (&["tenants", "--filter", "money"], &[]),
    ] {
        let names = names(&gate, arguments)?;
        ensure!(names == expected, "{arguments:?}: {names:?}");
    }
    let queues = |arguments: &[&str]| {
        Ok::<_, anyhow::Error>(names(&gate, &[&["queues"], arguments].concat())?.concat())
    };
    ensure!(queues(&["--filter", "best-effort"])?.contains("best-effort"));
    ensure!(!queues(&["--filter", "best-effort"])?.contains("critical"));
    ensure!(queues(&["--filter", "STORE"])?.contains("critical"), "all of the service of that name");
    ensure!(queues(&["--filter", "money"])?.is_empty());
    let by_tier = names(&gate, &["queues", "--sort", "tier"])?.concat();
    ensure!(by_tier.contains("batchbest-effortcriticalstandard"), "{by_tier}");
    Ok(())
}

#[test]
fn watched_tenants_are_drawn_in_place_until_interrupted() -> Result<()> {
    let (gate, _store) = gate()?;
    let mut terminal = Terminal::new(&gate, &["tenants", "--watch", "--filter", "acme"], 100)?;
    terminal.shows("acme")?;
    ask(&gate, 37)?;
    terminal.shows(" 37 ")?;
    let contents = terminal.contents();
    ensure!(contents.matches("acme").count() == 1 && contents.lines().count() == 2, "{contents}");
    terminal.interrupt()?;
    terminal.wait()
}

#[test]
fn watched_queues_say_that_gate_is_gone_and_go_on() -> Result<()> {
    let (mut gate, _store) = gate()?;
    let mut terminal = Terminal::new(&gate, &["queues", "--watch"], 100)?;
    terminal.shows("best-effort")?;
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    gate.signal(Signal::SIGKILL)?;
    wait_until("it ends", || Ok(!gate.program().is_running().unwrap_or(false)))?;
    terminal.shows("asked again")?;
    let mut command = Command::new(paths::gate());
    command.arg("run").arg("--config").arg(config);
    let next = ChildProcess::start("gate", command)?;
    terminal.shows("best-effort")?;
    next.end()?;
    Ok(())
}

#[test]
fn watched_tenants_follow_each_other_in_a_pipe() -> Result<()> {
    let (gate, _store) = gate()?;
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["tenants", "--watch", "--sort", "quota", "--socket"]).arg(socket);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    // The third table has begun.
    let lines: Vec<String> = lines.take(11).collect::<Result<_, _>>()?;
    child.kill()?;
    child.wait()?;
    let words: Vec<_> = lines.iter().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    let table = ["tenant", "batch", "acme", "crawl", ""];
    ensure!(words == [&table[..], &table, &table[..1]].concat(), "{lines:?}");
    ensure!(!lines.concat().contains('\x1b'), "{lines:?}");
    Ok(())
}

#[test]
fn tables_fit_terminals_of_twenty_columns_and_of_none() -> Result<()> {
    let (gate, _store) = gate()?;
    let mut narrow = Terminal::new(&gate, &["tenants", "acme"], 20)?;
    narrow.shows("tenant: acme\ntier: standard\nquota RU/s: 5,000\nburst left: 100%\npassed: 0")?;
    narrow.ends()?;
    let mut narrow = Terminal::new(&gate, &["queues", "--filter", "critical"], 20)?;
    narrow.shows("tier: critical\nwaiting: 0\ndelay ms: 0")?;
    narrow.ends()?;
    let mut console = Terminal::new(&gate, &["tenants"], 0)?;
    console.shows(" crawl   batch            700        100%       0         0           0        0")?;
    console.ends()?;
    // Of one that has no size it is not known where a line ends either.
    let mut console = Terminal::new(&gate, &["tenants", "crawl", "--watch"], 0)?;
    wait_until("two tables", || Ok(console.contents().matches("crawl").count() > 1))?;
    console.interrupt()?;
    console.wait()
}
