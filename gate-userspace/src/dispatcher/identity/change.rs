//! A client that says who it is: user, database, protocol version.
//!
//! The store decides. It is asked on a connection kept for this ([`crate::dispatcher::stores::line`]), which is who
//! the client was before; what it answers is what the client reads. Only then does the client move to the pool of its
//! new identity, and only then is it charged to its user's tenant. It has all its earlier replies by then, and of
//! what it has sent behind, nothing has been looked at.

use std::rc::Rc;

use super::{Asked, Identity, Secret};
use crate::dispatcher::clients::client::{Client, Moving};
use crate::dispatcher::figures::Event;
use crate::dispatcher::service::Service;
use crate::dispatcher::stores::broken::Broken;
use crate::dispatcher::wire::Wire;
use crate::protocol::resp::error_code;
use crate::protocol::{Refusal, Step};

impl<W: Wire> Client<W> {
    /// Takes the request that the client's input begins with to the store. Returns where the client goes then.
    pub(in crate::dispatcher) async fn change(&self, service: &Rc<Service<W>>) -> Moving {
        let Some((request, asked)) = self.take_request() else { return Moving::Own };
        match self.answer(&request, &asked, service).await {
            Ok(answer) => {
                self.say(&answer);
                if error_code(&answer).is_none() {
                    return self.become_what_it_asked(&asked, service);
                }
                if asked.login.is_some() {
                    service.figures.count(Event::LoginFailed);
                    // Who is charged to nobody gets one guess for each connection.
                    self.talk.borrow_mut().ending = self.is_unknown();
                }
            }
            Err(refusal) => {
                let replies = &mut self.talk.borrow_mut().replies;
                let place = replies.open();
                replies.refuse(place, refusal);
                service.count_refusal(self.tenant.get(), refusal.reason);
            }
        }
        Moving::No
    }

    /// The request, and what it asks; `None`, and it stays where it is, if that cannot be told.
    fn take_request(&self) -> Option<(Secret, Asked)> {
        let talk = &mut *self.talk.borrow_mut();
        let input = talk.input.bytes();
        let Step::Request { len, request } = W::decode(&mut talk.decoder, input) else { return None };
        let bytes = W::bytes(&talk.decoder, &request, &input[..len]);
        let taken = (Secret::new(bytes), W::change(&request, bytes)?);
        talk.input.consume(len);
        Some(taken)
    }

    /// What the store says, or gate where it can tell.
    async fn answer(
        &self,
        request: &Secret,
        asked: &Asked,
        service: &Service<W>,
    ) -> Result<Vec<u8>, Refusal> {
        let who = self.who.borrow().clone();
        let verified = asked.login.as_ref().and_then(|login| service.tenants.borrow().verifies(login));
        match verified {
            Some(false) => return Ok(WRONG_PASSWORD.to_vec()),
            Some(true) if asked.is_login_alone() && service.pools.has_proof_of(&who.after(asked)) => {
                return Ok(OK.to_vec());
            }
            _ => {}
        }
        let asking = async {
            let mut line = service.lines.take(&service.settings, &who).await?;
            let answer = service.lines.admit(line.ask(request.bytes())).await?;
            service.lines.keep(line);
            Ok(answer)
        };
        asking.await.or_else(|broken| match broken {
            Broken::Refused(why) => Ok(why),
            broken => Err(broken.refusal()),
        })
    }

    /// The store agrees. It shares a pool from now on if there is one for it.
    fn become_what_it_asked(&self, asked: &Asked, service: &Rc<Service<W>>) -> Moving {
        let who = self.who.borrow().after(asked);
        self.charge_to_user_of(asked, service);
        let pool = service.pools.open(&who, service);
        if let Some(login) = &asked.login {
            service.pools.accepted(login);
        }
        *self.who.borrow_mut() = who;
        let Some(pool) = pool else { return Moving::Own };
        self.share(pool);
        Moving::No
    }

    /// From now on it is charged to the tenant of the user as whom it has logged in, if it has one.
    pub(in crate::dispatcher) fn charge_to_user_of(&self, asked: &Asked, service: &Service<W>) {
        if asked.login.is_none() && !asked.reset {
            return;
        }
        self.user.borrow_mut().clone_from(&asked.login);
        let ledger = service.ledger.borrow();
        let tenant = asked.login.as_ref().and_then(|login| service.tenants.borrow().of_user(login, &ledger));
        drop(ledger);
        self.charge_to(tenant.unwrap_or_else(|| service.identify(self.source).0), service);
    }

    /// Takes note of a login on a connection of the client's own, if the store accepts it here too.
    pub(in crate::dispatcher) async fn witness(&self, asked: &Asked, service: &Service<W>) {
        if let Some(login) = &asked.login {
            let claimed = Identity { login: Some(Rc::clone(login)), ..Identity::default() };
            let Ok(line) = service.lines.take(&service.settings, &claimed).await else {
                service.figures.count(Event::LoginFailed);
                return;
            };
            service.lines.keep(line);
        }
        self.charge_to_user_of(asked, service);
    }

    /// Gives it a reply that is not any request's among those outstanding: there are none.
    pub(in crate::dispatcher) fn say(&self, reply: &[u8]) {
        let replies = &mut self.talk.borrow_mut().replies;
        let place = replies.open();
        replies.part(place, reply);
        replies.whole(place);
    }
}

/// As Redis has them.
const OK: &[u8] = b"+OK\r\n";
const WRONG_PASSWORD: &[u8] = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
