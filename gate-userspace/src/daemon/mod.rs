//! `gate run`: the maps, the program at its interfaces, the control loop, until it is told to stop.
//!
//! | told by | does |
//! |---|---|
//! | SIGINT | detaches, removes every pin, ends |
//! | SIGTERM | accepts no more clients, serves those that it has for `drain` at most, then as SIGINT; a second one ends that |
//! | SIGHUP | reads the configuration again; a faulty one changes nothing. Access logs are opened anew |
//! | the admin socket | shows what is known, changes what may be changed |
//! | SIGUSR1 | starts the program that is installed now, which takes over |
//! | [`HAND_OVER`](crate::kernel::owner::HAND_OVER) | ends and leaves all in place, for the gate that takes over |
//!
//! - `start`: the start, with the program at interfaces or without.
//! - `process`: the loop, the tick, and the end; `draining`: the clients that are served to their end.
//! - `reload`, `changes`: another configuration while gate runs.
//! - `admin`: the sockets that show what is known and accept changes.
//! - `envoy`: the server that Envoys ask.
//! - `attached`: the program at its interfaces; `interfaces`: which these are; `local`: the addresses at which connections end here.
//! - `turn`: one gate starts at a time; `neighbour`: the gate before this one, where no map names it; `veth`: interfaces whose other end has to be prepared.
//! - `intercept`: services whose stores keep their address.
//! - `fleet`: the owners of limits that it shares with other gates.
//! - `trace`: the steps of one source's packets, printed.
//! - `service_manager`: what systemd is told, and the gate that it gets next.
//! - `announcement`: what is served, and how it has ended, in a sentence each.
//! - `settings`, `options`, `signals`, `allocator`: what the others are started with.

use std::sync::Arc;

use self::process::{Daemon, Stop};
use self::signals::Signals;
use crate::clock;
use crate::kernel::PinDir;

mod admin;
mod allocator;
mod announcement;
mod attached;
mod changes;
mod draining;
mod envoy;
mod error;
mod fleet;
mod inherited;
mod intercept;
mod interfaces;
mod local;
mod neighbour;
mod options;
mod process;
mod reload;
mod service_manager;
mod settings;
mod settling;
mod signals;
mod start;
mod trace;
mod turn;
mod veth;

pub use error::Error;
pub use options::Options;

/// Runs until it is told to stop.
///
/// # Errors
///
/// [`Error`]. Whatever was attached and pinned by this call is then removed again, unless another gate owns
/// it.
pub async fn run(options: Options) -> Result<(), Error> {
    allocator::fix_thresholds();
    let started = clock::monotonic();
    let mut signals = Signals::new()?;
    let mut daemon = Daemon::start(options)?;
    daemon.announce();
    daemon.log_summary();
    let outcome = daemon.serve(&mut signals).await;
    daemon.settling.tell(&daemon.service_manager);
    let maps = Arc::clone(&daemon.maps);
    let leave_in_place = matches!(outcome, Ok(Stop::HandOver) | Err(Error::Lost(_) | Error::NotIntercepting));
    let pins = daemon.attached.as_ref().map(|attached| attached.pins.clone());
    match outcome {
        Ok(Stop::HandOver) => {
            daemon.service_manager.name_successor();
            daemon.hand_over(&mut signals).await;
        }
        _ => {
            daemon.service_manager.stopping();
            // First: new connections have somewhere to go.
            daemon.end_interception();
            drop(daemon);
        }
    }
    if let Some(pins) = pins.filter(|_| !leave_in_place) {
        PinDir::remove(pins.path())?;
        tracing::info!("detached");
    }
    let why = match &outcome {
        Ok(Stop::Requested) => "told to",
        Ok(Stop::HandOver) => "another gate has taken over",
        Err(_) => "it cannot go on",
    };
    tracing::info!("{}", announcement::end(why, &maps, clock::monotonic().saturating_sub(started)));
    outcome.map(|_| ())
}
