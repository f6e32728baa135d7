//! The program at an interface, held by a pinned link.

use std::path::Path;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{ProgramError, Xdp};
use gate_common::abi::AttachMode;

use super::error::{Error, Result, os_error};
use super::load::Loaded;
use super::maps::Maps;
use super::namespace;
use super::pins::PinDir;

pub use super::namespace::interface_name;

/// How to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the stack, for drivers without XDP: slower, and after the packet has been copied.
    Generic,
    /// In the driver if it can, else in the stack.
    Auto,
}

/// Attaches the loaded program to an interface and pins the link in a slot, or replaces the program of the link that is
/// pinned there, without a moment between the two. That link is none of another interface that is still there.
///
/// # Errors
///
/// [`Error::NoInterface`], [`Error::Occupied`], [`Error::Attach`], [`Error::NoPrivilege`].
pub(super) fn attach_at(
    loaded: &mut Loaded,
    interface: &str,
    mode: Mode,
    pins: &PinDir,
    slot: usize,
) -> Result<AttachMode> {
    let index = index_of(interface)?;
    let pin = pins.link(slot);
    if pin.exists() {
        if replace(loaded, &pin)? {
            return Ok(loaded.maps.attached_at(slot).map_or(AttachMode::None, |(_, mode)| mode));
        }
        // The interface that the link was for is gone, and so is what it held.
        std::fs::remove_file(&pin)
            .map_err(|source| Error::PinDir { directory: pins.path().to_owned(), source })?;
    }
    let (link, mode) = attach_new(loaded.program()?, index, interface, mode)?;
    let link = FdLink::try_from(link).map_err(|source| Error::aya("link", source))?;
    link.pin(&pin).map_err(|source| Error::aya("link pin", source))?;
    loaded.maps.set_attached(slot, index, mode, namespace::of_thread());
    Ok(mode)
}

pub(super) fn index_of(interface: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(interface)
        .map_err(|_| Error::NoInterface { interface: interface.to_owned() })
}

pub(super) fn attach_new(
    program: &mut Xdp,
    index: u32,
    interface: &str,
    mode: Mode,
) -> Result<(XdpLink, AttachMode)> {
    if mode != Mode::Generic {
        match attach_in(program, index, interface, XdpMode::Driver) {
            Ok(link) => return Ok((link, AttachMode::Native)),
            Err(Error::Attach { .. }) if mode == Mode::Auto => {}
            Err(error) => return Err(error),
        }
    }
    Ok((attach_in(program, index, interface, XdpMode::Skb)?, AttachMode::Generic))
}

/// True if the program is attached in another network namespace than this thread's: no index, and no name that
/// is found for it, means the same there.
#[must_use]
pub fn is_elsewhere(maps: &Maps) -> bool {
    maps.attached().next().is_some() && maps.namespace() != namespace::of_thread()
}

fn attach_in(program: &mut Xdp, index: u32, interface: &str, mode: XdpMode) -> Result<XdpLink> {
    let link = program.attach_to_if_index(index, mode).map_err(|source| match os_error(&source) {
        Some(libc::EBUSY | libc::EEXIST) => Error::Occupied { interface: interface.to_owned() },
        Some(libc::EPERM | libc::EACCES) => Error::aya("attaching", source),
        _ => Error::Attach {
            interface: interface.to_owned(),
            mode: if matches!(mode, XdpMode::Driver) { "native" } else { "generic" },
            source: Box::new(source),
        },
    })?;
    program.take_link(link).map_err(|source| Error::aya("link", source))
}

/// Puts the loaded program into the pinned link; `false` if the link's interface has vanished.
fn replace(loaded: &mut Loaded, pin: &Path) -> Result<bool> {
    let pinned = PinnedLink::from_pin(pin).map_err(|source| Error::aya("link pin", source))?;
    let link = XdpLink::try_from(FdLink::from(pinned)).map_err(|source| Error::aya("link", source))?;
    let program = loaded.program()?;
    match program.attach_to_link(link) {
        Ok(id) => {
            // The pin keeps the link; this process need not.
            program.take_link(id).map_err(|source| Error::aya("link", source))?;
            Ok(true)
        }
        Err(error) if vanished(&error) => Ok(false),
        Err(source) => Err(Error::aya("replacing the program", source)),
    }
}

fn vanished(error: &ProgramError) -> bool {
    os_error(error) == Some(libc::ENOLINK)
}

/// The name of a mode in output.
#[must_use]
pub const fn mode_name(mode: AttachMode) -> &'static str {
    match mode {
        AttachMode::None => "none",
        AttachMode::Native => "native",
        AttachMode::Generic => "generic",
    }
}
