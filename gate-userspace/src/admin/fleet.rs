//! The owners of limits that gate shares with others, in documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::gate::book::KnownOwner;
use crate::fleet::gate::shared::SharedBook;

/// An owner of limits, as this gate knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FleetOwner {
    /// Its address.
    pub address: String,
    /// True if it has not answered for three ticks, or not yet: of its limits gate gives out what `on_lost` says.
    pub lost: bool,
    /// The time since its last answer; nothing if there was none.
    pub answered_ms_ago: Option<u64>,
    /// How many gates share its limits, this one among them, as it said last; 0 if it has not.
    pub gates: u32,
    /// How many limits this gate reports to it.
    pub limits: u64,
}

impl FleetOwner {
    /// All that there are, in the order of their addresses.
    pub(super) fn read(book: &SharedBook, now: Nanos) -> Vec<Self> {
        let known = book.lock().known_owners(now);
        known.into_iter().map(Self::of).collect()
    }

    fn of(known: KnownOwner) -> Self {
        Self {
            address: known.address,
            lost: known.is_lost,
            answered_ms_ago: known.answered_ago.map(|ago| ago.0 / 1_000_000),
            gates: known.gates,
            limits: known.limits as u64,
        }
    }
}
