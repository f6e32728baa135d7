//! Commands of Redis as a configuration names them.

use super::command::Command;

/// The command or subcommand that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named<'n> {
    /// A command with all its subcommands that are known apart.
    Whole(Vec<Command>),
    /// One subcommand, as it was written.
    Sub {
        /// The name of its command.
        parent: &'static str,
        /// Its own name.
        name: &'n str,
    },
}

/// The command that `name`, in lower case, stands for; a subcommand comes after a blank or a bar.
pub(super) fn named(name: &str) -> Option<Named<'_>> {
    if let Some((name, sub)) = name.split_once([' ', '|']) {
        let plain = !sub.is_empty() && sub.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'|');
        let parent = CONTAINERS.into_iter().find(|parent| *parent == name).filter(|_| plain)?;
        return Some(Named::Sub { parent, name: sub });
    }
    let all = std::iter::once(Command::UNKNOWN).chain(Command::all());
    let whole: Vec<_> = all.filter(|command| base(*command) == name).collect();
    (!whole.is_empty()).then_some(Named::Whole(whole))
}

/// A command's name without its subcommand's.
pub(super) fn base(command: Command) -> &'static str {
    command.name().split('|').next().unwrap_or_default()
}

/// True if `name`, in any case, is a command's, or, behind a blank or a bar, a subcommand's; or `unknown`, which stands
/// for every command that gate does not know.
#[must_use]
pub fn is_command(name: &str) -> bool {
    named(&name.to_ascii_lowercase()).is_some()
}

/// The names that [`is_command`] knows, subcommands aside.
pub fn names() -> impl Iterator<Item = &'static str> {
    Command::all().map(Command::name).filter(|name| !name.contains('|')).chain(["unknown"])
}

/// Commands that have subcommands.
const CONTAINERS: [&str; 16] = [
    "acl", "client", "cluster", "command", "config", "debug", "function", "latency", "memory", "module",
    "object", "pubsub", "script", "slowlog", "xgroup", "xinfo",
];
