//! Ctrl-C and SIGTERM as something to wait for; a closed pipe as a reason to end without a word.

#![allow(unsafe_code, reason = "a signal's default action")]

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Lets the process die of writing to a pipe that nobody reads (`gate status | head`), as tools do. Not for
/// commands that serve, nor while one asks over sockets: there a peer that left is an error like any other.
pub(super) fn die_of_closed_pipes() {
    // SAFETY: the default action runs no code of this process.
    let set = unsafe { nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl) };
    debug_assert!(set.is_ok());
}

/// Receives Ctrl-C and SIGTERM instead of dying of them.
pub(super) struct Signals(SignalFd);

impl Signals {
    /// To be called before any thread is started: threads inherit what is blocked.
    pub(super) fn block() -> nix::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for one of them, at most so long, and says whether one came.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout);
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}
