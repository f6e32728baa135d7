//! Runs cases, several at once: each in a process of its own, with a deadline, its output kept and shown if it fails.
//!
//! A case that stands still costs its own deadline and nothing else, and one that dies takes no other with it. What a case
//! started ends with its process.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::cases::{Slot, TestCase};
use super::machine::Claim;
use crate::lab::process::bound_command;
use crate::paths;

/// How the cases of a run are run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The number of cases that run at once.
    pub(super) at_once: usize,
    /// The time that a case may take.
    pub(super) deadline: Duration,
    /// True at full size.
    pub(super) long: bool,
}

/// The outcome of a test.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Its name.
    pub(super) name: String,
    /// The time that it took.
    pub(super) took: Duration,
    /// Why it failed.
    pub(super) failure: Option<String>,
    /// Its output.
    pub(super) output: String,
}

/// The number of paced cases that run at once: each takes up to a core.
pub(super) const PACED_AT_ONCE: usize = 2;

/// Runs all cases: the paced ones after the shared, and the exclusive ones at the end, one after the other.
///
/// `seen` is told of each as it ends.
///
/// # Errors
///
/// If a case cannot be started or waited for.
pub(super) fn run(cases: Vec<TestCase>, pace: Pace, seen: impl FnMut(Outcome) + Send) -> Result<()> {
    let mut shared = Vec::new();
    let mut paced = Vec::new();
    let mut exclusive = Vec::new();
    for case in cases {
        match case.slot {
            Slot::Early | Slot::Shared => shared.push(case),
            Slot::Paced => paced.push(case),
            Slot::Exclusive => exclusive.push(case),
        }
    }
    let seen = Mutex::new(seen);
    let interrupted = Interrupted::listen()?;
    let paced_at_once = PACED_AT_ONCE.min(pace.at_once);
    for (cases, workers, alone) in
        [(shared, pace.at_once, false), (paced, paced_at_once, false), (exclusive, 1, true)]
    {
        if cases.is_empty() {
            continue;
        }
        let _claim = Claim::wait(alone, || interrupted.ensure_not())?;
        let waiting = Mutex::new(VecDeque::from(cases));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..workers.max(1))
                .map(|_| scope.spawn(|| work(&waiting, pace, &interrupted, &seen)))
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
    }
    Ok(())
}

/// Set by Ctrl-C and SIGTERM.
///
/// Cases lead process groups of their own and do not get a terminal's Ctrl-C. As the signals have a handler here, they have
/// their default actions in cases, also where this process was started with SIGINT ignored, as shells do in the background.
#[derive(Clone)]
struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    fn listen() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    fn ensure_not(&self) -> Result<()> {
        ensure!(!self.0.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}

fn work(
    waiting: &Mutex<VecDeque<TestCase>>,
    pace: Pace,
    interrupted: &Interrupted,
    seen: &Mutex<impl FnMut(Outcome)>,
) -> Result<()> {
    loop {
        interrupted.ensure_not()?;
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(case) = next else { return Ok(()) };
        let outcome = run_one(&case, pace, interrupted).with_context(|| case.name.clone())?;
        seen.lock().unwrap_or_else(PoisonError::into_inner)(outcome);
    }
}

fn run_one(case: &TestCase, pace: Pace, interrupted: &Interrupted) -> Result<Outcome> {
    let mut command = if runs_first(case.slot) {
        let mut command = bound_command("nice");
        command.args(["-n", "-19"]).arg(&case.program);
        command
    } else {
        bound_command(&case.program)
    };
    command.args(["--exact", case.path(), "--nocapture"]);
    command.current_dir(paths::workspace().join("tests"));
    if pace.long {
        command.env("GATE_LONG", "1");
    }
    run_command(command, &case.name, pace.deadline, interrupted)
}

/// True for what counts against the clock beside others: what else keeps this machine busy is not to count. It takes root.
fn runs_first(slot: Slot) -> bool {
    match slot {
        Slot::Early | Slot::Shared | Slot::Exclusive => false,
        Slot::Paced => geteuid().is_root(),
    }
}

fn run_command(
    mut command: Command,
    name: &str,
    deadline: Duration,
    interrupted: &Interrupted,
) -> Result<Outcome> {
    let mut kept = Output::open()?;
    command.stdin(Stdio::null()).stdout(kept.file.try_clone()?).stderr(kept.file.try_clone()?);
    let started = Instant::now();
    let mut child = command.spawn()?;
    let ended = wait(&mut child, deadline, interrupted);
    let took = started.elapsed();
    end_group(&child);
    let output = kept.read()?;
    let failure = match ended? {
        None => Some(format!("did not end in {deadline:?}")),
        Some(status) if !status.success() => Some(ending(status)),
        // A name that the program does not know is no failure to the harness.
        Some(_) if !output.contains("1 passed") => Some("ran no test".to_owned()),
        Some(_) => None,
    };
    Ok(Outcome { name: name.to_owned(), took, failure, output })
}

/// The end of the process; `None` if it had to be killed at its deadline.
fn wait(child: &mut Child, deadline: Duration, interrupted: &Interrupted) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let ends = interrupted.ensure_not();
        if ends.is_err() || started.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            return ends.map(|()| None);
        }
        thread::sleep(LOOK_EVERY);
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Ends the servers that a case has started and not ended, since it failed or was killed: they are in its process group, or end with it.
fn end_group(child: &Child) {
    // To have none is the usual case.
    let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
}

fn ending(status: ExitStatus) -> String {
    status.signal().map_or_else(|| "failed".to_owned(), |signal| format!("was ended by signal {signal}"))
}

/// A file without a name for what a case prints, on both its outputs.
struct Output {
    file: File,
}

impl Output {
    fn open() -> Result<Self> {
        let path =
            paths::target().join(format!("test-output-{}-{:?}", process::id(), thread::current().id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        remove(&path)?;
        Ok(Self { file })
    }

    fn read(&mut self) -> Result<String> {
        self.file.rewind()?;
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Duration, Instant, Interrupted, Path, bound_command, run_command, thread};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// The failure of a case that is this script, and the id of the server that it had started.
    fn case(script: &str, deadline: Duration) -> (Option<String>, String) {
        let mut command = bound_command("sh");
        command.args(["-c", &format!("sleep 600 & echo $!\n{script}")]);
        let outcome = run_command(command, "a::case", deadline, &Interrupted::listen().unwrap()).unwrap();
        (outcome.failure, outcome.output.lines().next().unwrap().to_owned())
    }

    #[test]
    fn a_case_leaves_no_server_however_it_ends() {
        for (script, deadline, failure) in [
            ("echo 1 passed", PATIENCE, None),
            ("exit 1", PATIENCE, Some("failed")),
            ("kill -KILL $$", PATIENCE, Some("was ended by signal 9")),
            ("sleep 600", Duration::from_secs(1), Some("did not end in 1s")),
        ] {
            let (ended, server) = case(script, deadline);
            assert_eq!(ended.as_deref(), failure, "{script}");
            let until = Instant::now() + PATIENCE;
            // One that nobody has waited for yet is dead as well.
            let stat = || fs::read_to_string(Path::new("/proc").join(&server).join("stat"));
            while stat().is_ok_and(|stat| !stat.contains(") Z ")) {
                assert!(Instant::now() < until, "{script}: the server runs on");
                thread::yield_now();
            }
        }
    }
}
