//! Marks of what a client writes on a connection of its own.
//!
//! What comes back there is passed on as it is; here it is only counted, so that each write's mark goes with its
//! answer. A transaction's commands are answered before they are done, but `EXEC`, which does them, marks
//! every key. Where answers cannot be counted (subscriptions, `MONITOR`, `CLIENT REPLY`, replication, or a
//! client that asks without end), all keys stay marked from the next write on until the connection ends, and for
//! the store's timeout after it.

use std::collections::VecDeque;
use std::rc::Rc;

use super::versions::{Mark, Marker};
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::resp::{Kind, Part, Replies};

/// One connection's. Only Redis' clients have any of their own.
#[derive(Debug)]
pub(in crate::dispatcher) struct Apart {
    marker: Rc<Marker>,
    replies: Replies,
    /// Received, and too little to make sense of.
    rest: Buffer,
    /// Requests that are not answered, in their order, and their marks.
    waiting: VecDeque<Option<Mark>>,
    /// Answers cannot be counted any more.
    lost_count: bool,
    /// Marks every key then.
    all: Option<Mark>,
    within_push: bool,
}

impl Apart {
    pub(in crate::dispatcher) fn new(marker: Rc<Marker>) -> Self {
        Self {
            marker,
            replies: Replies::new(0),
            rest: Buffer::default(),
            waiting: VecDeque::new(),
            lost_count: false,
            all: None,
            within_push: false,
        }
    }

    /// A request is about to be sent that has this mark, if it may write, and one answer, if `is_counted`.
    pub(in crate::dispatcher) fn ask(&mut self, mark: Option<Mark>, is_counted: bool) {
        self.lost_count |= !is_counted || self.waiting.len() >= MOST_WAITING;
        if !self.lost_count {
            self.waiting.push_back(mark);
        } else if mark.is_some() && self.all.is_none() {
            self.all = Some(self.marker.mark_all());
        }
    }

    /// The store has sent this.
    pub(in crate::dispatcher) fn hear(&mut self, bytes: &[u8]) {
        if self.lost_count {
            return;
        }
        self.rest.push(bytes);
        while !self.rest.is_empty() {
            let (len, push, last) = match self.replies.next(self.rest.bytes()) {
                Ok(Part::More { .. }) => return,
                Ok(Part::Reply { len, kind, last }) => (len, kind == Kind::Push, last),
                Ok(Part::Body { len, last }) => (len, self.within_push, last),
                Err(_) => return self.lose_count(),
            };
            self.rest.consume(len);
            self.within_push = push && !last;
            if last && !push {
                match self.waiting.pop_front() {
                    Some(mark) => mark.into_iter().for_each(Mark::over),
                    None => return self.lose_count(),
                }
            }
        }
    }

    fn lose_count(&mut self) {
        self.lost_count = true;
        self.rest.clear();
    }
}

/// A client that has asked so much and reads no answer.
const MOST_WAITING: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gate_common::units::Nanos;

    use super::super::versions::Versions;
    use super::*;

    struct Scene {
        versions: Arc<Versions>,
        marker: Rc<Marker>,
        apart: Apart,
    }

    impl Scene {
        fn new() -> Self {
            let versions = Arc::new(Versions::new(1));
            let marker = Marker::new(Arc::clone(&versions));
            Self { versions, apart: Apart::new(Rc::clone(&marker)), marker }
        }

        fn write(&mut self, key: &str) {
            let mark = self.marker.mark(std::iter::once(key.as_bytes()));
            self.apart.ask(Some(mark), true);
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
            scene.apart.ask(None, true);
            scene.write("b");
            scene.apart.hear(&answers[..cut]);
            let after = answers[..cut].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(scene.blocked("a"), after < 7, "{cut}");
            assert!(scene.blocked("b"), "{cut}");
            scene.apart.hear(&answers[cut..]);
            assert!(!scene.blocked("a") && !scene.blocked("b"), "{cut}");
            assert!(!scene.apart.lost_count);
        }
    }

    #[test]
    fn where_answers_cannot_be_counted_a_write_blocks_all_keys_to_the_end_and_beyond() {
        let mut scene = Scene::new();
        scene.apart.ask(None, false);
        scene.apart.hear(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n+OK\r\n");
        assert!(!scene.blocked("other"));
        scene.write("a");
        assert!(scene.blocked("other"));
        let Scene { versions, marker, apart } = scene;
        drop(apart);
        let blocked = |now: u64| {
            marker.tidy(Nanos(now), Nanos::from_secs(1));
            versions.of(versions.hash(b"other")).is_none()
        };
        assert!(blocked(1) && blocked(1_000_000_000) && !blocked(1_000_000_001));
    }

    #[test]
    fn an_answer_that_no_one_asked_for_ends_the_count() {
        let mut scene = Scene::new();
        scene.apart.hear(b"+OK\r\n");
        scene.write("a");
        scene.apart.hear(b"+OK\r\n");
        assert!(scene.blocked("a") && scene.blocked("other"));
    }
}
