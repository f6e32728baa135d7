//! The reasons of refusals in words: the cause of each, and what an operator can do.

use std::borrow::Cow;

use gate_common::abi::Reason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The document of `/v1/reasons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reasons {
    /// Every reason.
    pub reasons: Vec<InWords>,
}

/// A reason in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InWords {
    /// Its name, as counters and answers have it.
    pub reason: Cow<'static, str>,
    /// Why a request is refused for it.
    pub cause: Cow<'static, str>,
    /// The help against it.
    pub remedy: Cow<'static, str>,
    /// The command to begin with.
    pub command: Command,
}

/// A command of gate that helps against a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// `gate set tenant.NAME.KEY`, with this key.
    Set(Cow<'static, str>),
    /// This one, which shows more.
    Look(Cow<'static, str>),
}

impl Reasons {
    /// All of them, in the order of their numbers.
    #[must_use]
    pub fn all() -> Self {
        Self { reasons: Reason::ALL.into_iter().map(InWords::of).collect() }
    }
}

impl InWords {
    /// One reason.
    #[must_use]
    pub fn of(reason: Reason) -> Self {
        Self {
            reason: reason.name().into(),
            cause: cause(reason).into(),
            remedy: remedy(reason).into(),
            command: command(reason),
        }
    }
}

/// Why a request is refused.
const fn cause(reason: Reason) -> &'static str {
    match reason {
        Reason::Quota => "the tenant's bucket, or that of one that it is charged to, does not hold the price",
        Reason::RejectedUntil => "the tenant's bucket is in debt, and until that is paid nothing passes",
        Reason::RejectionRate => {
            "a share of its requests is refused, as large as what was beyond its quota lately"
        }
        Reason::Penalty => {
            "its tier is shed, it asks for more than its share of a store that cannot do all, a multiplier makes the request dearer than its bucket can pay, or the tenant has `refuse = \"on\"`"
        }
        Reason::Limit => "too many connections, requests or datagrams of this tenant or service at once",
        Reason::Slo => "it would have missed the objective of its query type",
        Reason::QueueDelay => "it waited too long before the store, whose queue does not drain",
        Reason::QueueFull => "too many requests wait for the store already",
        Reason::Deadline => "it waited for longer than `deadline`, or its client has left",
        Reason::HotKey => "one key is asked for more often than `hot_key_limit`",
        Reason::StoreDown => "the store refuses connections, or has been silent",
        Reason::UnknownSource => "no tenant names the source",
        Reason::TooLarge => "longer than `max_request`, or dearer than the bucket can ever pay",
        Reason::Unsupported => "`deny`, `keys = \"own\"`, or what no proxy can pass on",
        Reason::Fragment => "a fragment of a datagram that cannot be judged by itself",
        Reason::Malformed => "it does not follow its protocol, or not every store reads it alike",
        Reason::SynRate => "more attempts to connect a second than its source may make",
        Reason::NoConnection => {
            "a segment of no connection, while its tenant has spent half of what it may at once"
        }
    }
}

/// The help against it.
const fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::Quota => {
            "a higher quota; a longer `burst` for what comes in bursts; `gate hotkeys` shows what it asks for"
        }
        Reason::RejectedUntil => "as for `quota`: a request was dearer than what the bucket held",
        Reason::RejectionRate => "as for `quota`",
        Reason::Penalty => "`gate queues` shows what is shed, `gate tenants` what is set by hand",
        Reason::Limit => "the limit that `gate queues` shows reached: `turned-away` counts connections",
        Reason::Slo => "more store; lower tiers for what can wait; a longer objective",
        Reason::QueueDelay | Reason::QueueFull => "more store; lower tiers for what can wait; `parallelism`",
        Reason::Deadline => "more store; lower tiers for what can wait; a longer `deadline`",
        Reason::HotKey => {
            "let gate proxy the service, which answers hot keys itself; `gate hotkeys` names the key"
        }
        Reason::StoreDown => "see \"The store is down\"; gate tries it again by itself",
        Reason::UnknownSource => "a tenant with this prefix, or the service's `default`",
        Reason::TooLarge => "`max_request`; `burst` and `max_debt`",
        Reason::Unsupported => "`gate check` names what is denied, `gate watch --refused` who asks for it",
        Reason::Fragment => "requests that fit into one packet, or TCP",
        Reason::Malformed => "that client's library; `gate watch --refused` names its address",
        Reason::SynRate => "clients that keep their connections; `syn_rate`",
        Reason::NoConnection => "nothing, unless it goes on: then somebody forges the tenant's addresses",
    }
}

/// The command to begin with.
fn command(reason: Reason) -> Command {
    match reason {
        Reason::Quota | Reason::RejectedUntil | Reason::RejectionRate => Command::Set("quota".into()),
        Reason::Penalty
        | Reason::Limit
        | Reason::Slo
        | Reason::QueueDelay
        | Reason::QueueFull
        | Reason::Deadline => Command::Look("gate queues".into()),
        Reason::HotKey => Command::Look("gate hotkeys".into()),
        Reason::StoreDown => Command::Look("gate status".into()),
        Reason::UnknownSource => Command::Look("gate sources --unknown".into()),
        Reason::TooLarge => Command::Set("burst".into()),
        Reason::Unsupported | Reason::Fragment | Reason::Malformed => {
            Command::Look("gate watch --refused".into())
        }
        Reason::SynRate | Reason::NoConnection => Command::Look("gate sources".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_documents_has_these_words() {
        let operations = include_str!("../../../docs/OPERATIONS.md");
        for InWords { reason, cause, remedy, .. } in Reasons::all().reasons {
            let row = format!("| `{reason}` | {cause} | {remedy} |");
            assert!(operations.contains(&row), "docs/OPERATIONS.md has not {row}");
        }
    }
}
