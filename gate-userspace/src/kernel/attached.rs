//! The interfaces that the program is attached to, as the control element has them, by slot.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::{AttachMode, Control};

use super::maps::Maps;
use super::owner::ControlHead;

impl Maps {
    /// The interfaces that the program is attached to, by their indices, and how.
    pub fn attached(&self) -> impl Iterator<Item = (u32, AttachMode)> {
        (0..Control::INTERFACES).filter_map(|slot| self.attached_at(slot))
    }

    /// The interface in a slot below [`Control::INTERFACES`].
    #[must_use]
    pub fn attached_at(&self, slot: usize) -> Option<(u32, AttachMode)> {
        at(self, slot)
    }

    /// True if the program is attached to this interface.
    #[must_use]
    pub fn is_attached_to(&self, interface: u32) -> bool {
        self.slot_of(interface).is_some()
    }

    /// The bit of the kernel's mark that charged datagrams get; zero if they get none.
    #[must_use]
    pub fn charged_mark(&self) -> u32 {
        self.marking().load(Ordering::Relaxed) as u32
    }

    /// The slots, a bit each, of interfaces where nothing is marked.
    #[must_use]
    pub fn unmarked_slots(&self) -> u32 {
        (self.marking().load(Ordering::Relaxed) >> u32::BITS) as u32
    }

    /// The bit of the kernel's mark that tells whether a datagram that came in by this interface was charged; nothing if that
    /// has to be inferred.
    #[must_use]
    pub fn mark_at(&self, interface: u32) -> Option<u32> {
        let word = self.marking().load(Ordering::Relaxed);
        let mark = Some(word as u32).filter(|&mark| mark != 0)?;
        let unmarked = (word >> u32::BITS) as u32;
        let is_unmarked = || self.slot_of(interface).is_some_and(|slot| unmarked & 1 << slot != 0);
        (unmarked == 0 || !is_unmarked()).then_some(mark)
    }

    /// Lets charged datagrams get this bit of the kernel's mark, but for those of the interfaces in these slots.
    pub(super) fn set_marking(&self, mark: u32, unmarked_slots: u32) {
        let word = u64::from(mark) | u64::from(unmarked_slots) << u32::BITS;
        self.marking().store(word, Ordering::Relaxed);
    }

    fn slot_of(&self, interface: u32) -> Option<usize> {
        let is_there = |slot: &usize| self.attached_at(*slot).is_some_and(|(index, _)| index == interface);
        (0..Control::INTERFACES).find(is_there).filter(|_| interface != 0)
    }

    fn marking(&self) -> &AtomicU64 {
        self.control.word(0, offset_of!(Control, charged_mark))
    }

    /// The network namespace of these interfaces, by its inode's number.
    #[must_use]
    pub fn namespace(&self) -> u64 {
        self.head(offset_of!(Control, namespace)).load(Ordering::Relaxed)
    }

    pub(super) fn set_attached(&self, slot: usize, interface: u32, mode: AttachMode, namespace: u64) {
        self.head(offset_of!(Control, namespace)).store(namespace, Ordering::Relaxed);
        self.set_slot(slot, interface, mode);
    }

    /// Empties a slot.
    pub(super) fn clear_attached(&self, slot: usize) {
        self.set_slot(slot, 0, AttachMode::None);
    }

    /// Copies the interfaces of other maps.
    pub(super) fn copy_attached(&self, from: &(impl ControlHead + ?Sized)) {
        let namespace = from.head(offset_of!(Control, namespace)).load(Ordering::Acquire);
        for slot in 0..Control::INTERFACES {
            match at(from, slot) {
                Some((interface, mode)) => self.set_attached(slot, interface, mode, namespace),
                None => self.clear_attached(slot),
            }
        }
    }

    /// Only the owner of the maps writes here.
    fn set_slot(&self, slot: usize, interface: u32, mode: AttachMode) {
        let Some((offset, shift)) = further(slot) else {
            let word = u64::from(interface) | u64::from(mode as u32) << 32;
            return self.head(offset_of!(Control, interface)).store(word, Ordering::Relaxed);
        };
        let packed = interface | (mode as u32) << Control::INDEX_BITS;
        let word = self.head(offset);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(others | u64::from(packed) << shift, Ordering::Relaxed);
    }
}

/// The interface in a slot of a control element of any ABI version.
fn at(head: &(impl ControlHead + ?Sized), slot: usize) -> Option<(u32, AttachMode)> {
    let (index, mode) = match further(slot) {
        Some((offset, shift)) => {
            let packed = (head.head(offset).load(Ordering::Relaxed) >> shift) as u32;
            (packed & ((1 << Control::INDEX_BITS) - 1), packed >> Control::INDEX_BITS)
        }
        None => {
            let word = head.head(offset_of!(Control, interface)).load(Ordering::Relaxed);
            (word as u32, (word >> 32) as u32)
        }
    };
    let modes = [AttachMode::Native, AttachMode::Generic];
    modes.into_iter().find(|&known| known as u32 == mode).map(|mode| (index, mode))
}

/// The word of a slot after the first, which has its own, and the slot's place in it in bits.
fn further(slot: usize) -> Option<(usize, usize)> {
    let offset = offset_of!(Control, more_interfaces) + slot.checked_sub(1)? * size_of::<u32>();
    Some((offset - offset % 8, offset % 8 * 8))
}

/// Index and mode of the first slot are in one word, the index in its lower half.
const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Sizes;

    fn maps() -> Maps {
        let sizes = Sizes { cpu_rows: 3, ..Sizes::SMALL };
        Maps::private(&sizes).unwrap().0
    }

    #[test]
    fn each_slot_holds_an_interface_of_its_own() {
        let maps = maps();
        let interface = |slot: usize| (1_000_000 * (slot as u32 + 1), mode(slot));
        (0..Control::INTERFACES).for_each(|slot| {
            assert_eq!(maps.attached().count(), slot);
            let (index, mode) = interface(slot);
            maps.set_attached(slot, index, mode, 7);
        });
        assert!(maps.attached().eq((0..Control::INTERFACES).map(interface)));
        assert!(maps.is_attached_to(8_000_000) && !maps.is_attached_to(9_000_000) && !maps.is_attached_to(0));
        assert_eq!((maps.cpu_rows(), maps.namespace()), (3, 7));

        // Each is emptied alone, the neighbour in its word stays.
        for slot in [0, 3, 7] {
            maps.clear_attached(slot);
            assert_eq!(maps.attached_at(slot), None);
        }
        assert!(maps.attached().eq([1, 2, 4, 5, 6].map(interface)));
        maps.set_cpu_rows(2);
        assert!(maps.attached().eq([1, 2, 4, 5, 6].map(interface)));
        assert!(!maps.is_attached_to(0));
    }

    #[test]
    fn an_interface_without_marks_changes_nothing_of_others() {
        let maps = maps();
        maps.set_attached(0, 5, AttachMode::Native, 7);
        maps.set_attached(2, 6, AttachMode::Native, 7);
        let marks = || [5, 6, 9, 0].map(|interface| maps.mark_at(interface));
        assert_eq!(marks(), [None; 4]);
        maps.set_marking(0x1000, 0);
        assert_eq!(marks(), [Some(0x1000); 4]);
        // Of what comes in by another interface the mark says that gate has not seen it.
        for (unmarked, expected) in [
            (0b001, [None, Some(0x1000)]),
            (0b100, [Some(0x1000), None]),
            (0b101, [None, None]),
            (0b010, [Some(0x1000); 2]),
        ] {
            maps.set_marking(0x1000, unmarked);
            assert_eq!((maps.charged_mark(), maps.unmarked_slots()), (0x1000, unmarked));
            assert_eq!(marks(), [expected[0], expected[1], Some(0x1000), Some(0x1000)], "{unmarked:#b}");
        }
    }

    #[test]
    fn larger_maps_get_the_interfaces_and_keep_their_own_rows() {
        let old = maps();
        let new = maps();
        old.set_attached(0, 5, AttachMode::Native, 7);
        old.set_attached(1, 6, AttachMode::Generic, 7);
        new.set_cpu_rows(9);
        new.set_attached(2, 8, AttachMode::Native, 8);
        new.copy_attached(&old);
        assert!(new.attached().eq([(5, AttachMode::Native), (6, AttachMode::Generic)]));
        assert_eq!((new.cpu_rows(), new.namespace()), (9, 7));
    }

    fn mode(slot: usize) -> AttachMode {
        if slot.is_multiple_of(2) { AttachMode::Native } else { AttachMode::Generic }
    }
}
