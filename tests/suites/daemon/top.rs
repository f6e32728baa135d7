//! `gate top` on a terminal of its own, beside a running gate.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, slow_store};
use gate_tests::wait::wait_until;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"acme\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n";

fn gate() -> Result<Listening> {
    Listening::gate_with("threads = \"1\"", "memcached", slow_store(Duration::from_millis(1))?, "", TENANTS)
}

/// A terminal, and `gate top` in it.
struct Terminal {
    top: Child,
    user: File,
    screen: vt100::Parser,
}

impl Terminal {
    fn new(gate: &Listening, columns: u16) -> Result<Self> {
        const LINES: u16 = 24;
        let size = Winsize { ws_row: LINES, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None)?;
        let (_, socket) = gate.files()?;
        let end = || pair.slave.try_clone();
        let top = Command::new(paths::gate())
            .args(["top", "--every", "200ms", "--socket"])
            .arg(socket)
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(end()?))
            .stdout(Stdio::from(end()?))
            .stderr(Stdio::from(end()?))
            .spawn()?;
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let size = |count| NonZero::new(count).context("a terminal without room");
        let screen = vt100::Parser::new(size(LINES)?, size(columns)?, 0);
        Ok(Self { top, user: File::from(pair.master), screen })
    }

    /// Waits until the screen has this text.
    fn shows(&mut self, text: &str) -> Result<()> {
        let shown = wait_until(text, || {
            self.read();
            Ok(self.screen.screen().contents().contains(text))
        });
        shown.with_context(|| self.screen.screen().contents())
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        // There is nothing now, or it has ended.
        while let Ok(count @ 1..) = self.user.read(&mut bytes) {
            self.screen.process(&bytes[..count]);
        }
    }

    fn types(&mut self, keys: &str) -> Result<()> {
        Ok(self.user.write_all(keys.as_bytes())?)
    }

    /// Waits until it has ended, with success.
    fn ends(mut self) -> Result<()> {
        wait_until("gate top ends", || {
            self.read();
            Ok(self.top.try_wait()?.is_some())
        })?;
        let status = self.top.wait()?;
        ensure!(status.success(), "{status}: {}", self.screen.screen().contents());
        ensure!(!self.screen.screen().alternate_screen(), "the terminal is given back as it was");
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

#[test]
fn top_shows_rates_and_obeys_keys() -> Result<()> {
    let gate = gate()?;
    let mut terminal = Terminal::new(&gate, 100)?;
    terminal.shows("acme")?;
    terminal.shows("quota RU/s")?;
    let mut client = gate.connect()?;
    let mut requests = 0;
    // Rates last as long as the traffic: until one is seen.
    wait_until("a rate above zero", || {
        client.write_all(b"get a\r\n")?;
        gate_tests::proxy::read_until(&mut client, b"END\r\n")?;
        requests += 1;
        terminal.read();
        let contents = terminal.screen.screen().contents();
        let summary = contents.lines().next().unwrap_or_default().to_owned();
        let rate =
            summary.split_whitespace().nth(1).and_then(|rate| rate.replace(',', "").parse::<f64>().ok());
        Ok(rate.is_some_and(|rate| rate > 0.0))
    })?;
    ensure!(requests > 0);
    terminal.types("\r")?;
    terminal.shows("burst_ms")?;
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
    let mut terminal = Terminal::new(&gate, 20)?;
    terminal.shows("acme")?;
    terminal.shows("1 tenants")?;
    terminal.types("\x03")?;
    terminal.ends()
}

#[test]
fn top_says_that_gate_is_gone_and_finds_the_next_one() -> Result<()> {
    let mut gate = gate()?;
    let mut terminal = Terminal::new(&gate, 100)?;
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
