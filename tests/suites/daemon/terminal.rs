//! A terminal with one of gate's commands in it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::paths;

const LINES: u16 = 24;

/// A terminal, and the command in it.
pub(super) struct Terminal {
    command: Child,
    user: File,
    screen: vt100::Parser,
}

impl Terminal {
    /// Runs the command, about this gate, on a terminal of 24 lines. One of 0 columns says that it has neither lines nor columns,
    /// as serial consoles do, and has 200.
    pub(super) fn new(gate: &Listening, arguments: &[&str], columns: u16) -> Result<Self> {
        let lines = if columns == 0 { 0 } else { LINES };
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None)?;
        let (_, socket) = gate.files()?;
        let end = || pair.slave.try_clone();
        // Whoever runs the tests may have a terminal of another size.
        let command = Command::new("setsid")
            .arg(paths::gate())
            .args(arguments)
            .arg("--socket")
            .arg(socket)
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(end()?))
            .stdout(Stdio::from(end()?))
            .stderr(Stdio::from(end()?))
            .spawn()?;
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let columns = if columns == 0 { 200 } else { columns };
        let size = |count| NonZero::new(count).context("a terminal without room");
        let screen = vt100::Parser::new(size(LINES)?, size(columns)?, 0);
        Ok(Self { command, user: File::from(pair.master), screen })
    }

    /// Waits until the screen has this text.
    pub(super) fn shows(&mut self, text: &str) -> Result<()> {
        let shown = wait_until(text, || Ok(self.contents().contains(text)));
        shown.with_context(|| self.contents())
    }

    /// The text on the screen now.
    pub(super) fn contents(&mut self) -> String {
        let mut bytes = [0; 4096];
        // There is nothing now, or it has ended.
        while let Ok(count @ 1..) = self.user.read(&mut bytes) {
            self.screen.process(&bytes[..count]);
        }
        self.screen.screen().contents()
    }

    pub(super) fn types(&mut self, keys: &str) -> Result<()> {
        Ok(self.user.write_all(keys.as_bytes())?)
    }

    /// Sends the command the signal of Ctrl-C.
    pub(super) fn interrupt(&self) -> Result<()> {
        Ok(kill(Pid::from_raw(self.command.id().cast_signed()), Signal::SIGINT)?)
    }

    /// Waits until it has ended, with success.
    pub(super) fn ends(mut self) -> Result<()> {
        self.wait()?;
        let status = self.command.wait()?;
        // It may have written more since it was looked at.
        let contents = self.contents();
        ensure!(status.success(), "{status}: {contents}");
        ensure!(!self.screen.screen().alternate_screen(), "the terminal is given back as it was");
        Ok(())
    }

    /// Waits until it has ended, however.
    pub(super) fn wait(&mut self) -> Result<()> {
        wait_until("the command ends", || {
            self.contents();
            Ok(self.command.try_wait()?.is_some())
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}
