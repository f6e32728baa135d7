//! Logins over a dedicated connection, until the store has answered them.
//!
//! A login is asked of the store once: where it stands in the client's requests. Outside a transaction its answer follows. In one it is
//! only queued, and its answer is a part of the one to `EXEC`: the part that is as far behind the beginning as the login was queued behind
//! `MULTI`. What is queued with it runs before gate knows whose it is, so a login that would change the tenant is refused in a
//! transaction.

use crate::dispatcher::hot_cache::dedicated_writes::ReplyStart;
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::wire::Effect;
use crate::protocol::resp::{Elements, Kind};

/// The logins of one client that the store has not answered, and what it has answered to others.
#[derive(Debug, Default)]
pub(super) struct PendingLogins {
    /// Requests that the store has queued since `MULTI`.
    queued: usize,
    /// The logins among them, each with its place.
    logins: Vec<(usize, Box<LoginRequest>)>,
    /// The parts of the answer to `EXEC`.
    parts: Elements,
    outcome: LoginOutcome,
}

/// The store's answers to logins.
#[derive(Debug, Default)]
pub(super) struct LoginOutcome {
    /// The last login that it has accepted.
    pub(super) accepted: Option<Box<LoginRequest>>,
    /// The number that it has refused.
    pub(super) refused: usize,
}

impl PendingLogins {
    /// True if the transaction may contain one more login.
    pub(super) fn have_room(&self) -> bool {
        self.logins.len() < MOST_QUEUED
    }

    /// True if the transaction contains logins.
    pub(super) fn are_queued(&self) -> bool {
        !self.logins.is_empty()
    }

    /// A request with this effect, which may be a login, has been answered.
    pub(super) fn on_answered(
        &mut self,
        effect: Effect,
        login: Option<Box<LoginRequest>>,
        answer: ReplyStart,
    ) {
        match (answer, login) {
            (ReplyStart::Queued, login) => {
                self.logins.extend(login.map(|login| (self.queued, login)));
                self.queued += 1;
            }
            (ReplyStart::Done, Some(login)) => self.outcome.accepted = Some(login),
            (ReplyStart::Failed, Some(_)) => self.outcome.refused += 1,
            (ReplyStart::Done | ReplyStart::Failed, None) => {}
        }
        let ends = match effect {
            Effect::Begin | Effect::Discard | Effect::Reset => answer == ReplyStart::Done,
            Effect::Commit => true,
            Effect::None
            | Effect::Blocks
            | Effect::Watch
            | Effect::Unwatch
            | Effect::Unknown
            | Effect::Lasting
            | Effect::Subscribes => false,
        };
        if ends {
            (self.queued, self.parts) = (0, Elements::new());
            self.logins.clear();
        }
    }

    /// A piece of the answer to `EXEC`.
    pub(super) fn on_committed(&mut self, piece: &[u8]) {
        if self.logins.is_empty() {
            return;
        }
        let Self { logins, parts, outcome, .. } = self;
        // What is no reply has been found out before.
        let _ = parts.read(piece, |place, kind| {
            if let Some(index) = logins.iter().position(|(queued, _)| *queued == place) {
                match kind {
                    // As `AUTH`, `RESET` and `HELLO` are answered.
                    Kind::Simple | Kind::Map | Kind::Array => {
                        outcome.accepted = Some(logins.remove(index).1);
                    }
                    Kind::Error
                    | Kind::Integer
                    | Kind::Bulk
                    | Kind::Null
                    | Kind::Boolean
                    | Kind::Double
                    | Kind::BigNumber
                    | Kind::Verbatim
                    | Kind::Set
                    | Kind::Attribute
                    | Kind::Push => outcome.refused += 1,
                }
            }
        });
    }

    /// The answers that have come since this was asked last.
    pub(super) fn take_outcome(&mut self) -> LoginOutcome {
        std::mem::take(&mut self.outcome)
    }
}

/// The logins that one transaction may contain.
const MOST_QUEUED: usize = 8;
