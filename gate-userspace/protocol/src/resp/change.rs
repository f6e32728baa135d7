//! Requests that change the client's identity at the store.

use super::command::{Command, State};
use super::request::Request;

/// A protocol version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// RESP2, with which every connection begins.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// The requested changes. A field that is `None` stays as it is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Change<'b> {
    /// The user, if one is named, and the password.
    pub login: Option<(Option<&'b [u8]>, &'b [u8])>,
    /// The database.
    pub database: Option<u32>,
    /// The protocol version.
    pub version: Option<Version>,
    /// The name of the connection.
    pub name: Option<&'b [u8]>,
    /// All else is as at the beginning.
    pub reset: bool,
}

const SET_NAME: Command = Command::named("client|setname");

impl Request {
    /// True if it may change who its client is, and nothing else of its connection.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.state {
            State::Auth | State::Hello | State::Select | State::Reset => !self.streamed,
            State::Name => self.command == SET_NAME && !self.streamed,
            State::Shared
            | State::Transaction
            | State::Blocking
            | State::Pause
            | State::Pubsub
            | State::Monitor
            | State::Replication
            | State::Reply
            | State::Tracking
            | State::Cluster
            | State::Quit
            | State::Own => false,
        }
    }

    /// True if the store may take a login in it and then fail it: Redis 7.0 does what it reads of a `HELLO` one by one. Or if it is too
    /// long to be looked at whole. Nobody could tell who the client is then. `bytes` begin where the request does.
    #[must_use]
    pub fn login_may_half_happen(&self, bytes: &[u8]) -> bool {
        match self.state {
            State::Auth => self.streamed,
            State::Hello if self.streamed => true,
            State::Hello => fails_behind_login(self.args(bytes).skip(2)),
            State::Shared
            | State::Select
            | State::Name
            | State::Transaction
            | State::Blocking
            | State::Pause
            | State::Pubsub
            | State::Monitor
            | State::Replication
            | State::Reply
            | State::Tracking
            | State::Cluster
            | State::Reset
            | State::Quit
            | State::Own => false,
        }
    }

    /// The changes if the store agrees; `None` if they are unknown. `bytes` begin where the request does.
    #[must_use]
    pub fn change<'b>(&self, bytes: &'b [u8]) -> Option<Change<'b>> {
        let mut args = self.args(bytes).skip(1);
        let nothing = Change::default();
        let change = match self.state {
            State::Auth => {
                let first = args.next()?;
                let login = args.next().map_or((None, first), |password| (Some(first), password));
                Change { login: Some(login), ..nothing }
            }
            State::Hello => return hello(args),
            State::Select => Change { database: Some(number(args.next()?)?), ..nothing },
            State::Name => Change { name: Some(args.nth(1)?), ..nothing },
            State::Reset => Change { reset: true, ..nothing },
            State::Shared
            | State::Transaction
            | State::Blocking
            | State::Pause
            | State::Pubsub
            | State::Monitor
            | State::Replication
            | State::Reply
            | State::Tracking
            | State::Cluster
            | State::Quit
            | State::Own => return None,
        };
        args.next().is_none().then_some(change)
    }
}

/// True if options of `HELLO` name a user, and then another one or what Redis does not take.
fn fails_behind_login<'b>(mut options: impl Iterator<Item = &'b [u8]>) -> bool {
    let mut has_user = false;
    while let Some(option) = options.next() {
        let is_login = option.eq_ignore_ascii_case(b"AUTH") && options.next().and(options.next()).is_some();
        let mut is_name = || {
            let name = options.next().filter(|_| option.eq_ignore_ascii_case(b"SETNAME"));
            name.is_some_and(|name| name.iter().all(u8::is_ascii_graphic))
        };
        if has_user && is_login || !is_login && !is_name() {
            return has_user;
        }
        has_user |= is_login;
    }
    false
}

/// `[2|3 [AUTH user password] [SETNAME name]]`; of options that are given twice, Redis takes the last.
fn hello<'b>(mut args: impl Iterator<Item = &'b [u8]>) -> Option<Change<'b>> {
    let mut change = Change::default();
    change.version = match args.next() {
        None => return Some(change),
        Some(b"2") => Some(Version::Two),
        Some(b"3") => Some(Version::Three),
        Some(_) => return None,
    };
    while let Some(option) = args.next() {
        if option.eq_ignore_ascii_case(b"AUTH") {
            change.login = Some((Some(args.next()?), args.next()?));
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            change.name = Some(args.next()?);
        } else {
            return None;
        }
    }
    Some(change)
}

/// Digits without a needless zero, as Redis reads them.
fn number(text: &[u8]) -> Option<u32> {
    let plain = text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || !text.starts_with(b"0"));
    plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Fault, FaultKind, Limits, Step};
    use super::*;

    fn change_of(line: &str, check: impl FnOnce(bool, Option<Change<'_>>)) {
        let mut decoder = Decoder::new(Limits::default());
        let input = format!("{line}\r\n");
        let Step::Request { request, len } = decoder.next(input.as_bytes()) else { panic!("{line:?}") };
        let bytes = decoder.bytes(&request, &input.as_bytes()[..len]);
        check(request.changes(), request.change(bytes));
    }

    #[test]
    fn a_login_that_redis_may_take_and_then_fail_is_none() {
        let long = "x".repeat(70_000);
        for (line, half) in [
            ("AUTH alice secret", false),
            ("AUTH a b c", false),
            ("HELLO", false),
            ("HELLO 3 BAD", false),
            ("HELLO 3 SETNAME a\\x01b", false),
            ("HELLO 3 AUTH alice secret", false),
            ("HELLO 3 setname me auth alice secret", false),
            ("HELLO 3 AUTH alice secret SETNAME \"\"", false),
            ("HELLO 3 AUTH alice", false),
            ("HELLO 3 BAD AUTH alice secret", false),
            ("HELLO 3 AUTH alice secret BAD", true),
            ("HELLO 3 AUTH alice secret SETNAME", true),
            ("HELLO 3 AUTH alice secret SETNAME \"a b\"", true),
            ("HELLO 3 AUTH alice secret AUTH bob wrong", true),
            (&format!("AUTH alice {long}"), true),
            (&format!("HELLO 3 AUTH alice secret SETNAME {long}"), true),
        ] {
            let words: Vec<String> = match line.contains(['"', '\\']) {
                true => vec![],
                false => line.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect(),
            };
            let input = match words.is_empty() {
                true => format!("{line}\r\n"),
                false => format!("*{}\r\n{}", words.len(), words.concat()),
            };
            let step = Decoder::new(Limits { gather: 64 << 10, ..Limits::default() }).next(input.as_bytes());
            let fault = Fault { kind: FaultKind::Login };
            assert_eq!(
                matches!(step, Step::Fault { fault: found, .. } if found == fault),
                half,
                "{line:.60}"
            );
        }
    }

    #[test]
    fn what_is_asked_is_read_as_redis_reads_it() {
        let none = Change::default();
        let alice: &[u8] = b"alice";
        let secret: &[u8] = b"secret";
        let as_alice = Some((Some(alice), secret));
        for (line, expected) in [
            ("AUTH secret", Change { login: Some((None, secret)), ..none }),
            ("auth alice secret", Change { login: as_alice, ..none }),
            ("HELLO", none),
            ("HELLO 2", Change { version: Some(Version::Two), ..none }),
            (
                "HELLO 3 setname me auth alice secret",
                Change { version: Some(Version::Three), login: as_alice, name: Some(b"me"), ..none },
            ),
            ("SELECT 15", Change { database: Some(15), ..none }),
            ("SELECT 0", Change { database: Some(0), ..none }),
            ("CLIENT SETNAME me", Change { name: Some(b"me"), ..none }),
            ("RESET", Change { reset: true, ..none }),
        ] {
            change_of(line, |changes, change| assert!(changes && change == Some(expected), "{line}"));
        }
    }

    #[test]
    fn unreadable_changes_are_none() {
        for line in [
            "AUTH",
            "AUTH a b c",
            "HELLO 4",
            "HELLO 03",
            "HELLO 3 AUTH alice",
            "HELLO 3 SETNAME",
            "HELLO 3 X",
            "SELECT",
            "SELECT 01",
            "SELECT -1",
            "SELECT +1",
            "SELECT \"\"",
            "SELECT 99999999999",
            "SELECT 1 2",
            "CLIENT SETNAME",
            "CLIENT SETNAME a b",
            "RESET now",
        ] {
            change_of(line, |_, change| assert!(change.is_none(), "{line}"));
        }
        for line in ["GET a", "CLIENT GETNAME", "CLIENT ID", "MULTI", "QUIT"] {
            change_of(line, |changes, _| assert!(!changes, "{line}"));
        }
    }
}
