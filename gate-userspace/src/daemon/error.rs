//! Why the daemon could not start, or ended by itself.

use std::path::PathBuf;

use crate::config;
use crate::control;
use crate::control::layout::Misfit;
use crate::control::tick::{self, Lost};
use crate::policy::range::OutOfRange;
use crate::system_error::in_words;
use crate::{admin, dispatcher, kernel};

/// Why the daemon could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be read or is wrong.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// Neither the command line nor the configuration names an interface.
    #[error(
        "no interface: say `interface = \"eth1\"` in the section [gate] of the configuration, or --interface eth1"
    )]
    NoInterface,
    /// The command line names too many interfaces.
    #[error("too many interfaces: there may be {max}")]
    TooManyInterfaces {
        /// How many there may be.
        max: usize,
    },
    /// The maps would take more memory than is allowed.
    #[error(transparent)]
    Exceeded(#[from] control::sizes::Exceeded),
    /// The configuration does not fit the maps.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// Something at the kernel boundary.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// A guarded service would be left bare without XDP.
    #[error("without XDP every guarded service would be left unprotected")]
    Bare(#[source] kernel::Error),
    /// Packets cannot be traced without XDP.
    #[error(
        "--trace follows packets through the XDP program, and this gate would run without it{}",
        if source.is_some() { "" } else { " (`xdp = \"off\"` in the section [gate])" }
    )]
    Trace {
        /// Why it would; `None` if it is configured so.
        source: Option<kernel::Error>,
    },
    /// Another daemon took the maps.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Somebody has taken interception away.
    #[error("the pins of interception were taken from this gate (`gate detach --force`)")]
    NotIntercepting,
    /// Proxied services cannot be served.
    #[error(transparent)]
    Dispatcher(#[from] dispatcher::Error),
    /// A parameter that the configuration should not have let through.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The admin socket cannot be had.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// The gate that it is to take over from cannot be told.
    #[error("cannot take over without XDP from the gate that listens at {}: end it first", socket.display())]
    Neighbour {
        /// Where it listens.
        socket: PathBuf,
        /// Why it cannot be told.
        source: admin::client::Error,
    },
    /// Another gate starts at the same place.
    #[error("another gate has been starting for 20 s, and has locked {}: end it (`fuser {}` names it)", path.display(), path.display())]
    Turn {
        /// The file that it has locked.
        path: PathBuf,
    },
    /// The TCP port cannot be had.
    #[error(
        "cannot listen at {address} (`admin_http` in the section [gate]): {}; if it is a gate, --takeover takes its place",
        in_words(error)
    )]
    AdminPort {
        /// Where.
        address: std::net::SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// The token is of no use.
    #[error("{} (`admin_token_file` in the section [gate]): {why}", path.display())]
    AdminToken {
        /// The file.
        path: PathBuf,
        /// The fault, and the remedy.
        why: String,
    },
    /// An order that makes no sense.
    #[error("{0}")]
    Order(String),
    /// A key that cannot be set.
    #[error(transparent)]
    Override(#[from] config::Wrong),
    /// The configuration cannot be written.
    #[error("cannot write {}", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Signals or threads could not be set up.
    #[error("{what}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl From<tick::Error> for Error {
    fn from(error: tick::Error) -> Self {
        match error {
            tick::Error::Lost(lost) => lost.into(),
            tick::Error::OutOfRange(out_of_range) => out_of_range.into(),
        }
    }
}
