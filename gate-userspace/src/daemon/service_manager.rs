//! The service manager (systemd), as far as gate tells it what it does: over the socket that `NOTIFY_SOCKET` names.
//!
//! | when | message |
//! |---|---|
//! | the first plan is in force, and the program attached | `READY=1` |
//! | the configuration is read again | `RELOADING=1`, then `READY=1` |
//! | ticks, several times within `WATCHDOG_USEC` | `WATCHDOG=1` |
//! | gate is told to end | `STOPPING=1` |
//! | a gate that this one has started takes over | `MAINPID=` and its process id |

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command};
use std::time::Duration;

use gate_common::units::Nanos;
use nix::sys::signal::kill;
use nix::unistd::{Pid, getppid};
use sd_notify::NotifyState;

use crate::kernel::owner::HAND_OVER;

/// The service manager, and the gate that takes this one's place there.
#[derive(Debug)]
pub(super) struct ServiceManager {
    /// How often it has to hear of a tick; `None` if it does not wait for that.
    feed_every: Option<Nanos>,
    fed: Nanos,
    successor: Option<Child>,
}

impl ServiceManager {
    /// The one that this process' environment names.
    pub(super) fn from_environment() -> Self {
        let watchdog = std::env::var(WATCHDOG).ok().and_then(|micros| micros.parse::<u64>().ok());
        let feed_every = watchdog.map(|micros| Nanos::from_micros(micros / FEEDS));
        Self { feed_every, fed: Nanos::ZERO, successor: None }
    }

    /// gate serves, by the configuration that was read last.
    pub(super) fn ready(&self) {
        notify(&NotifyState::Ready, Some(ROOM_WITHIN));
    }

    /// gate reads its configuration again.
    pub(super) fn reloading(&self) {
        notify(&NotifyState::Reloading, Some(ROOM_WITHIN));
    }

    /// gate ends, or drains its clients to end.
    pub(super) fn stopping(&self) {
        notify(&NotifyState::Stopping, Some(ROOM_WITHIN));
    }

    /// A tick is over, at `now`.
    pub(super) fn on_tick(&mut self, now: Nanos) {
        if self.feed_every.is_some_and(|every| now.saturating_sub(self.fed) >= every) {
            self.fed = now;
            notify(&NotifyState::Watchdog, None);
        }
    }

    /// Starts the program that is installed now, as this process was started, to take over. Does nothing while one that
    /// was started so is about to.
    pub(super) fn start_successor(&mut self) {
        self.check_successor();
        if self.successor.is_some() {
            return;
        }
        match successor().spawn() {
            Ok(successor) => {
                tracing::info!(pid = successor.id(), "started a gate that takes over");
                self.successor = Some(successor);
            }
            Err(error) => tracing::error!(%error, "cannot start a gate that takes over"),
        }
    }

    /// Looks whether the gate that is to take over has ended instead. To be called now and then.
    pub(super) fn check_successor(&mut self) {
        let ended = self.successor.as_mut().and_then(|successor| successor.try_wait().ok().flatten());
        if let Some(status) = ended {
            tracing::error!(%status, "the gate that was to take over has ended: this one goes on");
            self.successor = None;
        }
    }

    /// The successor has taken over: from now on it is the service's main process.
    pub(super) fn name_successor(&self) {
        if let Some(successor) = &self.successor {
            notify(&NotifyState::MainPid(successor.id()), Some(ROOM_WITHIN));
        }
    }
}

/// Asks the gate that has started this one to leave. For a gate without XDP, whose predecessor no map names.
pub(super) fn take_over_from_parent() -> io::Result<()> {
    let parent = getppid();
    if std::env::var(STARTED_BY).is_ok_and(|pid| pid == parent.to_string()) {
        kill(Pid::from_raw(parent.as_raw()), HAND_OVER)?;
    }
    Ok(())
}

/// The command that started this process, with `--takeover`.
fn successor() -> Command {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_else(|| OsString::from("gate"));
    let mut command = Command::new(program);
    command.args(words.filter(|word| word != TAKEOVER)).arg(TAKEOVER);
    // The watchdog was set for this process, and is for the next one then.
    command.env(STARTED_BY, std::process::id().to_string()).env_remove("WATCHDOG_PID");
    command
}

/// Tells the service manager, if there is one, which has this long to make room for the message; without a time there is room now, or it
/// does not hear of it.
fn notify(state: &NotifyState<'_>, room_within: Option<Duration>) {
    if let Err(error) = send(state, room_within) {
        tracing::debug!(%error, ?state, "cannot tell the service manager");
    }
}

fn send(state: &NotifyState<'_>, room_within: Option<Duration>) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    match room_within {
        Some(time) => socket.set_write_timeout(Some(time))?,
        None => socket.set_nonblocking(true)?,
    }
    socket.send_to_addr(format!("{state}\n").as_bytes(), &address).map(|_| ())
}

/// The time in which a service manager makes room for what it has to hear. Gate does nothing else meanwhile.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// The longest time without a sign of life, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Signs of life within that time, at least.
const FEEDS: u64 = 4;
const TAKEOVER: &str = "--takeover";
/// The process id of the gate that has started this one to be its successor.
const STARTED_BY: &str = "GATE_STARTED_BY";
