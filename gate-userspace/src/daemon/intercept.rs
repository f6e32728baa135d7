//! Services whose stores keep their address: the program that gives their connections to gate.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::error::Error;
use super::options::Options;
use super::process::Daemon;
use crate::clock;
use crate::config::{self, Config, Fault, Faults};
use crate::dispatcher::Dispatcher;
use crate::kernel::{self, Interception, Standing};
use crate::logging::once_a_minute;
use crate::system_error::with_causes;

/// Loads the program, if a service needs it. To be called before another gate ends.
///
/// # Errors
///
/// The place of the service, if this kernel or this user cannot intercept; [`Error::Kernel`].
pub(super) fn open(options: &Options, config: &Config) -> Result<Option<Interception>, Error> {
    let mut services = config.services.iter().enumerate();
    let Some((place, line)) = services.find_map(|(place, service)| Some((place, service.intercept?.line)))
    else {
        return Ok(None);
    };
    let wrong = match Interception::open(pins(options, config), options.takeover) {
        Ok(interception) => return Ok(Some(interception)),
        Err(error @ (kernel::Error::NoInterception { .. } | kernel::Error::NoObject)) => error,
        Err(error) if error.rules_out_xdp() => error,
        Err(error) => return Err(error.into()),
    };
    let path = format!("service[{place}].intercept");
    let message = format!("is not to be had here: {}", with_causes(&wrong));
    let fault = Fault { line, path, value: Some("\"on\"".to_owned()), message };
    let file = options.config.display().to_string();
    Err(config::Error::from(Faults { file, faults: vec![fault] }).into())
}

impl Daemon {
    /// Puts interception in force, or takes away what a gate before this one left behind where this one intercepts nothing.
    pub(super) fn intercept(&mut self) -> Result<(), Error> {
        let config = self.changes.config();
        let targets = self.dispatcher.as_mut().map(Dispatcher::take_targets).unwrap_or_default();
        let inherited = self.dispatcher.as_ref().is_some_and(Dispatcher::has_inherited);
        match &mut self.interception {
            Some(interception) => interception.put_in_force(targets, config.gate.stale_after, inherited)?,
            None => remove_unwanted(&self.options, &config),
        }
        Ok(())
    }

    /// Sees to it that connections are still intercepted.
    ///
    /// # Errors
    ///
    /// [`Error::NotIntercepting`] if somebody has taken that away.
    pub(super) fn look_after_interception(&mut self) -> Result<(), Error> {
        let Some(interception) = &mut self.interception else { return Ok(()) };
        match interception.look_after() {
            Ok(Standing::InForce | Standing::TakenOver) => {}
            Ok(Standing::Restored) => tracing::warn!("intercepts again"),
            Ok(Standing::Removed) => return Err(Error::NotIntercepting),
            Err(error) if once_a_minute(&LAST_WARNING, clock::monotonic()) => {
                tracing::error!(
                    error = with_causes(&error),
                    "does not intercept any more; said once a minute"
                );
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Has new connections reach the stores from now on, unless another gate intercepts them.
    pub(super) fn end_interception(&mut self) {
        if let Some(Err(error)) = self.interception.take().map(Interception::end) {
            tracing::warn!(error = with_causes(&error), "interception was left behind");
        }
    }
}

/// Takes away what a gate before this one left behind, where this one intercepts nothing.
fn remove_unwanted(options: &Options, config: &Config) {
    let pins = pins(options, config);
    if !options.takeover && Interception::owner(pins).is_some() {
        return;
    }
    if let Err(error) = Interception::remove(pins) {
        tracing::warn!(error = with_causes(&error), "interception was left behind");
    }
}

/// Where the pins are.
pub(super) fn pins<'o>(options: &'o Options, config: &'o Config) -> &'o Path {
    let pins: &PathBuf = options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
    pins
}

static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
