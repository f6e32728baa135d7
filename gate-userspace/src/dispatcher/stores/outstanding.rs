//! What is on its way over one connection to the store: requests that are gathered or sent, and their answers.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;

use gate_common::units::{MilliRu, Nanos};
use tokio::net::TcpStream;

use super::broken::Broken;
use super::health::Health;
use crate::dispatcher::clients::client::{Client, Ended};
use crate::dispatcher::clients::replies::Place;
use crate::dispatcher::figures::lessons::{Answers, Features};
use crate::dispatcher::hot_cache::Ticket;
use crate::dispatcher::service::{Answered, Service};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Answer, Life, Link, Wire};
use crate::policy::admission;

/// One connection's.
#[derive(Debug)]
pub(in crate::dispatcher) struct Outstanding<W: Wire> {
    pub(in crate::dispatcher) health: Health,
    pub(in crate::dispatcher) link: W::Link,
    /// Gathered, not yet sent.
    pub(in crate::dispatcher) out: Buffer,
    /// Requests that are not wholly answered, sent or only gathered.
    pub(in crate::dispatcher) waiting: VecDeque<Waiting<W>>,
    /// How many of these have been sent.
    pub(in crate::dispatcher) sent: usize,
    /// The last write left something over.
    pub(in crate::dispatcher) blocked: bool,
    /// The first of these has been answered in part.
    pub(in crate::dispatcher) begun: bool,
    /// Received, and too little to make sense of.
    pub(in crate::dispatcher) input: Buffer,
    /// What has come of the first of those that wait.
    pub(in crate::dispatcher) heard: usize,
    /// Answered last, and not yet observed.
    pub(in crate::dispatcher) alike: Option<Answered>,
    /// What the last read has answered, where somebody learns from that; and when the one before did.
    pub(in crate::dispatcher) answers: Answers,
    pub(in crate::dispatcher) answered: Nanos,
    /// When the store last sent anything.
    pub(in crate::dispatcher) last_read: Nanos,
    /// Requests that may take long, of those that wait.
    pub(in crate::dispatcher) slow: usize,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(in crate::dispatcher) struct Waiting<W: Wire> {
    pub(in crate::dispatcher) client: Rc<Client<W>>,
    /// Who is charged, and what it has paid; nothing for what is nobody's own.
    pub(in crate::dispatcher) tenant: TenantId,
    pub(in crate::dispatcher) paid: MilliRu,
    pub(in crate::dispatcher) place: Place,
    pub(in crate::dispatcher) expect: <W::Link as Link>::Expect,
    /// When it was let in, and when it was sent.
    pub(in crate::dispatcher) admitted: Nanos,
    pub(in crate::dispatcher) since: Nanos,
    pub(in crate::dispatcher) request: admission::Request,
    pub(in crate::dispatcher) features: Features,
    pub(in crate::dispatcher) silent: bool,
    /// Whether it may take the store long.
    pub(in crate::dispatcher) is_slow: bool,
    pub(in crate::dispatcher) ticket: Ticket,
}

impl<W: Wire> Outstanding<W> {
    /// Writes what is gathered, as far as there is room for it.
    pub(in crate::dispatcher) fn flush(&mut self, socket: &TcpStream) -> std::io::Result<()> {
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
    pub(in crate::dispatcher) fn ask_life(&mut self, request: &W::Request, bytes: &[u8]) {
        let expect = self.link.encode(request, bytes, &mut self.out);
        let Some(flight) = self.waiting.back() else { return };
        let (client, ticket) = (Rc::clone(&flight.client), Ticket::Life(None));
        let question = Waiting { client, expect, silent: true, is_slow: false, ticket, ..*flight };
        self.waiting.push_back(question);
    }

    /// Takes whole and partial answers from `input`; returns how many bytes that took.
    pub(in crate::dispatcher) fn take(
        &mut self,
        service: &Service<W>,
        input: &[u8],
        now: Nanos,
    ) -> Result<usize, Broken> {
        let mut taken = 0;
        let learns = service.figures.lessons.is_on();
        loop {
            let rest = &input[taken..];
            let Some(front) = self.waiting.front_mut().filter(|_| self.sent > 0) else {
                return if rest.is_empty() { Ok(taken) } else { Err(Broken::Unasked) };
            };
            let answer = self.link.scan(&front.expect, rest)?;
            if answer == Answer::MORE {
                return Ok(taken);
            }
            if !self.begun && W::is_forbidden(rest) {
                front.client.pool().set_may_cache(false);
            }
            if front.ticket.is_own() {
                if !self.begun && W::is_for_one(&rest[..answer.give]) {
                    front.ticket.is_for_one();
                }
                front.ticket.hear(&rest[..answer.give], answer.add);
            } else if !front.client.is_gone() {
                let replies = &mut front.client.talk.borrow_mut().replies;
                if answer.give > 0 {
                    replies.part(front.place, &rest[..answer.give]);
                }
                if !answer.add.is_empty() {
                    replies.part(front.place, answer.add);
                }
                if answer.last {
                    replies.whole(front.place);
                }
                service.has_news(&front.client);
            }
            self.begun |= answer.give > 0 || !answer.add.is_empty();
            taken += answer.len;
            self.heard += answer.len;
            if answer.last {
                let heard = std::mem::take(&mut self.heard);
                self.begun = false;
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
                    ref ticket,
                    ..
                } = *front;
                self.slow -= usize::from(is_slow);
                let (has_ticket, asks_life) =
                    (!matches!(ticket, Ticket::None), matches!(ticket, Ticket::Life(_)));
                let front = self.waiting.pop_front();
                if asks_life {
                    self.answers.spoil();
                } else {
                    if learns {
                        self.answers.add(features, (tenant, paid), sent, heard);
                    }
                    service.left_store();
                    let answered = Answered { request, admitted, sent, count: 1 };
                    if let Some(before) = answered.follow(&mut self.alike) {
                        service.observe(before, now);
                    }
                }
                if has_ticket && let Some(front) = front {
                    self.redeem(front.ticket, sent);
                }
            }
        }
    }

    /// Nobody will have an answer any more: `tell` says so to each who waits, and whether its request was sent, but for
    /// the one who has read the beginning of its own, who is closed.
    pub(in crate::dispatcher) fn let_down(&mut self, service: &Service<W>, tell: impl Fn(Waiting<W>, bool)) {
        let mut begun = std::mem::take(&mut self.begun);
        let sent = std::mem::take(&mut self.sent);
        self.slow = 0;
        for (place, waiting) in self.waiting.drain(..).enumerate() {
            let is_cut = std::mem::take(&mut begun);
            if matches!(waiting.ticket, Ticket::Life(_)) {
                continue;
            }
            service.left_store();
            if is_cut && !matches!(waiting.ticket, Ticket::Flight(_)) {
                waiting.client.end(Ended::Cut);
            } else {
                tell(waiting, place < sent);
            }
        }
    }

    /// What a read has answered is observed, and teaches about prices.
    #[inline]
    pub(in crate::dispatcher) fn teach(&mut self, service: &Service<W>, now: Nanos) {
        self.alike.take().into_iter().for_each(|alike| service.observe(alike, now));
        if self.answers.is_empty() {
            return;
        }
        let answers = std::mem::take(&mut self.answers);
        if let Some(took) = answers.took(self.answered, now) {
            service.learn(&answers, took, now);
        }
        self.answered = now;
    }

    /// A request is wholly answered: what that means for hot keys.
    #[inline]
    fn redeem(&mut self, ticket: Ticket, sent: Nanos) {
        match ticket {
            Ticket::None | Ticket::Life(None) => {}
            Ticket::Write(mark) => mark.over(),
            Ticket::Flight(leading) => {
                let keeping = leading.land().filter(|keeping| W::may_keep(&keeping.answer));
                // Behind it comes the question for its life, if there is one.
                if let Some(Waiting { ticket: Ticket::Life(life), .. }) = self.waiting.front_mut() {
                    *life = keeping;
                }
            }
            Ticket::Life(Some(keeping)) => {
                let until = match W::life(&keeping.answer, &keeping.life) {
                    Life::Unlimited => Nanos::MAX,
                    Life::For(life) => sent.saturating_add(life),
                };
                keeping.keep(until);
            }
        }
    }
}
