//! The gate that one without maps of that gate's takes over from: it is found by its admin socket.
//!
//! Where the program is attached, the maps name their owner ([`crate::kernel::owner`]). Without it, two gates of one machine know nothing
//! of each other, and both would serve at the same ports, each with the whole of every quota.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::error::Error;
use super::options::Options;
use crate::admin::{self, client};
use crate::config::{AdminSocket, Config};
use crate::kernel::owner::HAND_OVER;

/// A gate that serves beside this one until it is told to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour(Pid);

impl Neighbour {
    /// The gate that listens where this one is about to; `None` if none does. To be asked before this one listens there.
    ///
    /// # Errors
    ///
    /// [`Error::Neighbour`], if somebody listens there and cannot be told to hand over: two would serve.
    pub(super) fn find(options: &Options, config: &Config) -> Result<Option<Self>, Error> {
        if !options.takeover {
            return Ok(None);
        }
        let Some(socket) = socket(options, config) else {
            tracing::warn!(
                "admin = \"off\", so that a gate without XDP to take over from cannot be found: if one runs, end it by SIGTERM, \
                 which serves its clients to their end"
            );
            return Ok(None);
        };
        let asked = socket.clone();
        match ask(move || client::daemon(&asked)) {
            Ok(pid) => Ok(Some(Self(Pid::from_raw(pid)))),
            Err(client::Error::NoDaemon { .. }) => Ok(None),
            Err(source) => Err(Error::Neighbour { socket, source }),
        }
    }

    /// Has it leave new clients to this gate, and serve those that it has to their end.
    pub(super) fn hand_over(self) {
        match kill(self.0, HAND_OVER) {
            Ok(()) => tracing::info!(pid = self.0.as_raw(), "took over from a running gate"),
            Err(Errno::ESRCH) => tracing::info!(pid = self.0.as_raw(), "the gate before this one has ended"),
            Err(error) => {
                let error = io::Error::from(error);
                tracing::error!(pid = self.0.as_raw(), %error, "cannot tell the old gate to hand over: both serve, end it");
            }
        }
    }
}

/// Where the owner of the configuration's gate is answered; `None` if nowhere.
pub(super) fn socket(options: &Options, config: &Config) -> Option<PathBuf> {
    match &config.gate.admin {
        AdminSocket::Off => None,
        AdminSocket::At(path) => Some(path.clone()),
        AdminSocket::Default => {
            let pins: &Path = options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
            Some(admin::default_path(pins))
        }
    }
}

/// Asks in a thread of its own: the caller's drives a runtime already.
pub(super) fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(question).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
