//! The gate's counters: `gate tenants --json`, second by second.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::sh;

/// One tenant's counters since the gate started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Requests that passed.
    pub passed: u64,
    /// Requests that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// All counters at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When they were read.
    pub at: Instant,
    /// By tenant.
    pub tenants: BTreeMap<String, Count>,
}

impl Snapshot {
    /// Asks `gate` for the counters of the gate that `query` names: `--pin-dir` or `--socket`.
    ///
    /// # Errors
    ///
    /// If it fails or prints something else than what is expected.
    pub fn take(gate: &Path, query: [&OsStr; 2]) -> Result<Self> {
        let mut command = Command::new(gate);
        command.args(["tenants", "--json"]).args(query);
        let text = sh::output(&mut command)?;
        let at = Instant::now();
        Ok(Self {
            at,
            tenants: parse(&text).with_context(|| format!("`gate tenants --json` printed {text}"))?,
        })
    }

    /// The counters of a tenant; none if it was never seen.
    #[must_use]
    pub fn of(&self, tenant: &str) -> Count {
        self.tenants.get(tenant).cloned().unwrap_or_default()
    }
}

impl Count {
    /// Requests that were refused, for whatever reason.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.values().sum()
    }

    /// The difference since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let refused = self.refused.iter().map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(before.refused.get(reason).copied().unwrap_or(0)))
        });
        Self {
            passed: self.passed.saturating_sub(before.passed),
            refused: refused.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, Count>> {
    let document: Value = serde_json::from_str(text)?;
    let tenants = document["tenants"].as_array().context("no list of tenants")?;
    tenants
        .iter()
        .map(|tenant| Some((tenant["name"].as_str()?.to_owned(), count(tenant)?)))
        .collect::<Option<_>>()
        .context("a tenant without name, passed or refused")
}

fn count(tenant: &Value) -> Option<Count> {
    let refused = tenant["refused"].as_object()?;
    let refused = refused.iter().map(|(reason, count)| Some((reason.clone(), count.as_u64()?)));
    Some(Count { passed: tenant["passed"].as_u64()?, refused: refused.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"{"tenants": [{"name": "a", "passed": 5, "refused": {"quota": 2}}]}"#;
    const AFTER: &str = r#"{"tenants": [{"name": "a", "passed": 9, "refused": {"quota": 2, "penalty": 4}}]}"#;

    #[test]
    fn what_came_between_two_snapshots_is_their_difference() {
        let before = &parse(BEFORE).unwrap()["a"];
        let after = &parse(AFTER).unwrap()["a"];
        let between = after.since(before);
        assert_eq!((between.passed, between.refused_total()), (4, 4));
        assert_eq!(between.refused.keys().collect::<Vec<_>>(), ["penalty"]);
    }

    #[test]
    fn a_tenant_without_counters_is_an_error() {
        for text in [r#"{"tenants": [{}]}"#, r#"{"tenants": [{"name": "a", "passed": 1}]}"#, "[]", "{}", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
