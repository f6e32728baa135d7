//! The named limits that this gate shares with others: what was charged to names goes into the book once a tick, and what the owners
//! of limits said comes out of it.
//!
//! **Rule.** A name is shared from its first charge on, until nothing has been charged to it for [`IDLE`](super::book::IDLE) and its
//! owner has nothing more to say of it. Until the owner's first answer its bucket is a part of gate's own, one for each gate. Beyond a number of
//! names at a time, others keep gate's own limits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::book::Book;
use super::grant::Grant;
use gate_limits::{Name, Reserved, Rules, Share, Table};

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
    /// The grant that was set last, or gate's own limits; `None` while the bucket is as it was made.
    set: Option<Option<Grant>>,
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
        let mut without_line = Vec::new();
        self.table.take_changes(now.monotonic, |change| {
            let Some(shared) = shared(&mut self.names, self.most, book, change.name) else {
                without_line.extend(change.is_first.then(|| change.name.clone()));
                return;
            };
            if change.is_first {
                shared.set = None;
            }
            book.count(shared.line, now.gate, change.counts.used, change.counts.refused);
            if change.counts.returned > 0 {
                book.give_back(shared.line, now.gate, change.counts.returned);
            }
        });
        self.table.divide_first(book.gates(), now.monotonic);
        if let Some(reservations) = self.table.reservations() {
            reservations.exchange(now.monotonic, |name, wanted| {
                let shared = shared(&mut self.names, self.most, book, name);
                shared.map_or(Reserved::Own, |shared| book.reserve(shared.line, now.gate, wanted))
            });
        }
        let rules = self.table.rules();
        if !Arc::ptr_eq(&rules, &self.rules) {
            self.names.values_mut().for_each(|shared| shared.set = None);
            self.rules = rules;
        }
        without_line.iter().for_each(|name| set(&self.table, &self.rules, name, None, now.monotonic));
        self.names.retain(|name, shared| {
            let left = book.take_left(shared.line, now.gate);
            let grant = book.grant(shared.line, now.gate);
            let is_settled = grant.is_some() || book.is_own(shared.line, now.gate);
            if is_settled && shared.set != Some(grant) {
                shared.set = Some(grant);
                set(&self.table, &self.rules, name, grant, now.monotonic);
            } else if !is_settled {
                shared.set = None;
            }
            if let Some(left) = left {
                self.table.set_left(name, left, now.monotonic);
            }
            let is_released = book.release(shared.line, now.gate);
            if is_released {
                // It is full wherever it is known.
                self.table.begin_anew(name, now.monotonic);
            }
            !is_released
        });
    }
}

/// A name with a line, which is made if there is none and no more than `most`.
fn shared<'n>(
    names: &'n mut HashMap<Name, Shared>,
    most: usize,
    book: &mut Book,
    name: &Name,
) -> Option<&'n mut Shared> {
    let has_room = names.len() < most;
    match names.entry(name.clone()) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(entry) if has_room => Some(entry.insert(Shared { line: book.line(name), set: None })),
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
