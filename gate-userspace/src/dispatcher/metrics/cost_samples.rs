//! Cost samples: the measured costs of answered requests, gathered by one thread and taken by the control loop.
//!
//! **Measured** is the time of the store for a request, without its time for earlier requests of others on the same
//! connection: from the sending of the request or, if that is later, from the answer before it, to its own answer.
//! Answers that are read together share that time, since their parts of it are not known. The time contains the way
//! there and back and the store's work for other connections meanwhile. So the prices of cheap and dear requests look
//! more alike than they are while the store is busy with both.
//!
//! The reference is the read of one key with a small answer, with nothing but its like in the same read.
//!
//! Gathering takes a few additions for each answer and thirty for each read; nothing is locked but once a tick.
//!
//! **Settled** (`settle = "debt"`) is the cost of such answers beyond their price, if one tenant has paid for them all.
//! If several have paid, the share of each is not known; the reference is the measure itself. Nothing is given back: a
//! price is the least that a request costs, and a request that is read late from the answers before it looks short, so
//! that a client with many requests at a time would pay for few of them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::units::{MilliRu, Nanos};

use super::latency::LatencyHistogram;
use crate::dispatcher::tenants::ledger::{Account, TenantId};
use crate::dispatcher::tenants::members::Member;
use crate::dispatcher::wire::Codec;
use crate::policy::cost_model::{Batch, Measure, Window};
use crate::policy::pricing::ByClass;
use crate::policy::read_cost::RequestedRows;
use crate::protocol::RowsBy;
use crate::protocol::price_class::PriceClass;

/// The cost samples of one thread at one service.
#[derive(Debug, Default)]
pub(crate) struct CostSamples {
    is_on: AtomicBool,
    /// The expected time of each class, in thousandths of a reference read.
    expected: ByClass<AtomicU32>,
    /// The times of requests. All counts only grow.
    times: ByClass<LatencyHistogram>,
    /// The samples since the control loop took the last.
    window: Mutex<Window>,
    /// The measure of an answer's cost, if costs are settled.
    measure: Mutex<Option<Measure>>,
    /// The sum of the charges beyond prices, in thousandths of a request unit.
    settled_mru: AtomicU64,
}

impl CostSamples {
    /// True while prices by latency are learned.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Adds to `window` that answers took so long in sum. Only the thread whose samples these are may call this.
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

    /// Hands the gathered samples to the control loop.
    pub(crate) fn submit(&self, gathered: &RefCell<Window>) {
        let gathered = gathered.take();
        if gathered != Window::default() {
            lock(&self.window).merge(&gathered);
        }
    }

    /// The measure of answers until the next tick; `None` if nothing is settled.
    pub(crate) fn measure(&self) -> Option<Measure> {
        *lock(&self.measure)
    }

    /// Sets the expected times of the classes, in thousandths of a reference read, and the measure of answers; `None`
    /// if no price by latency is learned.
    pub(super) fn expect(&self, expected: Option<(&ByClass<u32>, Option<Measure>)>) {
        let (expected, measure) = expected.unzip();
        self.is_on.store(expected.is_some(), Ordering::Relaxed);
        for (sum, &expected) in self.expected.iter().zip(expected.into_iter().flatten()) {
            sum.store(expected, Ordering::Relaxed);
        }
        *lock(&self.measure) = measure.flatten();
    }

    /// The samples since the last call.
    pub(super) fn take_window(&self) -> Window {
        std::mem::take(&mut *lock(&self.window))
    }

    /// How long requests of a class, given by its number, took.
    pub(super) fn times(&self, class: usize) -> &LatencyHistogram {
        &self.times[class]
    }

    /// The sum of the charges beyond prices, in thousandths of a request unit.
    pub(super) fn settled_mru(&self) -> u64 {
        self.settled_mru.load(Ordering::Relaxed)
    }

    /// Adds a charge beyond prices. Only the thread whose samples these are may call this.
    pub(crate) fn settled(&self, due: MilliRu) {
        let settled = self.settled_mru.load(Ordering::Relaxed);
        self.settled_mru.store(settled.wrapping_add(due.0.into()), Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Replaced whole, or sums that are added to: a panic elsewhere has broken one tick's at most.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The features of a request that its price is a function of.
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
        let class = W::price_class(meta.class);
        let rows_by = meta.rows_by;
        Self { class, rows_by, rows: meta.rows, bytes, reply_rows: 0 }
    }

    /// The rows that it asks for.
    #[inline]
    pub(crate) fn requested_rows(&self) -> RequestedRows {
        requested_rows(self.rows, self.rows_by)
    }

    /// Reads the beginning of its reply.
    #[inline]
    pub(crate) fn reply_begins<W: Codec>(&mut self, reply: &[u8]) {
        if self.rows_by != RowsBy::Request {
            self.reply_rows = W::reply_rows(reply);
        }
    }
}

/// The rows that a request asks for: `rows` as it says them, or as they are guessed.
#[inline]
pub(crate) const fn requested_rows(rows: u32, by: RowsBy) -> RequestedRows {
    match by {
        RowsBy::Request | RowsBy::OtherRequests => RequestedRows::stated(rows),
        RowsBy::Reply => RequestedRows::shown_by_reply(rows),
        RowsBy::ReplyInPart => RequestedRows::shown_in_part(rows),
    }
}

/// The answers that one read from the store has completed.
#[derive(Debug)]
pub(crate) struct ReplyBatch {
    counts: ByClass<u32>,
    rows: u64,
    bytes: u64,
    /// The time at which the first of them was sent.
    sent: Nanos,
    are_reference: bool,
    /// True if the answer to another kind of request was among them.
    is_unmeasurable: bool,
    payer: Payer,
    /// The sum that they were charged.
    paid: MilliRu,
}

/// The payer of the requests of a batch.
#[derive(Debug, Default)]
enum Payer {
    /// The batch has no request.
    #[default]
    Empty,
    One(TenantId, Option<Arc<Member>>),
    /// Several tenants or members, or a request was not charged.
    Several,
}

impl Payer {
    fn is(&self, tenant: TenantId, member: Option<&Arc<Member>>) -> bool {
        let number = |member: &Arc<Member>| member.number();
        matches!(self, Self::One(payer, own) if *payer == tenant && own.as_ref().map(number) == member.map(number))
    }
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
    /// Adds a request sent at `sent`, for which a tenant, or a member of it, has paid so much, and which has been answered by
    /// `len` bytes.
    #[inline]
    pub(crate) fn add(
        &mut self,
        request: CostFeatures,
        ((tenant, member), paid): ((TenantId, Option<&Arc<Member>>), MilliRu),
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
        match self.payer {
            Payer::Empty if paid > MilliRu::ZERO => self.payer = Payer::One(tenant, member.map(Arc::clone)),
            Payer::One(..) if paid > MilliRu::ZERO && self.payer.is(tenant, member) => {}
            _ => self.payer = Payer::Several,
        }
    }

    /// The bucket that alone has paid for them, and the sum; `None` if there are several, or if they are the reference.
    #[inline]
    pub(crate) fn payer(&self) -> Option<(Account<'_>, MilliRu)> {
        match &self.payer {
            Payer::One(tenant, member) if !self.are_reference => {
                Some(((*tenant, member.as_deref()), self.paid))
            }
            _ => None,
        }
    }

    /// The sums of all of them, but for their expected time.
    pub(crate) fn batch(&self) -> Batch {
        let count = self.counts.iter().sum();
        Batch { count, rows: self.rows, bytes: self.bytes, expected_milli: 0 }
    }

    /// Notes the answer to a query of gate's own.
    pub(crate) fn mark_unmeasurable(&mut self) {
        (self.is_unmeasurable, self.sent) = (true, Nanos::ZERO);
    }

    /// True if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == Nanos::MAX
    }

    /// The store's time for them until `now`, if its last answer before was at `before`; `None` if that is not known.
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
            answers.add(request, ((PAID.0, None), PAID.1), Nanos::from_micros(sent_us), len)
        });
        answers
    }

    /// The time of the reference read that a model infers from one window.
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
        let mut unmeasurable = answers(&[(GET, 1, 5)]);
        unmeasurable.mark_unmeasurable();
        assert!(!unmeasurable.is_empty() && unmeasurable.took(ZERO, us(2)).is_none());
    }

    #[test]
    fn only_batches_of_small_single_reads_are_the_reference() {
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
    fn the_payer_of_a_batch_pays_the_rest_except_for_references() {
        let one = PAID;
        let other = (TenantId(8), MilliRu(1));
        let uncharged = (TenantId(7), MilliRu::ZERO);
        let charged = |paid: u32| Some(((one.0, None), MilliRu(paid)));
        for (requests, payer) in [
            (&[][..], None),
            (&[(MGET, one)], charged(1_000)),
            (&[(GET, one), (MGET, one), (MGET, one)], charged(3_000)),
            (&[(GET, one), (GET, one)], None),
            (&[(MGET, one), (MGET, other)], None),
            (&[(MGET, one), (MGET, other), (MGET, one)], None),
            (&[(MGET, uncharged)], None),
            (&[(MGET, one), (MGET, uncharged)], None),
            (&[(MGET, uncharged), (MGET, one)], None),
        ] {
            let mut answers = ReplyBatch::default();
            requests
                .iter()
                .for_each(|&(request, (tenant, paid))| answers.add(request, ((tenant, None), paid), ZERO, 5));
            let found =
                answers.payer().map(|((tenant, member), paid)| ((tenant, member.map(Member::number)), paid));
            assert_eq!(found, payer, "{requests:?}");
        }
    }

    #[test]
    fn what_threads_hand_over_is_taken_once() {
        let types = QueryTypes::default();
        let policy = crate::dispatcher::queue::policy::Policy::default();
        let metrics = ServiceMetrics::new(
            "s".to_owned(),
            (2, 1),
            types,
            policy,
            (Permits::new(None, 2), Arc::default()),
        );
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
