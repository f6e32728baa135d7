//! The health of gate: whether it lives, and whether it is ready.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sources::Sources;
use super::status::{Interface, Status};
use crate::clock;

/// A document that says how gate is.
pub(super) trait Health: Serialize {
    /// True if all is as it should be.
    fn is_well(&self) -> bool;
}

/// The document of `/live`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Live {
    /// True if the last tick is less than three intervals ago.
    pub live: bool,
    /// How long ago that is.
    pub tick_age_ms: u64,
    /// The interval of ticks.
    pub tick_ms: u64,
}

/// The document of `/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ready {
    /// True if everything below is, but for the stores.
    pub ready: bool,
    /// True if a plan is in force and ticks go on.
    pub plan: bool,
    /// True if the program is attached where it should be, or need not be anywhere.
    pub attached: bool,
    /// True while new clients of proxied services are accepted.
    pub listening: bool,
    /// The services whose store or probe does not answer. gate is ready for clients all the same, and refuses their
    /// requests at once.
    pub stores_down: Vec<String>,
}

impl Live {
    pub(super) fn now(context: &Sources) -> Self {
        let age = clock::monotonic().saturating_sub(context.queues.report().at);
        Self {
            live: age < Nanos(3 * context.tick.0),
            tick_age_ms: age.0 / 1_000_000,
            tick_ms: context.tick.0 / 1_000_000,
        }
    }
}

impl Ready {
    pub(super) fn now(context: &Sources) -> Self {
        let report = context.queues.report();
        let interfaces = Status::read(&context.maps).interfaces;
        let gone = |interface: &Interface| interface.name.is_none();
        let plan = report.generation > 0 && Live::now(context).live;
        let attached = context.vanished.borrow().is_empty()
            && !interfaces.iter().any(gone)
            && !(context.attached && interfaces.is_empty());
        let listening = *context.accepting.borrow();
        let down = report.services.iter().filter(|service| service.store_up == Some(false));
        let stores_down = down.map(|service| service.name.clone()).collect();
        Self { ready: plan && attached && listening, plan, attached, listening, stores_down }
    }
}

impl Health for Live {
    fn is_well(&self) -> bool {
        self.live
    }
}

impl Health for Ready {
    fn is_well(&self) -> bool {
        self.ready
    }
}
