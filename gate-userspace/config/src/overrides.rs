//! Values that stand in for the configuration's: put into its text, so that every check and every fault is the
//! configuration's own.
//!
//! Pure. What is edited keeps its comments and its order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, InlineTable, Item, TableLike, Value};

use super::fault::{Fault, did_you_mean};

/// A key that has another value than the configuration's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Override {
    /// Where: `gate.mode`, `tenant.NAME.quota`, `service.NAME.price.base`.
    pub key: String,
    /// As it would be written, without quotes.
    pub value: String,
}

/// Why a key cannot be given another value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The key cannot be changed while gate runs.
    #[error("{key} is not among the keys that can be set while gate runs; {hint}")]
    NotSettable {
        /// The key.
        key: String,
        /// The remedy.
        hint: String,
    },
    /// The key's section does not exist.
    #[error("{key}: the configuration has no {kind} of this name{hint}")]
    NoSuchSection {
        /// The key.
        key: String,
        /// `tenant` or `service`.
        kind: &'static str,
        /// A similar name.
        hint: String,
    },
    /// The value there is no table.
    #[error("{key}: what is there is no table")]
    NoTable {
        /// The key.
        key: String,
    },
    /// The value is none of the key's.
    #[error("{key} = {value:?}: {message}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The remedy.
        message: String,
    },
    /// The document cannot be read.
    #[error("{0}")]
    Syntax(String),
}

/// The text of a configuration with these values in place of its own.
///
/// # Errors
///
/// The first that is [`Wrong`].
pub fn edit(text: &str, overrides: &[Override]) -> Result<String, Wrong> {
    let mut document = parse(text)?;
    for Override { key, value } in overrides {
        let (table, last) = place(&mut document, key)?;
        put(table, last, value);
    }
    Ok(document.to_string())
}

/// The fault of one of these values among those of a document that has them in place of its own; the last one comes first.
pub(super) fn wrong_value(text: &str, overrides: &[Override], faults: &[Fault]) -> Option<Wrong> {
    let mut document = parse(text).ok()?;
    overrides.iter().rev().find_map(|Override { key, value }| {
        let path = path_of(&mut document, key)?;
        let Fault { message, .. } = faults.iter().find(|fault| fault.path == path)?;
        Some(Wrong::Value { key: key.clone(), value: value.clone(), message: message.clone() })
    })
}

/// The value at `key`, as it is written; `None` if there is none.
///
/// # Errors
///
/// [`Wrong`], if the key is.
pub fn value_at(text: &str, key: &str) -> Result<Option<String>, Wrong> {
    let mut document = parse(text)?;
    let (table, last) = place(&mut document, key)?;
    let value = table.get(last).and_then(Item::as_value);
    Ok(value.map(|value| value.as_str().map_or_else(|| value.to_string().trim().to_owned(), str::to_owned)))
}

/// Which of these services or tenants (`kind`) a key is about, and what it says of it. Names may have dots: the longest
/// that fits is meant.
#[must_use]
pub fn section_of<'k, 'n>(
    key: &'k str,
    kind: &str,
    names: impl IntoIterator<Item = &'n str>,
) -> Option<(usize, &'k str)> {
    let rest = key.strip_prefix(kind)?.strip_prefix('.')?;
    let after = |name: &str| rest.strip_prefix(name)?.strip_prefix('.').filter(|_| !name.is_empty());
    let fits = names.into_iter().enumerate().filter_map(|(place, name)| Some((place, after(name)?)));
    fits.min_by_key(|(_, rest)| rest.len())
}

fn parse(text: &str) -> Result<DocumentMut, Wrong> {
    text.parse().map_err(|error: toml_edit::TomlError| Wrong::Syntax(error.message().to_owned()))
}

/// The table that `key` is in, made if it is not there, and the key's last part.
fn place<'d, 'k>(
    document: &'d mut DocumentMut,
    key: &'k str,
) -> Result<(&'d mut dyn TableLike, &'k str), Wrong> {
    let not_settable = |hint| Wrong::NotSettable { key: key.to_owned(), hint };
    let (kind, rest) = key.split_once('.').unwrap_or((key, ""));
    let (named, settable) = match kind {
        "gate" => (None, GATE),
        "service" => (Some("service"), SERVICE),
        "tenant" => (Some("tenant"), TENANT),
        _ => {
            let hint = "they begin with gate, service.NAME or tenant.NAME".to_owned();
            return Err(not_settable(hint));
        }
    };
    let no_table = || Wrong::NoTable { key: key.to_owned() };
    let (mut table, rest) = match named {
        Some(kind) => named_section(document, key, kind, rest)?,
        None => {
            let table = document.entry("gate").or_insert_with(toml_edit::table);
            (table.as_table_like_mut().ok_or_else(no_table)?, rest)
        }
    };
    let mut parts = rest.split('.');
    let first = parts.next().unwrap_or_default();
    if !settable.contains(&first) {
        return Err(not_settable(match did_you_mean(first, settable.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("of its section, these are: {}", settable.join(", ")),
        }));
    }
    let mut last = first;
    for part in parts {
        let below = table.entry(last).or_insert_with(|| Item::Value(Value::InlineTable(InlineTable::new())));
        table = below.as_table_like_mut().ok_or_else(no_table)?;
        last = part;
    }
    Ok((table, last))
}

/// The `[[service]]` or `[[tenant]]` that a key is about, and what it says of it; `rest` is what follows the kind.
fn named_section<'d, 'k>(
    document: &'d mut DocumentMut,
    key: &'k str,
    kind: &'static str,
    rest: &str,
) -> Result<(&'d mut dyn TableLike, &'k str), Wrong> {
    let sections = sections(document, kind);
    let names = names(&sections);
    let Some((found, rest)) = section_of(key, kind, names.iter().map(String::as_str)) else {
        let meant = rest.split('.').next().unwrap_or_default();
        let near = did_you_mean(meant, names.iter().map(String::as_str));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        return Err(Wrong::NoSuchSection { key: key.to_owned(), kind, hint });
    };
    let table = sections.into_iter().nth(found).expect("it has just been found");
    Ok((table, rest))
}

fn sections<'d>(document: &'d mut DocumentMut, kind: &str) -> Vec<&'d mut dyn TableLike> {
    match document.get_mut(kind) {
        Some(Item::ArrayOfTables(tables)) => {
            tables.iter_mut().map(|table| table as &mut dyn TableLike).collect()
        }
        Some(Item::Value(Value::Array(items))) => items
            .iter_mut()
            .filter_map(|item| Some(item.as_inline_table_mut()? as &mut dyn TableLike))
            .collect(),
        _ => Vec::new(),
    }
}

fn names(sections: &[&mut dyn TableLike]) -> Vec<String> {
    let name_of =
        |table: &&mut dyn TableLike| table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
    sections.iter().map(name_of).collect()
}

/// A key's place as faults have it: `tenant[2].quota`; `None` if its section is not there.
fn path_of(document: &mut DocumentMut, key: &str) -> Option<String> {
    let kind = key.split('.').next()?;
    if kind == "gate" {
        return Some(key.to_owned());
    }
    let names = names(&sections(document, kind));
    let (found, rest) = section_of(key, kind, names.iter().map(String::as_str))?;
    Some(format!("{kind}[{found}].{rest}"))
}

/// Puts a value where another may be, whose comment stays.
fn put(table: &mut dyn TableLike, key: &str, value: &str) {
    let mut new = Value::from(value);
    match table.get_mut(key) {
        Some(Item::Value(old)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        _ => drop(table.insert(key, Item::Value(new))),
    }
}

/// The keys that can be set while gate runs: those that a reload puts in force, except names and addresses.
const GATE: &[&str] = &["mode", "enforce", "algorithm", "sample", "fragments", "on_stale"];
const TENANT: &[&str] = &[
    "quota",
    "burst",
    "max_debt",
    "candidate",
    "multiplier",
    "refuse",
    "tier",
    "cache",
    "reply_budget",
    "tcp_quota",
    "syn_rate",
    "max_connections",
    "max_outstanding",
];
const SERVICE: &[&str] = &[
    "unknown_syn",
    "unknown_syn_rate",
    "hot_key_limit",
    "price",
    "tcp_price",
    "tiers",
    "shedding",
    "probe",
    "objectives",
    "deadline",
    "codel",
    "queue_limit",
    "queue_memory",
    "store_timeout",
    "slow_timeout",
    "client_timeout",
    "max_request",
    "max_depth",
    "max_rows",
    "ask_sizes",
    "unlink",
    "max_output",
    "client_memory",
    "tenant_memory",
    "max_clients",
    "max_unknown_clients",
    "max_dedicated",
    "unknown_timeout",
    "idle_timeout",
];

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# Ours.
[gate]
mode = "enforce" # for now

[[service]]
name = "cache"
price = { base = "1 RU" }

[[service]]
name = "plain"

# Who pays.
[[tenant]]
name = "a"
quota = "1 RU/s"
[[tenant]]
name = "a.b" # another
quota = "2 RU/s"   # enough
"#;

    fn one(key: &str, value: &str) -> Override {
        Override { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_value_takes_the_place_of_another_and_nothing_else_changes() {
        for (key, value, from, to) in [
            ("gate.mode", "shadow", "mode = \"enforce\"", "mode = \"shadow\""),
            ("gate.enforce", "5%", "# for now\n", "# for now\nenforce = \"5%\"\n"),
            ("service.cache.price.base", "2 RU", "\"1 RU\"", "\"2 RU\""),
            ("service.cache.price.row", "2 RU", "\"1 RU\" }", "\"1 RU\" , row = \"2 RU\" }"),
            ("service.plain.price.row", "2 RU", "\"plain\"\n", "\"plain\"\nprice = { row = \"2 RU\" }\n"),
            ("tenant.a.quota", "3 RU/s", "\"1 RU/s\"", "\"3 RU/s\""),
            ("tenant.a.b.quota", "3 RU/s", "\"2 RU/s\"", "\"3 RU/s\""),
        ] {
            let edited = edit(TEXT, &[one(key, value)]).unwrap();
            assert_eq!(edited, TEXT.replacen(from, to, 1), "{key}");
            assert_eq!(value_at(&edited, key).unwrap().as_deref(), Some(value), "{key}");
        }
        assert_eq!(edit("", &[one("gate.mode", "shadow")]).unwrap(), "[gate]\nmode = \"shadow\"\n");
    }

    #[test]
    fn a_key_is_about_the_longest_name_that_fits() {
        let names = ["a", "a.b", ""];
        for (key, found) in [
            ("tenant.a.quota", Some((0, "quota"))),
            ("tenant.a.b.quota", Some((1, "quota"))),
            ("tenant.a.b", Some((0, "b"))),
            ("tenant..quota", None),
            ("tenant.c.quota", None),
            ("service.a.quota", None),
            ("gate.mode", None),
        ] {
            assert_eq!(section_of(key, "tenant", names), found, "{key}");
        }
    }

    #[test]
    fn lists_of_inline_tables_are_sections_too() {
        let text = "tenant = [{ name = \"a\", quota = \"1 RU/s\" }]\n";
        assert_eq!(edit(text, &[one("tenant.a.quota", "2 RU/s")]).unwrap(), text.replace('1', "2"));
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_what_could() {
        for (key, said) in [
            (
                "gate.tick",
                "gate.tick is not among the keys that can be set while gate runs; of its section, these are: mode, enforce, algorithm, sample, fragments, on_stale",
            ),
            (
                "gate.mod",
                "gate.mod is not among the keys that can be set while gate runs; did you mean mode?",
            ),
            (
                "mode",
                "mode is not among the keys that can be set while gate runs; they begin with gate, service.NAME or tenant.NAME",
            ),
            ("tenant.elephant.quota", "tenant.elephant.quota: the configuration has no tenant of this name"),
            (
                "service.cahce.price.base",
                "service.cahce.price.base: the configuration has no service of this name; did you mean cache?",
            ),
            (
                "tenant.a.sources",
                "tenant.a.sources is not among the keys that can be set while gate runs; of its section, these are: quota, burst, max_debt, candidate, multiplier, refuse, tier, cache, reply_budget, tcp_quota, syn_rate, max_connections, max_outstanding",
            ),
            ("tenant.a.quota.x", "tenant.a.quota.x: what is there is no table"),
        ] {
            assert_eq!(edit(TEXT, &[one(key, "1")]).unwrap_err().to_string(), said);
        }
        assert!(matches!(edit("[gate", &[one("gate.mode", "shadow")]), Err(Wrong::Syntax(_))));
    }

    #[test]
    fn a_value_that_is_wrong_is_known_by_its_key() {
        let fault = |path: &str| Fault {
            line: 7,
            path: path.to_owned(),
            value: None,
            message: "is wrong".to_owned(),
        };
        let set = [one("gate.mode", "x"), one("tenant.a.b.quota", "y"), one("service.plain.price.row", "z")];
        for (path, said) in [
            ("gate.mode", Some("gate.mode = \"x\": is wrong")),
            ("tenant[1].quota", Some("tenant.a.b.quota = \"y\": is wrong")),
            ("service[1].price.row", Some("service.plain.price.row = \"z\": is wrong")),
            ("tenant[0].quota", None),
        ] {
            let wrong = wrong_value(TEXT, &set, &[fault("tenant[0].burst"), fault(path)]);
            assert_eq!(wrong.map(|wrong| wrong.to_string()).as_deref(), said, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_key_and_no_value_makes_it_panic(key in "(gate|tenant|service|a|\\.|quota|price|\"| |é){0,8}", value in "\\PC{0,20}") {
            if let Ok(edited) = edit(TEXT, &[one(&key, &value)]) {
                proptest::prop_assert!(edited.parse::<DocumentMut>().is_ok());
            }
        }
    }
}
