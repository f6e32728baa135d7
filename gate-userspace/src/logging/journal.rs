//! Lines for the journal of systemd: each begins with its priority, and has no time, which the journal adds.

use std::io::{self, Write};

use nix::sys::stat::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::queue::Queue;

/// True if standard error leads to the journal: `JOURNAL_STREAM` names its device and number. A program that a service starts
/// has the variable too, wherever its own output goes.
pub(super) fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let found = fstat(io::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Writes lines into the queue, with priorities if they are for the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    pub(super) queue: &'static Queue,
    pub(super) has_priorities: bool,
}

/// One line of the log.
#[derive(Debug)]
pub(super) struct Line {
    queue: &'static Queue,
    /// Before each line; empty where nobody reads it.
    prefix: &'static str,
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line { queue: self.queue, prefix: "" }
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Line {
        let prefix = if self.has_priorities { priority(*metadata.level()) } else { "" };
        Line { queue: self.queue, prefix }
    }
}

/// As syslog counts them.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// An event a call, as the formatter writes it.
impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if self.prefix.is_empty() {
            (&mut &*self.queue).write_all(event)?;
        } else {
            (&mut &*self.queue).write_all(&prefixed(self.prefix, event))?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event with the prefix before each of its lines: the journal takes a line without one for an event of its own.
fn prefixed(prefix: &str, event: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(prefix.len() + event.len());
    for line in event.split_inclusive(|&byte| byte == b'\n') {
        lines.extend_from_slice(prefix.as_bytes());
        lines.extend_from_slice(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_an_event_has_its_priority() {
        for (level, event, expected) in [
            (Level::ERROR, "one\n", "<3>one\n"),
            (Level::WARN, "one\ntwo\n", "<4>one\n<4>two\n"),
            (Level::INFO, "", ""),
            (Level::TRACE, "one", "<7>one"),
        ] {
            assert_eq!(prefixed(priority(level), event.as_bytes()), expected.as_bytes());
        }
    }
}
