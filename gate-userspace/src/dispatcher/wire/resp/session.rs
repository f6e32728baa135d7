//! The state that a connection to a Redis keeps for its client, and the commands that change it.

use gate_common::units::Nanos;

use super::{CLUSTER, Resp, SET_INFO};
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::store_silence::PauseChange;
use crate::dispatcher::wire::{Effect, SessionState};
use crate::protocol::Rule;
use crate::protocol::resp::{self, Command, Request, State};

impl SessionState<Request> for Resp {
    const HAS_USERS: bool = true;

    fn login(request: &Request, bytes: &[u8]) -> Option<LoginRequest> {
        request.change(bytes).map(|change| LoginRequest::of(&change))
    }

    fn changes_session(request: &Request) -> bool {
        request.changes()
            || matches!(request.state, State::Auth | State::Hello | State::Select | State::Reset)
    }

    #[inline]
    fn is_forbidden(answer: &[u8]) -> bool {
        answer.starts_with(b"-NOPERM")
    }

    /// Redis says the name of a command that it does not know.
    fn unknown_command(rule: Option<Rule>) -> &'static [u8] {
        resp::unknown_command(rule)
    }

    #[inline]
    fn effect(request: &Request) -> Effect {
        match (request.state, request.command) {
            (State::Shared, _) | (State::Name, SET_INFO) => Effect::None,
            // Modules' commands, and a look at a connection of the client's identity.
            (State::Own, Command::UNKNOWN | CLIENT_INFO) => Effect::None,
            // The last two concern one connection, and the client's requests take many.
            (State::Own, CLIENT | NO_EVICT | NO_TOUCH) => Effect::Unknown,
            // Neither waits for a permit: requests that hold one may be waiting for it.
            (State::Blocking | State::Pause, _) => Effect::Blocks,
            (State::Transaction, MULTI) => Effect::Begin,
            (State::Transaction, EXEC) => Effect::Commit,
            (State::Transaction, DISCARD) => Effect::Discard,
            (State::Transaction, WATCH) => Effect::Watch,
            (State::Transaction, UNWATCH) => Effect::Unwatch,
            (State::Reset | State::Quit, _) => Effect::Reset,
            (State::Pubsub | State::Monitor | State::Replication, _) => Effect::Subscribes,
            (
                State::Select
                | State::Hello
                | State::Auth
                | State::Name
                | State::Transaction
                | State::Reply
                | State::Tracking
                | State::Cluster
                | State::Own,
                _,
            ) => Effect::Lasting,
        }
    }

    fn asks_for_connection(request: &Request) -> bool {
        [CLIENT_ID, GETNAME].contains(&request.command)
    }

    fn pause(request: &Request, bytes: &[u8]) -> Option<PauseChange> {
        match request.command {
            PAUSE => {
                let millis = str::from_utf8(request.args(bytes).nth(2)?).ok()?.parse().ok()?;
                Some(PauseChange::Begin(Nanos::from_millis(millis)))
            }
            UNPAUSE => Some(PauseChange::End),
            _ => None,
        }
    }

    fn wants_replies(request: &Request, bytes: &[u8]) -> Option<bool> {
        if request.command != REPLY || request.args(bytes).count() != 3 {
            return None;
        }
        let mode = request.args(bytes).nth(2)?;
        match (mode.eq_ignore_ascii_case(b"ON"), mode.eq_ignore_ascii_case(b"OFF")) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            // `SKIP` is about the next request alone.
            (false, false) => None,
        }
    }

    const WRONG_PASSWORD: &'static [u8] =
        b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";

    #[inline]
    fn awaits_replicas(request: &Request) -> bool {
        [WAIT, WAITAOF].contains(&request.command)
    }

    const ABORTED: &'static [u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";

    fn begins(request: &Request) -> bool {
        request.command == MULTI && request.args == 1
    }

    const BEGIN: &'static [u8] = b"MULTI\r\n";

    const BEGUN: &'static [u8] = b"+OK\r\n";

    /// Redis says the name of a command that it does not know.
    const ABORT: &'static [u8] = b"*1\r\n$21\r\nEXECABORT was refused\r\n";

    const IN_CLUSTER: &'static [u8] = CLUSTER;
}

const CLIENT: Command = Command::named("client");
const CLIENT_ID: Command = Command::named("client|id");
const CLIENT_INFO: Command = Command::named("client|info");
const GETNAME: Command = Command::named("client|getname");
const NO_EVICT: Command = Command::named("client|no-evict");
const NO_TOUCH: Command = Command::named("client|no-touch");
const REPLY: Command = Command::named("client|reply");
const PAUSE: Command = Command::named("client|pause");
const UNPAUSE: Command = Command::named("client|unpause");
const WAIT: Command = Command::named("wait");
const WAITAOF: Command = Command::named("waitaof");
const MULTI: Command = Command::named("multi");
const EXEC: Command = Command::named("exec");
const DISCARD: Command = Command::named("discard");
const WATCH: Command = Command::named("watch");
const UNWATCH: Command = Command::named("unwatch");
