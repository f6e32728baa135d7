//! What a store's answers teach about prices, gathered by one thread and taken by the control loop.
//!
//! **What is measured** is how long the store took for a request without what it did before it for others on the same
//! connection: the time from when it was sent or, if that is later, from the answer before it, to its own. Answers that
//! are read together share that time: which of it was whose nobody can tell. Left in it are the way there and back, and
//! whatever the store did meanwhile for other connections, so of a store that is busy with these cheap requests and
//! dear ones look more alike than they are.
//!
//! The reference is the read of one key with a small answer, with nothing but its like in the same read.
//!
//! Gathering takes a few additions for each answer and thirty for each read; nothing is locked but once a tick.
//!
//! **What is settled** (`settle = "debt"`) is what such answers have cost beyond what they were charged, if one tenant has
//! paid for them all: of what several have paid nobody can tell whose it was, and the reference itself is the measure. It
//! is never given back: a price is what a request costs at least, and what is read late from the answers before it looks
//! short, so that whoever asks much at a time would pay for little of it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gate_common::units::{MilliRu, Nanos};

use super::latency::LatencyHistogram;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::Codec;
use crate::policy::cost_model::{Batch, Measure, Window};
use crate::policy::pricing::ByClass;
use crate::policy::read_cost::AskedRows;
use crate::protocol::RowsBy;
use crate::protocol::price_class::PriceClass;

/// What one thread learns at one service.
#[derive(Debug, Default)]
pub(crate) struct CostSamples {
    is_on: AtomicBool,
    /// What a class is expected to take, in thousandths of a reference read.
    expected: ByClass<AtomicU32>,
    /// How long requests took. All only grow.
    times: ByClass<LatencyHistogram>,
    /// What has not been taken yet.
    window: Mutex<Window>,
    /// What answers are measured by, where what they have cost is settled.
    measure: Mutex<Option<Measure>>,
    /// What has been charged beyond prices so far, in thousandths of a request unit.
    settled_mru: AtomicU64,
}

impl CostSamples {
    /// Whether anybody wants to learn.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Adds to `window` that answers took so long together. Only the thread whose samples these are may call this.
    pub(crate) fn observe(&self, answers: &ReplyBatch, took: Nanos, window: &mut Window) {
        let mut batch = answers.batch();
        let each = Nanos(took.0 / u64::from(batch.count.max(1)));
        for (class, &count) in answers.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let expected = self.expected[class].load(Ordering::Relaxed);
            batch.expected_milli += u64::from(count) * u64::from(expected);
            self.times[class].record(each, count.into());
        }
        if answers.are_reference {
            window.observe_reference(batch, took)
        } else {
            window.observe(batch, took)
        }
    }

    /// Leaves for the control loop what has been gathered.
    pub(crate) fn submit(&self, gathered: &RefCell<Window>) {
        let gathered = gathered.take();
        if gathered != Window::default() {
            lock(&self.window).merge(&gathered);
        }
    }

    /// What answers are measured by until the next tick; nothing if nothing is settled.
    pub(crate) fn measure(&self) -> Option<Measure> {
        *lock(&self.measure)
    }

    /// Says what classes of requests are expected to take, in thousandths of a reference read, and what answers are
    /// measured by; nothing if nobody wants to learn.
    pub(super) fn expect(&self, expected: Option<(&ByClass<u32>, Option<Measure>)>) {
        let (expected, measure) = expected.unzip();
        self.is_on.store(expected.is_some(), Ordering::Relaxed);
        for (held, &expected) in self.expected.iter().zip(expected.into_iter().flatten()) {
            held.store(expected, Ordering::Relaxed);
        }
        *lock(&self.measure) = measure.flatten();
    }

    /// What has been gathered since this was last asked.
    pub(super) fn take_window(&self) -> Window {
        std::mem::take(&mut *lock(&self.window))
    }

    /// How long requests of a class, given by its number, took.
    pub(super) fn times(&self, class: usize) -> &LatencyHistogram {
        &self.times[class]
    }

    /// What has been charged beyond prices so far, in thousandths of a request unit.
    pub(super) fn settled_mru(&self) -> u64 {
        self.settled_mru.load(Ordering::Relaxed)
    }

    /// Adds what has been charged beyond prices. Only the thread whose samples these are may call this.
    pub(crate) fn settled(&self, due: MilliRu) {
        let settled = self.settled_mru.load(Ordering::Relaxed);
        self.settled_mru.store(settled.wrapping_add(due.0.into()), Ordering::Relaxed);
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    // Replaced whole, or sums that are added to: a panic elsewhere has broken one tick's at most.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a request, as its price is made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostFeatures {
    pub(crate) class: PriceClass,
    pub(crate) rows_by: RowsBy,
    pub(crate) rows: u32,
    pub(crate) bytes: u32,
    /// The rows that the beginning of its reply shows.
    pub(crate) reply_rows: u32,
}

impl CostFeatures {
    /// Those of a request.
    #[inline]
    pub(crate) fn of<W: Codec>(request: &W::Request) -> Self {
        let meta = W::meta(request);
        let bytes = u32::try_from(meta.bytes).unwrap_or(u32::MAX);
        let (class, rows_by) = (W::price_class(meta.class), meta.rows_by);
        Self { class, rows_by, rows: meta.rows, bytes, reply_rows: 0 }
    }

    /// The rows that it asks for.
    #[inline]
    pub(crate) fn asked(&self) -> AskedRows {
        asked_rows(self.rows, self.rows_by)
    }

    /// Looks at the beginning of its reply.
    #[inline]
    pub(crate) fn reply_begins<W: Codec>(&mut self, reply: &[u8]) {
        if self.rows_by != RowsBy::Request {
            self.reply_rows = W::reply_rows(reply);
        }
    }
}

/// The rows that a request asks for, `rows` by what it says or by a guess.
#[inline]
pub(crate) const fn asked_rows(rows: u32, by: RowsBy) -> AskedRows {
    match by {
        RowsBy::Request | RowsBy::OtherRequests => AskedRows::stated(rows),
        RowsBy::Reply => AskedRows::shown_by_reply(rows),
        RowsBy::ReplyInPart => AskedRows::shown_in_part(rows),
    }
}

/// The answers that one read from the store has completed.
#[derive(Debug)]
pub(crate) struct ReplyBatch {
    counts: ByClass<u32>,
    rows: u64,
    bytes: u64,
    /// When the first of them was asked for.
    sent: Nanos,
    are_reference: bool,
    /// Something else was answered among them.
    is_unmeasurable: bool,
    payer: Payer,
    /// What they were charged.
    paid: MilliRu,
}

/// Who has paid for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Payer {
    /// There are none.
    #[default]
    Nobody,
    One(TenantId),
    /// Several, or it was not charged.
    Several,
}

impl Default for ReplyBatch {
    fn default() -> Self {
        let counts = ByClass::default();
        let sent = Nanos::MAX;
        let (payer, paid) = Default::default();
        Self { counts, rows: 0, bytes: 0, sent, are_reference: true, is_unmeasurable: false, payer, paid }
    }
}

impl ReplyBatch {
    /// A request sent at `sent`, for which a tenant has paid so much, has been answered by `len` bytes.
    #[inline]
    pub(crate) fn add(
        &mut self,
        request: CostFeatures,
        (tenant, paid): (TenantId, MilliRu),
        sent: Nanos,
        len: usize,
    ) {
        let CostFeatures { class, rows, bytes, .. } = request;
        self.counts[class.index()] += 1;
        self.rows += u64::from(rows);
        self.bytes += u64::from(bytes);
        self.sent = self.sent.min(sent);
        self.are_reference &= class == PriceClass::GET && rows == 1 && len <= SMALL;
        self.paid = self.paid.saturating_add(paid);
        self.payer = match self.payer {
            Payer::Nobody if paid > MilliRu::ZERO => Payer::One(tenant),
            Payer::One(payer) if paid > MilliRu::ZERO && payer == tenant => self.payer,
            _ => Payer::Several,
        };
    }

    /// Which tenant may owe more for them, and what it has paid; nothing if nobody can tell, or they are the reference.
    #[inline]
    pub(crate) fn payer(&self) -> Option<(TenantId, MilliRu)> {
        match self.payer {
            Payer::One(tenant) if !self.are_reference => Some((tenant, self.paid)),
            _ => None,
        }
    }

    /// All of them, but for what they were expected to take.
    pub(crate) fn batch(&self) -> Batch {
        let count = self.counts.iter().sum();
        Batch { count, rows: self.rows, bytes: self.bytes, expected_milli: 0 }
    }

    /// A question of gate's own has been answered.
    pub(crate) fn mark_unmeasurable(&mut self) {
        (self.is_unmeasurable, self.sent) = (true, Nanos::ZERO);
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == Nanos::MAX
    }

    /// How long the store took for them until `now`, when it had answered before at `before`; nothing if that cannot be
    /// told.
    pub(crate) fn took(&self, before: Nanos, now: Nanos) -> Option<Nanos> {
        (!self.is_empty() && !self.is_unmeasurable).then(|| now.saturating_sub(self.sent.max(before)))
    }
}

/// The longest answer that a read of one small row has.
const SMALL: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::super::ServiceMetrics;
    use super::super::latency::LatencySnapshot;
    use super::*;
    use crate::dispatcher::queue::permits::Permits;
    use crate::policy::cost_model::{CostModel, Learning, Prices};
    use crate::protocol::query_types::QueryTypes;
    use gate_common::abi::QueryClass;

    const GET: CostFeatures =
        CostFeatures { class: PriceClass::GET, rows_by: RowsBy::Request, rows: 1, bytes: 30, reply_rows: 0 };
    const MGET: CostFeatures = CostFeatures { class: PriceClass::OTHER, rows: 10, bytes: 90, ..GET };
    const ZERO: Nanos = Nanos::ZERO;
    const PAID: (TenantId, MilliRu) = (TenantId(7), MilliRu::ONE_RU);

    fn answers(requests: &[(CostFeatures, u64, usize)]) -> ReplyBatch {
        let mut answers = ReplyBatch::default();
        requests.iter().for_each(|&(request, sent_us, len)| {
            answers.add(request, PAID, Nanos::from_micros(sent_us), len)
        });
        answers
    }

    /// What a model takes the reference read to be after one window.
    fn reference(window: &Window) -> Option<Nanos> {
        let prices = Prices { base: MilliRu(500), row: MilliRu(500), kib: MilliRu(0), latency: MilliRu(0) };
        let mut model = CostModel::new(prices, Learning { min_reference: 1, ..Learning::default() }).unwrap();
        model.tick(window, false);
        model.reference()
    }

    #[test]
    fn what_came_before_on_the_same_connection_does_not_count() {
        let us = Nanos::from_micros;
        for (sent, before, now, took) in [(100, 0, 150, 50), (100, 130, 150, 20), (100, 100, 100, 0)] {
            let answers = answers(&[(GET, sent, 5), (MGET, sent + 1, 5)]);
            assert_eq!(answers.took(us(before), us(now)), Some(us(took)), "{sent} {before} {now}");
        }
        assert_eq!(ReplyBatch::default().took(us(1), us(2)), None);
        let mut spoiled = answers(&[(GET, 1, 5)]);
        spoiled.mark_unmeasurable();
        assert!(!spoiled.is_empty() && spoiled.took(ZERO, us(2)).is_none());
    }

    #[test]
    fn only_small_reads_of_one_key_among_themselves_are_the_reference() {
        let two = CostFeatures { rows: 2, ..GET };
        for (requests, is_reference) in [
            (&[(GET, 0, 5)][..], true),
            (&[(GET, 0, SMALL), (GET, 7, 0)], true),
            (&[(GET, 0, SMALL + 1)], false),
            (&[(two, 0, 5)], false),
            (&[(MGET, 0, 5)], false),
            (&[(GET, 0, 5), (MGET, 0, 5)], false),
        ] {
            let cost_samples = CostSamples::default();
            let mut window = Window::default();
            let took = Nanos::from_micros(100 * requests.len() as u64);
            cost_samples.observe(&answers(requests), took, &mut window);
            let found = reference(&window);
            assert_eq!(found, is_reference.then_some(Nanos::from_micros(100)), "{requests:?}");
        }
    }

    #[test]
    fn who_has_paid_for_all_answers_owes_the_rest_unless_they_are_the_reference() {
        let one = PAID;
        let other = (TenantId(8), MilliRu(1));
        let uncharged = (TenantId(7), MilliRu::ZERO);
        let owes = |paid: u32| Some((one.0, MilliRu(paid)));
        for (requests, payer) in [
            (&[][..], None),
            (&[(MGET, one)], owes(1_000)),
            (&[(GET, one), (MGET, one), (MGET, one)], owes(3_000)),
            (&[(GET, one), (GET, one)], None),
            (&[(MGET, one), (MGET, other)], None),
            (&[(MGET, one), (MGET, other), (MGET, one)], None),
            (&[(MGET, uncharged)], None),
            (&[(MGET, one), (MGET, uncharged)], None),
            (&[(MGET, uncharged), (MGET, one)], None),
        ] {
            let mut answers = ReplyBatch::default();
            requests.iter().for_each(|&(request, paid)| answers.add(request, paid, ZERO, 5));
            assert_eq!(answers.payer(), payer, "{requests:?}");
        }
    }

    #[test]
    fn what_threads_hand_over_is_taken_once() {
        let types = QueryTypes::default();
        let policy = crate::dispatcher::Policy::default();
        let metrics = ServiceMetrics::new("s".to_owned(), 2, types, policy, Permits::new(None, 2));
        assert!(!metrics.threads[0].cost_samples.is_on());
        let dearest = Prices { base: MilliRu(1), row: MilliRu(2), kib: MilliRu(3), latency: MilliRu(0) };
        let measure = Some(Measure { reference: Nanos(5), dearest });
        metrics.expect(Some((&[2_000; QueryClass::COUNT], measure)));
        for thread in &*metrics.threads {
            assert!(thread.cost_samples.is_on());
            assert_eq!(thread.cost_samples.measure(), measure);
            thread.cost_samples.settled(MilliRu(20));
            let gathered = RefCell::default();
            let took = Nanos::from_micros(300);
            thread.cost_samples.observe(&answers(&[(GET, 0, 5); 3]), took, &mut gathered.borrow_mut());
            thread.cost_samples.submit(&gathered);
            assert_eq!(*gathered.borrow(), Window::default());
        }
        let mut all = Window::default();
        let each = Batch { count: 3, rows: 3, bytes: 90, expected_milli: 6_000 };
        (0..2).for_each(|_| all.observe_reference(each, Nanos::from_micros(300)));
        assert_eq!(metrics.take_window(), all);
        assert_eq!(metrics.take_window(), Window::default());
        let times = metrics.service_times();
        assert_eq!(times.each_ref().map(LatencySnapshot::len), [6, 0, 0, 0, 0, 0, 0, 0]);
        let p95 = times[0].percentile(95.0).unwrap();
        assert!(p95 > Nanos::from_micros(100) && p95 < Nanos::from_micros(114), "{p95}");
        assert_eq!(metrics.settled_mru(), 40);
        metrics.expect(None);
        assert!(
            !metrics.threads[1].cost_samples.is_on() && metrics.threads[1].cost_samples.measure().is_none()
        );
    }
}
