//! The program at its interface.

use gate_common::abi::AttachMode;

use crate::kernel::attach::{self, attach, mode_name};
use crate::kernel::{Loaded, PinDir, mark};

/// The program at its interface.
pub(super) struct Attached {
    pub(super) xdp: attach::Mode,
    pub(super) interface: String,
    pub(super) pins: PinDir,
    pub(super) loaded: Loaded,
    pub(super) interface_lost: bool,
    /// The bit of the mark that charged datagrams get; none if zero.
    pub(super) mark: u32,
    /// How many datagrams could not be marked before this gate.
    pub(super) unmarked: u64,
}

impl Attached {
    /// Lets what is charged be marked. Where that cannot be, the daemon goes by the interface.
    pub(super) fn mark_charged(&mut self) {
        if let Err(error) = mark::attach(&mut self.loaded, &self.interface, self.mark, &self.pins) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "charged datagrams are not marked: what comes in by the interface counts as charged"
            );
        }
    }

    /// Some drivers have no room for what the mark is made of.
    pub(super) fn look_after_mark(&mut self) {
        let maps = &self.loaded.maps;
        if maps.charged_mark() != 0 && mark::unmarked(maps) > self.unmarked {
            maps.mark_nothing();
            tracing::warn!(
                interface = self.interface,
                "the driver has no metadata, so charged datagrams are not marked: what comes in by the interface \
                 counts as charged"
            );
        }
    }

    /// An interface that vanished takes its program with it; when one of that name is back, the program
    /// is attached anew.
    pub(super) fn look_after_interface(&mut self) {
        let attached = self.loaded.maps.attached();
        if attached.is_some_and(|(index, _)| attach::interface_name(index).is_some()) {
            return;
        }
        if !self.interface_lost {
            self.interface_lost = true;
            tracing::error!(
                interface = self.interface,
                "the interface has vanished, and the program with it"
            );
        }
        match attach(&mut self.loaded, &self.interface, self.xdp, &self.pins) {
            Ok(mode) => {
                self.interface_lost = false;
                self.mark_charged();
                tracing::info!(interface = self.interface, mode = mode_name(mode), "attached again");
            }
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "not attached again"),
        }
    }
}

pub(super) fn announce_attached(interface: &str, mode: AttachMode, asked: attach::Mode, pins: &PinDir) {
    if mode == AttachMode::Generic && asked == attach::Mode::Auto {
        tracing::warn!(interface, "the driver has no XDP: attached in generic mode, which is slower");
    }
    tracing::info!(interface, mode = mode_name(mode), pins = %pins.path().display(), "attached");
}
