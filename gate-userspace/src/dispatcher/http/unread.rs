//! Progress of what is written to a client: the bytes that its kernel acknowledges.
//!
//! **Problem.** A socket takes what its client does not read, up to megabytes, and then looks idle. **Rule.** As long as something
//! is not acknowledged, some more of it has to be within `client_timeout`. The kernel is asked at intervals, and only after writes.
//! Over HTTP/2 a client may leave one of several bodies unread, which its socket does not show: each is watched by itself.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};

use gate_common::units::Nanos;

use crate::kernel::unsent;

/// The unacknowledged part of what was written to a client.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// `None` unless it is open.
    socket: Cell<Option<RawFd>>,
    /// In bytes; by TLS before they are encrypted.
    written: Cell<u64>,
    acknowledged: Cell<u64>,
    /// When more was acknowledged last, as far as that is known; `None` if nothing is due.
    since: Cell<Option<Nanos>>,
    next_look: Cell<Nanos>,
}

/// The bodies that a client reads beside each other.
#[derive(Debug, Default)]
pub(super) struct Readers(RefCell<Vec<Weak<Cell<Option<Nanos>>>>>);

/// A body that a client reads, as long as this is there: since when it could take a piece; `None` while there is none to take.
#[derive(Debug)]
pub(super) struct Reading(Rc<Cell<Option<Nanos>>>);

impl Readers {
    /// The client begins to read one more.
    pub(super) fn begin(&self, now: Nanos) -> Reading {
        let since = Rc::new(Cell::new(Some(now)));
        self.0.borrow_mut().push(Rc::downgrade(&since));
        Reading(since)
    }

    /// True if the client has not taken what it could of one of them for longer than `most`.
    pub(super) fn has_slow(&self, most: Nanos, now: Nanos) -> bool {
        let readers = &mut *self.0.borrow_mut();
        readers.retain(|since| since.strong_count() > 0);
        let mut since = readers.iter().filter_map(|since| since.upgrade()?.get());
        since.any(|since| now.saturating_sub(since) > most)
    }
}

impl Reading {
    /// The client takes another piece.
    pub(super) fn progress(&self, now: Nanos) {
        self.0.set(Some(now));
    }

    /// There is no piece for the client to take.
    pub(super) fn pause(&self) {
        self.0.set(None);
    }
}

impl Unread {
    /// Watches a socket until it is closed.
    pub(super) fn open(&self, socket: RawFd) {
        self.socket.set(Some(socket));
    }

    /// The socket is about to be closed.
    pub(super) fn close(&self) {
        self.socket.set(None);
    }

    /// Notes that the socket has taken so many bytes.
    pub(super) fn wrote(&self, len: usize) {
        self.written.set(self.written.get() + len as u64);
    }

    /// Has the kernel not keep what is unread beyond the end of the connection.
    pub(super) fn give_up(&self) {
        self.socket.get().into_iter().for_each(unsent::drop_unsent_on_close);
    }

    /// True if something is unread, and no more of it has been acknowledged for longer than `most`.
    pub(super) fn is_stalled(&self, most: Nanos, now: Nanos) -> bool {
        self.is_stalled_by(unsent::unacknowledged, most, now)
    }

    fn is_stalled_by(&self, ask: impl Fn(RawFd) -> Option<u64>, most: Nanos, now: Nanos) -> bool {
        let written = self.written.get();
        let socket = self.socket.get().filter(|_| self.acknowledged.get() < written);
        let Some(socket) = socket.filter(|_| now >= self.next_look.get()) else { return false };
        self.next_look.set(now.saturating_add(Nanos(most.0 / 8).min(LOOK_EVERY)));
        let unacknowledged = ask(socket).unwrap_or(0);
        let acknowledged = written.saturating_sub(unacknowledged);
        let since = self.since.get().filter(|_| acknowledged <= self.acknowledged.get());
        match (unacknowledged, since) {
            (0, _) => {
                self.acknowledged.set(written);
                self.since.set(None);
                false
            }
            (_, None) => {
                self.acknowledged.set(acknowledged);
                self.since.set(Some(now));
                false
            }
            (_, Some(since)) => now.saturating_sub(since) > most,
        }
    }
}

/// The longest time between two looks.
const LOOK_EVERY: Nanos = Nanos::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn a_client_stalls_when_nothing_more_is_acknowledged() {
        let unread = Unread::default();
        let most = at(2_000);
        let look = |unacknowledged, millis| unread.is_stalled_by(|_| Some(unacknowledged), most, at(millis));
        unread.wrote(100);
        assert!(!look(100, 10_000), "it is not open");
        unread.open(3);
        assert!(!look(100, 20_000) && !look(100, 22_000));
        // One byte is progress, and more that is written is none.
        assert!(!look(99, 22_250) && !look(99, 24_250));
        unread.wrote(1_000);
        assert!(look(1_099, 24_500));
        assert!(!look(0, 25_000) && !look(0, 60_000), "all is read");
        unread.wrote(1);
        assert!(!look(1, 60_250) && !look(1, 62_250) && look(1, 62_500));
        unread.close();
        assert!(!look(1, 99_000));
    }
}
