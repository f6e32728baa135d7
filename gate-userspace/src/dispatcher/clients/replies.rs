//! One client's replies, in the order of its requests.
//!
//! **Problem.** What the store answers, what the gate answers by itself and what another connection's
//! read brings back become ready in any order; the client must get them in the order in which it asked.
//!
//! **Invariants.** A reply's bytes reach the output only after every earlier reply is complete. While
//! replies become ready in order, which is the rule, bytes go straight to the output and nothing is
//! allocated. Pure: no socket, no clock.

use std::collections::VecDeque;

use crate::dispatcher::request::SeqNo;
use crate::dispatcher::wire::buffer::Buffer;
use crate::protocol::Refusal;

/// The replies of one client.
#[derive(Debug)]
pub(crate) struct Replies {
    /// How refusals are written in the client's protocol.
    write_refusal: fn(Refusal, &mut Vec<u8>),
    /// The place of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// The places of slots that are no request's own: the next one with a place of its own ends the reply.
    parts: VecDeque<u64>,
    /// Ready to be sent.
    pub(crate) output: Buffer,
    /// Bytes held back in slots.
    slot_bytes: usize,
}

/// One reply that is not yet in the output, or not whole.
#[derive(Debug)]
enum Slot {
    /// Nothing yet, or, in the first slot, a part that is in the output already.
    Open,
    /// A part that came before its turn.
    Part(Vec<u8>),
    /// Whole, before its turn.
    Whole(Vec<u8>),
    /// The gate's own answer, before its turn.
    Refused(Refusal),
}

impl Replies {
    pub(crate) fn new(write_refusal: fn(Refusal, &mut Vec<u8>)) -> Self {
        Self {
            write_refusal,
            first: 0,
            slots: VecDeque::new(),
            parts: VecDeque::new(),
            output: Buffer::default(),
            slot_bytes: 0,
        }
    }

    /// Requests without a whole reply, and replies before their turn.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.parts.len()
    }

    /// Places that are parts' of requests.
    #[inline]
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The place that the next request will have.
    #[inline]
    pub(crate) fn next(&self) -> SeqNo {
        SeqNo(self.first + self.slots.len() as u64)
    }

    /// The place of the first request without a whole reply.
    #[inline]
    pub(crate) fn first(&self) -> SeqNo {
        SeqNo(self.first)
    }

    /// Bytes that wait for the client, ready or not.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.output.len() + self.slot_bytes
    }

    /// How much memory they take.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        self.output.memory()
            + self.slot_bytes
            + self.slots.capacity() * size_of::<Slot>()
            + self.parts.capacity() * size_of::<u64>()
    }

    /// The next request's place.
    #[inline]
    pub(crate) fn open(&mut self) -> SeqNo {
        let seq = self.next();
        self.slots.push_back(Slot::Open);
        seq
    }

    /// The slot that was opened last becomes the first of so many parts of a reply; opens the others, and one for its end.
    pub(crate) fn open_behind_parts(&mut self, count: u32) {
        for _ in 0..count {
            self.parts.push_back(self.next().0 - 1);
            self.open();
        }
    }

    /// Forgets a part of a reply that came before its turn. False if it may be in the output.
    pub(crate) fn take_back(&mut self, seq: SeqNo) -> bool {
        if seq.0 == self.first {
            return false;
        }
        if let Slot::Part(bytes) = std::mem::replace(self.slot(seq), Slot::Open) {
            self.slot_bytes -= bytes.len();
        }
        true
    }

    /// Forgets what has come of a reply before its turn.
    pub(crate) fn forget(&mut self, seq: SeqNo) {
        if let Slot::Part(bytes) | Slot::Whole(bytes) = self.slot(seq) {
            let bytes = std::mem::take(bytes);
            self.slot_bytes -= bytes.len();
        }
    }

    /// The next request's whole reply.
    #[inline]
    pub(crate) fn answer(&mut self, bytes: &[u8]) {
        if self.slots.is_empty() {
            self.output.push(bytes);
            self.first += 1;
        } else {
            self.slot_bytes += bytes.len();
            self.slots.push_back(Slot::Whole(bytes.to_vec()));
        }
    }

    /// Adds a part of a reply.
    #[inline]
    pub(crate) fn part(&mut self, seq: SeqNo, bytes: &[u8]) {
        if seq.0 == self.first {
            self.output.push(bytes);
            return;
        }
        self.slot_bytes += bytes.len();
        match self.slot(seq) {
            Slot::Part(part) => part.extend_from_slice(bytes),
            slot => *slot = Slot::Part(bytes.to_vec()),
        }
    }

    /// A reply is whole; one that never had a part is silent.
    #[inline]
    pub(crate) fn whole(&mut self, seq: SeqNo) {
        if seq.0 == self.first {
            self.advance();
            return;
        }
        let slot = self.slot(seq);
        *slot = match std::mem::replace(slot, Slot::Open) {
            Slot::Part(bytes) => Slot::Whole(bytes),
            _ => Slot::Whole(Vec::new()),
        };
    }

    /// The reply is a refusal; no part of it may have been added before.
    pub(crate) fn refuse(&mut self, seq: SeqNo, refusal: Refusal) {
        if seq.0 == self.first {
            self.output.append(|out| (self.write_refusal)(refusal, out));
            self.advance();
        } else {
            *self.slot(seq) = Slot::Refused(refusal);
        }
    }

    /// Forgets buffers that nothing is in.
    pub(crate) fn release(&mut self) {
        self.output.release();
        if self.slots.is_empty() {
            self.slots = VecDeque::new();
            self.parts = VecDeque::new();
        }
    }

    /// Frees the bytes of all replies, ready or not: the client is not sent them.
    pub(crate) fn discard(&mut self) {
        self.output = Buffer::default();
        self.slots.iter_mut().for_each(|slot| *slot = Slot::Open);
        self.slot_bytes = 0;
    }

    fn slot(&mut self, seq: SeqNo) -> &mut Slot {
        let index = usize::try_from(seq.0 - self.first).expect("slots are in memory");
        &mut self.slots[index]
    }

    /// The first reply is whole: those behind it that are ready follow.
    fn advance(&mut self) {
        self.next_slot();
        while let Some(slot) = self.slots.front_mut() {
            match slot {
                Slot::Open => return,
                Slot::Part(bytes) => {
                    self.slot_bytes -= bytes.len();
                    self.output.push(bytes);
                    *slot = Slot::Open;
                    return;
                }
                Slot::Whole(bytes) => {
                    self.slot_bytes -= bytes.len();
                    self.output.push(bytes);
                }
                Slot::Refused(refusal) => self.output.append(|out| (self.write_refusal)(*refusal, out)),
            }
            self.next_slot();
        }
    }

    #[inline]
    fn next_slot(&mut self) {
        self.slots.pop_front();
        if self.parts.front() == Some(&self.first) {
            self.parts.pop_front();
        }
        self.first += 1;
    }
}

#[cfg(test)]
mod tests {
    use gate_common::abi::Reason;
    use proptest::prelude::*;

    use super::*;

    fn write_refusal(refusal: Refusal, out: &mut Vec<u8>) {
        out.extend_from_slice(refusal.reason.name().as_bytes());
    }

    /// Each request is answered in parts, refused or silent; `order` says whose turn it is to go on.
    #[derive(Clone, Debug)]
    enum Answer {
        Parts(Vec<Vec<u8>>),
        Refused,
        AtOnce(Vec<u8>),
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 0..4)
                .prop_map(Answer::Parts),
            Just(Answer::Refused),
            proptest::collection::vec(any::<u8>(), 0..5).prop_map(Answer::AtOnce),
        ]
    }

    #[test]
    fn what_is_discarded_takes_no_memory_and_keeps_its_place() {
        let mut replies = Replies::new(write_refusal);
        let [first, second, third] = [(); 3].map(|()| replies.open());
        let slots = replies.memory();
        replies.part(first, &[b'a'; 1_000_000]);
        replies.part(second, &[b'b'; 1_000_000]);
        replies.part(third, &[b'c'; 1_000_000]);
        replies.whole(third);
        replies.discard();
        assert_eq!((replies.memory(), replies.waiting(), replies.outstanding()), (slots, 0, 3));
    }

    proptest! {
        #[test]
        fn replies_leave_in_the_order_of_their_requests(
            answers in proptest::collection::vec(answer(), 1..12),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..200),
        ) {
            let mut replies = Replies::new(write_refusal);
            let mut expected = Vec::new();
            for answer in &answers {
                match answer {
                    Answer::Parts(parts) => expected.extend(parts.concat()),
                    Answer::Refused => expected.extend(b"quota"),
                    Answer::AtOnce(bytes) => expected.extend(bytes),
                }
            }
            let mut next: Vec<Option<usize>> = Vec::new();
            let permits: Vec<SeqNo> = answers.iter().map(|answer| {
                let seq = replies.next();
                let waits = if let Answer::AtOnce(bytes) = answer {
                    replies.answer(bytes);
                    None
                } else {
                    assert_eq!(replies.open(), seq);
                    Some(0)
                };
                next.push(waits);
                seq
            }).collect();
            let mut sent = replies.output.bytes().to_vec();
            replies.output.clear();
            let turns = order.iter().map(|index| index.index(answers.len()));
            // Whatever the order left undone is done at the end, the last request first.
            let rest = (0..answers.len()).rev().flat_map(|i| std::iter::repeat_n(i, 5));
            for i in turns.chain(rest) {
                let Some(step) = next[i] else { continue };
                next[i] = None;
                match &answers[i] {
                    Answer::AtOnce(_) => unreachable!("it is answered"),
                    Answer::Refused => replies.refuse(permits[i], Refusal::of(Reason::Quota)),
                    Answer::Parts(parts) if step == parts.len() => replies.whole(permits[i]),
                    Answer::Parts(parts) => {
                        replies.part(permits[i], &parts[step]);
                        next[i] = Some(step + 1);
                    }
                }
                sent.extend_from_slice(replies.output.bytes());
                replies.output.clear();
                prop_assert_eq!(&expected[..sent.len()], &sent);
            }
            prop_assert_eq!(sent, expected);
            prop_assert_eq!((replies.outstanding(), replies.waiting()), (0, 0));
        }
    }
}
