//! The signals that the daemon knows.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::Error;
use crate::kernel::owner;

/// The signals that the daemon knows.
pub(super) struct Signals {
    pub(super) interrupt: Signal,
    pub(super) terminate: Signal,
    pub(super) hang_up: Signal,
    pub(super) upgrade: Signal,
    pub(super) hand_over: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Error> {
        let on = |kind| signal(kind).map_err(|source| Error::System { what: "handling signals", source });
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hang_up: on(SignalKind::hangup())?,
            upgrade: on(SignalKind::user_defined1())?,
            hand_over: on(SignalKind::from_raw(owner::HAND_OVER as i32))?,
        })
    }
}
