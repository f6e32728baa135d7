//! The log on standard error.
//!
//! Lines wait in a bounded queue, and a thread of their own writes them: a reader that is slow or gone, or a disk that is
//! full, costs lines and holds up no other thread. A line that cannot be queued or written is dropped and counted.
//!
//! Dependencies log errors only, unless `GATE_LOG` names them, and each place in the code may log so many lines in a time:
//! no peer makes the log grow as fast as it sends.
//!
//! - `access`: access logs, which are written likewise.
//! - `queue`: the bounded queue and its writer.
//! - `journal`: lines as the journal of systemd reads them.
//! - `rate`: the lines that a place in the code may log.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

mod access;
mod journal;
mod queue;
mod rate;

use journal::{Lines, is_journal};
use queue::Queue;
use rate::RateLimit;

pub use access::{AccessLog, access_lines_lost, reopen_all};
pub use queue::{Lost, LostLines};
pub use rate::once_a_minute;

/// Starts to log to standard error, at the level that `GATE_LOG` says, `info` without it; a JSON object a line if
/// `GATE_LOG_FORMAT` is `json`. Lines for systemd's journal begin with their priority (`<4>`), without a time. What is queued when the guard is dropped is still written, for a second at most.
///
/// # Errors
///
/// If `GATE_LOG` or `GATE_LOG_FORMAT` has a value that means nothing, or there is no thread to be had.
pub fn start() -> anyhow::Result<Flush> {
    let level = std::env::var("GATE_LOG").unwrap_or_default();
    let level = if level.is_empty() { "info" } else { &level };
    let filter = EnvFilter::try_new(directives(level))
        .map_err(|error| anyhow::anyhow!("GATE_LOG={level}: {error}; e.g. error, warn, info, debug"))?;
    let is_json = match std::env::var("GATE_LOG_FORMAT").as_deref() {
        Ok("json") => true,
        Ok("" | "text") | Err(_) => false,
        Ok(format) => anyhow::bail!("GATE_LOG_FORMAT={format}: must be json or text"),
    };
    // Not the standard library's handle: whoever writes to that holds a lock, for as long as nobody reads.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned().context("standard error")?);
    let queue = QUEUE.get_or_init(Queue::default);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(|| queue.write_to("stderr", stderr))
        .context("starting the thread that writes the log")?;
    let has_priorities = is_journal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Lines { queue, has_priorities })
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter).with(RateLimit::new(queue));
    match (is_json, has_priorities) {
        (true, _) => log.with(lines.json().flatten_event(true)).init(),
        (false, true) => log.with(lines.without_time().with_level(false)).init(),
        (false, false) => log.with(lines).init(),
    }
    Ok(Flush(()))
}

/// Waits until what has been logged is written, for a second at most.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(AT_THE_END);
    }
    access::flush_all(AT_THE_END);
}

/// The lines that have been lost since the start, by cause.
#[must_use]
pub fn lost() -> LostLines {
    QUEUE.get().map_or_else(LostLines::default, Queue::lost)
}

/// Has the log written when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Flush(());

impl Drop for Flush {
    fn drop(&mut self) {
        flush();
    }
}

/// The filter that `GATE_LOG` stands for: a level alone is that of gate's own modules, and of dependencies at most `error`.
fn directives(given: &str) -> String {
    let of_part = |part: &str| match part.trim().parse::<LevelFilter>() {
        Ok(level) => format!("{},gate={level}", level.min(LevelFilter::ERROR)),
        Err(_) => part.to_owned(),
    };
    given.split(',').map(of_part).collect::<Vec<_>>().join(",")
}

/// The lines of this process.
static QUEUE: OnceLock<Queue> = OnceLock::new();
/// A log that is read at all takes a queue full of lines in much less.
const AT_THE_END: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_of_gates_own_modules() {
        for (given, expected) in [
            ("info", "error,gate=info"),
            ("off", "off,gate=off"),
            ("ERROR", "error,gate=error"),
            ("info,gate_userspace::control=debug", "error,gate=info,gate_userspace::control=debug"),
            ("h2=debug, warn", "h2=debug,error,gate=warn"),
        ] {
            assert_eq!(directives(given), expected);
            EnvFilter::try_new(directives(given)).unwrap();
        }
        assert!(EnvFilter::try_new(directives("gate=loud")).is_err());
    }
}
