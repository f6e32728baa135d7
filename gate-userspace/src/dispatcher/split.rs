//! A request whose keys are at several stores, from its charge to the end of its reply.
//!
//! **Rule.** Its parts go their ways by themselves. All that concerns the request as a whole is here, once: its charge, how much was
//! read for it, how long it took, and how its reply ends.
//!
//! **Replies.** Either each part's is a piece of the whole's, which ends behind them; or they are joined ([`Joined`]).

use std::cell::Cell;

use gate_common::abi::Reason;
use gate_common::units::{MilliRu, Nanos};

use super::joined::Joined;
use super::metrics::cost_samples::CostFeatures;
use super::request::{Charged, SeqNo};
use crate::protocol::Refusal;

/// The state of such a request; `M` is the mark of what it writes.
#[derive(Debug)]
pub(crate) struct Split<M> {
    /// The place of its reply beside those of its parts: behind them, or ahead of them where they are joined.
    pub(crate) own: SeqNo,
    /// Set if the replies to its parts are joined.
    pub(crate) joined: Option<Joined<M>>,
    pub(crate) charged: Charged,
    features: CostFeatures,
    /// The number of keys of all parts; of what is asked of all stores, that of the stores.
    rows: u32,
    /// The number of its parts, of those that have no outcome yet, and of those that are answered.
    count: u32,
    left: Cell<u32>,
    answered: Cell<u32>,
    read_rows: Cell<u32>,
    bytes: Cell<usize>,
    /// When the first part was sent.
    sent: Cell<Nanos>,
    is_paused: Cell<bool>,
    /// Why gate has refused a part.
    refused: Cell<Option<Refusal>>,
    /// Why a store has failed.
    failed: Cell<Option<Refusal>>,
    /// The price of the parts that were not sent.
    unspent: Cell<MilliRu>,
    is_passed: Cell<bool>,
}

/// The outcome of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PartOutcome {
    /// Answered by so many rows and bytes.
    Answered { rows: u32, bytes: usize, sent: Nanos, is_paused: bool },
    /// Not answered by its store.
    Failed(Refusal),
    /// Answered with an error, which is the reply to the whole: it has not run.
    Declined { bytes: usize, sent: Nanos, is_paused: bool },
    /// Not sent, and not paid for.
    Refused(Refusal, MilliRu),
}

/// The outcome of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitOutcome {
    /// All stores have answered.
    Answered(Read),
    /// Some stores have not: their keys are missing.
    InPart,
    /// A store has answered with an error.
    Declined(Read),
    /// Refused, behind what some stores may have answered.
    Refused(Refusal),
}

/// The answers of all stores together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) rows: u32,
    pub(crate) bytes: usize,
    pub(crate) sent: Nanos,
    /// True if the time is not the stores' own.
    pub(crate) is_paused: bool,
}

impl<M> Split<M> {
    /// A request in so many parts, the place of whose end is `own`.
    pub(crate) fn new(own: SeqNo, charged: Charged, features: CostFeatures, count: u32) -> Self {
        Self {
            own,
            joined: None,
            charged,
            features,
            rows: features.rows.max(1),
            count,
            left: Cell::new(count),
            answered: Cell::new(0),
            read_rows: Cell::new(0),
            bytes: Cell::new(0),
            sent: Cell::new(Nanos::MAX),
            is_paused: Cell::new(false),
            refused: Cell::new(None),
            failed: Cell::new(None),
            unspent: Cell::new(MilliRu::ZERO),
            is_passed: Cell::new(false),
        }
    }

    /// A request whose reply is joined, in its place.
    pub(crate) fn of_joined(own: SeqNo, charged: Charged, features: CostFeatures, joined: Joined<M>) -> Self {
        let count = joined.runs().len() as u32;
        let rows = joined.keys().max(1);
        Self { joined: Some(joined), rows, ..Self::new(own, charged, features, count) }
    }

    /// The features of the request, with the rows of its replies.
    pub(crate) fn features(&self, reply_rows: u32) -> CostFeatures {
        CostFeatures { reply_rows, ..self.features }
    }

    /// The price of a part with so many of its rows.
    pub(crate) fn price_of(&self, rows: u32) -> MilliRu {
        let share = u64::from(self.charged.price.0) * u64::from(rows) / u64::from(self.rows);
        MilliRu(u32::try_from(share).unwrap_or(u32::MAX).min(self.charged.price.0))
    }

    /// A part is sent: true if it is the first.
    pub(crate) fn passes(&self) -> bool {
        !self.is_passed.replace(true)
    }

    /// True if a part was sent.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_passed.get()
    }

    /// The price of the parts that were sent.
    pub(crate) fn spent(&self) -> MilliRu {
        MilliRu(self.charged.price.0.saturating_sub(self.unspent.get().0))
    }

    /// A part has its outcome; returns that of the whole with the last one's.
    pub(crate) fn part_ended(&self, outcome: PartOutcome) -> Option<SplitOutcome> {
        self.left.set(self.left.get() - 1);
        match outcome {
            PartOutcome::Answered { rows, bytes, sent, is_paused } => {
                self.answered.set(self.answered.get() + 1);
                self.read_rows.set(self.read_rows.get().saturating_add(rows));
                self.read(bytes, sent, is_paused);
            }
            PartOutcome::Declined { bytes, sent, is_paused } => {
                self.read(bytes, sent, is_paused);
            }
            PartOutcome::Failed(refusal) => {
                // That it may have run is worth more to know.
                let before = self.failed.get().filter(|before| before.uncertain || !refusal.uncertain);
                self.failed.set(before.or(Some(refusal)));
            }
            PartOutcome::Refused(refusal, price) => {
                self.unspent.set(self.unspent.get().saturating_add(price));
                // A store that is down is no refusal of gate's, whether or not that is known beforehand.
                let why = if refusal.reason == Reason::StoreDown { &self.failed } else { &self.refused };
                why.set(why.get().or(Some(refusal)));
            }
        }
        (self.left.get() == 0).then(|| self.outcome())
    }

    fn read(&self, bytes: usize, sent: Nanos, is_paused: bool) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        self.sent.set(self.sent.get().min(sent));
        self.is_paused.set(self.is_paused.get() || is_paused);
    }

    fn outcome(&self) -> SplitOutcome {
        let read = Read {
            rows: self.read_rows.get(),
            bytes: self.bytes.get(),
            sent: self.sent.get(),
            is_paused: self.is_paused.get(),
        };
        if let Some(joined) = &self.joined {
            return self.joined_outcome(joined, read);
        }
        match (self.refused.get(), self.failed.get(), self.answered.get()) {
            (Some(refusal), _, _) | (None, Some(refusal), 0) => SplitOutcome::Refused(refusal),
            (None, _, answered) if answered == self.count => SplitOutcome::Answered(read),
            (None, _, _) => SplitOutcome::InPart,
        }
    }

    /// The outcome where one part that fails fails the whole. What some parts have written, and others may not have, is uncertain.
    fn joined_outcome(&self, joined: &Joined<M>, read: Read) -> SplitOutcome {
        let answered = self.answered.get();
        if answered == self.count {
            return SplitOutcome::Answered(read);
        }
        if joined.writes() && answered > 0 {
            return SplitOutcome::Refused(Refusal::uncertain());
        }
        let uncertain = self.failed.get().filter(|failed| failed.uncertain);
        let refusal = uncertain.or(self.refused.get()).or(self.failed.get());
        refusal.map_or(SplitOutcome::Declined(read), SplitOutcome::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::PartOutcome::{Answered, Declined, Failed, Refused};
    use super::*;
    use crate::dispatcher::node_id::NodeId;
    use crate::dispatcher::request::RequestClass;
    use crate::dispatcher::tenants::ledger::TenantId;
    use crate::dispatcher::tenants::request_limits::LimitSet;
    use crate::dispatcher::wire::parts::{Join, KeyPlace, Run};
    use crate::policy::Tier;
    use crate::policy::admission::QueryType;
    use crate::policy::key_reads::KeyRead;
    use crate::protocol::RowsBy;
    use crate::protocol::price_class::PriceClass;

    fn charged() -> Charged {
        Charged {
            tenant: TenantId(1),
            member: None,
            price: MilliRu(1_000),
            class: RequestClass { tier: Tier::Standard, query_type: QueryType(0) },
            at: Nanos(1),
            shadow: false,
            is_charged_by_xdp: false,
            is_datagram: false,
            is_counted: false,
            limits: LimitSet::NONE,
            read: KeyRead::NONE,
        }
    }

    const FEATURES: CostFeatures = CostFeatures {
        class: PriceClass::OTHER,
        rows_by: RowsBy::Request,
        rows: 40,
        bytes: 200,
        reply_rows: 0,
    };

    fn split(count: u32) -> Split<()> {
        Split::new(SeqNo(count.into()), charged(), FEATURES, count)
    }

    /// A request of three parts, two of them at one store, whose replies are joined.
    fn joined(mark: Option<()>) -> Split<()> {
        let run = |node, slot| Run { at: KeyPlace { node, slot }, keys: 1, len: 10 };
        let joined = Joined::new(Join::Sum, &[run(0, 1), run(2, 7), run(0, 2)], 0, mark);
        Split::of_joined(SeqNo(0), charged(), FEATURES, joined)
    }

    const DOWN: Refusal = Refusal::of(Reason::StoreDown);
    const FULL: Refusal = Refusal::of(Reason::QueueFull);

    fn answered(rows: u32, sent: u64) -> PartOutcome {
        Answered { rows, bytes: 100, sent: Nanos(sent), is_paused: false }
    }

    #[test]
    fn the_last_outcome_is_that_of_the_whole() {
        let read = Read { rows: 5, bytes: 200, sent: Nanos(3), is_paused: false };
        let price = MilliRu(500);
        for (parts, outcome) in [
            (vec![answered(2, 7), answered(3, 3)], SplitOutcome::Answered(read)),
            (vec![Failed(DOWN), answered(3, 3)], SplitOutcome::InPart),
            (vec![answered(3, 3), Refused(DOWN, price)], SplitOutcome::InPart),
            // An overload is no miss.
            (vec![answered(3, 3), Refused(FULL, price)], SplitOutcome::Refused(FULL)),
            (vec![Failed(DOWN), Refused(FULL, price)], SplitOutcome::Refused(FULL)),
            (vec![Failed(Refusal::uncertain()), Failed(DOWN)], SplitOutcome::Refused(Refusal::uncertain())),
            (vec![Refused(DOWN, price), Refused(DOWN, price)], SplitOutcome::Refused(DOWN)),
        ] {
            let split = split(2);
            assert_eq!(split.part_ended(parts[0]), None, "{parts:?}");
            assert_eq!(split.part_ended(parts[1]), Some(outcome), "{parts:?}");
        }
    }

    #[test]
    fn a_part_costs_by_its_keys_and_what_is_not_sent_is_not_spent() {
        let split = split(2);
        assert_eq!([1, 39, 40].map(|rows| split.price_of(rows)), [25, 975, 1_000].map(MilliRu));
        let _ = split.part_ended(Refused(FULL, split.price_of(39)));
        assert_eq!(split.spent(), MilliRu(25));
        assert!(split.passes() && !split.passes() && split.is_passed());
    }

    #[test]
    fn one_part_that_fails_fails_what_is_joined() {
        let declined = Declined { bytes: 10, sent: Nanos(9), is_paused: false };
        let price = MilliRu(500);
        let uncertain = Refusal::uncertain();
        let ok = answered(1, 3);
        let read = |rows, bytes| Read { rows, bytes, sent: Nanos(3), is_paused: false };
        for (parts, reads, writes) in [
            ([ok, ok, ok], SplitOutcome::Answered(read(3, 300)), SplitOutcome::Answered(read(3, 300))),
            ([ok, declined, ok], SplitOutcome::Declined(read(2, 210)), SplitOutcome::Refused(uncertain)),
            ([ok, Failed(DOWN), ok], SplitOutcome::Refused(DOWN), SplitOutcome::Refused(uncertain)),
            ([ok, Refused(FULL, price), ok], SplitOutcome::Refused(FULL), SplitOutcome::Refused(uncertain)),
            // Nothing has run.
            (
                [Failed(DOWN), declined, Refused(FULL, price)],
                SplitOutcome::Refused(FULL),
                SplitOutcome::Refused(FULL),
            ),
            ([declined, Failed(DOWN), declined], SplitOutcome::Refused(DOWN), SplitOutcome::Refused(DOWN)),
            // One may have.
            (
                [Failed(DOWN), Failed(uncertain), Refused(FULL, price)],
                SplitOutcome::Refused(uncertain),
                SplitOutcome::Refused(uncertain),
            ),
        ] {
            for (mark, outcome) in [(None, reads), (Some(()), writes)] {
                let split = joined(mark);
                let ends = parts.map(|part| split.part_ended(part));
                assert_eq!(ends, [None, None, Some(outcome)], "{parts:?} {mark:?}");
            }
        }
    }

    #[test]
    fn the_parts_at_one_store_hold_one_permit() {
        let split = joined(None);
        let joined = split.joined.as_ref().unwrap();
        joined.takes_permit(NodeId::at(0));
        assert!(!joined.frees_permit(1, true), "its store's parts have none");
        assert!(!joined.frees_permit(0, true) && joined.frees_permit(2, true));
        let split = self::joined(None);
        let joined = split.joined.as_ref().unwrap();
        joined.takes_permit(NodeId::at(0));
        assert!(joined.frees_permit(0, false), "it waits for its client");
        assert!(
            !joined.frees_permit(2, false) && !joined.frees_permit(0, true) && !joined.frees_permit(2, true)
        );
    }
}
