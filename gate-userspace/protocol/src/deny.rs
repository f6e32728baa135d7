//! Commands that a tenant may not use, whichever protocol it speaks.
//!
//! A command is written as its store writes it, in any case: `FLUSHALL`, `flush_all`; a subcommand behind its
//! command: `CONFIG SET`. `unknown` stands for every command of Redis that gate does not know.

use super::{memcached, resp};

/// Commands that are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deny {
    /// In RESP.
    pub resp: resp::Denied,
    /// In memcached's protocol.
    pub memcached: Vec<memcached::Command>,
}

impl Deny {
    /// Adds the command that `text` names; false if there is none.
    pub fn add(&mut self, text: &str) -> bool {
        let name = text.to_ascii_lowercase();
        let before = self.memcached.len();
        self.memcached.extend(memcached::Command::named(&name));
        self.resp.add(&name) || self.memcached.len() > before
    }

    /// Adds everything that runs code in a store, which may call what is denied.
    pub fn add_scripts(&mut self) {
        SCRIPTS.into_iter().for_each(|name| assert!(self.add(name), "{name} is a command"));
    }

    /// True if a command of Redis is denied with all its subcommands; `name` in lower case.
    #[must_use]
    pub fn denies_redis(&self, name: &str) -> bool {
        self.resp.has(name)
    }

    /// True if scripts are denied.
    #[must_use]
    pub fn denies_scripts(&self) -> bool {
        SCRIPTS.iter().all(|name| self.resp.has(name))
    }

    /// The names that [`Deny::add`] knows, subcommands aside.
    pub fn names() -> impl Iterator<Item = &'static str> {
        resp::names().chain(memcached::Command::ALL.map(memcached::Command::name))
    }
}

/// Commands that run code in a store, or bring it there.
const SCRIPTS: [&str; 8] =
    ["eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro", "function", "script"];

#[cfg(test)]
mod tests {
    use super::*;

    fn denies(deny: &Deny, line: &str) -> bool {
        let mut decoder = resp::Decoder::new(resp::Limits::default());
        let input = format!("{line}\r\n");
        let resp::Step::Request { request, len } = decoder.next(input.as_bytes()) else { panic!("{line:?}") };
        deny.resp.denies(&request, decoder.bytes(&request, &input.as_bytes()[..len]))
    }

    #[test]
    fn denied_commands_include_subcommands_and_not_vice_versa() {
        let mut deny = Deny::default();
        for name in ["FlushAll", "keys", "CONFIG SET", "client kill", "ACL|SETUSER", "object", "Unknown"] {
            assert!(deny.add(name), "{name}");
        }
        for line in [
            "flushall",
            "FLUSHALL ASYNC",
            "KEYS *",
            "config set a b",
            "CONFIG SET",
            "Client Kill x",
            "ACL setuser x",
            "OBJECT FREQ k",
            "OBJECT",
            "FT.SEARCH x",
            "JSON.GET k",
        ] {
            assert!(denies(&deny, line), "{line}");
        }
        for line in [
            "FLUSHDB",
            "GET keys",
            "CONFIG GET a",
            "CONFIG",
            "CLIENT ID",
            "CLIENT LIST",
            "ACL WHOAMI",
            "EVAL x 0",
        ] {
            assert!(!denies(&deny, line), "{line}");
        }
        assert!(deny.memcached.is_empty());
    }

    #[test]
    fn scripts_are_denied_together() {
        let mut deny = Deny::default();
        assert!(!deny.denies_scripts());
        deny.add_scripts();
        assert!(deny.denies_scripts() && deny.denies_redis("eval") && !deny.denies_redis("get"));
        for line in
            ["EVAL x 0", "evalsha x 0", "FCALL f 0", "FCALL_RO f 0", "SCRIPT LOAD x", "FUNCTION LOAD x"]
        {
            assert!(denies(&deny, line), "{line}");
        }
        assert!(!denies(&deny, "GET a"));
    }

    #[test]
    fn memcached_has_its_own_names_and_some_are_both() {
        let mut deny = Deny::default();
        assert!(deny.add("flush_all") && deny.add("GET") && deny.add("stats"));
        use memcached::Command::{FlushAll, Get, Stats, StatsGate};
        assert_eq!(deny.memcached, [FlushAll, Get, Stats, StatsGate]);
        assert!(denies(&deny, "GET a") && !denies(&deny, "MGET a"));
    }

    #[test]
    fn names_of_no_command_are_reported() {
        for name in ["", "FLUSHAL", "GET a", "CONFIG SET x", "config|", "CONFIG ", " GET", "SELECT 1"] {
            assert!(!Deny::default().add(name), "{name:?}");
        }
        assert!(
            Deny::names().any(|name| name == "flushall") && Deny::names().any(|name| name == "flush_all")
        );
    }
}
