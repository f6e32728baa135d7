//! A child process of the lab: started, its output collected, ended.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running child process. Dropping it ends it: SIGTERM (SIGINT for gate, which would drain its clients), and SIGKILL
/// after [`PATIENCE`].
#[derive(Debug)]
pub struct ChildProcess {
    name: &'static str,
    child: Child,
    lines: Receiver<Line>,
    /// Its last lines, at most [`QUOTED`].
    last_lines: VecDeque<String>,
}

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Out(String),
    Err(String),
}

/// How long a child may take to end after SIGTERM, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long its last lines may take to be read: what it has started may have its outputs open.
const LAST_LINES: Duration = Duration::from_secs(5);
/// How many of its last lines an error quotes.
const QUOTED: usize = 12;

impl ChildProcess {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(name: &'static str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (sender, lines) = channel();
        forward(child.stdout.take(), sender.clone(), Line::Out);
        forward(child.stderr.take(), sender, Line::Err);
        Ok(Self { name, child, lines, last_lines: VecDeque::new() })
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it prints a line that contains `text`, on either output.
    ///
    /// # Errors
    ///
    /// If it ends first or `patience` runs out; with its last lines.
    pub fn wait_for(&mut self, text: &str, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.record(&line);
                    if line.text().contains(text) {
                        return Ok(line.text().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.failure(&format!("did not say {text:?} in {patience:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.failure(&format!("ended and had not said {text:?}")));
                }
            }
        }
    }

    /// Waits until something holds that it brings about, and does not print.
    ///
    /// # Errors
    ///
    /// If it ends first or `patience` runs out; with its last lines. If `holds` fails.
    pub fn wait_until(
        &mut self,
        what: &str,
        patience: Duration,
        mut holds: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !holds()? {
            if !self.is_running()? {
                return Err(self.failure(&format!("ended: {what} does not hold")));
            }
            if Instant::now() >= deadline {
                return Err(self.failure(&format!("{what}: not in {patience:?}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The lines on its standard output since the last call.
    pub fn printed(&mut self) -> Vec<String> {
        let mut printed = Vec::new();
        while let Ok(line) = self.lines.try_recv() {
            self.record(&line);
            printed.extend(line.out());
        }
        printed
    }

    /// True while it runs.
    ///
    /// # Errors
    ///
    /// If it failed; with its last lines.
    pub fn is_running(&mut self) -> Result<bool> {
        match self.child.try_wait()? {
            None => Ok(true),
            Some(status) if status.success() => Ok(false),
            Some(status) => Err(self.failure(&format!("ended: {status}"))),
        }
    }

    /// Waits for its own end, and returns what it printed on its standard output since it was last asked.
    ///
    /// # Errors
    ///
    /// If it fails, or `patience` runs out.
    pub fn finish(mut self, patience: Duration) -> Result<Vec<String>> {
        match self.wait(patience)? {
            None => Err(self.failure(&format!("did not end in {patience:?}"))),
            Some(status) if !status.success() => Err(self.failure(&format!("ended: {status}"))),
            Some(_) => Ok(self.rest()),
        }
    }

    /// Asks it to end unless it has, and returns what it printed on its standard output since it
    /// was last asked.
    ///
    /// # Errors
    ///
    /// If it does not end in [`PATIENCE`], or fails.
    pub fn end(mut self) -> Result<Vec<String>> {
        if self.is_running()? {
            self.signal(self.end_signal())?;
        }
        self.finish(PATIENCE)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// The signal that ends it at once.
    fn end_signal(&self) -> Signal {
        if self.name.starts_with("gate") { Signal::SIGINT } else { Signal::SIGTERM }
    }

    fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The remaining lines, after it has ended.
    fn rest(&mut self) -> Vec<String> {
        let mut printed = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(LAST_LINES) {
            self.record(&line);
            printed.extend(line.out());
        }
        printed
    }

    fn record(&mut self, line: &Line) {
        self.last_lines.push_back(line.text().to_owned());
        if self.last_lines.len() > QUOTED {
            self.last_lines.pop_front();
        }
    }

    fn failure(&mut self, what: &str) -> anyhow::Error {
        if !matches!(self.child.try_wait(), Ok(None)) {
            self.rest();
        }
        self.printed();
        let last_lines: Vec<&str> = self.last_lines.iter().map(String::as_str).collect();
        anyhow!("{} {what}\n{}", self.name, last_lines.join("\n"))
    }
}

/// A command for a child process that does not outlive its parent.
///
/// The child leads its own process group, so that a terminal's Ctrl-C reaches it only through its parent, and gets SIGTERM
/// when the thread that spawned it ends, killed or not.
#[must_use]
pub fn bound_command(program: impl AsRef<OsStr>) -> Command {
    bound(program, || Ok(()))
}

/// As [`bound_command`], in a network namespace.
pub(super) fn bound_command_in(program: impl AsRef<OsStr>, namespace: io::Result<File>) -> Command {
    bound(program, move || {
        let namespace = namespace.as_ref().map_err(|e| io::Error::from(e.kind()))?;
        Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
    })
}

/// `enter` runs between fork and exec: it must neither allocate nor lock.
fn bound(program: impl AsRef<OsStr>, enter: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    let prepare = move || {
        enter()?;
        Ok(set_pdeathsig(Signal::SIGTERM)?)
    };
    // SAFETY: between fork and exec the closure makes two system calls at most, and neither allocates nor locks.
    #[allow(unsafe_code, reason = "a child can only change its namespace between fork and exec")]
    unsafe {
        command.pre_exec(prepare);
    }
    command
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(self.end_signal());
            if !matches!(self.wait(PATIENCE), Ok(Some(_))) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

impl Line {
    fn text(&self) -> &str {
        let (Self::Out(text) | Self::Err(text)) = self;
        text
    }

    fn out(self) -> Option<String> {
        match self {
            Self::Out(text) => Some(text),
            Self::Err(_) => None,
        }
    }
}

/// Passes on line by line what a program prints.
fn forward(output: Option<impl Read + Send + 'static>, to: Sender<Line>, kind: fn(String) -> Line) {
    let Some(output) = output else { return };
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if to.send(kind(line)).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ChildProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ChildProcess::start("the script", command).unwrap()
    }

    #[test]
    fn what_it_prints_is_seen_and_a_failure_is_quoted() {
        let mut child = shell("echo ready; echo trouble >&2; exit 3");
        assert_eq!(child.wait_for("read", PATIENCE).unwrap(), "ready");
        let error = child.finish(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("the script ended: exit status: 3") && error.contains("trouble"), "{error}");
    }

    #[test]
    fn an_end_that_was_asked_for_is_no_failure() {
        let mut child = shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        child.wait_for("ready", PATIENCE).unwrap();
        assert_eq!(child.end().unwrap(), ["bye"]);
        assert!(shell("exit 0").finish(PATIENCE).unwrap().is_empty());
    }

    #[test]
    fn dropping_it_ends_it() {
        let child = shell("echo ready; while :; do sleep 0.01; done");
        let process = std::path::PathBuf::from(format!("/proc/{}", child.id()));
        assert!(process.exists());
        drop(child);
        assert!(!process.exists());
    }
}
