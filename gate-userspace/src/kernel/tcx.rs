//! Programs behind the XDP program, at an interface's ingress or egress, by tcx links (Linux 6.6) that are pinned.

use std::path::Path;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::error::{Error, Result, os_error};
use super::link;

/// Attaches a program before all others that are there, and pins its link; or replaces the program of the link that is pinned,
/// without a moment between the two.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    direction: TcAttachType,
    pin: &Path,
) -> Result<()> {
    if program.fd().is_err() {
        program.load().map_err(|source| Error::load("tcx program", source))?;
    }
    if pin.exists() {
        let pinned = PinnedLink::from_pin(pin).map_err(|source| Error::aya("tcx link pin", source))?;
        let link = SchedClassifierLink::try_from(FdLink::from(pinned))
            .map_err(|source| Error::aya("tcx link", source))?;
        match program.attach_to_link(link) {
            Ok(id) => {
                // The pin keeps the link; this process need not.
                program.take_link(id).map_err(|source| Error::aya("tcx link", source))?;
                return Ok(());
            }
            // The interface that the link was for is gone.
            Err(error) if os_error(&error) == Some(libc::ENOLINK) => remove(pin)?,
            Err(source) => return Err(Error::aya("replacing the program of a tcx link", source)),
        }
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program
        .attach_with_options(interface, direction, options)
        .map_err(|source| Error::aya("attaching by a tcx link", source))?;
    let link = program.take_link(id).map_err(|source| Error::aya("tcx link", source))?;
    let link = FdLink::try_from(link).map_err(|source| Error::aya("tcx link", source))?;
    link.pin(pin).map_err(|source| Error::aya("tcx link pin", source))?;
    Ok(())
}

/// True if the kernel says that a pinned link is for no interface any more.
pub(super) fn is_detached(pin: &Path) -> bool {
    pin.exists() && link::info(pin).is_ok_and(|info| info.interface == 0)
}

/// Takes the program from the interface, and removes the pin.
///
/// # Errors
///
/// The error of removing the pin.
pub(super) fn remove(pin: &Path) -> Result<()> {
    // Where the interface is gone, so is what there was to detach.
    if let Err(error) = link::detach(pin) {
        tracing::debug!(error = &error as &dyn std::error::Error, "the tcx link goes with its pin");
    }
    std::fs::remove_file(pin).map_err(|source| Error::System { what: "removing a tcx link's pin", source })
}
