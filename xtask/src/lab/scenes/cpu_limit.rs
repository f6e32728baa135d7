//! A process that gets a share of a CPU, as beside a noisy neighbour: it is stopped whenever it has used more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// The limit of a process. Dropped, it runs freely.
#[derive(Debug)]
pub(super) struct CpuLimit {
    process: Pid,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CpuLimit {
    /// Limits a process to a share of a CPU, from now on.
    pub(super) fn start(process: u32, share: f64) -> Result<Self> {
        let process = Pid::from_raw(process.cast_signed());
        let clock = ClockId::pid_cpu_clock_id(process).context("the store is gone")?;
        let used = move || clock_gettime(clock).map(Duration::from);
        let mut last = (Instant::now(), used()?);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut budget = Duration::ZERO;
            let mut debt = Duration::ZERO;
            // A process that has ended has no clock.
            while let (false, Ok(now)) = (is_over.load(Ordering::Relaxed), used()) {
                budget += last.0.elapsed().mul_f64(share);
                debt += now.saturating_sub(last.1);
                last = (Instant::now(), now);
                let paid = budget.min(debt);
                (budget, debt) = ((budget - paid).min(SAVED), debt - paid);
                let signal = if debt > MAX_DEBT { Signal::SIGSTOP } else { Signal::SIGCONT };
                if debt > MAX_DEBT || debt.is_zero() {
                    let _ = kill(process, signal);
                }
                thread::sleep(LOOK_EVERY);
            }
        });
        Ok(Self { process, over, thread: Some(thread) })
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = kill(self.process, Signal::SIGCONT);
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(1);
/// CPU time that may be saved up, and the debt before the process is stopped.
const SAVED: Duration = Duration::from_millis(1);
const MAX_DEBT: Duration = Duration::from_millis(3);
