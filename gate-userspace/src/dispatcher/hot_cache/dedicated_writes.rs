//! Requests over a dedicated connection that are not answered, and the marks of those that write.
//!
//! The store's replies there are forwarded unchanged. Here they are only counted, so that each write's mark goes with
//! its answer, and so that its latency is known. A transaction's commands are answered before they are done: `EXEC`,
//! which does them, marks the keys of all of them. Where answers cannot be counted (subscriptions, `MONITOR`,
//! `CLIENT REPLY SKIP`, replication, or a client with too many requests outstanding), a write is one without an answer: its
//! keys, and no others, stay marked for the store's timeout.
//!
//! **Silence.** After `CLIENT REPLY OFF` there are no answers, until `CLIENT REPLY ON` is answered: then they are counted again. If
//! anything comes before that, or the answer is not that of a `CLIENT REPLY ON`, the store has taken one of the two otherwise, and
//! answers cannot be counted any more.

use std::collections::VecDeque;

use gate_common::units::Nanos;

use super::versions::Mark;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::resp::{Kind, Part, Replies, rows};

/// The requests of one connection that are not answered. `T` is what is kept of each. Only Redis' clients have dedicated
/// connections.
#[derive(Debug)]
pub(crate) struct DedicatedWrites<T> {
    replies: Replies,
    /// Received, and too short to decode.
    rest: Buffer,
    /// Requests that are not answered, in their order.
    waiting: VecDeque<PendingReply<T>>,
    /// The number of them, the last, that have not been sent.
    unsent: usize,
    count: Count,
    /// The reply that has begun, if its end has not come.
    partial: Option<PartialReply>,
}

/// The match of replies to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Each request has one.
    Known,
    /// The client wants none.
    Silent,
    /// The next is the first one after a silence.
    Resuming,
    /// Replies may be anybody's.
    Lost,
}

/// A request that is not answered.
#[derive(Debug)]
struct PendingReply<T> {
    mark: Option<Mark>,
    request: T,
    sent: Nanos,
}

/// A reply of which a part has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartialReply {
    Push,
    Reply(DedicatedReply),
}

/// A reply, or as much of it as has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DedicatedReply {
    pub(crate) start: ReplyStart,
    /// The rows that it shows.
    pub(crate) rows: u32,
    /// Its length.
    pub(crate) bytes: usize,
}

/// The outcome of a request, as the beginning of its reply shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyStart {
    /// The request has only become part of a transaction.
    Queued,
    /// The request failed, other than a transaction that is aborted as a whole.
    Failed,
    Done,
}

impl<T> DedicatedWrites<T> {
    pub(crate) fn new() -> Self {
        Self {
            // So that the beginnings below are told, however they are cut.
            replies: Replies::new(ABORTED.len()),
            rest: Buffer::default(),
            waiting: VecDeque::new(),
            unsent: 0,
            count: Count::Known,
            partial: None,
        }
    }

    /// Adds a request that is about to be sent. It has this mark, if it may write, and one reply, if `has_one_reply`.
    pub(crate) fn push(&mut self, mark: Option<Mark>, has_one_reply: bool, request: T) {
        if !has_one_reply || self.waiting.len() >= MOST_WAITING {
            self.stop_counting();
        }
        if self.has_lost_count() {
            // Without an answer it stays for the store's timeout.
            return drop(mark);
        }
        self.waiting.push_back(PendingReply { mark, request, sent: Nanos::MAX });
        self.unsent += 1;
    }

    /// All requests are sent now.
    pub(crate) fn on_sent(&mut self, now: Nanos) {
        let unsent = std::mem::take(&mut self.unsent);
        self.waiting.iter_mut().rev().take(unsent).for_each(|waiting| waiting.sent = now);
    }

    /// The number of requests that are not answered; 0 once replies cannot be counted.
    pub(crate) fn len(&self) -> usize {
        if self.has_lost_count() { 0 } else { self.waiting.len() }
    }

    /// True while replies cannot be counted.
    pub(crate) fn has_lost_count(&self) -> bool {
        match self.count {
            Count::Known | Count::Resuming => false,
            Count::Silent | Count::Lost => true,
        }
    }

    /// The client wants no replies from now on. All that it has asked is answered; else its replies cannot be counted any more.
    pub(crate) fn silence(&mut self) {
        match self.count {
            Count::Known if self.waiting.is_empty() && self.is_between_replies() => {
                self.count = Count::Silent
            }
            Count::Silent | Count::Lost => {}
            Count::Known | Count::Resuming => self.stop_counting(),
        }
    }

    /// The client wants replies again: the next one is to this request. True if they could not be counted, and can be from then on.
    pub(crate) fn resume(&mut self) -> bool {
        let resumes = self.count == Count::Silent;
        if resumes {
            self.count = Count::Resuming;
        }
        resumes
    }

    /// The request whose reply is due, and when it was sent.
    pub(crate) fn first(&self) -> Option<(&T, Nanos)> {
        let first =
            self.waiting.front().filter(|_| !self.has_lost_count() && self.waiting.len() > self.unsent)?;
        Some((&first.request, first.sent))
    }

    /// The requests that are not answered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|waiting| &waiting.request)
    }

    /// Changes the requests that are not answered.
    pub(crate) fn for_each(&mut self, change: impl FnMut(&mut T)) {
        self.waiting.iter_mut().map(|waiting| &mut waiting.request).for_each(change);
    }

    /// True if a reply is due, or the store may send something at any time.
    pub(crate) fn awaits_store(&self) -> bool {
        self.has_lost_count() || !self.waiting.is_empty()
    }

    /// True if no part of a reply has come without its end.
    pub(crate) fn is_between_replies(&self) -> bool {
        !self.has_lost_count() && self.rest.is_empty() && self.partial.is_none()
    }

    /// The memory that this takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.rest.memory() + self.waiting.capacity() * size_of::<PendingReply<T>>()
    }

    /// Gives back memory that nothing is in, if it is much.
    pub(crate) fn release(&mut self) {
        self.rest.release();
        if self.waiting.is_empty() && self.waiting.capacity() > FEW {
            self.waiting = VecDeque::new();
        }
    }

    /// Bytes from the store. Calls `piece` for each piece of the reply to a request, and `answered` for each request whose reply they
    /// complete, with the time when it was sent.
    pub(crate) fn on_replies(
        &mut self,
        bytes: &[u8],
        mut piece: impl FnMut(&T, &[u8]),
        mut answered: impl FnMut(T, Nanos, DedicatedReply),
    ) {
        if self.has_lost_count() {
            if !bytes.is_empty() {
                self.stop_counting();
            }
            return;
        }
        self.rest.push(bytes);
        while !self.rest.is_empty() {
            let (len, begun, last) = match self.replies.next(self.rest.bytes()) {
                Ok(Part::More { .. }) => return,
                Ok(Part::Reply { kind: Kind::Push, len, last }) => (len, PartialReply::Push, last),
                Ok(Part::Reply { len, kind, last }) => {
                    (len, PartialReply::Reply(DedicatedReply::begin(kind, &self.rest.bytes()[..len])), last)
                }
                Ok(Part::Body { len, last }) => {
                    (len, self.partial.map_or(PartialReply::Push, |begun| begun.grown(len)), last)
                }
                Err(_) => return self.stop_counting(),
            };
            if let (PartialReply::Reply(_), Some(first)) = (begun, self.waiting.front()) {
                piece(&first.request, &self.rest.bytes()[..len]);
            }
            self.rest.consume(len);
            self.partial = (!last).then_some(begun);
            if let (true, PartialReply::Reply(reply)) = (last, begun) {
                let Some(PendingReply { mark, request, sent }) = self.waiting.pop_front() else {
                    return self.stop_counting();
                };
                mark.into_iter().for_each(Mark::over);
                if self.count == Count::Resuming {
                    match reply.start {
                        ReplyStart::Done => self.count = Count::Known,
                        ReplyStart::Queued | ReplyStart::Failed => self.stop_counting(),
                    }
                }
                answered(request, sent, reply);
            }
        }
    }

    /// From now on no request is answered, as far as can be told, nor are those that wait.
    fn stop_counting(&mut self) {
        self.count = Count::Lost;
        self.waiting.clear();
        self.unsent = 0;
        self.rest.clear();
    }
}

impl PartialReply {
    /// `len` bytes more have come.
    fn grown(self, len: usize) -> Self {
        match self {
            Self::Push => Self::Push,
            Self::Reply(reply) => Self::Reply(DedicatedReply { bytes: reply.bytes + len, ..reply }),
        }
    }
}

impl DedicatedReply {
    fn begin(kind: Kind, begun: &[u8]) -> Self {
        Self { start: ReplyStart::of(kind, begun), rows: rows(begun), bytes: begun.len() }
    }
}

impl ReplyStart {
    fn of(kind: Kind, start: &[u8]) -> Self {
        match kind {
            Kind::Simple if start == QUEUED => Self::Queued,
            Kind::Error if !start.starts_with(ABORTED) => Self::Failed,
            _ => Self::Done,
        }
    }
}

/// The reply to a request that has become part of a transaction.
const QUEUED: &[u8] = b"+QUEUED\r\n";
/// The beginning of the reply to `EXEC` if the transaction failed as a whole; it has ended then.
const ABORTED: &[u8] = b"-EXECABORT";
/// Most clients have no more unanswered.
const FEW: usize = 64;

/// A client that has asked so much and reads no answer.
const MOST_WAITING: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::super::versions::{Marker, Versions};
    use super::*;

    struct Scene {
        versions: Arc<Versions>,
        marker: Rc<Marker>,
        outstanding: DedicatedWrites<u16>,
    }

    impl Scene {
        fn new() -> Self {
            let versions = Arc::new(Versions::new(1));
            let marker = Marker::new(Arc::clone(&versions));
            Self { versions, outstanding: DedicatedWrites::new(), marker }
        }

        fn write(&mut self, key: &str) {
            let mark = self.marker.mark(std::iter::once(key.as_bytes()));
            self.outstanding.push(Some(mark), true, 0);
        }

        /// The requests that are answered, and when they were sent.
        fn receive(&mut self, bytes: &[u8]) -> Vec<(u16, u64, ReplyStart)> {
            let mut answered = Vec::new();
            self.outstanding.on_replies(
                bytes,
                |_, _| {},
                |request, sent, reply| answered.push((request, sent.0, reply.start)),
            );
            answered
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
            scene.outstanding.push(None, true, 0);
            scene.write("b");
            scene.receive(&answers[..cut]);
            let after = answers[..cut].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(scene.blocked("a"), after < 7, "{cut}");
            assert!(scene.blocked("b"), "{cut}");
            scene.receive(&answers[cut..]);
            assert!(!scene.blocked("a") && !scene.blocked("b"), "{cut}");
            assert!(!scene.outstanding.has_lost_count());
        }
    }

    #[test]
    fn an_uncounted_write_blocks_its_own_keys_for_a_time() {
        let mut scene = Scene::new();
        scene.write("before");
        scene.outstanding.push(None, false, 0);
        scene.receive(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n+OK\r\n");
        scene.write("a");
        for now in [1, 1_000_000_000] {
            scene.marker.housekeeping(Nanos(now), Nanos::from_secs(1));
            assert!(scene.blocked("before") && scene.blocked("a") && !scene.blocked("other"));
        }
        // Also while its client stays connected.
        scene.marker.housekeeping(Nanos(1_000_000_001), Nanos::from_secs(1));
        assert!(!scene.blocked("before") && !scene.blocked("a"));
    }

    #[test]
    fn replies_are_matched_to_requests_until_they_cannot_be_counted() {
        use ReplyStart::{Done, Failed, Queued};
        let mut scene = Scene::new();
        for (request, sent) in [(1, 10), (2, 20), (3, 30), (4, 40)] {
            scene.outstanding.push(None, true, request);
            scene.outstanding.on_sent(Nanos(sent));
        }
        assert_eq!(scene.outstanding.first(), Some((&1, Nanos(10))));
        assert_eq!(scene.receive(b"$3\r\nab"), []);
        assert!(!scene.outstanding.is_between_replies());
        assert_eq!(scene.receive(b"c\r\n+OK\r\n+QUEU"), [(1, 10, Done), (2, 20, Done)]);
        assert_eq!(scene.receive(b"ED\r\n*1\r\n:1\r\n"), [(3, 30, Queued), (4, 40, Done)]);
        assert!(scene.outstanding.is_between_replies() && scene.outstanding.first().is_none());
        // Sent together.
        [3, 4, 5].into_iter().for_each(|request| scene.outstanding.push(None, true, request));
        assert!(scene.outstanding.first().is_none(), "nothing is sent");
        scene.outstanding.on_sent(Nanos(50));
        assert_eq!(scene.receive(b":1\r\n-ERR no\r\n-EXECABORT "), [(3, 50, Done), (4, 50, Failed)]);
        assert_eq!(scene.receive(b"Transaction discarded\r\n"), [(5, 50, Done)]);
        scene.outstanding.push(None, false, 5);
        scene.outstanding.push(None, true, 6);
        assert_eq!(scene.receive(b":1\r\n:1\r\n"), []);
        assert_eq!(scene.outstanding.len(), 0);
    }

    #[test]
    fn a_reply_shows_its_length_and_rows_wherever_it_is_cut() {
        let replies = b">1\r\n+push\r\n*3\r\n$12\r\nabcdefghijkl\r\n:1\r\n:2\r\n$1\r\na\r\n";
        for cut in 0..replies.len() {
            let mut scene = Scene::new();
            let mut found = Vec::new();
            (0..2).for_each(|request| scene.outstanding.push(None, true, request));
            let mut pieces = [Vec::new(), Vec::new()];
            for part in [&replies[..cut], &replies[cut..]] {
                scene.outstanding.on_replies(
                    part,
                    |&request, piece| pieces[usize::from(request)].extend_from_slice(piece),
                    |request, _, reply| found.push((request, reply.rows, reply.bytes)),
                );
            }
            assert_eq!(found, [(0, 3, 31), (1, 0, 7)], "{cut}");
            assert_eq!(pieces.concat(), &replies[b">1\r\n+push\r\n".len()..], "{cut}");
            assert_eq!(pieces.map(|pieces| pieces.len()), [31, 7], "{cut}");
        }
    }

    #[test]
    fn a_silence_ends_with_the_answer_to_the_request_that_ends_it() {
        let silent = || {
            let mut scene = Scene::new();
            scene.outstanding.silence();
            scene.write("a");
            assert!(scene.outstanding.has_lost_count() && scene.blocked("a"));
            scene
        };
        for (answers, is_known) in [
            ("+OK\r\n", true),
            ("+QUEUED\r\n", false),
            ("-NOPERM no\r\n", false),
            ("-NOPERM no\r\n+OK\r\n", false),
            ("+OK\r\n+OK\r\n", false),
        ] {
            let mut scene = silent();
            assert!(scene.outstanding.resume());
            scene.outstanding.push(None, true, 1);
            scene.receive(answers.as_bytes());
            assert_eq!(!scene.outstanding.has_lost_count(), is_known, "{answers}");
        }
        let mut scene = silent();
        scene.receive(b"-NOPERM no\r\n");
        assert!(!scene.outstanding.resume(), "it was none");
        let mut scene = Scene::new();
        scene.write("a");
        scene.outstanding.silence();
        assert!(!scene.outstanding.resume(), "an answer is missing");
    }

    #[test]
    fn an_answer_that_no_one_asked_for_ends_the_count() {
        let mut scene = Scene::new();
        scene.receive(b"+OK\r\n");
        scene.write("a");
        scene.receive(b"+OK\r\n");
        assert!(scene.blocked("a") && !scene.blocked("other"), "its answer is not known to be its own");
    }
}
