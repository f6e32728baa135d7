//! The log's lines about limits that have changed: one for each, up to [`MOST_LINES`].

use std::collections::HashMap;

use super::pattern::Pattern;
use super::quota::Limits;
use super::rules::{Rule, Rules};

/// A limit that is no longer what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change<'r> {
    pattern: &'r Pattern,
    /// `None` if there was none.
    before: Option<&'r Rule>,
    /// `None` if there is none.
    after: Option<&'r Rule>,
}

/// The limits that differ, in the order of the later rules, and then those that are gone.
fn changes<'r>(before: &'r Rules, after: &'r Rules) -> Vec<Change<'r>> {
    let by_pattern = |rules: &'r Rules| -> HashMap<&'r Pattern, &'r Rule> {
        rules.list().iter().map(|rule| (&rule.pattern, rule)).collect()
    };
    let known = by_pattern(before);
    let later = by_pattern(after);
    let differ = after.list().iter().filter_map(|rule| {
        let before = known.get(&rule.pattern).copied();
        let change = Change { pattern: &rule.pattern, before, after: Some(rule) };
        (before != Some(rule)).then_some(change)
    });
    let gone = before.list().iter().filter(|rule| !later.contains_key(&rule.pattern));
    let gone = gone.map(|rule| Change { pattern: &rule.pattern, before: Some(rule), after: None });
    differ.chain(gone).collect()
}

/// Logs them, with the one who changed them and why.
pub fn log_changes(before: &Rules, after: &Rules, by: &str) {
    let all = changes(before, after);
    for Change { pattern, before, after } in all.iter().take(MOST_LINES) {
        let [before, after] = [before, after].map(|rule| rule.map_or("none".to_owned(), in_words));
        tracing::info!(limit = pattern.as_str(), before, after, by, "a limit has changed");
    }
    if let Some(more) = all.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
        tracing::info!(more, by, "more limits have changed");
    }
}

fn in_words(rule: &Rule) -> String {
    let Limits { rate, burst_ns, .. } = rule.limits;
    let burst = rate.amount_in(burst_ns) as f64 / 1e3;
    let limit = match (rule.limits, &rule.calendar) {
        (Limits::UNLIMITED, _) => "unlimited".to_owned(),
        (Limits::BANNED, _) => "0".to_owned(),
        (_, Some(calendar)) => format!("{burst} RU in each {calendar}"),
        (_, None) => format!("{} RU/s, burst {burst} RU", rate.nano() as f64 / 1e9),
    };
    if rule.is_shadow { limit + ", in shadow mode" } else { limit }
}

/// Enough to see what was done; a file may have 10,000 limits.
const MOST_LINES: usize = 100;

#[cfg(test)]
mod tests {
    use super::super::calendar::{Calendar, Period};
    use super::*;

    fn rules(limits: &[(&str, u64)]) -> Rules {
        let mut rules = Rules::default();
        for &(pattern, per_sec) in limits {
            let limits = Limits::new(per_sec, 1_000_000_000);
            rules.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
        }
        rules
    }

    #[test]
    fn what_differs_is_told_and_nothing_else() {
        let before = rules(&[("a", 1_000), ("b", 2_000), ("c", 3_000)]);
        let after = rules(&[("c", 3_000), ("d", 4_000), ("b", 5_000)]);
        let told: Vec<_> = changes(&before, &after)
            .into_iter()
            .map(|change| {
                (change.pattern.as_str().to_owned(), change.before.is_some(), change.after.is_some())
            })
            .collect();
        let expected = [("d", false, true), ("b", true, true), ("a", true, false)];
        assert_eq!(told, expected.map(|(name, before, after)| (name.to_owned(), before, after)));
        assert_eq!(changes(&after, &after), []);
        let mut rule = Rule::new(Pattern::parse("a").unwrap(), Limits::new(1_500, 2_000_000_000));
        assert_eq!(in_words(&rule), "1.5 RU/s, burst 3 RU");
        rule.is_shadow = true;
        rule.limits = Limits::in_window(3_000, Period::Day);
        rule.calendar = Some(Calendar::new(Period::Day, Calendar::zone("Europe/Berlin").unwrap()).into());
        assert_eq!(in_words(&rule), "3 RU in each day of the calendar in Europe/Berlin, in shadow mode");
    }
}
