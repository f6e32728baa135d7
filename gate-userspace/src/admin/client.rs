//! One question to a running gate, one answer.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::request::{Reply, Request};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no gate listens at {}: is one running, with its admin socket there?", path.display())]
    NoDaemon {
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon did not answer in time, or closed the connection.
    #[error("the gate at {} does not answer", path.display())]
    NoAnswer {
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The answer cannot be parsed: most likely the daemon is of another version.
    #[error("the gate at {} answers something else than was asked: is it of another version?", path.display())]
    Strange {
        /// Where.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
}

/// Asks the gate at `path`.
///
/// # Errors
///
/// [`Error`].
pub fn ask<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, Error> {
    let stream =
        UnixStream::connect(path).map_err(|source| Error::NoDaemon { path: path.to_owned(), source })?;
    let answer =
        converse(stream, request).map_err(|source| Error::NoAnswer { path: path.to_owned(), source })?;
    let strange = |source| Error::Strange { path: path.to_owned(), source };
    match serde_json::from_slice(&answer).map_err(strange)? {
        Reply::Ok(document) => serde_json::from_value(document).map_err(strange),
        Reply::Error(why) => Err(Error::Refused(why)),
    }
}

fn converse(mut stream: UnixStream, request: &Request) -> io::Result<Vec<u8>> {
    let patience = if matches!(request, Request::Change(_)) { UNTIL_A_TICK } else { PATIENCE };
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// A gate that is stopped accepts connections, and says nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// A change waits for the next tick or two, which may be 10 s each.
const UNTIL_A_TICK: Duration = Duration::from_secs(40);
/// Several times what 10,000 tenants take.
const MAX_ANSWER: u64 = 256 << 20;
