//! The program at an interface's egress that measures answers of guarded services.
//!
//! Its link is a tcx link, pinned beside the XDP program's, or before Linux 6.6 a filter of `clsact`. At an interface where it
//! cannot be attached, nothing is measured.

use aya::programs::TcAttachType;
use gate_common::abi::Control;

use super::error::{Error, Result, os_error};
use super::interfaces::Interface;
use super::load::Loaded;
use super::pins::PinDir;
use super::{clsact, tcx};

/// Lets answers be measured at these interfaces, and at no others. Returns those where the program cannot be attached, with the
/// reasons. A program that is there already is replaced, without a moment between the two.
///
/// # Errors
///
/// The kernel's error when the program cannot be taken away.
pub fn attach<'i>(
    loaded: &mut Loaded,
    interfaces: impl IntoIterator<Item = &'i Interface>,
    pins: &PinDir,
) -> Result<Vec<(&'i Interface, Error)>> {
    let mut failed = Vec::new();
    let mut measured = 0_u32;
    for interface in interfaces {
        match attach_program(loaded, interface, pins) {
            Ok(()) => measured |= 1 << interface.slot,
            Err(error) => failed.push((interface, error)),
        }
    }
    for slot in (0..Control::INTERFACES).filter(|slot| measured & 1 << slot == 0) {
        let interface = loaded.maps.attached_at(slot).map(|(index, _)| index);
        clsact::remove(&pins.measure_link(slot), &pins.measure_filter(slot), interface)?;
    }
    Ok(failed)
}

fn attach_program(loaded: &mut Loaded, interface: &Interface, pins: &PinDir) -> Result<()> {
    let Interface { name, slot } = interface;
    let program = loaded.measure_program()?;
    match tcx::attach(program, name, TcAttachType::Egress, &pins.measure_link(*slot)) {
        // The kernel has no such links.
        Err(error) if os_error(&error) == Some(libc::EINVAL) => {
            clsact::attach(program, name, &pins.measure_filter(*slot)).map_err(|_| error)
        }
        attached => attached,
    }
}

/// True if the kernel says that the pinned link of the program is for no interface any more.
#[must_use]
pub fn is_detached(interface: &Interface, pins: &PinDir) -> bool {
    tcx::is_detached(&pins.measure_link(interface.slot))
}
