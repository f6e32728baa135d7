//! The program at an interface's ingress, behind the XDP program, that marks what that has charged.
//!
//! Its link is a tcx link (Linux 6.6), pinned beside the XDP program's. Where it cannot be attached, or the driver has
//! no room for metadata, nothing is marked, and the daemon goes by the interface that a datagram came in by.

use std::path::Path;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, TcAttachType};
use gate_common::abi::{Control, Event};

use super::error::{Error, Result, os_error};
use super::interfaces::Interface;
use super::link;
use super::load::Loaded;
use super::maps::Maps;
use super::pins::PinDir;

/// Lets the bit `mark` be set on what is charged at these interfaces; with no bit, or if one of them cannot do that, lets
/// nothing be marked, so that the daemon asks one question of all. A program that is there already is replaced, without a
/// moment between the two.
///
/// # Errors
///
/// The kernel's error; then nothing is marked.
pub fn attach<'i>(
    loaded: &mut Loaded,
    interfaces: impl IntoIterator<Item = &'i Interface>,
    mark: u32,
    pins: &PinDir,
) -> Result<()> {
    let mut interfaces = interfaces.into_iter().filter(|_| mark != 0);
    let attached = interfaces
        .try_for_each(|Interface { name, slot }| attach_program(loaded, name, &pins.mark_link(*slot)));
    if mark == 0 || attached.is_err() {
        loaded.maps.set_charged_mark(0);
        let mut marking =
            (0..Control::INTERFACES).map(|slot| pins.mark_link(slot)).filter(|pin| pin.exists());
        marking.try_for_each(|pin| remove(&pin))?;
        return attached;
    }
    loaded.maps.set_charged_mark(mark);
    Ok(())
}

/// How often the driver has had no room for the metadata that the mark is made of.
#[must_use]
pub fn unmarked(maps: &Maps) -> u64 {
    maps.cpu_counters().events[Event::NoMetadata.index()]
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
