//! Explanations: the way of a request over HTTP, without effect.
//!
//! A connection that nobody has stands for the client's. Each step asks what [`super::admitted`] and
//! [`crate::dispatcher::admission`] would ask, in the same order, by the same functions or by the parts of them that only look.
//! Nothing is taken, counted, sampled or drawn: the generator of draws is put back.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Request, Uri};
use tokio::sync::mpsc;

use super::connection::Connection;
use super::head::HeadFault;
use super::identity::Origin;
use super::service::HttpService;
use super::{cached, processed};
use crate::clock;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::admission::explain::{Outcome, conclude, refuse};
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::questions::PendingQuestion;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::tenants::membership::Lookup;
use crate::explanation::{Asker, Explanation, Question, Verdict, shown};
use crate::protocol::price_class::PriceClass;
use crate::protocol::{Refusal, Rule};

impl HttpService {
    /// Answers questions, for ever.
    pub(super) async fn answer_questions(self: Rc<Self>, mut questions: mpsc::Receiver<PendingQuestion>) {
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
    fn explain(&self, question: &Question, now: Nanos) -> Result<Explanation, String> {
        if question.user.is_some() {
            return Err(format!("service {} knows no users", self.settings.name));
        }
        let mut parts = parse(&question.words)?;
        // A question sees what has been set, also where no request has come since.
        self.ledger.borrow_mut().refresh();
        let (origin, rule) = self.stand_in(question, &parts, now)?;
        let ledger = &mut *self.ledger.borrow_mut();
        let draws = ledger.draws();
        let mut explained = Explanation {
            service: self.settings.name.clone(),
            layer: "proxy".to_owned(),
            command: shown(&question.words),
            tenant: self.tenants.borrow().shown(origin.account()),
            rule,
            ..Explanation::default()
        };
        let outcome = self.follow(&origin, &mut parts, ledger, &mut explained, now);
        let outcome =
            outcome.map_err(|refused| refused.map(|refusal| Origin::refusal(origin.names_none, refusal)));
        ledger.restore_draws(draws);
        conclude(outcome, &mut explained);
        Ok(explained)
    }

    /// Where the request comes from, and the rule that names its tenant.
    fn stand_in(&self, question: &Question, parts: &Parts, now: Nanos) -> Result<(Origin, String), String> {
        let source = match &question.client {
            Asker::Source(source) => source.to_canonical(),
            Asker::Tenant(name) => {
                let ledger = self.ledger.borrow();
                let (tenant, member) = self.tenants.borrow().asked(name, &ledger)?;
                let source = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                let shadow = ledger.is_all_shadowed();
                return Ok((
                    Origin { source, tenant, member, shadow, is_by_source: false, names_none: false },
                    "the question".to_owned(),
                ));
            }
        };
        let memory = MemoryShare::new(&self.memory, TenantId::UNKNOWN);
        let client = Connection::new(source, self.trusts(source), TenantId::UNKNOWN, memory, now);
        let origin = self.origin(&client, &parts.headers, Lookup::Ask);
        let origin = origin.map_err(|_| "the request names two tenants".to_owned())?;
        let is_named =
            client.is_trusted && self.claims.tenant().is_some_and(|name| parts.headers.contains_key(name));
        let by_source = self.ledger.borrow().tenant_of_source(origin.source);
        let rule = match (is_named, by_source) {
            (true, _) => "the field of a trusted proxy".to_owned(),
            (false, TenantId::UNKNOWN) if origin.tenant == TenantId::UNKNOWN => {
                "no rule names its source".to_owned()
            }
            (false, TenantId::UNKNOWN) => format!("the default of {}", self.settings.name),
            (false, _) if origin.source != source => format!("the address {}", origin.source),
            (false, _) => "its source".to_owned(),
        };
        Ok((origin, rule))
    }

    /// Follows a request through the steps of [`HttpService::admit`].
    fn follow(
        &self,
        origin: &Origin,
        parts: &mut Parts,
        ledger: &mut Ledger,
        explained: &mut Explanation,
        now: Nanos,
    ) -> Outcome {
        let &Origin { tenant, shadow, .. } = origin;
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let has_body =
            length.is_some_and(|length: u64| length > 0) || parts.headers.contains_key(TRANSFER_ENCODING);
        let is_websocket = self.prepare(parts).map_err(|fault| match fault {
            HeadFault::Malformed => Refusal::of(Reason::Malformed),
            HeadFault::Unsupported | HeadFault::WebSocket | HeadFault::Protocol | HeadFault::Expectation => {
                Refusal::of(Reason::Unsupported)
            }
        })?;
        let made = processed::target(self, parts, has_body);
        let (class, mut demand) = self.demand(tenant, parts, length);
        if matches!(made, Some(Err(_))) {
            demand = Demand::answered_here(demand.bytes, demand.limits);
        }
        let quote = self.admission.quote(ledger, &origin.payer(), &demand, class);
        let types = self.types.borrow();
        let names = (types.name(quote.class.query_type), PriceClass::OF_HTTP[demand.price_class.index()]);
        self.admission.describe(ledger, tenant, (&demand, &quote), names, explained);
        let usage = self.tenants.borrow().usage(tenant, ledger);
        for (is_refused, refusal) in [
            (usage.is_some_and(|usage| !usage.has_room()), Refusal::of(Reason::Limit)),
            (self.is_too_long(length), Refusal::by(Reason::TooLarge, Rule::Size)),
            (self.has_own_keys(tenant, ledger), Refusal::by(Reason::Unsupported, Rule::Keys)),
        ] {
            if is_refused {
                refuse(shadow, explained, refusal.into())?;
            }
        }
        self.admission.peek_charge(ledger, (origin.account(), shadow), (&demand, &quote), explained, now)?;
        match made {
            Some(Err(fault)) => return Err(processed::refused(fault).refusal.into()),
            Some(Ok(_)) => {
                explained.notes.push(MADE.to_owned());
                return Ok(Verdict::Passes);
            }
            None if is_websocket => explained.notes.push(WEBSOCKET.to_owned()),
            None => {
                explained.notes.extend(cached::explained(self, ledger, origin.account(), (parts, has_body)))
            }
        }
        self.admission.peek_policy(shadow, (tenant, quote.class), ledger, explained, now)?;
        if self.admission.may_take_permit(false) {
            self.store.accepts(now)?;
            return Ok(Verdict::Passes);
        }
        self.admission.queue_accepts(tenant, 0, !self.tenants.borrow().are_several())?;
        explained.notes.push("later it may still be refused for its wait".to_owned());
        Ok(Verdict::Queued)
    }
}

/// The head of a request that these words are: its method, its target, and its fields, each a word.
fn parse(words: &[Vec<u8>]) -> Result<Parts, String> {
    const USAGE: &str =
        "name a method and a path, e.g. `-- GET /api/v1/query`, and fields as `\"X-Tier: standard\"`";
    let [method, target, fields @ ..] = words else { return Err(USAGE.to_owned()) };
    let is_wrong = |()| format!("{} {} is no request; {USAGE}", method.escape_ascii(), target.escape_ascii());
    let method = Method::from_bytes(method).map_err(|_| is_wrong(()))?;
    let uri = Uri::try_from(&target[..]).map_err(|_| is_wrong(()))?;
    let mut parts =
        Request::builder().method(method).uri(uri).body(()).map_err(|_| is_wrong(()))?.into_parts().0;
    for field in fields {
        let colon = field.iter().position(|&byte| byte == b':');
        let (name, value) = colon.map(|at| (&field[..at], field[at + 1..].trim_ascii())).unwrap_or_default();
        let field = HeaderName::from_bytes(name).ok().zip(HeaderValue::from_bytes(value).ok());
        let (name, value) = field.ok_or_else(|| format!("{} is no field; {USAGE}", value.escape_ascii()))?;
        parts.headers.append(name, value);
    }
    if !parts.headers.contains_key(HOST) && parts.uri.authority().is_none() {
        parts.headers.insert(HOST, HeaderValue::from_static("host"));
    }
    Ok(parts)
}

const WEBSOCKET: &str = "if the store agrees it goes on as a WebSocket: what passes is charged by its bytes, in both directions, and                          waits while the quota is spent";
const MADE: &str = "what is kept of it is given for the price of a hit; else it may wait, or be refused, for a download and \
                    for the processor, and is charged for their time";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_head_or_say_how_one_is_written() {
        let words = |line: &str| line.split('|').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let parts = parse(&words("GET|/a?b|X-Tier: standard|x:")).unwrap();
        assert_eq!((parts.method.as_str(), parts.uri.to_string().as_str()), ("GET", "/a?b"));
        assert_eq!(
            (&parts.headers["x-tier"], &parts.headers["x"]),
            (&HeaderValue::from_static("standard"), &HeaderValue::from_static(""))
        );
        assert_eq!(parse(&words("GET|http://b/a")).unwrap().headers.len(), 0);
        for wrong in ["GET", "G T|/", "GET|/ x", "GET|/|x", "GET|/|: y", "GET|/|x: a\nb"] {
            assert!(parse(&words(wrong)).is_err_and(|error| error.contains("GET /api")), "{wrong}");
        }
    }
}
