//! Properties of what names limits and of what is charged to them, for any bytes. Shared by the fuzz targets and the ordinary tests.

use std::cmp::Reverse;
use std::sync::Arc;

use gate_common::units::Nanos;
use gate_fleet::owner::accounts::Accounts;
use gate_fleet::owner::counters::Counters;
use gate_fleet::owner::session::Session;
use gate_fleet::wire::Report;
use gate_limits::{Limits, Name, Pattern, Rule, Rules};
use prost::Message as _;

/// Reports of a gate, each after its length in two bytes: what does not hold together changes nothing, what does is charged once,
/// and each answer has a number for each count, or none.
pub(crate) fn reports(data: &[u8]) {
    let counters = Arc::new(Counters::default());
    let accounts = Accounts::new(rules(&["acme", "shop/user=*"]), 8, 2, Arc::clone(&counters));
    let mut session = Session::new(7, 0, Nanos::from_millis(100));
    let mut now = Nanos::from_secs(1);
    for message in messages(data) {
        let Ok(report) = Report::decode(message) else { continue };
        now = now.saturating_add(Nanos::from_millis(100));
        let before = (session.charged, session.names(), charged(&accounts));
        let is_new = report.number == session.charged + 1;
        match session.report(&accounts, &counters, now, &report) {
            Ok(answer) => {
                let entries = report.handles.len();
                assert_eq!(answer.number, report.number);
                let columns = [&answer.per_sec, &answer.burst_ru, &answer.full_in_ms];
                assert!(columns.iter().all(|column| column.is_empty() || column.len() == entries));
                assert!(answer.limits.iter().all(|limit| (limit.handle as usize) < session.names()));
                assert!(answer.full_in_ms.iter().all(|&full_in| full_in <= 3_600_000));
                let most = report.charged.iter().fold(0_u64, |sum, &charged| sum.saturating_add(charged));
                let most = most.saturating_mul(report.unit.max(1));
                assert!(charged(&accounts) <= before.2.saturating_add(if is_new { most } else { 0 }));
                // Once more, unchanged: nothing is charged.
                let after = charged(&accounts);
                let again = session.report(&accounts, &counters, now, &report);
                assert!(again.is_ok_and(|again| again.number == answer.number));
                assert_eq!(charged(&accounts), after);
            }
            Err(_) => assert_eq!((session.charged, session.names(), charged(&accounts)), before),
        }
        assert!(accounts.all().len() <= 8);
    }
}

/// Patterns, a line each, and after an empty line names: a name has one spelling, and the rule that holds for it fits, and is the
/// most specific one that does.
pub(crate) fn descriptors(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (patterns, names) = text.split_once("\n\n").unwrap_or((&text, &text));
    let rules = rules(&patterns.lines().collect::<Vec<_>>());
    for line in names.lines() {
        let Ok(name) = Name::parse(line) else { continue };
        assert!(name.as_str().len() <= Name::MAX_BYTES);
        assert_eq!(Name::parse(name.as_str()).as_ref(), Ok(&name));
        let segments: Vec<_> = name.as_str().split('/').collect();
        let fits = |rule: &&Rule| {
            let its: Vec<_> = rule.pattern.as_str().split('/').collect();
            let fits = |(its, segment): (&&str, &&str)| {
                its == segment
                    || its.strip_suffix('*').is_some_and(|beginning| segment.starts_with(beginning))
            };
            its.len() == segments.len() && its.iter().zip(&segments).all(fits)
        };
        // A value of its own comes before a star, and of those the longest, entry by entry from the left.
        let order = |rule: &&Rule| {
            let parts = rule.pattern.as_str().split('/');
            parts.map(|part| (part.ends_with('*'), Reverse(part.len()))).collect::<Vec<_>>()
        };
        let most_specific = rules.list().iter().filter(fits).min_by_key(order);
        assert_eq!(rules.find(&name), most_specific, "{name}");
    }
}

/// The rules of those of these patterns that are some.
fn rules(patterns: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for pattern in patterns.iter().filter_map(|pattern| Pattern::parse(pattern).ok()) {
        // A second one of a pattern is left out.
        let _ = rules.add(Rule::new(pattern, Limits::new(100_000, 1_000_000_000)));
    }
    rules
}

fn charged(accounts: &Accounts) -> u64 {
    accounts.all().iter().fold(0, |sum, account| sum.saturating_add(account.lock().charged))
}

fn messages(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        data = rest;
        Some(message)
    })
}
