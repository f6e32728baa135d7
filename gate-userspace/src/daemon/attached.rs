//! The program at its interfaces.

use std::collections::BTreeSet;
use std::io;

use gate_common::abi::AttachMode;
use nix::net::if_::if_nametoindex;

use super::veth::is_veth;
use crate::kernel::attach::{self, mode_name};
use crate::kernel::interfaces::{Interface, attach_again, is_attached};
use crate::kernel::stacking::above;
use crate::kernel::{Loaded, PinDir, mark, measure};
use crate::system_error::with_causes;

/// The program at its interfaces.
pub(super) struct Attached {
    pub(super) xdp: attach::Mode,
    pub(super) interfaces: Vec<Interface>,
    pub(super) pins: PinDir,
    pub(super) loaded: Loaded,
    /// The slots of interfaces that have vanished, or where the program is no longer.
    vanished: BTreeSet<usize>,
    /// The bit of the mark that charged datagrams get; none if zero.
    mark: u32,
    /// The slots, a bit each, of interfaces where nothing is marked, as far as that was said.
    unmarked: u32,
    /// True if answers are to be measured.
    measure: bool,
    /// The slots, a bit each, of interfaces where they are.
    measuring: u32,
    /// The same of those where they cannot be, as far as that was said.
    unmeasured: u32,
}

impl Attached {
    /// The program at these interfaces, where what is charged gets the bit `mark`, if any, and answers are measured if that is
    /// asked for.
    pub(super) fn new(
        xdp: attach::Mode,
        interfaces: Vec<Interface>,
        pins: PinDir,
        loaded: Loaded,
        mark: u32,
        measure: bool,
    ) -> Self {
        let vanished = BTreeSet::new();
        let mut this = Self {
            xdp,
            interfaces,
            pins,
            loaded,
            vanished,
            mark,
            unmarked: 0,
            measure,
            measuring: 0,
            unmeasured: 0,
        };
        this.mark_charged();
        this.measure_answers();
        this
    }

    /// Takes over another list of interfaces, at which the program is already.
    pub(super) fn follow(&mut self, interfaces: Vec<Interface>) {
        self.interfaces = interfaces;
        let is_listed = |slot: &usize| self.interfaces.iter().any(|interface| interface.slot == *slot);
        self.vanished.retain(is_listed);
        self.mark_charged();
        self.measure_answers();
    }

    /// The names of the interfaces that have vanished, or where the program is no longer.
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
                tracing::warn!(error = with_causes(&error), "{NOT_MARKED}");
                return;
            }
        };
        for (interface, error) in &failed {
            tracing::warn!(interface = interface.name, error = with_causes(error), "{NOT_MARKED}");
        }
        self.unmarked = self.loaded.maps.unmarked_slots();
    }

    /// Has answers measured from now on, or no longer.
    pub(super) fn measure(&mut self, measure: bool) {
        if std::mem::replace(&mut self.measure, measure) != measure {
            self.measure_answers();
        }
    }

    /// True if answers are measured at any interface.
    pub(super) fn is_measuring(&self) -> bool {
        self.measuring != 0
    }

    /// Lets answers be measured. Where that cannot be, services are known by their probes; that is said once of each interface.
    fn measure_answers(&mut self) {
        let slots = |of: &[&Interface]| of.iter().fold(0, |slots, interface| slots | 1_u32 << interface.slot);
        let present: Vec<_> = self
            .interfaces
            .iter()
            .filter(|interface| self.measure && !self.vanished.contains(&interface.slot))
            .collect();
        self.measuring = 0;
        match measure::attach(&mut self.loaded, present.iter().copied(), &self.pins) {
            Ok(failed) => {
                for (interface, error) in &failed {
                    if self.unmeasured & 1 << interface.slot == 0 {
                        tracing::warn!(
                            interface = interface.name,
                            error = with_causes(error),
                            "{NOT_MEASURED}"
                        );
                    }
                }
                let failed: Vec<_> = failed.into_iter().map(|(interface, _)| interface).collect();
                self.unmeasured = slots(&failed);
                self.measuring = slots(&present) & !self.unmeasured;
            }
            Err(error) => tracing::warn!(error = with_causes(&error), "{NOT_MEASURED}"),
        }
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

    /// The interfaces above those that the program is at: what it has marked comes in by these as well. None if nothing is marked.
    pub(super) fn above(&self) -> BTreeSet<u32> {
        if self.mark == 0 {
            return BTreeSet::new();
        }
        let attached = self.loaded.maps.attached().map(|(index, _)| index).collect();
        above(&attached).unwrap_or_else(|error| {
            tracing::debug!(error = &error as &dyn std::error::Error, "the interfaces above are not known");
            BTreeSet::new()
        })
    }

    /// An interface that vanished takes its program with it, and the others go on; when one of that name is back, or a link was
    /// detached, the program is attached anew. The kernel is asked for each link's interface and program.
    pub(super) fn look_after_interfaces(&mut self) {
        let mut is_back = false;
        for interface in &self.interfaces {
            let Interface { name, slot } = interface;
            let is_attached = is_attached(&mut self.loaded, interface, &self.pins).unwrap_or_else(|error| {
                tracing::debug!(error = &error as &dyn std::error::Error, "the link is not known");
                false
            });
            if is_attached {
                self.vanished.remove(slot);
                is_back |= self.mark != 0 && mark::is_detached(interface, &self.pins);
                is_back |= self.measure && measure::is_detached(interface, &self.pins);
                continue;
            }
            if self.vanished.insert(*slot) {
                match if_nametoindex(name.as_str()) {
                    Err(_) => tracing::error!(
                        interface = name,
                        "the interface has vanished, and the program with it"
                    ),
                    Ok(_) => tracing::error!(
                        interface = name,
                        "the program is no longer at the interface: its link was detached, or the interface was made again"
                    ),
                }
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
            self.measure_answers();
        }
    }
}

const NOT_MARKED: &str =
    "charged datagrams are not marked: what comes in by this interface counts as charged";

const NOT_MEASURED: &str =
    "answers of guarded services are not measured in passing here: their probes alone decide";

pub(super) fn announce_attached(interface: &str, mode: AttachMode, requested: attach::Mode, pins: &PinDir) {
    if mode == AttachMode::Generic && requested == attach::Mode::Auto {
        tracing::warn!(interface, "the driver has no XDP: attached in generic mode, which is slower");
    }
    tracing::info!(interface, mode = mode_name(mode), pins = %pins.path().display(), "attached");
    let is_veth = if_nametoindex(interface).map_err(io::Error::from).and_then(is_veth);
    if is_veth.unwrap_or(false) {
        tracing::warn!(
            interface,
            "a veth: clients at its other end get no refusals over UDP, and no resets, unless `gate peer --interface IF` runs there"
        );
    }
}
