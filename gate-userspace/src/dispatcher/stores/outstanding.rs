//! What is on its way over one connection to the store: requests that are gathered or sent, and their answers.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;

use gate_common::units::{MilliRu, Nanos};
use tokio::net::TcpStream;

use super::error::StoreError;
use super::health::Health;
use crate::dispatcher::clients::client::{Client, CloseCause};
use crate::dispatcher::clients::replies::SeqNo;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::metrics::cost_samples::{CostFeatures, ReplyBatch};
use crate::dispatcher::pipeline::{Answered, Service};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Answer, Link, Ttl, Wire};
use crate::policy::admission;

/// One connection's.
#[derive(Debug)]
pub(crate) struct Outstanding<W: Wire> {
    pub(crate) health: Health,
    pub(crate) link: W::Link,
    /// Gathered, not yet sent.
    pub(crate) out: Buffer,
    /// Requests that are not wholly answered, sent or only gathered.
    pub(crate) waiting: VecDeque<Waiting<W>>,
    /// How many of these have been sent.
    pub(crate) sent: usize,
    /// The last write left something over.
    pub(crate) blocked: bool,
    /// The first of these has been answered in part.
    pub(crate) reply_started: bool,
    /// Received, and too little to make sense of.
    pub(crate) input: Buffer,
    /// What has come of the first of those that wait.
    pub(crate) heard: usize,
    /// Answered last, and not yet observed.
    pub(crate) unobserved: Option<Answered>,
    /// What the last read has answered, where somebody learns from that; and when the one before did.
    pub(crate) answers: ReplyBatch,
    pub(crate) answered: Nanos,
    /// When the store last sent anything.
    pub(crate) last_read: Nanos,
    /// Requests that may take long, of those that wait.
    pub(crate) slow: usize,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Waiting<W: Wire> {
    pub(crate) client: Rc<Client<W>>,
    /// Who is charged, and what it has paid; nothing for what is nobody's own.
    pub(crate) tenant: TenantId,
    pub(crate) paid: MilliRu,
    pub(crate) seq: SeqNo,
    pub(crate) expect: <W::Link as Link>::Expect,
    /// When it was let in, and when it was sent.
    pub(crate) admitted: Nanos,
    pub(crate) since: Nanos,
    pub(crate) request: admission::Request,
    pub(crate) features: CostFeatures,
    pub(crate) silent: bool,
    /// Whether it may take the store long.
    pub(crate) is_slow: bool,
    pub(crate) cache_role: CacheRole,
}

impl<W: Wire> Outstanding<W> {
    /// Writes what is gathered, as far as there is room for it.
    pub(crate) fn flush(&mut self, socket: &TcpStream) -> std::io::Result<()> {
        self.link.seal(&mut self.out);
        self.sent = self.waiting.len();
        self.blocked = false;
        while !self.out.is_empty() && !self.blocked {
            match socket.try_write(self.out.bytes()) {
                Ok(len) => self.out.consume(len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks behind a flight for how long its answer lives.
    pub(crate) fn query_ttl(&mut self, request: &W::Request, bytes: &[u8]) {
        let expect = self.link.encode(request, bytes, &mut self.out);
        let Some(flight) = self.waiting.back() else { return };
        let (client, cache_role) = (Rc::clone(&flight.client), CacheRole::QueryTtl(None));
        let flight_key = Waiting { client, expect, silent: true, is_slow: false, cache_role, ..*flight };
        self.waiting.push_back(flight_key);
    }

    /// Takes whole and partial answers from `input`; returns how many bytes that took.
    pub(crate) fn take(
        &mut self,
        service: &Service<W>,
        input: &[u8],
        now: Nanos,
    ) -> Result<usize, StoreError> {
        let mut taken = 0;
        let learns = service.metrics.cost_samples.is_on();
        loop {
            let rest = &input[taken..];
            let Some(front) = self.waiting.front_mut().filter(|_| self.sent > 0) else {
                return if rest.is_empty() { Ok(taken) } else { Err(StoreError::Unasked) };
            };
            let answer = self.link.scan(&front.expect, rest)?;
            if answer == Answer::MORE {
                return Ok(taken);
            }
            if !self.reply_started && W::is_forbidden(rest) {
                front.client.pool().set_may_cache(false);
            }
            if front.cache_role.is_own() {
                if !self.reply_started && W::is_for_one_client(&rest[..answer.give]) {
                    front.cache_role.is_for_one_client();
                }
                front.cache_role.hear(&rest[..answer.give], answer.add);
            } else if !front.client.is_gone() {
                let replies = &mut front.client.conversation.borrow_mut().replies;
                if answer.give > 0 {
                    replies.part(front.seq, &rest[..answer.give]);
                }
                if !answer.add.is_empty() {
                    replies.part(front.seq, answer.add);
                }
                if answer.last {
                    replies.whole(front.seq);
                }
                service.mark_pending_write(&front.client);
            }
            self.reply_started |= answer.give > 0 || !answer.add.is_empty();
            taken += answer.len;
            self.heard += answer.len;
            if answer.last {
                let heard = std::mem::take(&mut self.heard);
                self.reply_started = false;
                self.sent -= 1;
                self.health.answered();
                // Read where it stands: what is moved is copied twice, and most have no ticket.
                let Waiting {
                    request,
                    features,
                    tenant,
                    paid,
                    admitted,
                    since: sent,
                    is_slow,
                    ref cache_role,
                    ..
                } = *front;
                self.slow -= usize::from(is_slow);
                let (has_ticket, asks_life) =
                    (!matches!(cache_role, CacheRole::None), matches!(cache_role, CacheRole::QueryTtl(_)));
                let front = self.waiting.pop_front();
                if asks_life {
                    self.answers.mark_unmeasurable();
                } else {
                    if learns {
                        self.answers.add(features, (tenant, paid), sent, heard);
                    }
                    service.release_permit();
                    let answered = Answered { request, admitted, sent, count: 1 };
                    if let Some(before) = answered.follow(&mut self.unobserved) {
                        service.observe(before, now);
                    }
                }
                if has_ticket && let Some(front) = front {
                    self.complete(front.cache_role, sent);
                }
            }
        }
    }

    /// Nobody will have an answer any more: `reply` says so to each who waits, and whether its request was sent, but for
    /// the one who has read the beginning of its own, who is closed.
    pub(crate) fn fail_all(&mut self, service: &Service<W>, reply: impl Fn(Waiting<W>, bool)) {
        let mut reply_started = std::mem::take(&mut self.reply_started);
        let sent = std::mem::take(&mut self.sent);
        self.slow = 0;
        for (seq, waiting) in self.waiting.drain(..).enumerate() {
            let is_cut = std::mem::take(&mut reply_started);
            if matches!(waiting.cache_role, CacheRole::QueryTtl(_)) {
                continue;
            }
            service.release_permit();
            if is_cut && !matches!(waiting.cache_role, CacheRole::LeadFlight(_)) {
                waiting.client.end(CloseCause::StoreFailed);
            } else {
                reply(waiting, seq < sent);
            }
        }
    }

    /// What a read has answered is observed, and teaches about prices.
    #[inline]
    pub(crate) fn record_cost_sample(&mut self, service: &Service<W>, now: Nanos) {
        self.unobserved.take().into_iter().for_each(|unobserved| service.observe(unobserved, now));
        if self.answers.is_empty() {
            return;
        }
        let answers = std::mem::take(&mut self.answers);
        if let Some(took) = answers.took(self.answered, now) {
            service.record_costs(&answers, took, now);
        }
        self.answered = now;
    }

    /// A request is wholly answered: what that means for hot keys.
    #[inline]
    fn complete(&mut self, cache_role: CacheRole, sent: Nanos) {
        match cache_role {
            CacheRole::None | CacheRole::QueryTtl(None) => {}
            CacheRole::MarkWrite(mark) => mark.over(),
            CacheRole::LeadFlight(leading) => {
                let keeping = leading.finish_flight().filter(|keeping| W::is_cacheable(&keeping.answer));
                // Behind it comes the question for its life, if there is one.
                if let Some(Waiting { cache_role: CacheRole::QueryTtl(ttl), .. }) = self.waiting.front_mut() {
                    *ttl = keeping;
                }
            }
            CacheRole::QueryTtl(Some(keeping)) => {
                let until = match W::ttl(&keeping.answer, &keeping.ttl) {
                    Ttl::Unbounded => Nanos::MAX,
                    Ttl::AtMost(ttl) => sent.saturating_add(ttl),
                };
                keeping.keep(until);
            }
        }
    }
}
