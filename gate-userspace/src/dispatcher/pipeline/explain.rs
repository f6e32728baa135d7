//! Explanations: the way of a request through the pipeline, without effect.
//!
//! A client that has no connection stands for the one that would send the request. Each step asks what [`super::request`]
//! and [`crate::dispatcher::admission`] would ask, by the same functions or by the parts of them that only look. Nothing is taken,
//! counted, sampled or drawn: the generator of draws is put back. The order of the steps is that of
//! [`Service::request`]; a test compares the two.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::sync::mpsc;

use super::dispatch::is_slow;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::admission::explain::{Outcome, Refused, conclude, refuse};
use crate::dispatcher::clients::client::ReplySink;
use crate::dispatcher::hot_cache::CachePeek;
use crate::dispatcher::questions::PendingQuestion;
use crate::dispatcher::request::{Decoded, ReplySlot, RequestClass, Target};
use crate::dispatcher::scan::ScanStep;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::tenants::membership::{Lookup, MemberOf};
use crate::dispatcher::wire::parts::Join;
use crate::dispatcher::wire::{Effect, Route, SessionState, Wire};
use crate::explanation::{Asker, Explanation, Question, Verdict, encode, shown};
use crate::protocol::{LargeRead, Refusal, Rule, Step};

impl<W: Wire> Service<W> {
    /// Answers questions, for ever.
    pub(crate) async fn answer_questions(self: Rc<Self>, mut questions: mpsc::Receiver<PendingQuestion>) {
        while let Some(PendingQuestion { question, answer }) = questions.recv().await {
            // Whoever asked may have left.
            let _ = answer.send(self.explain(&question, clock::monotonic()));
        }
    }

    /// Explains what the next request of a client would get.
    ///
    /// # Errors
    ///
    /// The fault in the question.
    pub(crate) fn explain(&self, question: &Question, now: Nanos) -> Result<Explanation, String> {
        // A question sees what has been set, also where no request has come since.
        self.ledger.borrow_mut().refresh();
        let (client, rule) = self.stand_in(question, now)?;
        client.choose_connection(now);
        let input = encode(&question.words, W::Session::HAS_USERS)?;
        let mut decoder = W::decoder(self.settings.max_request());
        let (request, taken) = decode_one::<W>(&mut decoder, input, &question.words)?;
        let bytes = W::bytes(&decoder, &request, &taken);
        let (tenant, denied) = client.tenant_for(&request, bytes);
        let slot = ReplySlot::default();
        let request = &request;
        let target = self.target(&client, request, bytes, now);
        let decoded = Decoded { client: &client, tenant, slot, request, bytes, target, told: None };
        let rule = if tenant == client.tenant.get() { rule } else { format!("the key, a part of {rule}") };
        let ledger = &mut *self.ledger.borrow_mut();
        let draws = ledger.draws();
        let mut explained = Explanation {
            service: self.settings.name.clone(),
            layer: "proxy".to_owned(),
            command: shown(&question.words),
            tenant: self.tenants.borrow().shown(client.payer(tenant).account()),
            rule,
            ..Explanation::default()
        };
        let outcome = self.follow(decoded, denied, ledger, &mut explained, now);
        let outcome = outcome.map_err(|refused| refused.map(|refusal| self.refusal_before_login(refusal)));
        ledger.restore_draws(draws);
        conclude(outcome, &mut explained);
        Ok(explained)
    }

    /// A client that nobody is, and the rule that names its tenant.
    fn stand_in(&self, question: &Question, now: Nanos) -> Result<(Rc<Session<W>>, String), String> {
        let source = match question.client {
            Asker::Source(source) => source.to_canonical(),
            Asker::Tenant(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let mut session = Session::new(ReplySink::Nowhere, source, self);
        // The member that is asked about, if it is not that of the source.
        let mut asked = None;
        let tenants = self.tenants.borrow();
        let ledger = self.ledger.borrow();
        let service = &self.settings.name;
        let mut rule = match &question.client {
            Asker::Source(_) if session.client.source_tenant.get() != TenantId::UNKNOWN => {
                "its source".to_owned()
            }
            Asker::Source(_) if !session.client.is_unauthenticated() => format!("the default of {service}"),
            Asker::Source(_) => "no rule names its source".to_owned(),
            Asker::Tenant(name) => {
                let (tenant, member) = tenants.asked(name, &ledger)?;
                session.client.tenant.set(tenant);
                asked = Some(member);
                session.client.shadow = ledger.is_all_shadowed();
                "the question".to_owned()
            }
        };
        if let Some(user) = &question.user {
            if !W::Session::HAS_USERS {
                return Err(format!("service {service} knows no users"));
            }
            match tenants.of_user_name(user, &ledger) {
                Some(tenant) => {
                    session.client.tenant.set(tenant);
                    let of = MemberOf { id: Some(user.as_bytes()), source };
                    asked = Some(tenants.member(tenant, of, Lookup::Ask, (&ledger, now)));
                    rule = format!("user {user:?}");
                }
                // Its client stays whose it was.
                None => rule.push_str(", since no tenant has the user"),
            }
        }
        drop((tenants, ledger));
        session.refresh_tenant(self);
        if let Some(member) = asked {
            *session.member.borrow_mut() = member;
        }
        Ok((Rc::new(session), rule))
    }

    /// Follows a request through the steps of [`Service::request`].
    fn follow(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        denied: Option<Rule>,
        ledger: &mut Ledger,
        explained: &mut Explanation,
        now: Nanos,
    ) -> Outcome {
        let Decoded { client, tenant, request, bytes, .. } = decoded;
        let route = W::route(request);
        let class = self.types.borrow().classify::<W>(request, bytes);
        let mut demand = self.demand(client, (tenant, class), request, bytes);
        if route == Route::Dedicated {
            demand.bytes = bytes.len();
        }
        let quote = self.admission.quote(ledger, &client.payer(tenant), &demand, class);
        let types = self.types.borrow();
        let names = (types.name(quote.class.query_type), price_class_name::<W>(&demand));
        self.admission.describe(ledger, tenant, (&demand, &quote), names, explained);
        drop(types);
        self.check_unpriced(decoded, denied, ledger, explained)?;
        if route == Route::Quit {
            return Ok(Verdict::Answered);
        }
        let is_known = !client.is_unauthenticated() || self.is_login_of_known_user(decoded, ledger);
        if route == Route::Shared && self.would_ask(decoded, now) {
            explained.notes.push(
                "the store is asked for the size of what it reads first, and its price is for that"
                    .to_owned(),
            );
        }
        if self.too_many_rows(&demand) {
            let read = LargeRead { rows: demand.read.rows, price: quote.price };
            refuse(client.shadow, explained, Refusal::too_many_rows(read).into())?;
        }
        // What its tenant cannot pay is debt.
        if route != Route::Login || !is_known {
            let payer = client.payer(tenant);
            let payer = (payer.account(), client.shadow);
            self.admission.peek_charge(ledger, payer, (&demand, &quote), explained, now)?;
        }
        match route {
            Route::Shared => self.peek_shared(decoded, quote.class, ledger, explained, now),
            Route::Dedicated => self.peek_dedicated(decoded, quote.class, ledger, explained, now),
            Route::Login => {
                explained.notes.push("the store is asked if it accepts the login".to_owned());
                Ok(Verdict::Passes)
            }
            Route::GateStats | Route::Quit => Ok(Verdict::Answered),
        }
    }

    /// The refusals of a request that has no price yet.
    fn check_unpriced(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        denied: Option<Rule>,
        ledger: &Ledger,
        explained: &mut Explanation,
    ) -> Result<(), Refused> {
        let Decoded { client, request, bytes, .. } = decoded;
        let usage = self.tenants.borrow().usage(client.tenant.get(), ledger);
        let has_all = usage.is_some_and(|usage| !usage.has_room()) && !W::Session::changes_session(request);
        for refusal in [
            denied.map(|rule| Refusal::by(Reason::Unsupported, rule)),
            self.refused_by_stores(decoded.target).map(|rule| Refusal::by(Reason::Unsupported, rule)),
            has_all.then_some(Refusal::of(Reason::Limit)),
            self.is_too_long(request, bytes).then_some(Refusal::by(Reason::TooLarge, Rule::Size)),
        ] {
            refusal.map_or(Ok(()), |refusal| refuse(client.shadow, explained, refusal.into()))?;
        }
        Ok(())
    }

    /// The hot cache, the admission policy, a permit or the queue.
    fn peek_shared(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        class: RequestClass,
        ledger: &mut Ledger,
        explained: &mut Explanation,
        now: Nanos,
    ) -> Outcome {
        let Decoded { client, tenant, request, bytes, target, .. } = decoded;
        let (cached, is_hot) = self.hot.peek(decoded, self.admission.rank_of(tenant, class.tier), now);
        explained.hot = is_hot;
        match cached {
            CachePeek::Hit if ledger.may_cache(tenant) => return Ok(Verdict::Cached),
            CachePeek::Joins if ledger.may_cache(tenant) => return Ok(Verdict::Joins),
            CachePeek::Hit | CachePeek::Joins | CachePeek::Store => {}
        }
        self.admission.peek_policy(client.shadow, (tenant, class), ledger, explained, now)?;
        let is_slow = is_slow::<W>(request);
        if is_slow {
            client.connection_index.set(client.pool().slow_index());
        }
        if self.settings.stores.len() > 1 {
            explained.notes.push(match target {
                _ if self.presents(decoded) => "gate answers it, as the one node that it shows".to_owned(),
                Target::One(node) | Target::Several(Join::Scan(ScanStep { node, .. })) => {
                    format!("it goes to {}", self.settings.address(node))
                }
                Target::Several(_) if W::keys(request, bytes).next().is_none() => {
                    "each primary is asked, and gate answers once for all".to_owned()
                }
                Target::Several(_) | Target::Nowhere | Target::CrossSlot => {
                    "its keys are at several stores: each gets a request for its own".to_owned()
                }
            });
        }
        let mut nodes: Vec<NodeId> = match target {
            Target::Several(Join::InTurn) => {
                W::keys(request, bytes).map(|key| self.settings.node_of(key)).collect()
            }
            Target::Several(_) => {
                let runs = &self.part_buffers.borrow().runs;
                runs.iter().map(|run| NodeId::at(run.at.node)).collect()
            }
            Target::One(_) | Target::Nowhere | Target::CrossSlot => vec![target.node()],
        };
        let is_joined = matches!(target, Target::Several(join) if join != Join::InTurn);
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            return Err(Refusal::of(Reason::StoreDown).into());
        }
        let stores = || nodes.iter().map(|node| client.store(*node));
        if stores().all(|store| store.has_window(is_slow)) && self.admission.may_take_permit(is_slow) {
            let refusals: Vec<_> = stores().filter_map(|store| store.accepts(now).err()).collect();
            match refusals.first() {
                Some(refusal) if refusals.len() == nodes.len() || is_joined => return Err((*refusal).into()),
                Some(_) => explained.notes.push(format!(
                    "the keys of {} of {} stores are missing: they are down",
                    refusals.len(),
                    nodes.len()
                )),
                None => {}
            }
            return Ok(Verdict::Passes);
        }
        self.admission.queue_accepts(tenant, bytes.len(), !self.tenants.borrow().are_several())?;
        explained.notes.push("later it may still be refused for its wait".to_owned());
        Ok(Verdict::Queued)
    }

    /// A request for a dedicated connection.
    fn peek_dedicated(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        class: RequestClass,
        ledger: &mut Ledger,
        explained: &mut Explanation,
        now: Nanos,
    ) -> Outcome {
        let Decoded { client, tenant, request, .. } = decoded;
        if W::Session::effect(request) != Effect::Blocks && W::has_one_answer(request) {
            self.admission.peek_policy(client.shadow, (tenant, class), ledger, explained, now)?;
        }
        if self.in_cluster.get() {
            return Err(StoreError::Cluster.refusal().into());
        }
        self.lines().peek(now).map_err(|error| error.refusal())?;
        explained.notes.push("it needs a dedicated connection to the store (`max_dedicated`)".to_owned());
        Ok(Verdict::Passes)
    }
}

/// The request that these bytes are, and its part of them. A value that is left out is made up.
fn decode_one<W: Wire>(
    decoder: &mut W::Decoder,
    mut input: Vec<u8>,
    words: &[Vec<u8>],
) -> Result<(W::Request, Vec<u8>), String> {
    loop {
        match W::decode(decoder, &input) {
            Step::Request { len, request } => {
                if !W::is_streamed(&request) && len != input.len() {
                    return Err("that is several requests; ask about one command at a time".to_owned());
                }
                input.truncate(len);
                return Ok((request, input));
            }
            Step::More { want } if want <= MAX_INPUT && want > input.len() => {
                input.resize(want - 2, b'x');
                input.extend_from_slice(b"\r\n");
            }
            Step::Fault { fault, .. } => {
                let mut answer = Vec::new();
                let reason = W::answer_fault(&fault, &mut answer).reason.name();
                return Err(format!(
                    "{:?} is no request that gate forwards ({reason}): it answers \"{}\"",
                    shown(words),
                    answer.trim_ascii().escape_ascii()
                ));
            }
            Step::More { .. } | Step::Body { .. } | Step::Skip { .. } => {
                return Err(format!("{:?} is not a whole request", shown(words)));
            }
        }
    }
}

/// Larger requests are streamed.
const MAX_INPUT: usize = 1 << 20;

fn price_class_name<W: Wire>(demand: &Demand) -> &'static str {
    use crate::protocol::price_class::PriceClass;
    let names = if W::Session::HAS_USERS { PriceClass::OF_REDIS } else { PriceClass::OF_MEMCACHED };
    names[demand.price_class.index()]
}

#[cfg(test)]
mod tests;
