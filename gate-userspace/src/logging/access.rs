//! Access logs: files with a line for each request that is logged, queued and written as the log on standard error is.
//!
//! A file that is moved away is made anew once [`reopen_all`] has been called: rotation is another program's.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;

use super::queue::{LostLines, Queue};

/// A file for the lines of a service.
#[derive(Debug)]
pub struct AccessLog {
    path: PathBuf,
    queue: Queue,
    reopens: AtomicBool,
}

/// The file, as the thread that writes it has it.
struct Writer<'l> {
    log: &'l AccessLog,
    file: File,
    /// True if a line may have been written in part.
    is_torn: bool,
}

impl AccessLog {
    /// Opens a file to append lines to it, and starts the thread that writes them. Both stay until the process ends.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, is no regular file, or there is no thread to be had.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let file = append_to(path)?;
        let this = Arc::new(Self {
            path: path.to_owned(),
            queue: Queue::default(),
            reopens: AtomicBool::new(false),
        });
        let log = Arc::clone(&this);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            let name = log.path.display().to_string();
            log.queue.write_to(&name, Writer { log: &log, file, is_torn: false });
        })?;
        all().push(Arc::clone(&this));
        Ok(this)
    }

    /// Queues a line, which ends with a line feed; or drops and counts it.
    pub fn write(&self, line: &[u8]) {
        self.queue.push(line);
    }
}

impl Write for Writer<'_> {
    /// Writes one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.log.reopens.swap(false, Ordering::Relaxed) {
            match append_to(&self.log.path) {
                Ok(file) => *self = Self { log: self.log, file, is_torn: false },
                Err(error) => {
                    let path = self.log.path.display();
                    tracing::warn!(%error, %path, "an access log cannot be reopened; the old file is written on");
                }
            }
        }
        let result = match self.is_torn {
            true => self.file.write_all(b"\n"),
            false => Ok(()),
        };
        let result = result.and_then(|()| self.file.write_all(line));
        self.is_torn = result.is_err();
        result.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has every access log opened anew by its path before its next line.
pub fn reopen_all() {
    all().iter().for_each(|log| log.reopens.store(true, Ordering::Relaxed));
}

/// The lines of all access logs that have been lost since the start, by cause.
#[must_use]
pub fn access_lines_lost() -> LostLines {
    let mut sum = LostLines::default();
    for log in all().iter() {
        sum.0.iter_mut().zip(log.queue.lost().0).for_each(|(sum, lost)| *sum += lost);
    }
    sum
}

/// Waits until the lines of all access logs are written, for so long at most for each.
pub(super) fn flush_all(patience: Duration) {
    let logs: Vec<_> = all().clone();
    logs.iter().for_each(|log| log.queue.flush(patience));
}

/// Does not wait for a reader of a pipe, nor write to one: it could not be opened anew.
fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is no regular file")),
    }
}

fn all() -> MutexGuard<'static, Vec<Arc<AccessLog>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The access logs of this process.
static ALL: Mutex<Vec<Arc<AccessLog>>> = Mutex::new(Vec::new());

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_moved_log_is_made_anew_and_a_pipe_is_refused() {
        let dir = std::env::temp_dir().join(format!("gate-access-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.json");
        let log = AccessLog::open(&path).unwrap();
        log.write(b"one\n");
        log.queue.flush(PATIENCE);
        std::fs::rename(&path, dir.join("a.json.1")).unwrap();
        log.write(b"two\n");
        log.queue.flush(PATIENCE);
        reopen_all();
        log.write(b"three\n");
        flush_all(PATIENCE);
        let read = |name| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!((read("a.json.1"), read("a.json")), ("one\ntwo\n".to_owned(), "three\n".to_owned()));
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(AccessLog::open(&pipe).is_err() && AccessLog::open(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
