//! A program at an interface's egress where the kernel has no tcx links (before Linux 6.6): a filter of the qdisc `clsact`.
//!
//! Such a filter stays until it is removed, whoever has made it. That there is one of gate's is known by a pin of its program. It
//! is found by the program's name, which at an interface with gate's XDP program is gate's own; filters of others, and the
//! qdisc, which may hold some, stay.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;

use aya::programs::tc::{NlOptions, TcAttachOptions, TcError, qdisc_add_clsact, qdisc_detach_program};
use aya::programs::{SchedClassifier, TcAttachType};
use gate_common::abi::MEASURE_PROGRAM;

use super::error::{Error, Result};
use super::{namespace, tcx};

/// Attaches the program that measures, which is loaded, behind all others that are there, and pins it; one that was attached
/// before is taken away first.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn attach(program: &mut SchedClassifier, interface: &str, pin: &Path) -> Result<()> {
    remove_filter(pin, Some(interface))?;
    if let Err(error) = qdisc_add_clsact(interface) {
        // It is there already; if it is not, the next call fails.
        tracing::debug!(error = &error as &dyn std::error::Error, "no clsact was made");
    }
    let options = TcAttachOptions::Netlink(NlOptions::default());
    let id = program
        .attach_with_options(interface, TcAttachType::Egress, options)
        .map_err(|source| Error::aya("attaching by clsact", source))?;
    let link = program.take_link(id).map_err(|source| Error::aya("clsact filter", source))?;
    // Dropped, it would detach the filter, which is to outlive this process.
    let _link = ManuallyDrop::new(link);
    program.pin(pin).map_err(|source| Error::aya("pin of a clsact filter's program", source))
}

/// Takes the program from the interface with this index, if it is in this thread's network namespace, and removes the pins of a
/// tcx link or of a filter, whichever there is.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn remove(link: &Path, filter: &Path, interface: Option<u32>) -> Result<()> {
    if link.exists() {
        tcx::remove(link)?;
    }
    let name = interface.and_then(namespace::interface_name);
    remove_filter(filter, name.as_deref())
}

/// Takes the filter from an interface, if it is there and one was attached, and removes the pin.
///
/// # Errors
///
/// The kernel's error.
fn remove_filter(pin: &Path, interface: Option<&str>) -> Result<()> {
    if !pin.exists() {
        return Ok(());
    }
    if let Some(interface) = interface {
        match qdisc_detach_program(interface, TcAttachType::Egress, MEASURE_PROGRAM) {
            Ok(()) => {}
            // The interface was made again.
            Err(TcError::IoError(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::aya("removing a clsact filter", source)),
        }
    }
    std::fs::remove_file(pin)
        .map_err(|source| Error::System { what: "removing the pin of a clsact filter", source })
}
