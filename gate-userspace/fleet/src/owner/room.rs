//! The memory of what gates' sessions leave at an owner: handles, names without an account, and each gate's part of an account.
//!
//! **Rule.** A session takes more only while it has at most [`OF_FREE`] times what is left (as switches share a buffer between ports: Choudhury
//! and Hahne, "Dynamic queue length thresholds"). So one gate alone takes three quarters of the room, and whoever takes the most is refused
//! first: a gate that introduces too much leaves room to the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The room of all sessions.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    used: AtomicUsize,
}

/// The part of the room that one session has. It is given back when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    /// `None` while it has nothing.
    room: Option<Arc<Room>>,
    bytes: usize,
}

impl Room {
    /// So many bytes.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0) })
    }

    /// The bytes that all sessions have.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if what sessions have that nobody needs should go.
    pub(super) fn is_scarce(&self) -> bool {
        self.used() > self.most / 4
    }
}

impl Footprint {
    /// Takes so many bytes more. False if there is no room for them; then nothing has changed.
    pub(super) fn grow(&mut self, room: &Arc<Room>, bytes: usize) -> bool {
        let own = self.bytes.saturating_add(bytes);
        let take = |used: usize| {
            let used = used.saturating_add(bytes);
            (own <= room.most.saturating_sub(used).saturating_mul(OF_FREE)).then_some(used)
        };
        let is_taken = room.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if is_taken {
            self.room.get_or_insert_with(|| Arc::clone(room));
            self.bytes = own;
        }
        is_taken
    }

    /// Gives back so many of its bytes.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(room) = &self.room {
            room.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Footprint {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// The most that a session may have, as a multiple of what is left.
const OF_FREE: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_most_is_refused_and_leaves_room_to_others() {
        let room = Room::new(1_000);
        let mut greedy = Footprint::default();
        let mut modest = Footprint::default();
        let taken = (0..1_000).filter(|_| greedy.grow(&room, 1)).count();
        assert_eq!((taken, room.used()), (750, 750));
        let taken = (0..1_000).filter(|_| modest.grow(&room, 1)).count();
        assert_eq!((taken, room.used()), (187, 937));
        assert!(!greedy.grow(&room, 1));
        drop(greedy);
        assert!(modest.grow(&room, 100));
        modest.shrink(usize::MAX);
        assert_eq!(room.used(), 0);
    }
}
