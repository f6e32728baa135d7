//! A request in parts whose replies become one reply: as much of it as there is.
//!
//! **Rule.** A client reads an error in place of the reply if any part fails. So no part's values reach it before all parts are
//! answered, or until so many bytes wait that they must: from then on a failure closes the client, as it does where one store fails in
//! the middle of a reply.
//!
//! **Permits.** The parts that go to one store take one permit: it does them one after the other.

use std::cell::{Cell, OnceCell, Ref, RefCell};

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
    /// The number of parts whose numbers have come.
    counted: Cell<usize>,
    /// The part whose reply is taken, of those that have one to give.
    preferred: usize,
    /// The reply so far, where it has no values, and the part that it is of.
    reply: RefCell<Option<(usize, Box<[u8]>)>>,
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
    /// A request in these parts, which marks what it writes. Of replies of which one is taken, it is the one to the part at `preferred`,
    /// or to the next one behind it that has any.
    pub(crate) fn new(join: Join, runs: &[Run], preferred: usize, mark: Option<M>) -> Self {
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
            counted: Cell::new(0),
            preferred,
            reply: RefCell::new(None),
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

    /// A part is answered by a number, or its answer begins with one.
    pub(crate) fn add(&self, number: u64) {
        self.sum.update(|sum| sum.saturating_add(number));
        self.counted.update(|counted| counted + 1);
    }

    /// True if what is ahead of the values can be said.
    pub(crate) fn may_begin(&self) -> bool {
        self.join != Join::Lists || self.counted.get() == self.parts.len()
    }

    /// The sum of the numbers.
    pub(crate) fn sum(&self) -> u64 {
        self.sum.get()
    }

    /// A part is answered by all of a reply, which may say nothing: false if it is none that goes with the others'.
    pub(crate) fn merge(&self, part: usize, reply: &[u8], is_nothing: bool) -> bool {
        let mut merged = self.reply.borrow_mut();
        let Some((of, merged)) = merged.as_mut().filter(|_| !is_nothing || self.join != Join::Any) else {
            // A reply that says nothing is behind any that says something.
            let of = if is_nothing { usize::MAX } else { part };
            merged.get_or_insert_with(|| (of, reply.into()));
            return true;
        };
        match self.join {
            Join::Any => {
                let behind = |part: usize| match part {
                    usize::MAX => usize::MAX,
                    _ => (part + self.parts.len() - self.preferred) % self.parts.len(),
                };
                if behind(part) < behind(*of) {
                    (*of, *merged) = (part, reply.into());
                }
                true
            }
            // Of one length they differ in digits alone.
            Join::Least if merged.len() == reply.len() => {
                merged.iter_mut().zip(reply).for_each(|(least, digit)| *least = (*least).min(*digit));
                true
            }
            Join::Same
            | Join::Least
            | Join::InTurn
            | Join::Sum
            | Join::Total
            | Join::Values
            | Join::Lists
            | Join::Scan(_) => **merged == *reply,
        }
    }

    /// The reply, where it has no values.
    pub(crate) fn reply(&self) -> Ref<'_, [u8]> {
        Ref::map(self.reply.borrow(), |reply| reply.as_ref().map_or(&b""[..], |(_, reply)| reply))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::wire::parts::KeyPlace;

    fn joined(join: Join, preferred: usize) -> Joined<()> {
        let run = |node| Run { at: KeyPlace { node, slot: node }, keys: 1, len: 10 };
        Joined::new(join, &[run(0), run(1), run(2)], preferred, None)
    }

    #[test]
    fn of_several_replies_one_is_taken_that_says_something() {
        for (preferred, nothing, taken) in [
            (0, [false; 3], "0"),
            (2, [false; 3], "2"),
            (1, [false, true, true], "0"),
            (1, [true, true, false], "2"),
            (2, [false, false, true], "0"),
            (1, [true; 3], "nothing"),
        ] {
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
                let joined = joined(Join::Any, preferred);
                for part in order {
                    let reply = if nothing[part] { "nothing".to_owned() } else { part.to_string() };
                    assert!(joined.merge(part, reply.as_bytes(), nothing[part]));
                }
                assert_eq!(&*joined.reply(), taken.as_bytes(), "{preferred} {nothing:?} {order:?}");
            }
        }
    }

    #[test]
    fn what_all_say_is_the_least_of_each_and_what_differs_is_none() {
        let least = joined(Join::Least, 0);
        for (part, reply) in
            ["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n", "*2\r\n:1\r\n:1\r\n"].iter().enumerate()
        {
            assert!(least.merge(part, reply.as_bytes(), false));
        }
        assert_eq!(&*least.reply(), b"*2\r\n:1\r\n:0\r\n");
        assert!(!least.merge(2, b"*1\r\n:1\r\n", false));
        let same = joined(Join::Same, 0);
        assert!(same.merge(0, b"+OK\r\n", false) && same.merge(1, b"+OK\r\n", false));
        assert!(!same.merge(2, b"+NO\r\n", false));
    }

    #[test]
    fn lists_begin_once_all_are_counted() {
        let lists = joined(Join::Lists, 0);
        for number in [2, 0, 5] {
            assert!(!lists.may_begin());
            lists.add(number);
        }
        assert!(lists.may_begin() && lists.sum() == 7);
        assert!(joined(Join::Values, 0).may_begin());
    }
}
