//! A request in parts whose replies become one reply: as much of it as there is.
//!
//! **Rule.** A client reads an error in place of the reply if any part fails. So no part's values reach it before all parts are
//! answered, or until so many bytes wait that they must: from then on a failure closes the client, as it does where one store fails in
//! the middle of a reply.
//!
//! **Permits.** The parts that go to one store take one permit: it does them one after the other.

use std::cell::{Cell, OnceCell, RefCell};

use crate::dispatcher::node_id::NodeId;
use crate::dispatcher::wire::parts::{Join, Run};

/// The parts and the reply; `M` is the mark of what the request writes.
#[derive(Debug)]
pub(crate) struct Joined<M> {
    pub(crate) join: Join,
    /// True if it writes.
    writes: bool,
    parts: Box<[Part]>,
    /// Each store's parts without an outcome.
    left: Box<[Cell<u32>]>,
    /// A bit for each store whose parts hold a permit.
    permits: Cell<u64>,
    sum: Cell<u64>,
    /// The reply to a part, where all are alike.
    reply: OnceCell<Box<[u8]>>,
    /// The first error of a store.
    error: OnceCell<Box<[u8]>>,
    has_failed: Cell<bool>,
    /// True if a part has no answer: its store may do it yet.
    is_late: Cell<bool>,
    /// Bytes of values that have come.
    held: Cell<usize>,
    is_begun: Cell<bool>,
    mark: RefCell<Option<M>>,
}

/// A part.
#[derive(Debug)]
struct Part {
    run: Run,
    /// True if its store has answered with an error.
    is_declined: Cell<bool>,
}

impl<M> Joined<M> {
    /// A request in these parts, which marks what it writes.
    pub(crate) fn new(join: Join, runs: &[Run], mark: Option<M>) -> Self {
        let stores = runs.iter().map(|run| run.at.node + 1).max().unwrap_or_default();
        let left: Box<[_]> = (0..stores).map(|_| Cell::new(0)).collect();
        runs.iter().for_each(|run| left[run.at.node].update(|left| left + 1));
        Self {
            join,
            writes: mark.is_some(),
            parts: runs.iter().map(|&run| Part { run, is_declined: Cell::new(false) }).collect(),
            left,
            permits: Cell::new(0),
            sum: Cell::new(0),
            reply: OnceCell::new(),
            error: OnceCell::new(),
            has_failed: Cell::new(false),
            is_late: Cell::new(false),
            held: Cell::new(0),
            is_begun: Cell::new(false),
            mark: RefCell::new(mark),
        }
    }

    /// The parts, in the order of the keys.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = Run> {
        self.parts.iter().map(|part| part.run)
    }

    /// The number of keys of a part.
    pub(crate) fn keys_of(&self, part: usize) -> u32 {
        self.parts[part].run.keys
    }

    /// The number of all keys.
    pub(crate) fn keys(&self) -> u32 {
        self.runs().map(|run| run.keys).sum()
    }

    /// True if it writes.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    /// The parts of a store take a permit.
    pub(crate) fn takes_permit(&self, node: NodeId) {
        self.permits.update(|permits| permits | 1 << node.index());
    }

    /// A part's time at its store is over, or no longer the store's: true if the permit of that store's parts is free, which it is
    /// once.
    pub(crate) fn frees_permit(&self, part: usize, is_over: bool) -> bool {
        let node = self.parts[part].run.at.node;
        let left = &self.left[node];
        if is_over {
            left.update(|left| left - 1);
        }
        let held = self.permits.get() & 1 << node;
        let frees = held != 0 && (!is_over || left.get() == 0);
        if frees {
            self.permits.update(|permits| permits ^ held);
        }
        frees
    }

    /// A part is answered by a number.
    pub(crate) fn add(&self, number: u64) {
        self.sum.update(|sum| sum.saturating_add(number));
    }

    /// The sum of the numbers.
    pub(crate) fn sum(&self) -> u64 {
        self.sum.get()
    }

    /// A part is answered like the others: false if it is not.
    pub(crate) fn is_alike(&self, reply: &[u8]) -> bool {
        **self.reply.get_or_init(|| reply.into()) == *reply
    }

    /// The reply to each part, where all are alike.
    pub(crate) fn reply(&self) -> &[u8] {
        self.reply.get().map_or(b"", |reply| reply)
    }

    /// A part's store has answered with an error, by which the whole fails.
    pub(crate) fn declines(&self, part: usize, error: &[u8]) {
        self.parts[part].is_declined.set(true);
        self.error.get_or_init(|| error.into());
    }

    /// True if a part's store has answered with an error.
    pub(crate) fn is_declined(&self, part: usize) -> bool {
        self.parts[part].is_declined.get()
    }

    /// The first error of a store.
    pub(crate) fn error(&self) -> &[u8] {
        self.error.get().map_or(b"", |error| error)
    }

    /// The whole will have no values: true if that is new.
    pub(crate) fn fails(&self) -> bool {
        !self.has_failed.replace(true)
    }

    /// True if it will have none.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// So many bytes of values wait for others: returns how many do in all.
    pub(crate) fn hold(&self, bytes: usize) -> usize {
        self.held.update(|held| held.saturating_add(bytes));
        self.held.get()
    }

    /// The client gets the values that there are.
    pub(crate) fn begins(&self) {
        self.is_begun.set(true);
    }

    /// True if it has the beginning of the reply.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.get()
    }

    /// A part has no answer.
    pub(crate) fn loses_answer(&self) {
        self.is_late.set(true);
    }

    /// All parts have their outcomes: `over` ends the mark of what is written. Where a part has no answer, the mark is dropped, and
    /// so stays for the time within which the store may do it yet.
    pub(crate) fn end_mark(&self, over: impl FnOnce(M)) {
        if let Some(mark) = self.mark.take().filter(|_| !self.is_late.get()) {
            over(mark);
        }
    }
}
