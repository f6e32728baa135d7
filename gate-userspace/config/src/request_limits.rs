//! A tenant's limits by what is asked: the table `limits`, by query type or command.

use std::collections::HashMap;

use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::NANOS_PER_SEC;

use super::fault::did_you_mean;
use super::raw::Section;
use super::units::{self, Wrong};
use gate_protocol::deny::Deny;
use gate_protocol::query_types::QueryTypes;
use gate_protocol::{Class, memcached, resp};

/// How much a tenant may ask of one query type or command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// Its name in answers: the query type's, or the command's in lower case, a subcommand behind a bar.
    pub name: String,
    /// The requests that it is about.
    pub of: LimitOf,
    /// The unit of the bucket.
    pub unit: LimitUnit,
    /// The bucket, in thousandths of the unit.
    pub bucket: Limits,
}

/// The requests that a limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// Those of the query type with its name.
    QueryType,
    /// Those of the command with its name.
    Command,
}

/// The unit that a limit counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitUnit {
    /// Requests.
    Requests,
    /// Request units.
    Ru,
}

/// Reads the table of a tenant of services with these query types.
pub(super) fn read(section: &mut Section<'_>, types: &[&QueryTypes]) -> Vec<RequestLimit> {
    let mut s = section.section("limits");
    let mut limits = Vec::new();
    let mut taken = HashMap::new();
    for key in s.keys() {
        let Some((unit, bucket)) = s.get(key, rate) else { continue };
        let (name, of) = match named(key, types) {
            Ok(named) => named,
            Err(wrong) => {
                s.fault(key, wrong);
                continue;
            }
        };
        if let Some(line) = taken.insert((name.clone(), of == LimitOf::Command), s.line(key)) {
            s.fault(key, format!("is limited already, on line {line}: a command is the same in any case"));
        }
        if limits.len() == MAX_LIMITS {
            s.fault(key, format!("is one too many: a tenant may have {MAX_LIMITS} limits"));
        }
        limits.push(RequestLimit { name, of, unit, bucket });
    }
    s.finish();
    limits
}

/// The query type or the command that a key names. A query type's name is in lower case: `scan` is the type, `SCAN` the
/// command.
fn named(key: &str, types: &[&QueryTypes]) -> Result<(String, LimitOf), Wrong> {
    let classes = Class::ALL.map(Class::name);
    if classes.contains(&key) || types.iter().any(|types| types.place(key).is_some()) {
        return Ok((key.to_owned(), LimitOf::QueryType));
    }
    let name = key.to_ascii_lowercase().replace('|', " ");
    if resp::is_command(&name) || memcached::Command::named(&name).next().is_some() {
        return Ok((name.replace(' ', "|"), LimitOf::Command));
    }
    Err(match did_you_mean(&name, classes.into_iter().chain(Deny::names())) {
        Some(near) => format!("is no query type and no command; did you mean {near}?"),
        None => "is no query type and no command; e.g. limits = { scan = \"10/s\", HGETALL = \"500 RU/s\" }"
            .to_owned(),
    })
}

/// A rate in requests or in request units. So much of it as of a second may come at once, or what costs more from a full
/// bucket.
fn rate(text: &str) -> Result<(LimitUnit, Limits), Wrong> {
    let (unit, milli) = match text.contains("RU") {
        true => match units::ru_rate(text) {
            Ok(Some(milli)) => (LimitUnit::Ru, milli),
            _ => return Err(NO_RATE.to_owned()),
        },
        false => (LimitUnit::Requests, units::event_rate(text).map_err(|_| NO_RATE.to_owned())?),
    };
    let rate = Rate::per_sec(milli);
    let burst_ns = rate.time_for(1_000).max(NANOS_PER_SEC);
    Ok((unit, Limits { rate, burst_ns, max_debt_ns: burst_ns.saturating_mul(2) }))
}

const NO_RATE: &str = "must be requests or request units a second, above 0 and at most 1000000000, e.g. \"10/s\" or \"500 RU/s\"";
/// Query types that may have names of their own are as many: what looks commands up is the same.
const MAX_LIMITS: usize = 32;
