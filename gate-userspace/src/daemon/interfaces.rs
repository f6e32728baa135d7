//! The interfaces of a gate: which they are, whether they can be had together, and their change by a reload.

use gate_common::abi::Control;
use nix::net::if_::if_nametoindex;

use super::attached::{Attached, announce_attached};
use super::error::Error;
use super::options::Options;
use super::process::Daemon;
use crate::config::{self, Config, Faults};
use crate::kernel;
use crate::kernel::interfaces::{Interface, assign_again, attach_added};
use crate::kernel::stacking::conflict;

/// The interfaces of the command line, else those of the configuration.
fn names(options: &Options, config: &Config) -> Vec<String> {
    match &options.interfaces[..] {
        [] => config.gate.interfaces.iter().map(|listed| listed.name.as_str().to_owned()).collect(),
        named => named.to_vec(),
    }
}

/// The interfaces of the command line, else those of the configuration, if the program can be at all of them. Those in
/// `before` may have vanished.
///
/// # Errors
///
/// [`Error::NoInterface`], [`Error::TooManyInterfaces`]; the place of one that is not there, is another one that is
/// listed, or lies on one.
pub(super) fn checked(
    options: &Options,
    config: &Config,
    before: &[Interface],
) -> Result<Vec<String>, Error> {
    let names = names(options, config);
    match names.len() {
        0 => return Err(Error::NoInterface),
        1..=Control::INTERFACES => {}
        _ => return Err(Error::TooManyInterfaces { max: Control::INTERFACES }),
    }
    let at = |place: usize, wrong: kernel::Error| {
        if !options.interfaces.is_empty() {
            return Error::from(wrong);
        }
        let fault = config.gate.interface_fault(place, wrong.to_string());
        let file = options.config.display().to_string();
        config::Error::from(Faults { file, faults: vec![fault] }).into()
    };
    let may_be_absent = |name: &String| before.iter().any(|before| before.name == *name);
    let absent = |name: &String| if_nametoindex(name.as_str()).is_err() && !may_be_absent(name);
    if let Some(place) = names.iter().position(absent) {
        return Err(at(place, kernel::Error::NoInterface { interface: names[place].clone() }));
    }
    match conflict(&names)? {
        Some((place, wrong)) => Err(at(place, wrong)),
        None => Ok(names),
    }
}

impl Daemon {
    /// The interfaces of a new configuration if they are others than those in use.
    ///
    /// # Errors
    ///
    /// As [`checked`].
    pub(super) fn other_interfaces(&self, config: &Config) -> Result<Option<Vec<String>>, Error> {
        let Some(Attached { interfaces, .. }) = &self.attached else { return Ok(None) };
        if interfaces.iter().map(|interface| &interface.name).eq(&names(&self.options, config)) {
            return Ok(None);
        }
        checked(&self.options, config, interfaces).map(Some)
    }

    /// Attaches to the interfaces that a new configuration adds, and takes the program from those that it leaves out.
    ///
    /// # Errors
    ///
    /// As [`checked`] and [`attach_added`]; then the program is where it was.
    pub(super) fn follow_interfaces(&mut self, config: &Config) -> Result<(), Error> {
        let names = self.other_interfaces(config)?;
        let Some((names, attached)) = names.zip(self.attached.as_mut()) else { return Ok(()) };
        let Attached { interfaces: before, loaded, pins, xdp, .. } = attached;
        let interfaces = assign_again(before, &names, pins)?;
        let modes = attach_added(loaded, &interfaces, *xdp, pins)?;
        for (Interface { name, .. }, mode) in interfaces.iter().zip(modes) {
            mode.iter().for_each(|&mode| announce_attached(name, mode, *xdp, pins));
        }
        for Interface { name, slot } in before.iter() {
            if interfaces.iter().all(|interface| interface.slot != *slot) {
                tracing::info!(interface = name, "detached from the interface");
            }
        }
        attached.follow(interfaces);
        Ok(())
    }
}
