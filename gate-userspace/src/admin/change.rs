//! Changes of a running gate: orders, their results, and the channel to the daemon.
//!
//! A change is an override of the configuration ([`crate::config::edit`]): it is checked and put in force as if
//! the file said so, all or nothing, and it lasts until the daemon ends. Reading the file again keeps it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

pub use crate::config::Override;
use crate::config::section_of;

/// An order to change keys. An empty one only lists the overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Keys that get another value.
    #[serde(default)]
    pub set: Vec<Override>,
    /// Keys that get back the configuration's.
    #[serde(default)]
    pub unset: Vec<String>,
    /// True to write the change to the configuration itself.
    #[serde(default)]
    pub save: bool,
    /// True to check the order without carrying it out.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// The keys that were changed, or would have been.
    pub changed: Vec<Changed>,
    /// Every override that is in force now.
    pub overrides: Vec<Override>,
    /// The configuration's file, if it was written.
    pub saved: Option<String>,
    /// The changes that count from the next start only.
    pub later: Vec<String>,
    /// True if the file had been edited since it was read: all that it says is in force with this.
    #[serde(default)]
    pub edited: bool,
}

/// One key's change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// The key.
    pub key: String,
    /// The old value; `None` if it was the default.
    pub from: Option<String>,
    /// The new value; `None` if it is the default.
    pub to: Option<String>,
}

/// The process that gave an order, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its number; none if it is of another PID namespace.
    pub pid: Option<i32>,
}

/// An order on its way to the daemon, with the channel for its result.
#[derive(Debug)]
pub struct PendingOrder {
    /// The order.
    pub order: Order,
    /// Its sender.
    pub peer: Peer,
    /// The channel for the result, or for the reason why nothing was changed.
    pub answer: oneshot::Sender<Result<Done, String>>,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unchanged {
    /// The daemon ends.
    #[error("the gate ends")]
    Ends,
    /// The order is faulty, or cannot be put in force.
    #[error("{0}")]
    Refused(String),
}

/// Has an order carried out, at one of the next ticks.
///
/// # Errors
///
/// [`Unchanged`].
pub(super) async fn ask(
    changes: &mpsc::Sender<PendingOrder>,
    order: Order,
    peer: Peer,
) -> Result<Done, Unchanged> {
    let (answer, answered) = oneshot::channel();
    changes.send(PendingOrder { order, peer, answer }).await.map_err(|_| Unchanged::Ends)?;
    answered.await.map_err(|_| Unchanged::Ends)?.map_err(Unchanged::Refused)
}

/// The overrides after an order: the last value of a key counts.
///
/// # Errors
///
/// If a key is to be unset that is not set.
pub fn after(overrides: &[Override], order: &Order) -> Result<Vec<Override>, String> {
    let mut after = overrides.to_vec();
    for key in &order.unset {
        let before = after.len();
        after.retain(|one| one.key != *key);
        if after.len() == before {
            return Err(format!("{key} is not set; `gate set --list` lists what is"));
        }
    }
    for new in &order.set {
        after.retain(|one| one.key != new.key);
        after.push(new.clone());
    }
    if after.len() > MAX_OVERRIDES {
        return Err(format!("at most {MAX_OVERRIDES} keys can be set; `--save` what is to stay"));
    }
    Ok(after)
}

/// The overrides of each of these tenants or services (`kind`), by key.
#[must_use]
pub fn by_section(overrides: &[Override], kind: &str, names: &[&str]) -> Vec<BTreeMap<String, String>> {
    let mut found = vec![BTreeMap::new(); names.len()];
    for Override { key, value } in overrides {
        if let Some((place, key)) = section_of(key, kind, names.iter().copied()) {
            found[place].insert(key.to_owned(), value.clone());
        }
    }
    found
}

/// More belongs in the configuration.
const MAX_OVERRIDES: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_key_counts_and_only_what_is_set_is_unset() {
        let one = |key: &str, value: &str| Override { key: key.to_owned(), value: value.to_owned() };
        let set = |overrides: &[Override]| Order { set: overrides.to_vec(), ..Order::default() };
        let unset = |key: &str| Order { unset: vec![key.to_owned()], ..Order::default() };
        let a = after(&[], &set(&[one("a", "1"), one("b", "1")])).unwrap();
        let b = after(&a, &set(&[one("a", "2")])).unwrap();
        assert_eq!(b, [one("b", "1"), one("a", "2")]);
        assert_eq!(after(&b, &unset("b")).unwrap(), [one("a", "2")]);
        assert!(after(&b, &unset("c")).unwrap_err().contains("not set"));
        let many: Vec<_> = (0..=MAX_OVERRIDES).map(|key| one(&key.to_string(), "1")).collect();
        assert!(after(&[], &set(&many)).is_err());
    }
}
