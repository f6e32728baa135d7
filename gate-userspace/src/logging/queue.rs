//! The lines that wait to be written, and their writer.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gate_common::units::Nanos;

use crate::clock;

/// Causes of lost lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The queue was full: whoever reads the log is too slow, or reads no more.
    QueueFull,
    /// Writing failed, e.g. on a full disk.
    WriteFailed,
    /// The place in the code had logged too much.
    RateLimited,
}

impl Lost {
    /// All of them, in their order.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::WriteFailed, Self::RateLimited];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::WriteFailed => "write-failed",
            Self::RateLimited => "rate-limited",
        }
    }
}

/// Lost lines by cause, in the order of [`Lost::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLines(pub [u64; Lost::ALL.len()]);

impl LostLines {
    /// The lines that were lost by this cause.
    #[must_use]
    pub const fn by(&self, cause: Lost) -> u64 {
        self.0[cause as usize]
    }

    /// All lines that were lost.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A bounded queue of lines. A line beyond its bounds is dropped and counted.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified of a line that waits, and of one that has been written.
    changed: Condvar,
    lost: [AtomicU64; Lost::ALL.len()],
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// The bytes of these.
    bytes: usize,
    /// True while a line is being written.
    is_writing: bool,
}

impl Queue {
    /// Counts a line that is lost.
    pub(super) fn lose(&self, cause: Lost) {
        self.lost[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The lines that have been lost.
    pub(super) fn lost(&self) -> LostLines {
        LostLines(self.lost.each_ref().map(|lost| lost.load(Ordering::Relaxed)))
    }

    /// Writes lines as they come, for ever, to the log of this name. A write may block, or fail.
    pub(super) fn write_to(&self, name: &str, mut out: impl Write) {
        let mut reported = Reported::default();
        loop {
            let line = self.next();
            let written = out.write_all(&line);
            if written.is_err() {
                self.lose(Lost::WriteFailed);
            } else {
                reported.report(name, self.lost(), clock::monotonic());
            }
            self.state().is_writing = false;
            self.changed.notify_all();
        }
    }

    /// Waits until all lines are written, at most for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), patience, is_busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Queues a line, unless there is no room.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.lines.len() >= MOST_LINES || state.bytes + line.len() > MOST_BYTES {
            drop(state);
            return self.lose(Lost::QueueFull);
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.changed.notify_all();
    }

    /// The next line, from now on being written.
    fn next(&self) -> Vec<u8> {
        let waited = self.changed.wait_while(self.state(), |state| state.lines.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let line = state.lines.pop_front().unwrap_or_default();
        state.bytes -= line.len();
        state.is_writing = true;
        line
    }

    /// A thread that panicked with the lock has left nothing half-done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One line a call, as the formatter writes it.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The loss that has been logged.
#[derive(Debug, Default)]
struct Reported {
    lost: LostLines,
    at: Option<Nanos>,
}

impl Reported {
    /// Logs what has been lost since, at most once a minute.
    fn report(&mut self, log: &str, lost: LostLines, now: Nanos) {
        if lost == self.lost || self.at.is_some_and(|at| now.saturating_sub(at) < REPORT_EVERY) {
            return;
        }
        let since = |cause| lost.by(cause) - self.lost.by(cause);
        tracing::warn!(
            log,
            queue_full = since(Lost::QueueFull),
            write_failed = since(Lost::WriteFailed),
            rate_limited = since(Lost::RateLimited),
            "lines of a log are lost; said once a minute"
        );
        *self = Self { lost, at: Some(now) };
    }
}

const REPORT_EVERY: Nanos = Nanos::from_secs(60);
const MOST_LINES: usize = 4_096;
const MOST_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// A log that takes a line only when the test does, and fails where the test says so.
    struct Slow {
        taken: SyncSender<Vec<u8>>,
        fails: fn(&[u8]) -> bool,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.taken.send(line.to_vec()).map_err(io::Error::other)?;
            if (self.fails)(line) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(line.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue(fails: fn(&[u8]) -> bool) -> (&'static Queue, Receiver<Vec<u8>>) {
        let queue: &'static Queue = Box::leak(Box::default());
        let (taken, log) = sync_channel(0);
        std::thread::spawn(move || queue.write_to("test", Slow { taken, fails }));
        (queue, log)
    }

    #[test]
    fn a_log_that_nobody_reads_costs_lines_and_no_time() {
        let (queue, log) = queue(|_| false);
        let sent = 3 * MOST_LINES as u64;
        (0..sent).for_each(|_| (&mut &*queue).write_all(b"line\n").unwrap());
        let lost = queue.lost().by(Lost::QueueFull);
        // One is with the writer.
        assert!((sent - MOST_LINES as u64 - 1..=sent - MOST_LINES as u64).contains(&lost), "{lost}");
        queue.flush(Duration::from_millis(1));
        // Once it is read again, what waits is written.
        let read = log.iter().take((sent - lost) as usize).filter(|line| line == b"line\n").count();
        assert_eq!(read as u64, sent - lost);
        queue.flush(Duration::from_secs(30));
        assert!(queue.state().lines.is_empty() && queue.state().bytes == 0);
        assert_eq!(queue.lost().total(), lost);
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let (queue, _log) = queue(|_| false);
        let line = vec![b'x'; MOST_BYTES / 4];
        (0..32).for_each(|_| (&mut &*queue).write_all(&line).unwrap());
        assert!(queue.state().bytes <= MOST_BYTES);
        assert!(queue.lost().by(Lost::QueueFull) >= 32 - 5);
    }

    #[test]
    fn a_failed_write_loses_its_line_and_no_other() {
        let (queue, log) = queue(|line| line == b"full\n");
        for line in ["one\n", "full\n", "two\n"] {
            (&mut &*queue).write_all(line.as_bytes()).unwrap();
        }
        assert!(log.iter().take(3).eq([&b"one\n"[..], b"full\n", b"two\n"]));
        queue.flush(Duration::from_secs(30));
        assert_eq!(queue.lost(), LostLines([0, 1, 0]));
    }
}
