//! `[[limit]]`: names, or patterns of names, and their quotas.

use std::collections::HashMap;

use gate_common::token_bucket::Limits;
use gate_common::units::{MilliRu, Nanos};

use super::buckets::{BURST_RANGE, DEBT_RANGE, FEW, bucket, requests};
use super::parsers::time;
use super::raw::Section;
use super::units::{self, Wrong};
use crate::limits::{Pattern, Rule, Rules};

/// Reads every `[[limit]]` of a document.
pub(super) fn rules(root: &mut Section<'_>) -> Rules {
    let mut rules = Rules::default();
    let mut lines: HashMap<Pattern, usize> = HashMap::new();
    for (place, mut section) in root.sections("limit").into_iter().enumerate() {
        if place == MAX_LIMITS {
            section.fault("name", format!("is one too many: there may be {MAX_LIMITS}"));
        }
        let pattern = section.need("name", "\"shop/user=*\"", pattern);
        let limits = limits(&mut section);
        if let Some(pattern) = pattern {
            if let Some(line) = lines.get(&pattern) {
                section.fault("name", format!("is taken, on line {line}"));
            } else {
                lines.insert(pattern.clone(), section.line("name"));
                rules.add(Rule { pattern, limits }).expect("no two patterns are the same");
            }
        }
        section.finish();
    }
    rules
}

fn pattern(text: &str) -> Result<Pattern, Wrong> {
    Pattern::parse(text).map_err(|error| error.to_string())
}

/// A bucket, into which a request for one request unit has to fit.
fn limits(section: &mut Section<'_>) -> Limits {
    let quota = section.need("quota", "\"5000 RU/s\"", units::ru_rate).unwrap_or_default();
    let burst = section.get("burst", time(BURST_RANGE)).unwrap_or(Nanos::from_millis(100));
    let max_debt = section.get("max_debt", time(DEBT_RANGE)).unwrap_or(Nanos(2 * burst.0));
    let limits = bucket(quota, burst, max_debt);
    if section.is_sound() && limits.dearest() < MilliRu::ONE_RU.0 {
        let takes = Nanos(limits.rate.time_for(MilliRu::ONE_RU.0));
        section.fault(
            "quota",
            format!(
                "would refuse every request of 1 RU for good: it takes {takes} at this rate, and burst ({burst}) and \
                 max_debt ({max_debt}) together allow less; raise one of the three"
            ),
        );
    }
    limits
}

/// A warning of limits whose bursts hold only a few request units.
#[must_use]
pub fn short_limits(rules: &Rules) -> Vec<String> {
    let is_short = |rule: &&Rule| requests(&rule.limits, MilliRu::ONE_RU).is_some_and(|count| count < FEW);
    let short: Vec<_> = rules.list().iter().filter(is_short).collect();
    let Some(first) = short.first() else { return Vec::new() };
    let enough = first.limits.rate.time_for(MilliRu::ONE_RU.saturating_mul(FEW as u32).0);
    let pattern = first.pattern.as_str();
    let others = match short.len() - 1 {
        0 => String::new(),
        others => format!(", and of {others} more"),
    };
    vec![format!(
        "the burst of limit {pattern}{others} holds fewer than {FEW} RU: what comes together beyond that is refused though the \
         quota would do; write burst = \"{}ms\" for {pattern}, or more",
        enough.div_ceil(1_000_000),
    )]
}

const MAX_LIMITS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw;

    fn parse(text: &str) -> Result<Rules, Vec<String>> {
        let read = |mut root: Section<'_>| {
            let rules = rules(&mut root);
            root.finish();
            rules
        };
        raw::parse("quota.toml", text, read)
            .map_err(|faults| faults.faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn limits_are_read_with_the_defaults_of_tenants() {
        let rules = parse(
            "[[limit]]\nname = \"acme\"\nquota = \"50 RU/s\"\n\
             [[limit]]\nname = \"shop/user=*\"\nquota = \"0.1 RU/s\"\nburst = \"10s\"\nmax_debt = \"0s\"\n\
             [[limit]]\nname = \"shop/user=%61\"\nquota = \"unlimited\"\n",
        )
        .unwrap();
        let found: Vec<_> = rules.list().iter().map(|rule| (rule.pattern.as_str(), rule.limits)).collect();
        let slow = Limits { max_debt_ns: 0, ..Limits::new(100, 10_000_000_000) };
        assert_eq!(
            found,
            [
                ("acme", Limits::new(50_000, 100_000_000)),
                ("shop/user=*", slow),
                ("shop/user=a", Limits::UNLIMITED)
            ]
        );
        assert_eq!(parse("").unwrap(), Rules::default());
    }

    #[test]
    fn every_fault_of_a_limit_is_reported_with_its_line() {
        let faults = parse(
            "[[limit]]\nquota = \"50\"\n\
             [[limit]]\nname = \"shop/user=al*\"\nquota = \"1 RU/s\"\n\
             [[limit]]\nname = \"shop/user=a\"\nquota = \"10 RU/s\"\nqouta = \"1\"\n\
             [[limit]]\nname = \"shop/user=%61\"\nburst = \"1ms\"\n",
        );
        assert_eq!(
            faults.unwrap_err(),
            [
                "1: limit[0].name: is missing, e.g. name = \"shop/user=*\"",
                "2: limit[0].quota = \"50\": must be a rate in request units, e.g. \"5000 RU/s\"",
                "4: limit[1].name = \"shop/user=al*\": has a '*' that is not the whole value of an entry; write '*' \
                 itself as %2A",
                "9: limit[2].qouta = \"1\": unknown key; did you mean quota?",
                "10: limit[3].quota: is missing, e.g. quota = \"5000 RU/s\"",
                "11: limit[3].name = \"shop/user=%61\": is taken, on line 7",
                "12: limit[3].burst = \"1ms\": must be from 4ms to 3600s",
            ]
        );
        let never = parse("[[limit]]\nname = \"a\"\nquota = \"3 RU/s\"\n").unwrap_err();
        assert!(
            never[0].starts_with("3: limit[0].quota = \"3 RU/s\": would refuse every request of 1 RU"),
            "{never:?}"
        );
    }
}
