//! Marks of what a client writes on a connection of its own, and which of its requests has been answered.
//!
//! What comes back there is passed on as it is; here it is only counted, so that each write's mark goes with its
//! answer, and so that it is known how long that took. A transaction's commands are answered before they are done,
//! but `EXEC`, which does them, marks every key. Where answers cannot be counted (subscriptions, `MONITOR`, `CLIENT
//! REPLY`, replication, or a client that asks without end), all keys stay marked from the next write on until the
//! connection ends, and for the store's timeout after it.

use std::collections::VecDeque;
use std::rc::Rc;

use gate_common::units::Nanos;

use super::versions::{Mark, Marker};
use crate::dispatcher::wire::buffer::Buffer;
use crate::policy::admission;
use crate::protocol::resp::{Kind, Part, Replies};

/// One connection's. Only Redis' clients have any of their own.
#[derive(Debug)]
pub(crate) struct DedicatedWrites {
    marker: Rc<Marker>,
    replies: Replies,
    /// Received, and too little to make sense of.
    rest: Buffer,
    /// Requests that are not answered, in their order.
    waiting: VecDeque<PendingReply>,
    /// How many of them, the last, have not been sent.
    unsent: usize,
    /// Answers cannot be counted any more.
    lost_count: bool,
    /// Marks every key then.
    all: Option<Mark>,
    within_push: bool,
}

/// A request that is not answered.
#[derive(Debug)]
struct PendingReply {
    mark: Option<Mark>,
    /// What it is counted as, if it is.
    request: Option<admission::Request>,
    sent: Nanos,
}

impl DedicatedWrites {
    pub(crate) fn new(marker: Rc<Marker>) -> Self {
        Self {
            marker,
            // So that an answer is told from this, however it is cut.
            replies: Replies::new(QUEUED.len()),
            rest: Buffer::default(),
            waiting: VecDeque::new(),
            unsent: 0,
            lost_count: false,
            all: None,
            within_push: false,
        }
    }

    /// A request is about to be sent that has this mark, if it may write, and one answer, if `has_one_answer`; its answer
    /// is told as that of `request`.
    pub(crate) fn ask(
        &mut self,
        mark: Option<Mark>,
        has_one_answer: bool,
        request: Option<admission::Request>,
    ) {
        self.lost_count |= !has_one_answer || self.waiting.len() >= MOST_WAITING;
        if !self.lost_count {
            self.waiting.push_back(PendingReply { mark, request, sent: Nanos::MAX });
            self.unsent += 1;
        } else if mark.is_some() && self.all.is_none() {
            self.all = Some(self.marker.mark_all());
        }
    }

    /// All of them are sent now.
    pub(crate) fn send(&mut self, now: Nanos) {
        let unsent = std::mem::take(&mut self.unsent);
        self.waiting.iter_mut().rev().take(unsent).for_each(|waiting| waiting.sent = now);
    }

    /// Whether an answer is due, or the store may say something at any time.
    pub(crate) fn awaits_store(&self) -> bool {
        self.lost_count || !self.waiting.is_empty()
    }

    /// How much memory this takes.
    pub(crate) fn memory(&self) -> usize {
        self.rest.memory() + self.waiting.capacity() * size_of::<PendingReply>()
    }

    /// Gives back memory that nothing is in, if it is much.
    pub(crate) fn release(&mut self) {
        self.rest.release();
        if self.waiting.is_empty() && self.waiting.capacity() > FEW {
            self.waiting = VecDeque::new();
        }
    }

    /// The store has sent this: tells which requests that answers, but for those that it has only put into a
    /// transaction, and when they were sent.
    pub(crate) fn hear(&mut self, bytes: &[u8], mut answered: impl FnMut(admission::Request, Nanos)) {
        if self.lost_count {
            return;
        }
        self.rest.push(bytes);
        while !self.rest.is_empty() {
            let (len, push, last) = match self.replies.next(self.rest.bytes()) {
                Ok(Part::More { .. }) => return,
                Ok(Part::Reply { len, kind, last }) => (len, kind == Kind::Push, last),
                Ok(Part::Body { len, last }) => (len, self.within_push, last),
                Err(_) => return self.stop_counting(),
            };
            let is_done = self.rest.bytes().get(..len) != Some(QUEUED);
            self.rest.consume(len);
            self.within_push = push && !last;
            if last && !push {
                let Some(PendingReply { mark, request, sent }) = self.waiting.pop_front() else {
                    return self.stop_counting();
                };
                mark.into_iter().for_each(Mark::over);
                request.filter(|_| is_done).into_iter().for_each(|request| answered(request, sent));
            }
        }
    }

    fn stop_counting(&mut self) {
        self.lost_count = true;
        self.rest.clear();
    }
}

/// What the store says of a request that is part of a transaction.
const QUEUED: &[u8] = b"+QUEUED\r\n";
/// Most clients have no more unanswered.
const FEW: usize = 64;

/// A client that has asked so much and reads no answer.
const MOST_WAITING: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::versions::Versions;
    use super::*;
    use crate::policy::Tier;

    struct Scene {
        versions: Arc<Versions>,
        marker: Rc<Marker>,
        apart: DedicatedWrites,
    }

    impl Scene {
        fn new() -> Self {
            let versions = Arc::new(Versions::new(1));
            let marker = Marker::new(Arc::clone(&versions));
            Self { versions, apart: DedicatedWrites::new(Rc::clone(&marker)), marker }
        }

        fn write(&mut self, key: &str) {
            let mark = self.marker.mark(std::iter::once(key.as_bytes()));
            self.apart.ask(Some(mark), true, None);
        }

        /// The query types that are told to be answered, and when they were sent.
        fn hear(&mut self, bytes: &[u8]) -> Vec<(u16, u64)> {
            let mut told = Vec::new();
            self.apart.hear(bytes, |request, sent| told.push((request.query_type.0, sent.0)));
            told
        }

        fn blocked(&self, key: &str) -> bool {
            self.versions.of(self.versions.hash(key.as_bytes())).is_none()
        }
    }

    #[test]
    fn a_mark_goes_with_its_own_answer_wherever_the_stream_is_cut() {
        let answers = b">2\r\n+push\r\n$3\r\na\r\n\r\n$5\r\nhello\r\n*2\r\n:1\r\n$-1\r\n+OK\r\n";
        for cut in 0..answers.len() {
            let mut scene = Scene::new();
            scene.write("a");
            scene.apart.ask(None, true, None);
            scene.write("b");
            scene.hear(&answers[..cut]);
            let after = answers[..cut].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(scene.blocked("a"), after < 7, "{cut}");
            assert!(scene.blocked("b"), "{cut}");
            scene.hear(&answers[cut..]);
            assert!(!scene.blocked("a") && !scene.blocked("b"), "{cut}");
            assert!(!scene.apart.lost_count);
        }
    }

    #[test]
    fn where_answers_cannot_be_counted_a_write_blocks_all_keys_to_the_end_and_beyond() {
        let mut scene = Scene::new();
        scene.apart.ask(None, false, None);
        scene.hear(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n+OK\r\n");
        assert!(!scene.blocked("other"));
        scene.write("a");
        assert!(scene.blocked("other"));
        let Scene { versions, marker, apart } = scene;
        drop(apart);
        let blocked = |now: u64| {
            marker.housekeeping(Nanos(now), Nanos::from_secs(1));
            versions.of(versions.hash(b"other")).is_none()
        };
        assert!(blocked(1) && blocked(1_000_000_000) && !blocked(1_000_000_001));
    }

    #[test]
    fn answers_are_told_of_their_requests_but_for_what_is_only_queued_and_what_cannot_be_counted() {
        let mut scene = Scene::new();
        let of = |query_type| {
            Some(admission::Request { tier: Tier::Standard, query_type: admission::QueryType(query_type) })
        };
        for (request, sent) in [(of(1), 10), (None, 20), (of(2), 30), (None, 40)] {
            scene.apart.ask(None, true, request);
            scene.apart.send(Nanos(sent));
        }
        assert_eq!(scene.hear(b"$3\r\nab"), []);
        assert_eq!(scene.hear(b"c\r\n+OK\r\n+QUEU"), [(1, 10)]);
        assert_eq!(scene.hear(b"ED\r\n*1\r\n:1\r\n"), []);
        // Sent together.
        [of(3), of(4)].into_iter().for_each(|request| scene.apart.ask(None, true, request));
        scene.apart.send(Nanos(50));
        assert_eq!(scene.hear(b":1\r\n-ERR no\r\n"), [(3, 50), (4, 50)]);
        scene.apart.ask(None, false, of(5));
        scene.apart.ask(None, true, of(6));
        assert_eq!(scene.hear(b":1\r\n:1\r\n"), []);
    }

    #[test]
    fn an_answer_that_no_one_asked_for_ends_the_count() {
        let mut scene = Scene::new();
        scene.hear(b"+OK\r\n");
        scene.write("a");
        scene.hear(b"+OK\r\n");
        assert!(scene.blocked("a") && scene.blocked("other"));
    }
}
