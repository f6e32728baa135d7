//! The program at its interfaces.

use std::collections::BTreeSet;

use gate_common::abi::AttachMode;

use crate::kernel::attach::{self, interface_name, mode_name};
use crate::kernel::interfaces::{Interface, attach_again};
use crate::kernel::{Loaded, PinDir, mark};

/// The program at its interfaces.
pub(super) struct Attached {
    pub(super) xdp: attach::Mode,
    pub(super) interfaces: Vec<Interface>,
    pub(super) pins: PinDir,
    pub(super) loaded: Loaded,
    /// The slots of interfaces that have vanished.
    vanished: BTreeSet<usize>,
    /// The bit of the mark that charged datagrams get; none if zero.
    mark: u32,
    /// The slots, a bit each, of interfaces where nothing is marked, as far as that was said.
    unmarked: u32,
}

impl Attached {
    /// The program at these interfaces, where what is charged gets the bit `mark`, if any.
    pub(super) fn new(
        xdp: attach::Mode,
        interfaces: Vec<Interface>,
        pins: PinDir,
        loaded: Loaded,
        mark: u32,
    ) -> Self {
        let vanished = BTreeSet::new();
        let mut this = Self { xdp, interfaces, pins, loaded, vanished, mark, unmarked: 0 };
        this.mark_charged();
        this
    }

    /// Takes over another list of interfaces, at which the program is already.
    pub(super) fn follow(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        let is_listed = |slot: &usize| self.interfaces.iter().any(|interface| interface.slot == *slot);
        self.vanished.retain(is_listed);
        self.mark_charged();
    }

    /// The names of the interfaces that have vanished.
    pub(super) fn vanished(&self) -> Vec<String> {
        let vanished = self.interfaces.iter().filter(|interface| self.vanished.contains(&interface.slot));
        vanished.map(|interface| interface.name.clone()).collect()
    }

    /// Lets what is charged be marked. Where that cannot be, the daemon goes by the interface.
    fn mark_charged(&mut self) {
        let present = self.interfaces.iter().filter(|interface| !self.vanished.contains(&interface.slot));
        let failed = match mark::attach(&mut self.loaded, present, self.mark, &self.pins) {
            Ok(failed) => failed,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "{NOT_MARKED}");
                return;
            }
        };
        for (interface, error) in &failed {
            tracing::warn!(
                interface = interface.name,
                error = error as &dyn std::error::Error,
                "{NOT_MARKED}"
            );
        }
        self.unmarked = self.loaded.maps.unmarked_slots();
    }

    /// Some drivers have no room for what the mark is made of: says so once of each interface.
    pub(super) fn look_after_mark(&mut self) {
        let unmarked = self.loaded.maps.unmarked_slots();
        for interface in &self.interfaces {
            if unmarked & !self.unmarked & 1 << interface.slot != 0 {
                tracing::warn!(interface = interface.name, "the driver has no metadata: {NOT_MARKED}");
            }
        }
        self.unmarked |= unmarked;
    }

    /// An interface that vanished takes its program with it, and the others go on; when one of that name is back, the
    /// program is attached anew.
    pub(super) fn look_after_interfaces(&mut self) {
        let mut is_back = false;
        for interface in &self.interfaces {
            let Interface { name, slot } = interface;
            let attached = self.loaded.maps.attached_at(*slot);
            if attached.is_some_and(|(index, _)| interface_name(index).is_some()) {
                continue;
            }
            if self.vanished.insert(*slot) {
                tracing::error!(interface = name, "the interface has vanished, and the program with it");
            }
            match attach_again(&mut self.loaded, interface, self.xdp, &self.pins) {
                Ok(mode) => {
                    self.vanished.remove(slot);
                    is_back = true;
                    tracing::info!(interface = name, mode = mode_name(mode), "attached again");
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "not attached again");
                }
            }
        }
        if is_back {
            self.mark_charged();
        }
    }
}

const NOT_MARKED: &str =
    "charged datagrams are not marked: what comes in by this interface counts as charged";

pub(super) fn announce_attached(interface: &str, mode: AttachMode, requested: attach::Mode, pins: &PinDir) {
    if mode == AttachMode::Generic && requested == attach::Mode::Auto {
        tracing::warn!(interface, "the driver has no XDP: attached in generic mode, which is slower");
    }
    tracing::info!(interface, mode = mode_name(mode), pins = %pins.path().display(), "attached");
}
