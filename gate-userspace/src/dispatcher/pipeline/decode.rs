//! Takes the requests out of a client's input, one after the other, as long as the client has room for their replies and its
//! task has a budget.

use std::rc::Rc;

use gate_common::units::Nanos;

use super::request::NextStep;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::clients::conversation::{ConnectionMode, Conversation};
use crate::dispatcher::clients::refusal_pace::Work;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::parts::MOST_PARTS;
use crate::protocol::Step;

impl<W: Wire> Service<W> {
    /// True if a client is read: it may have more replies outstanding, and no order of keys holds it back.
    #[inline]
    pub(crate) fn has_room(&self, client: &Session<W>, replies: &Replies) -> bool {
        let limits = self.limits.get();
        // What waits for the rest of a datagram's answer leaves no earlier for being waited for.
        let output_limit = match client.datagram() {
            Some(_) => usize::MAX,
            None if client.memory_share.is_tight() => 1,
            None => PAUSE_OUTPUT,
        };
        replies.outstanding() < limits.max_depth
            && replies.parts() < MOST_PARTS
            && replies.waiting() < output_limit.min(limits.max_output)
            && !client.size_question.get().is_pending()
            && !client.order.waits()
            && !(client.awaits_lane.get() && replies.outstanding() > 0)
    }

    /// Takes all requests out of `input` that are there, have room and are within the task's budget; returns how many bytes
    /// that took.
    pub(crate) fn requests(
        &self,
        client: &Rc<Session<W>>,
        conversation: &mut Conversation<W>,
        input: &[u8],
    ) -> usize {
        let now = clock::monotonic();
        self.ledger.borrow_mut().refresh();
        if conversation.replies.outstanding() == 0 {
            client.choose_connection(now);
        }
        let mut taken = 0;
        let mut work = Work::default();
        // The last one; of a request, the same bytes behind it are the same request.
        let mut step = Step::More { want: 0 };
        conversation.want = 0;
        while !conversation.closing && conversation.next_mode == ConnectionMode::Shared {
            if conversation.budget.is_spent() || !self.has_room(client, &conversation.replies) {
                conversation.decode_paused = taken < input.len();
                break;
            }
            let rest = &input[taken..];
            if !matches!(step, Step::Request { len, .. } if rest.starts_with(&input[taken - len..taken])) {
                step = W::decode(&mut conversation.decoder, rest);
            }
            let before = taken;
            let is_refused = match &step {
                Step::More { want } => {
                    conversation.want = *want;
                    break;
                }
                Step::Request { request, .. } if client.datagram().is_some() && W::is_streamed(request) => {
                    // The rest of it cannot come.
                    break;
                }
                Step::Request { len, request } => {
                    let end = self.take_request(client, conversation, request, &rest[..*len], now);
                    if end == Taken::Left {
                        self.split_work.take();
                        break;
                    }
                    taken += len;
                    if W::is_streamed(request) {
                        // Its body may look like another.
                        step = Step::More { want: 0 };
                    }
                    end == Taken::Refused
                }
                // A refused value: a datagram ends with it, whatever is behind.
                Step::Skip { .. } if client.datagram().is_some() => {
                    conversation.closing = true;
                    break;
                }
                // Bodies are of requests that were refused.
                Step::Skip { len } | Step::Body { len, .. } => {
                    taken += len;
                    true
                }
                Step::Fault { len, fault } => {
                    taken += len;
                    let seq = conversation.replies.open();
                    self.fault(client, conversation, seq, fault, now);
                    true
                }
            };
            let len = taken - before + self.split_work.take();
            conversation.budget.count_request(len);
            work.count(is_refused, len);
        }
        self.count_work(client, work);
        client.set_outstanding(conversation.replies.outstanding());
        taken
    }

    /// Counts what was decoded at once.
    #[inline]
    fn count_work(&self, client: &Session<W>, work: Work) {
        if client.datagram().is_none() {
            let mut pace = self.refusal_pace.borrow_mut();
            pace.count(client.pace_key(), work);
            if !work.has_no_refusals() {
                client.last_refused.set(pace.round());
            }
        }
    }

    /// True if a client is not read until the next round, since its tenant's requests are refused too often
    /// ([`crate::dispatcher::clients::refusal_pace`]). It is woken then.
    #[inline]
    pub(crate) fn holds(&self, client: &Rc<Session<W>>) -> bool {
        if client.is_held.get() {
            return true;
        }
        let payer = client.pace_key();
        let mut pace = self.refusal_pace.borrow_mut();
        if !pace.is_spent(payer) {
            return false;
        }
        client.is_held.set(true);
        let had_turn = client.last_refused.get() == pace.round();
        pace.wait(payer, Rc::clone(client), had_turn);
        self.metrics.count(Event::ReadPaused);
        true
    }

    /// Has clients read again that were held.
    pub(crate) fn release_held(&self) {
        self.refusal_pace.borrow_mut().next_round(|client| {
            client.is_held.set(false);
            client.wake();
        });
    }

    /// Takes a request out of `taken`, its part of the input.
    #[inline(always)]
    fn take_request(
        &self,
        client: &Rc<Session<W>>,
        conversation: &mut Conversation<W>,
        request: &W::Request,
        taken: &[u8],
        now: Nanos,
    ) -> Taken {
        let bytes = W::bytes(&conversation.decoder, request, taken);
        match self.request(client, &mut conversation.replies, request, bytes, now) {
            NextStep::Continue => {}
            NextStep::Refused => return Taken::Refused,
            NextStep::StreamBody => conversation.next_mode = ConnectionMode::Streaming,
            NextStep::Close => conversation.closing = true,
            NextStep::Wait => {
                if W::is_streamed(request) {
                    // The decoder is past its head.
                    conversation.decoder = W::decoder(self.settings.max_request());
                }
                conversation.decode_paused = true;
                return Taken::Left;
            }
            NextStep::Switch(to) => {
                conversation.next_mode = to;
                return Taken::Left;
            }
        }
        Taken::Served
    }
}

/// The end of a request in a client's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// Admitted, or refused for the store's sake.
    Served,
    /// Refused for its tenant's.
    Refused,
    /// Left in the input: it waits, or needs another mode.
    Left,
}

/// A client with so many bytes of replies waiting is not read.
const PAUSE_OUTPUT: usize = 256 << 10;
