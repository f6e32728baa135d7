//! Requests whose work depends on how much their keys hold: what is known of it, and what the store is asked before.
//!
//! **Problem.** `SMEMBERS` of a million members holds the store for a second, and its price has to be known before.
//! **Rule.** A key whose replies were large is known by them ([`crate::policy::key_reads`]). Where that, or what the tenant's
//! commands of this kind have read lately, says that the read may be large, the store is asked for the size first, by
//! questions that read no row. The request waits in the client's input meanwhile, so that nothing of the client overtakes
//! it, and is priced by the answer. With `max_rows` each such request is asked about, and refused beyond.
//!
//! **Questions** are charged like any read, as one row each. They take no permit and do not queue: a client has those of
//! one request, and nothing else, under way. A store that does not tell (a command by another name, a user without the
//! permission, a connection that is lost) has its requests priced by what is known without, which is counted.
//!
//! **Not asked:** on connections of clients' own (`MULTI` and the like), about requests beyond 4 KiB, about more than
//! [`MOST_QUESTIONS`], about what a kept answer or another client's read answers, and for datagrams.

use std::rc::Rc;

use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::hot_cache::{CachePeek, CacheRole};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::{Charged, Decoded, InFlight, Target};
use crate::dispatcher::size_question::SizeQuestion;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::wire::{Route, Wire};
use crate::policy::key_reads::{KeyRead, Known, LARGE_ROWS};
use crate::protocol::resp::{Extent, ReadKind};
use crate::protocol::{Class, LargeRead, Refusal, Rule};

impl<W: Wire> Service<W> {
    /// The read of whole keys that a tenant's request is, and what is known of them; `frees_later` says that what it
    /// removes is freed later.
    #[inline]
    pub(super) fn key_read(
        &self,
        tenant: TenantId,
        request: &W::Request,
        bytes: &[u8],
        frees_later: bool,
    ) -> KeyRead {
        let extent = W::extent(request, bytes);
        match extent.kind {
            ReadKind::None => KeyRead::NONE,
            ReadKind::Delete if frees_later => KeyRead::NONE,
            _ => self.known_read(tenant, &extent, request, bytes),
        }
    }

    fn known_read(&self, tenant: TenantId, extent: &Extent, request: &W::Request, bytes: &[u8]) -> KeyRead {
        let mut read = KeyRead { kind: extent.kind as u8, ..KeyRead::NONE };
        if !extent.follows_keys() {
            return read;
        }
        let now = clock::monotonic();
        let mut elements = None;
        let mut keys = 0;
        for key in W::read_keys(request, bytes).take(MOST_QUESTIONS) {
            keys += 1;
            read.key = self.admission.reads.key_number(key);
            if let Some(seen) = self.admission.reads.seen(tenant, read.key, now) {
                elements = Some(elements.unwrap_or(0_u64).saturating_add(seen.elements.into()));
            }
        }
        // A reply shows the size of one key at most; a key that has been removed has none.
        let values = if extent.kind == ReadKind::Delete { 1 } else { extent.values };
        match keys == 1 {
            true => (read.values, read.beyond) = (values, extent.beyond),
            false => read.key = 0,
        }
        if let Some(rows) = elements.and_then(|elements| extent.rows(elements)) {
            (read.rows, read.known) = (rows, Known::Seen);
        }
        read
    }

    /// The same read, of which the store has told that the keys hold so many elements.
    pub(super) fn told_read(
        &self,
        read: KeyRead,
        told: Option<u64>,
        (tenant, request, bytes): (TenantId, &W::Request, &[u8]),
    ) -> KeyRead {
        let now = clock::monotonic();
        let is_understated = || {
            read.key != 0
                && self.admission.reads.seen(tenant, read.key, now).is_some_and(|seen| seen.is_understated)
        };
        match told.and_then(|elements| W::extent(request, bytes).rows(elements)) {
            Some(rows) if !(rows < read.rows && is_understated()) => {
                KeyRead { rows, known: Known::Asked, ..read }
            }
            Some(_) | None => read,
        }
    }

    /// Asks for the size of what a request reads, if that may be large and has not been asked. What the client has sent before is
    /// answered by then: a question that overtook it would be about other keys.
    ///
    /// # Errors
    ///
    /// A refusal of the tenant's quota, which is counted.
    #[inline]
    pub(super) fn ask_first(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        (route, denied): (Route, Option<Rule>),
        outstanding: usize,
        now: Nanos,
    ) -> Result<SizeStep, Refusal> {
        let state = &decoded.client.size_question;
        if state.get() != SizeQuestion::None {
            // Answered => None: it is decoded for the last time.
            return Ok(SizeStep::GoOn(state.take().elements()));
        }
        let extent = W::extent(decoded.request, decoded.bytes);
        if route == Route::Shared && denied.is_none() && extent.can_be_asked() {
            return self.ask_size(decoded, &extent, outstanding, now);
        }
        Ok(SizeStep::GoOn(None))
    }

    fn ask_size(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        extent: &Extent,
        outstanding: usize,
        now: Nanos,
    ) -> Result<SizeStep, Refusal> {
        let unasked = Ok(SizeStep::GoOn(None));
        let Decoded { client, tenant, request, bytes, target, .. } = decoded;
        let is_asked = bytes.len() <= LONGEST_ASKED && matches!(target, Target::One(_));
        if !is_asked || client.datagram().is_some() || !self.may_be_large(tenant, extent, request, bytes, now)
        {
            return unasked;
        }
        if outstanding > 0 {
            client.awaits_lane.set(true);
            return Ok(SizeStep::Wait);
        }
        let store = client.store(target.node());
        let class = self.types.borrow().classify::<W>(request, bytes);
        let may_cache = self.ledger.borrow_mut().may_cache(tenant);
        let is_sent = || {
            !may_cache
                || self.hot.peek(decoded, self.admission.rank_of(tenant, class.tier), now).0
                    == CachePeek::Store
        };
        if store.accepts(now).is_err() || !is_sent() {
            return unasked;
        }
        let mut text = Vec::new();
        let count = W::size_questions(request, bytes, MOST_QUESTIONS, &mut text);
        // All of them whole, or none: a part of one would have the store take what follows for the rest.
        let questions = cut::<W>(&text).filter(|questions| questions.len() == count && count > 0);
        let Some(questions) = questions else { return unasked };
        let charged = {
            let ledger = &mut *self.ledger.borrow_mut();
            let rows = count as u32;
            let price_class = W::price_class(Class::Read);
            let demand = Demand { commands: rows, rows, price_class, ..Demand::more(text.len()) };
            let charged = self.admission.charge(ledger, client.payer(tenant), demand, class, now)?;
            ledger.count_charged(charged.tenant, charged.price);
            charged
        };
        self.send_questions(decoded, extent, &charged, &questions, now);
        Ok(SizeStep::Wait)
    }

    /// True if the store would be asked for the size of what a request reads.
    pub(super) fn would_ask(&self, decoded: Decoded<'_, W, Session<W>>, now: Nanos) -> bool {
        let Decoded { tenant, request, bytes, .. } = decoded;
        let extent = W::extent(request, bytes);
        extent.can_be_asked() && self.may_be_large(tenant, &extent, request, bytes, now)
    }

    /// True if a request may read much: its key is known as large, the tenant's commands of its kind were lately, or nothing
    /// large may pass.
    fn may_be_large(
        &self,
        tenant: TenantId,
        extent: &Extent,
        request: &W::Request,
        bytes: &[u8],
        now: Nanos,
    ) -> bool {
        let limits = self.limits.get().whole_keys;
        let kind = extent.kind as u8;
        if !limits.ask_sizes || !self.refused_questions.may_ask(kind, now) {
            return false;
        }
        limits.max_rows.is_some()
            || self.admission.reads.were_large(tenant, kind, now)
            || self.known_read(tenant, extent, request, bytes).rows >= LARGE_ROWS
    }

    fn send_questions(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        extent: &Extent,
        charged: &Charged,
        questions: &[(W::Request, &[u8])],
        now: Nanos,
    ) {
        let Decoded { client, slot, target, .. } = decoded;
        let node = target.node();
        let missing = questions.len() as u16;
        client.size_question.set(SizeQuestion::Pending { missing, elements: Some(0) });
        for (request, bytes) in questions {
            self.metrics.count(Event::SizeAsked);
            let in_flight = InFlight {
                client: Rc::clone(client),
                node,
                seq: slot.seq,
                charged: charged.clone(),
                features: CostFeatures::of::<W>(request),
                silent: true,
                redirects: 0,
                cache_role: CacheRole::AskSize { kind: extent.kind as u8, told: None },
            };
            client.store(node).send(in_flight, request, bytes, (None, None), now);
        }
    }

    /// A question for a size has its answer, or will have none.
    pub(super) fn size_answered(&self, client: &Rc<Session<W>>, told: Option<u64>) {
        if told.is_none() {
            self.metrics.count(Event::SizeUntold);
        }
        let state = client.size_question.get().answered(told);
        client.size_question.set(state);
        if !state.is_pending() {
            // It goes on, as one does that has waited for replies.
            self.mark_pending_write(client);
        }
    }

    /// The refusal of a request that would read more rows than any may.
    #[inline]
    pub(super) fn too_many_rows(&self, demand: &Demand) -> bool {
        demand.read.known != Known::Unknown
            && self.limits.get().whole_keys.max_rows.is_some_and(|most| demand.read.rows > most)
    }

    /// Refuses a request that reads too many rows, with its price; nothing if refusals of its client are only counted.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted.
    #[cold]
    pub(super) fn refuse_rows(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        demand: &Demand,
        ledger: &mut Ledger,
    ) -> Result<(), Refusal> {
        let Decoded { client, tenant, request, bytes, .. } = decoded;
        let class = self.types.borrow().classify::<W>(request, bytes);
        let payer = client.payer(tenant);
        let price = self.admission.quote(ledger, &payer, demand, class).price;
        let refusal = Refusal::too_many_rows(LargeRead { rows: demand.read.rows, price });
        ledger.count_refusal(tenant, refusal.reason, gate_common::units::MilliRu::ZERO, payer.shadow);
        if payer.shadow { Ok(()) } else { Err(refusal) }
    }
}

/// The whole requests that a text is; `None` if there is anything else in it.
fn cut<W: Wire>(text: &[u8]) -> Option<Vec<(W::Request, &[u8])>> {
    let mut requests = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (request, len) = W::whole(rest)?;
        let (bytes, behind) = rest.split_at(len);
        requests.push((request, bytes));
        rest = behind;
    }
    Some(requests)
}

/// The next step of a request whose size may be asked.
pub(super) enum SizeStep {
    /// Waiting in the input, for the answer or for the replies to what was sent before.
    Wait,
    /// Going on; the store has told that its keys hold so many elements, or nothing.
    GoOn(Option<u64>),
}

/// A request about more keys is not asked about.
const MOST_QUESTIONS: usize = 64;
/// Nor is a longer one.
const LONGEST_ASKED: usize = 4 << 10;
