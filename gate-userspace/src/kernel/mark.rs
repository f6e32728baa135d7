//! The program at an interface's ingress, behind the XDP program, that marks what that has charged.
//!
//! Its link is a tcx link (Linux 6.6), pinned beside the XDP program's. At an interface where it cannot be attached, or whose
//! driver has no metadata, nothing is marked, and the daemon goes by the interface that a datagram came in by. That is
//! known for each interface by itself.

use aya::programs::TcAttachType;
use gate_common::abi::Control;

use super::error::{Error, Result};
use super::interfaces::Interface;
use super::load::Loaded;
use super::pins::PinDir;
use super::tcx;

/// Lets the bit `mark` be set on what is charged at these interfaces, with no bit at none of them. Returns the interfaces
/// where the program cannot be attached, with the reasons: there nothing is marked. A program that is there already is
/// replaced, without a moment between the two.
///
/// That an interface's driver has no metadata is found again after this, by its next datagram.
///
/// # Errors
///
/// The kernel's error when the program cannot be taken away; then nothing is marked anywhere.
pub fn attach<'i>(
    loaded: &mut Loaded,
    interfaces: impl IntoIterator<Item = &'i Interface>,
    mark: u32,
    pins: &PinDir,
) -> Result<Vec<(&'i Interface, Error)>> {
    let mut failed = Vec::new();
    for interface in interfaces.into_iter().filter(|_| mark != 0) {
        let pin = pins.mark_link(interface.slot);
        let attached = loaded
            .mark_program()
            .and_then(|program| tcx::attach(program, &interface.name, TcAttachType::Ingress, &pin));
        if let Err(error) = attached {
            failed.push((interface, error));
        }
    }
    let unmarked = failed.iter().fold(0, |slots, (interface, _)| slots | 1 << interface.slot);
    loaded.maps.set_marking(mark, unmarked);
    for slot in (0..Control::INTERFACES).filter(|slot| mark == 0 || unmarked & 1 << slot != 0) {
        let pin = pins.mark_link(slot);
        if pin.exists() {
            tcx::remove(&pin).inspect_err(|_| loaded.maps.set_marking(0, 0))?;
        }
    }
    Ok(failed)
}

/// True if the kernel says that the pinned link of the program that marks is for no interface any more.
#[must_use]
pub fn is_detached(interface: &Interface, pins: &PinDir) -> bool {
    tcx::is_detached(&pins.mark_link(interface.slot))
}
