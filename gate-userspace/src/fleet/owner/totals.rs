//! The numbers of an owner: those of the present, and of what happened since it started.

use super::counters::Event;
use super::server::Owner;

/// All in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// False where it decides no report: it does not know that its lease is alive, or another owner has its address.
    pub decides: bool,
    /// The gates that report at present.
    pub gates: usize,
    /// The accounts.
    pub accounts: usize,
    /// The most accounts that there may be.
    pub most_accounts: usize,
    /// True if the limits in force are not those that were found last.
    pub keeps_limits: bool,
    /// The memory that sessions of gates take beside accounts, in bytes.
    pub session_bytes: usize,
    /// How often each event happened.
    pub events: [(Event, u64); Event::ALL.len()],
}

impl Owner {
    /// The numbers as they are now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            decides: self.decides(),
            gates: self.gates().known().iter().filter(|gate| gate.is_connected).count(),
            accounts: self.accounts().len(),
            most_accounts: self.accounts().most(),
            keeps_limits: self.accounts().kept().is_some(),
            session_bytes: self.accounts().room().used(),
            events: Event::ALL.map(|event| (event, self.counters().get(event))),
        }
    }
}
