//! `gate run`: the maps, the program at its interfaces, the control loop, until it is told to stop.
//!
//! | told by | does |
//! |---|---|
//! | SIGINT | detaches, removes every pin, ends |
//! | SIGTERM | accepts no more clients, serves those that it has for `drain` at most, then as SIGINT; a second one ends that |
//! | SIGHUP | reads the configuration again; a faulty one changes nothing |
//! | the admin socket | shows what is known, changes what may be changed |
//! | [`HAND_OVER`](crate::kernel::owner::HAND_OVER) | ends and leaves all in place, for the gate that takes over |
//!
//! - `start`: the start, with the program at interfaces or without.
//! - `process`: the loop, the tick, and the end; `draining`: the clients that are served to their end.
//! - `reload`, `changes`: another configuration while gate runs.
//! - `attached`: the program at its interfaces; `interfaces`: which these are; `local`: the addresses at which connections end here.
//! - `settings`, `options`, `descriptors`, `signals`: what the others are started with.

use self::process::{Daemon, Stop};
use self::signals::Signals;
use crate::kernel::PinDir;

mod attached;
mod changes;
mod descriptors;
mod draining;
mod error;
mod interfaces;
mod local;
mod options;
mod process;
mod reload;
mod settings;
mod signals;
mod start;

pub use error::Error;
pub use options::Options;

/// Runs until it is told to stop.
///
/// # Errors
///
/// [`Error`]. Whatever was attached and pinned by this call is then removed again, unless another gate owns
/// it.
pub async fn run(options: Options) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let mut daemon = Daemon::start(options)?;
    let outcome = daemon.serve(&mut signals).await;
    let leave_in_place = matches!(outcome, Ok(Stop::HandOver) | Err(Error::Lost(_)));
    let pins = daemon.attached.as_ref().map(|attached| attached.pins.clone());
    match outcome {
        Ok(Stop::HandOver) => daemon.hand_over(&mut signals).await,
        _ => drop(daemon),
    }
    if let Some(pins) = pins.filter(|_| !leave_in_place) {
        PinDir::remove(pins.path())?;
        tracing::info!("detached");
    }
    outcome.map(|_| ())
}
