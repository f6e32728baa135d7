//! The numbers of an owner: those of the present, and of what happened since it started.

use std::sync::Arc;

use super::accounts::Account;
use super::counters::Event;
use super::server::{Owner, keep_most_used};
use gate_system::clock;

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

/// A limit that is asked for most. Amounts are in request units.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedLimit {
    /// Its name.
    pub name: String,
    /// The demand at all gates, refusals included, per second.
    pub demand: f64,
    /// The content of the bucket, below zero in debt.
    pub left: f64,
    /// True while gates are held back to their shares.
    pub is_held_back: bool,
    /// Charged since the account was made.
    pub charged: f64,
    /// Refused since the account was made.
    pub refused: f64,
}

impl Owner {
    /// The limits that are asked for most, so many of them.
    #[must_use]
    pub fn most_used(&self, most: usize) -> Vec<UsedLimit> {
        if most == 0 {
            return Vec::new();
        }
        let now = clock::monotonic();
        let mut all = self.accounts().all();
        keep_most_used(&mut all, most, now);
        let used = |account: &Arc<Account>| {
            let state = account.lock();
            UsedLimit {
                name: account.name.as_str().to_owned(),
                demand: state.shares.demand(now) as f64 / 1e3,
                left: state.shares.left(now) as f64 / 1e3,
                is_held_back: state.shares.is_held_back(now),
                charged: state.charged as f64 / 1e3,
                refused: state.refused as f64 / 1e3,
            }
        };
        all.iter().map(used).collect()
    }

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
