//! The named limits that this gate shares with others: what was charged to names goes into the book once a tick, and what the owners
//! of limits said comes out of it.
//!
//! **Rule.** A name is shared from its first charge on, until nothing has been charged to it for [`IDLE`](super::book::IDLE) and its
//! owner has nothing more to say of it. Beyond a number of names at a time, others keep gate's own limits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::book::Book;
use super::grant::Grant;
use crate::limits::{Name, Reserved, Rules, Share, Table};

/// The names in use. See the [module](self).
#[derive(Debug)]
pub struct SharedNames {
    table: Arc<Table>,
    /// The rules that were in force at the last look: other rules forget what was set.
    rules: Arc<Rules>,
    names: HashMap<Name, Shared>,
    /// The most of them.
    most: usize,
}

#[derive(Debug)]
struct Shared {
    line: u32,
    /// The grant that was set last.
    grant: Option<Grant>,
}

/// One time on two clocks: gate's, and the monotonic one, by which the buckets of names go.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// On gate's clock.
    pub gate: Nanos,
    /// On the monotonic clock.
    pub monotonic: Nanos,
}

impl SharedNames {
    /// None yet, and never more than `most`, of a table whose counts nobody else takes.
    #[must_use]
    pub fn new(table: Arc<Table>, most: usize) -> Self {
        Self { rules: table.rules(), table, names: HashMap::new(), most }
    }

    /// Brings what was counted into the book, and what may be given out from it into the buckets.
    pub fn exchange(&mut self, book: &mut Book, now: Times) {
        self.table.take_changes(now.monotonic, |change| {
            let Some(line) = line(&mut self.names, self.most, book, change.name) else { return };
            let charged = change.counts.used.saturating_sub(change.counts.returned);
            book.count(line, now.gate, charged, change.counts.refused);
        });
        if let Some(reservations) = self.table.reservations() {
            reservations.exchange(now.monotonic, |name, wanted| {
                let Some(line) = line(&mut self.names, self.most, book, name) else { return Reserved::Own };
                book.reserve(line, now.gate, wanted)
            });
        }
        let rules = self.table.rules();
        if !Arc::ptr_eq(&rules, &self.rules) {
            self.names.values_mut().for_each(|shared| shared.grant = None);
            self.rules = rules;
        }
        self.names.retain(|name, shared| {
            let grant = book.grant(shared.line, now.gate);
            if grant != shared.grant {
                shared.grant = grant;
                set(&self.table, &self.rules, name, grant, now.monotonic);
            }
            !book.release(shared.line, now.gate)
        });
    }
}

/// The line of a name, made if there is none and no more than `most`.
fn line(names: &mut HashMap<Name, Shared>, most: usize, book: &mut Book, name: &Name) -> Option<u32> {
    let has_room = names.len() < most;
    match names.entry(name.clone()) {
        Entry::Occupied(entry) => Some(entry.get().line),
        Entry::Vacant(entry) if has_room => {
            Some(entry.insert(Shared { line: book.line(name), grant: None }).line)
        }
        Entry::Vacant(_) => None,
    }
}

fn set(table: &Table, rules: &Rules, name: &Name, grant: Option<Grant>, now: Nanos) {
    let Some(own) = rules.find(name).map(|rule| rule.limits) else { return };
    let share = grant.map_or(Share { limits: own, reject_until: Nanos::ZERO }, |grant| Share {
        limits: grant.within(own),
        reject_until: if grant.reject_for > Nanos::ZERO {
            now.saturating_add(grant.reject_for)
        } else {
            Nanos::ZERO
        },
    });
    // A name whose bucket was evicted has nothing to be held to.
    let _ = table.set_share(name, share, now);
}

/// The memory that a shared name takes here and in the book, in bytes.
pub const NAME_BYTES: usize = 512;
