//! A request over a dedicated connection: what gate knows of it before it is charged, and what it does to the
//! connection's state.

use gate_common::abi::Reason;

use super::exchange::Exchange;
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::conversation::RefusedBefore;
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::RequestClass;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::{Effect, Route, SessionState, Wire};
use crate::protocol::{Refusal, Rule};

/// The state that a connection keeps for its client, as far as its requests tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionState {
    /// `MULTI` without `EXEC` or `DISCARD`.
    pub(super) in_transaction: bool,
    /// `WATCH` without what ends it.
    watches: bool,
    /// Anything else: until the connection ends.
    is_lasting: bool,
}

/// A request that has been decoded, and is still in the client's input.
pub(super) struct NextRequest<W: Wire> {
    pub(super) request: W::Request,
    /// Its length in the input.
    pub(super) len: usize,
    pub(super) class: RequestClass,
    pub(super) demand: Demand,
    pub(super) tenant: TenantId,
    pub(super) client_tenant: TenantId,
    pub(super) effect: Effect,
    pub(super) login: Option<LoginRequest>,
    pub(super) changes_session: bool,
    /// The bytes that go to the store instead.
    pub(super) instead: Option<&'static [u8]>,
    pub(super) has_one_reply: bool,
    /// Set if, outside a transaction, it turns replies on or off ([`SessionState::wants_replies`]).
    pub(super) wants_replies: Option<bool>,
    /// gate's answer in place of the store's, where its store is a node of a cluster.
    pub(super) own: Option<OwnAnswer>,
    /// True if it is a login with a password that gate knows to be wrong, and nothing depends on it.
    pub(super) is_wrong_login: bool,
}

/// gate's answer to a request on a connection to a node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnAnswer {
    /// That node cannot be asked.
    Refused(Rule),
    /// As the one node that gate shows.
    Presented,
}

impl ConnectionState {
    pub(super) fn is_clean(self) -> bool {
        self == Self::default()
    }

    pub(super) fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None | Effect::Blocks | Effect::Unknown => {}
            Effect::Begin => self.in_transaction = true,
            Effect::Watch => self.watches = true,
            // In a transaction it is only queued.
            Effect::Unwatch => self.watches &= self.in_transaction,
            Effect::Commit | Effect::Discard => (self.in_transaction, self.watches) = (false, false),
            // It ends a transaction.
            Effect::Reset => *self = Self { is_lasting: true, ..Self::default() },
            Effect::Lasting | Effect::Subscribes => self.is_lasting = true,
        }
    }
}

impl<W: Wire> NextRequest<W> {
    /// True if the request is only queued in the store, as a part of a transaction.
    pub(super) fn is_queued(&self, in_transaction: bool) -> bool {
        in_transaction && self.effect != Effect::Commit
    }

    pub(super) fn takes_permit(&self, in_transaction: bool) -> bool {
        let waits = matches!(self.effect, Effect::Begin | Effect::Blocks);
        self.instead.is_none() && self.has_one_reply && !waits && !self.is_queued(in_transaction)
    }
}

impl<W: Wire> Exchange<'_, W> {
    /// Looks at a request that has been decoded out of `len` bytes of input, on a connection in this state. `is_first` is true for the
    /// one that the connection was taken for, which has been admitted.
    pub(super) fn examine(
        &self,
        request: W::Request,
        bytes: &[u8],
        len: usize,
        (is_first, state): (bool, ConnectionState),
    ) -> NextRequest<W> {
        let (tenant, denied) = self.client.tenant_for(&request, bytes);
        let login = W::Session::login(&request, bytes).filter(LoginRequest::names_user);
        let stands_alone =
            !state.in_transaction && self.client.refused_before.get() == RefusedBefore::Nothing;
        let own = if is_first { None } else { self.own_answer(&request, bytes) };
        // Where it would not be in its place, or the transaction would go on without it, the store refuses it.
        let has_place = !state.in_transaction && !self.outstanding.borrow().has_lost_count();
        let denied = denied.or(match own.filter(|_| !has_place) {
            Some(OwnAnswer::Refused(rule)) => Some(rule),
            Some(OwnAnswer::Presented) => Some(Rule::Cluster),
            None => None,
        });
        let class = self.service.types.borrow().classify::<W>(&request, bytes);
        let mut demand = self.service.demand(self.client, (tenant, class), &request, bytes);
        if state.in_transaction && W::frees(&request) {
            demand.read = self.service.key_read(tenant, &request, bytes, false);
        }
        let denied = denied.or_else(|| self.service.too_many_rows(&demand).then_some(Rule::MaxRows));
        let instead = match is_first {
            true => None,
            false => {
                self.service.metrics.count(Event::Request);
                let refused_login = login.as_ref().is_some_and(|login| self.refuses_login(login, state));
                let denied = denied.or_else(|| refused_login.then_some(Rule::Users));
                self.instead(denied, tenant, &request, bytes, login.as_ref())
            }
        };
        let is_wrong = || login.as_ref().is_some_and(|login| self.is_wrong(login));
        let is_wrong_login = stands_alone && instead.is_some() && denied.is_none() && is_wrong();
        let wants_replies = W::Session::wants_replies(&request, bytes);
        let wants_replies = wants_replies.filter(|_| !state.in_transaction && instead.is_none());
        NextRequest {
            class,
            // What follows of a streamed one is charged as it comes.
            demand: Demand { bytes: bytes.len(), ..demand },
            tenant,
            client_tenant: self.client.tenant.get(),
            effect: self.effect(&request),
            changes_session: W::Session::changes_session(&request),
            login: login.filter(|_| instead.is_none()),
            has_one_reply: instead.is_some() || wants_replies.is_some() || W::has_one_answer(&request),
            wants_replies,
            is_wrong_login,
            own: own.filter(|_| has_place && instead.is_none()),
            instead,
            request,
            len,
        }
    }

    /// True if a request needs no dedicated connection, or one to another node of a cluster.
    pub(super) fn belongs_elsewhere(&self, request: &W::Request, bytes: &[u8]) -> bool {
        let is_of_other_node = || {
            W::Session::begins(request)
                || W::ends_nothing(request)
                || !self.service.may_ask(self.node, request, bytes)
        };
        W::route(request) != Route::Dedicated || self.service.settings.cluster.is_some() && is_of_other_node()
    }

    /// The effect of a request on the connection. One to a node of a cluster is not kept for the look at it: its client has keys at others.
    fn effect(&self, request: &W::Request) -> Effect {
        match self.service.settings.cluster {
            Some(_) if W::Session::asks_for_connection(request) => Effect::None,
            _ => W::Session::effect(request),
        }
    }

    /// gate's answer to a request on a connection to a node of a cluster, if it has one.
    fn own_answer(&self, request: &W::Request, bytes: &[u8]) -> Option<OwnAnswer> {
        self.service.settings.cluster.as_ref()?;
        if W::presents(request, bytes) {
            return Some(OwnAnswer::Presented);
        }
        self.service.refused_at(self.node, request, bytes).map(OwnAnswer::Refused)
    }

    /// The bytes that go to the store instead of a request that is refused: a command that the store does not know. It
    /// refuses that, and a transaction with it.
    fn instead(
        &self,
        denied: Option<Rule>,
        tenant: TenantId,
        request: &W::Request,
        bytes: &[u8],
        login: Option<&LoginRequest>,
    ) -> Option<&'static [u8]> {
        if self.client.refused_with_earlier(request).is_some() {
            return match W::Session::effect(request) {
                Effect::Commit => Some(W::Session::ABORT),
                Effect::None
                | Effect::Blocks
                | Effect::Begin
                | Effect::Discard
                | Effect::Watch
                | Effect::Unwatch
                | Effect::Reset
                | Effect::Unknown
                | Effect::Lasting
                | Effect::Subscribes => Some(W::Session::unknown_command(None)),
            };
        }
        self.refusal(denied, tenant, request, bytes, login).map(|refusal| {
            self.client.note_refused(request, refusal);
            W::Session::unknown_command(refusal.rule)
        })
    }

    /// True if a login has to be refused for where it stands: what a transaction runs behind it is another tenant's
    /// ([`super::pending_logins`]).
    fn refuses_login(&self, login: &LoginRequest, state: ConnectionState) -> bool {
        let is_of_other_tenant = || self.client.tenant_after(login, self.service) != self.client.tenant.get();
        state.in_transaction && !login.reset && (is_of_other_tenant() || !self.logins.borrow().have_room())
    }

    /// True if gate knows the password of a login to be wrong.
    fn is_wrong(&self, login: &LoginRequest) -> bool {
        let login = login.login.as_ref();
        login.and_then(|login| self.service.tenants.borrow().verifies(login)) == Some(false)
    }

    /// The refusal of a request that is denied to the tenant, too long or reads too much, or whose password gate knows to be wrong.
    fn refusal(
        &self,
        denied: Option<Rule>,
        tenant: TenantId,
        request: &W::Request,
        bytes: &[u8],
        login: Option<&LoginRequest>,
    ) -> Option<Refusal> {
        if login.is_some_and(|login| self.is_wrong(login)) {
            self.service.metrics.count(Event::LoginFailed);
            return Some(Refusal::of(Reason::Unsupported));
        }
        let is_too_long = || self.service.is_too_long(request, bytes);
        let refuses = |refusal: &Refusal| self.service.refuses(self.client, tenant, refusal.reason);
        let reason = |rule| if rule == Rule::MaxRows { Reason::TooLarge } else { Reason::Unsupported };
        denied
            .map(|rule| Refusal::by(reason(rule), rule))
            .filter(refuses)
            .or_else(|| is_too_long().then_some(Refusal::by(Reason::TooLarge, Rule::Size)).filter(refuses))
    }
}
