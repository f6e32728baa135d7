//! Ownership of the maps: which process may write, and how an old owner is ended.
//!
//! Two daemons that both write would undo each other's plans. So a daemon takes ownership only when the
//! old owner surely writes no more: it holds a pidfd (which names one process for good), asks, and kills. An owner
//! that is asked ends, or gives up the maps and lives on for its clients ([`Predecessor`]). The
//! epoch is a second line: each owner raises it, and one that finds another epoch writes no more.

#![allow(unsafe_code, reason = "system calls without safe wrappers")]

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gate_common::abi::Control;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::error::{Error, Result};

/// The signal that asks a daemon to leave without detaching: another one takes over.
pub const HAND_OVER: Signal = Signal::SIGUSR2;

/// Maps of any version: the first [`Control::HEAD_BYTES`] bytes of their control element, which say who owns them,
/// are the same in all.
pub trait ControlHead {
    /// The word at byte `offset` of the control element, below [`Control::HEAD_BYTES`].
    fn head(&self, offset: usize) -> &AtomicU64;
}

/// Ownership of the maps, by the epoch in which it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    epoch: u64,
}

impl Ownership {
    /// True if the maps still belong to this owner.
    #[must_use]
    pub fn holds(self, maps: &(impl ControlHead + ?Sized)) -> bool {
        epoch(maps).load(Ordering::Acquire) == self.epoch
    }

    /// Gives the maps up: this owner has written to them for the last time.
    pub fn give_up(self, maps: &(impl ControlHead + ?Sized)) {
        if self.holds(maps) {
            set_owner(maps, 0);
        }
    }
}

/// A daemon that has given up the maps, and serves the clients that it has to their end.
#[derive(Clone, Debug)]
pub struct Predecessor {
    /// Its process id.
    pub pid: u32,
    process: Arc<OwnedFd>,
}

impl Predecessor {
    /// The process that has this id and started then; `None` if it is gone.
    pub(super) fn open(pid: u32, start: u64) -> Result<Option<Self>> {
        Ok(open(pid, start)?.map(|process| Self { pid, process: Arc::new(process) }))
    }

    /// True if it has ended.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn is_gone(&self) -> Result<bool> {
        gone_within(&self.process, Duration::ZERO)
    }

    /// The files that it has open, sockets included, one after the other; from now on open here as well.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if this process may not look into the other.
    pub fn open_files(&self) -> Result<impl Iterator<Item = OwnedFd>> {
        let failed = |source| Error::System { what: "looking into the old gate", source };
        let listed = fs::read_dir(format!("/proc/{}/fd", self.pid)).map_err(failed)?;
        let numbers = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // It may close any of them meanwhile.
        Ok(numbers.filter_map(|number| pidfd_getfd(&self.process, number).ok()))
    }
}

/// The owner before the maps were taken.
#[derive(Clone, Debug)]
pub enum Previous {
    /// Nobody: the maps are new.
    None,
    /// An owner that was gone already.
    Gone(u32),
    /// An owner that left when asked.
    Left(u32),
    /// An owner that gave up the maps when asked, and drains its clients.
    Draining(Predecessor),
    /// An owner that had to be killed.
    Killed(u32),
}

/// The present owner of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// None, or a process that is gone.
    NoOwner,
    /// A process that is stopped.
    Stopped(u32),
    /// A process that runs.
    Running(u32),
}

/// Looks who owns the maps.
///
/// # Errors
///
/// [`Error::System`].
pub fn find(maps: &(impl ControlHead + ?Sized)) -> Result<Found> {
    let pid = owner_pid(maps);
    Ok(match open(pid, owner_start(maps))? {
        None => Found::NoOwner,
        Some(_) if stopped(pid) => Found::Stopped(pid),
        Some(_) => Found::Running(pid),
    })
}

/// Takes the maps for this process, ending a live owner.
///
/// # Errors
///
/// [`Error::System`] if the old owner can be neither asked nor killed, [`Error::Owned`] if it survives that.
pub fn take(maps: &(impl ControlHead + ?Sized)) -> Result<(Ownership, Previous)> {
    let before = epoch(maps).load(Ordering::Acquire);
    let pid = owner_pid(maps);
    let previous = match (pid, open(pid, owner_start(maps))?) {
        (0, _) => Previous::None,
        (pid, None) => Previous::Gone(pid),
        (pid, Some(old)) => end(maps, pid, old)?,
    };
    let next = before.wrapping_add(1);
    // Another one that ended the old owner as well has them.
    let taken = epoch(maps).compare_exchange(before, next, Ordering::AcqRel, Ordering::Acquire);
    if taken.is_err() {
        return Err(Error::Owned { pid: owner_pid(maps) });
    }
    let pid = std::process::id();
    let start =
        start_time(pid).map_err(|source| Error::System { what: "reading /proc/self/stat", source })?;
    maps.head(offset_of!(Control, owner_start)).store(start, Ordering::Relaxed);
    set_owner(maps, pid);
    Ok((Ownership { epoch: next }, previous))
}

fn owner_pid(maps: &(impl ControlHead + ?Sized)) -> u32 {
    (maps.head(offset_of!(Control, tenants)).load(Ordering::Acquire) >> 32) as u32
}

fn owner_start(maps: &(impl ControlHead + ?Sized)) -> u64 {
    maps.head(offset_of!(Control, owner_start)).load(Ordering::Acquire)
}

fn set_owner(maps: &(impl ControlHead + ?Sized), pid: u32) {
    // The process id shares its word with the number of tenants, which never changes.
    let word = maps.head(offset_of!(Control, tenants));
    let tenants = word.load(Ordering::Acquire) & u64::from(u32::MAX);
    word.store(tenants | u64::from(pid) << 32, Ordering::Release);
}

/// Takes the maps from whoever owns them: a daemon that still runs finds out at its next tick.
pub fn disown(maps: &(impl ControlHead + ?Sized)) {
    epoch(maps).fetch_add(1, Ordering::Release);
}

/// The owner's process id, if it is alive.
#[must_use]
pub fn alive(maps: &(impl ControlHead + ?Sized)) -> Option<u32> {
    match find(maps) {
        Ok(Found::Running(pid) | Found::Stopped(pid)) => Some(pid),
        _ => None,
    }
}

fn epoch(maps: &(impl ControlHead + ?Sized)) -> &AtomicU64 {
    maps.head(offset_of!(Control, epoch))
}

/// Asks the old owner to leave, and waits until it is gone or has given up the maps. One that shows no sign of life for
/// [`PATIENCE`] is killed, at once if it is stopped; so is one that is busy for longer than [`LONGEST`].
fn end(maps: &(impl ControlHead + ?Sized), pid: u32, old: OwnedFd) -> Result<Previous> {
    if !stopped(pid) {
        signal(&old, HAND_OVER)?;
        let word = |offset| maps.head(offset).load(Ordering::Acquire);
        let signs = || (word(offset_of!(Control, heartbeat_ns)), word(offset_of!(Control, generation)));
        let mut seen = signs();
        let mut quiet = Duration::ZERO;
        let mut waited = Duration::ZERO;
        while quiet < PATIENCE && waited < LONGEST {
            if gone_within(&old, LOOK_EVERY)? {
                return Ok(Previous::Left(pid));
            }
            if owner_pid(maps) == 0 {
                return Ok(Previous::Draining(Predecessor { pid, process: Arc::new(old) }));
            }
            let now = signs();
            quiet = if now == seen { quiet + LOOK_EVERY } else { Duration::ZERO };
            (seen, waited) = (now, waited + LOOK_EVERY);
        }
    }
    signal(&old, Signal::SIGKILL)?;
    if gone_within(&old, LAST_WAIT)? { Ok(Previous::Killed(pid)) } else { Err(Error::Owned { pid }) }
}

/// This process: its id, and when it was started.
pub(super) fn this_process() -> Result<(u32, u64)> {
    let pid = std::process::id();
    let start = start_time(pid);
    Ok((pid, start.map_err(|source| Error::System { what: "reading /proc/self/stat", source })?))
}

/// True if the process that had this id and was started then still runs.
pub(super) fn is_running(pid: u32, start: u64) -> bool {
    pid != 0 && open(pid, start).is_ok_and(|process| process.is_some())
}

/// A handle on the process that has this id and started then; `None` if it is gone.
fn open(pid: u32, start: u64) -> Result<Option<OwnedFd>> {
    if pid == 0 || pid == std::process::id() {
        return Ok(None);
    }
    let handle = match pidfd_open(pid) {
        Ok(handle) => handle,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(source) => return Err(Error::System { what: "opening the old owner's process", source }),
    };
    // Read after the handle was opened: if the id has been given to another process, the start differs.
    match start_time(pid) {
        Ok(found) if found == start && !gone_within(&handle, Duration::ZERO)? => Ok(Some(handle)),
        _ => Ok(None),
    }
}

fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: two integers in; the file descriptor that comes out is new and owned by nobody else.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
        }
    }
}

fn pidfd_getfd(process: &OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: an open file descriptor and two integers; the file descriptor that comes out is new and owned by
    // nobody else.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
        }
    }
}

fn signal(process: &OwnedFd, signal: Signal) -> Result<()> {
    let null: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: an open file descriptor, and a null pointer that the kernel takes for "as kill(2) does".
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal as libc::c_int, null, 0)
    };
    match io::Error::last_os_error() {
        _ if sent == 0 => Ok(()),
        gone if gone.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        source => Err(Error::System { what: "signalling the old owner", source }),
    }
}

fn gone_within(process: &OwnedFd, patience: Duration) -> Result<bool> {
    use std::os::fd::AsFd;
    let mut polled = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(error) => Err(Error::System { what: "waiting for the old owner", source: error.into() }),
    }
}

fn stopped(pid: u32) -> bool {
    stat_fields(pid).is_ok_and(|fields| matches!(fields.first().map(String::as_str), Some("T" | "t")))
}

/// When a process started, in clock ticks after boot.
pub(super) fn start_time(pid: u32) -> io::Result<u64> {
    let start = stat_fields(pid)?.get(19).and_then(|field| field.parse().ok());
    start.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// The fields of `/proc/PID/stat` from the third, the state, on: the second may hold anything.
fn stat_fields(pid: u32) -> io::Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

/// See [`Control`]: process id and number of tenants share a word.
const _: () = assert!(offset_of!(Control, owner_pid) == offset_of!(Control, tenants) + 4);
/// How long an old owner that is told to drain may show no sign of life: heartbeats come every 50 ms by default.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long one may take that does: a large configuration, or a busy machine.
const LONGEST: Duration = Duration::from_secs(5);
/// How often it is looked meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long the kernel may take to end a process that was killed.
const LAST_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Maps of a live owner. With `beats` it is busy: each look at its heartbeat finds another one.
    struct Owned {
        words: [AtomicU64; Control::HEAD_BYTES / 8],
        beats: bool,
    }

    impl ControlHead for Owned {
        fn head(&self, offset: usize) -> &AtomicU64 {
            let word = &self.words[offset / 8];
            if self.beats && offset == offset_of!(Control, heartbeat_ns) {
                word.fetch_add(1, Ordering::Relaxed);
            }
            word
        }
    }

    /// The end of an owner, with or without heartbeats meanwhile, whose process does this when it is told to drain.
    fn ended(on_drain: &str, beats: bool) -> Previous {
        let maps = Owned { words: Default::default(), beats };
        set_owner(&maps, 1);
        let script = format!("trap '{on_drain}' USR2; echo ready; while :; do sleep 0.01; done");
        let mut old = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(old.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let pid = old.id();
        let previous = end(&maps, pid, pidfd_open(pid).unwrap());
        old.wait().unwrap();
        previous.unwrap()
    }

    #[test]
    fn busy_owners_are_waited_for_and_silent_ones_are_not() {
        // Longer than a silent one may take, and shorter than any.
        assert!(matches!(ended("sleep 0.6; exit 0", true), Previous::Left(_)));
        assert!(matches!(ended("sleep 4; exit 0", false), Previous::Killed(_)));
    }
}
