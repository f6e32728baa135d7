//! The program at an interface's ingress, behind the XDP program, that marks what that has charged.
//!
//! Its link is a tcx link (Linux 6.6), pinned beside the XDP program's. At an interface where it cannot be attached, or whose
//! driver has no metadata, nothing is marked, and the daemon goes by the interface that a datagram came in by. That is
//! known for each interface by itself.

use std::path::Path;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};
use gate_common::abi::Control;

use super::error::{Error, Result, os_error};
use super::interfaces::Interface;
use super::link;
use super::load::Loaded;
use super::pins::PinDir;

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
        if let Err(error) = attach_program(loaded, &interface.name, &pins.mark_link(interface.slot)) {
            failed.push((interface, error));
        }
    }
    let unmarked = failed.iter().fold(0, |slots, (interface, _)| slots | 1 << interface.slot);
    loaded.maps.set_marking(mark, unmarked);
    for slot in (0..Control::INTERFACES).filter(|slot| mark == 0 || unmarked & 1 << slot != 0) {
        let pin = pins.mark_link(slot);
        if pin.exists() {
            remove(&pin).inspect_err(|_| loaded.maps.set_marking(0, 0))?;
        }
    }
    Ok(failed)
}

/// True if the kernel says that the pinned link of the program that marks is for no interface any more.
#[must_use]
pub fn is_detached(interface: &Interface, pins: &PinDir) -> bool {
    let pin = pins.mark_link(interface.slot);
    pin.exists() && link::info(&pin).is_ok_and(|info| info.interface == 0)
}

fn attach_program(loaded: &mut Loaded, interface: &str, pin: &Path) -> Result<()> {
    let program = loaded.mark_program()?;
    if program.fd().is_err() {
        program.load().map_err(|source| Error::load("mark program", source))?;
    }
    if pin.exists() {
        let pinned = PinnedLink::from_pin(pin).map_err(|source| Error::aya("mark link pin", source))?;
        let link = SchedClassifierLink::try_from(FdLink::from(pinned))
            .map_err(|source| Error::aya("mark link", source))?;
        match program.attach_to_link(link) {
            Ok(id) => {
                // The pin keeps the link; this process need not.
                program.take_link(id).map_err(|source| Error::aya("mark link", source))?;
                return Ok(());
            }
            // The interface that the link was for is gone.
            Err(error) if os_error(&error) == Some(libc::ENOLINK) => remove(pin)?,
            Err(source) => return Err(Error::aya("replacing the mark program", source)),
        }
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program
        .attach_with_options(interface, TcAttachType::Ingress, options)
        .map_err(|source| Error::aya("attaching the mark program", source))?;
    let link = program.take_link(id).map_err(|source| Error::aya("mark link", source))?;
    let link = FdLink::try_from(link).map_err(|source| Error::aya("mark link", source))?;
    link.pin(pin).map_err(|source| Error::aya("mark link pin", source))?;
    Ok(())
}

/// Takes the program from the interface, and removes the pin.
fn remove(pin: &Path) -> Result<()> {
    // Where the interface is gone, so is what there was to detach.
    if let Err(error) = link::detach(pin) {
        tracing::debug!(error = &error as &dyn std::error::Error, "the mark link goes with its pin");
    }
    std::fs::remove_file(pin).map_err(|source| Error::System { what: "removing the mark link's pin", source })
}
