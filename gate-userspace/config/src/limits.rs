//! `[[limit]]`: names, or patterns of names, and their quotas.

use std::collections::HashMap;
use std::sync::Arc;

use gate_common::units::{MilliRu, Nanos};
use jiff::tz::TimeZone;

use super::buckets::FEW;
use super::parsers::{one_of, time};
use super::raw::Section;
use super::units::{self, Wrong};
use super::values::Mode;
use gate_limits::{Calendar, Limits, Pattern, Period, Rule, Rules};
use gate_policy::rate::Rate;

/// Reads every `[[limit]]` of a document.
pub(super) fn rules(root: &mut Section<'_>) -> Rules {
    let mut rules = Rules::default();
    let mut lines: HashMap<Pattern, usize> = HashMap::new();
    for (place, mut section) in root.sections("limit").into_iter().enumerate() {
        if place == MAX_LIMITS {
            section.fault("name", format!("is one too many: there may be {MAX_LIMITS}"));
        }
        let pattern = section.need("name", "\"shop/user=*\"", pattern);
        let label = section.get("label", label);
        let pattern = match (pattern, label) {
            // A label that was read is one.
            (Some(pattern), Some(label)) => pattern.with_label(&label).ok(),
            (pattern, _) => pattern,
        };
        let (limits, calendar) = limits(&mut section);
        let is_shadow = section.get("mode", one_of(&Mode::WRITTEN)) == Some(Mode::Shadow);
        if let Some(pattern) = pattern {
            if let Some(line) = lines.get(&pattern) {
                section.fault("name", format!("is taken, on line {line}; a further limit of the same names has a label, e.g. label = \"daily\""));
            } else if has_many_labels(&rules, &pattern) {
                section.fault("label", format!("is one too many: a domain may have {MAX_LABELS}"));
            } else {
                lines.insert(pattern.clone(), section.line("name"));
                rules
                    .add(Rule { pattern, limits, is_shadow, calendar })
                    .expect("no two patterns are the same");
            }
        }
        section.finish();
    }
    rules
}

fn label(text: &str) -> Result<String, Wrong> {
    // Any pattern will do.
    let pattern = Pattern::parse("a").and_then(|pattern| pattern.with_label(text));
    pattern
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string().replacen("has a label that is not", "must be", 1))
}

/// True if a pattern has a further label in its domain than there may be: each is looked for with every request.
fn has_many_labels(rules: &Rules, pattern: &Pattern) -> bool {
    let labels = rules.labels_like(pattern);
    labels.len() >= MAX_LABELS
        && pattern.label().is_some_and(|label| !labels.iter().any(|known| &**known == label))
}

fn pattern(text: &str) -> Result<Pattern, Wrong> {
    Pattern::parse(text).map_err(|error| error.to_string())
}

/// A bucket, into which a request for one request unit has to fit, and the windows in which it counts.
fn limits(section: &mut Section<'_>) -> (Limits, Option<Arc<Calendar>>) {
    let quota = section.need("quota", "\"5000 RU/s\" or \"5/day\"", quota).unwrap_or(Quota::Banned);
    let burst = section.get("burst", time(BURST_RANGE));
    let max_debt = section.get("max_debt", time(DEBT_RANGE));
    let calendar = calendar(section, quota);
    let limits = match (calendar.is_some(), quota) {
        (true, Quota::Within(milli, _, Some(period))) => Limits::in_window(milli, period),
        _ => quota.limits(burst, max_debt),
    };
    if section.is_sound() && quota != Quota::Banned && limits.dearest() < MilliRu::ONE_RU.0.into() {
        let takes = Nanos(limits.rate.time_for(MilliRu::ONE_RU.0.into()));
        let burst = Nanos(limits.burst_ns);
        let max_debt = Nanos(limits.max_debt_ns);
        section.fault(
            "quota",
            format!(
                "would refuse every request of 1 RU for good: it takes {takes} at this rate, and burst ({burst}) and \
                 max_debt ({max_debt}) together allow less; raise one of the three"
            ),
        );
    }
    (limits, calendar)
}

/// The windows of the calendar in which a limit counts; `None` if it is a bucket that fills evenly.
fn calendar(section: &mut Section<'_>, quota: Quota) -> Option<Arc<Calendar>> {
    let is_calendar = section.get("window", one_of(&WINDOWS)) == Some(true);
    let zone = section.get("zone", zone);
    if !is_calendar {
        if section.has("zone") {
            section.fault("zone", "is for window = \"calendar\"".to_owned());
        }
        return None;
    }
    for key in ["burst", "max_debt"] {
        if section.has(key) {
            section.fault(
                key,
                "is for buckets that fill evenly; a window of the calendar begins with its whole quota"
                    .to_owned(),
            );
        }
    }
    match quota {
        Quota::Within(milli, ..) if milli > Limits::MOST_IN_WINDOW => {
            section.fault("quota", format!("must be at most {} in a window", Limits::MOST_IN_WINDOW / 1_000));
            None
        }
        Quota::Within(_, _, Some(period)) => {
            Some(Arc::new(Calendar::new(period, zone.unwrap_or(TimeZone::UTC))))
        }
        Quota::Within(..) | Quota::PerSecond(_) | Quota::Unlimited | Quota::Banned => {
            let example = "needs a quota in a time of the calendar, e.g. \"5/day\" (/min, /hour, /day, /week, /month, /year)";
            section.fault("window", example.to_owned());
            None
        }
    }
}

fn zone(text: &str) -> Result<TimeZone, Wrong> {
    Calendar::zone(text)
        .ok_or_else(|| "is no time zone that is known, e.g. \"Europe/Berlin\" or \"UTC\"".to_owned())
}

/// True for windows of the calendar.
const WINDOWS: [(&str, bool); 2] = [("sliding", false), ("calendar", true)];

/// A warning of limits whose bursts hold only a few request units.
#[must_use]
pub fn short_limits(rules: &Rules) -> Vec<String> {
    let is_short = |rule: &&Rule| {
        let Limits { rate, burst_ns, .. } = rule.limits;
        let is_meant = rule.limits == Limits::BANNED || rule.limits.window.is_some() || burst_ns >= LONG.0;
        !is_meant
            && burst_ns.checked_div(rate.time_for(MilliRu::ONE_RU.0.into())).is_some_and(|count| count < FEW)
    };
    let short: Vec<_> = rules.list().iter().filter(is_short).collect();
    let Some(first) = short.first() else { return Vec::new() };
    let enough = first.limits.rate.time_for(MilliRu::ONE_RU.saturating_mul(FEW as u32).0.into());
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

/// The burst of a limit of few requests in a long time, as `5/day`, holds what it was written to hold.
const LONG: Nanos = Nanos::from_secs(60);

/// The quota of a limit, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quota {
    /// `0`: nothing passes.
    Banned,
    Unlimited,
    /// `5000 RU/s`: thousandths of a request unit per second, of which 100 ms may be saved up.
    PerSecond(u64),
    /// `5/day`: thousandths of a request unit in a time, all of which may be saved up; and that time in the calendar.
    Within(u64, Nanos, Option<Period>),
}

impl Quota {
    fn limits(self, burst: Option<Nanos>, max_debt: Option<Nanos>) -> Limits {
        let (rate, burst, max_debt) = match self {
            Self::Banned => return Limits::BANNED,
            Self::Unlimited => return Limits::UNLIMITED,
            Self::PerSecond(milli) => {
                let burst = burst.unwrap_or(Nanos::from_millis(100));
                (Rate::per_sec(milli), burst.0, max_debt.unwrap_or(Nanos(2 * burst.0)))
            }
            Self::Within(milli, time, _) => {
                let rate = Rate::within(milli, time);
                // All of it, although the rate is rounded down.
                let burst = burst.map_or(rate.time_for(milli), |burst| burst.0);
                (rate, burst, max_debt.unwrap_or(Nanos::ZERO))
            }
        };
        Limits { rate, burst_ns: burst, max_debt_ns: max_debt.0, window: None }
    }
}

fn quota(text: &str) -> Result<Quota, Wrong> {
    if text == "0" {
        return Ok(Quota::Banned);
    }
    let wrong = || {
        "must be a rate, e.g. \"5000 RU/s\" or \"5/day\" (/s, /min, /hour, /day, /week, /month, /year), \"unlimited\", or \"0\" to \
         refuse everything"
            .to_owned()
    };
    if text == "unlimited" || text.ends_with("RU/s") {
        return Ok(units::ru_rate(text)?.map_or(Quota::Unlimited, Quota::PerSecond));
    }
    let (amount, unit) = text.split_once('/').ok_or_else(wrong)?;
    let &(_, period, time) = PERIODS.iter().find(|(names, ..)| names.contains(&unit)).ok_or_else(wrong)?;
    let milli = units::amount(amount.trim_end_matches("RU").trim_end()).map_err(|_| wrong())?;
    match Rate::within(milli, time) {
        Rate::NONE => Err("must be above 0; \"0\" alone refuses everything".to_owned()),
        Rate::FASTEST => Err("must be less than 1000000000 RU/s, or \"unlimited\"".to_owned()),
        _ => Ok(Quota::Within(milli, time, period)),
    }
}

const DAY: u64 = 86_400;
/// A month is 30 days.
const PERIODS: [(&[&str], Option<Period>, Nanos); 7] = [
    (&["s", "sec", "second"], None, Nanos::from_secs(1)),
    (&["min", "minute"], Some(Period::Minute), Nanos::from_secs(60)),
    (&["h", "hour"], Some(Period::Hour), Nanos::from_secs(3_600)),
    (&["d", "day"], Some(Period::Day), Nanos::from_secs(DAY)),
    (&["week"], Some(Period::Week), Nanos::from_secs(7 * DAY)),
    (&["month"], Some(Period::Month), Nanos::from_secs(30 * DAY)),
    (&["year"], Some(Period::Year), Nanos::from_secs(365 * DAY)),
];
/// The longest is a year; a bucket goes by the time that it takes to fill.
const BURST_RANGE: (Nanos, Nanos) = (Nanos::from_millis(4), Nanos::from_secs(366 * DAY));
const DEBT_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(366 * DAY));
const MAX_LIMITS: usize = 10_000;
const MAX_LABELS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw;

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
    fn limits_are_read_as_users_write_them() {
        let read = |quota: &str, more: &str| {
            let text = format!("[[limit]]\nname = \"a\"\nquota = \"{quota}\"\n{more}");
            parse(&text).map(|rules| rules.list()[0].limits).map_err(|faults| faults.join("\n"))
        };
        for (quota, count, secs) in [
            ("5/day", 5_000, DAY),
            ("5 RU/day", 5_000, DAY),
            ("100/min", 100_000, 60),
            ("100/minute", 100_000, 60),
            ("7/week", 7_000, 7 * DAY),
            ("1_000/month", 1_000_000, 30 * DAY),
            ("10/s", 10_000, 1),
        ] {
            let limits = read(quota, "").unwrap();
            assert_eq!(limits.rate, Rate::within(count, Nanos::from_secs(secs)), "{quota}");
            assert_eq!((limits.dearest(), limits.max_debt_ns), (count, 0), "{quota}");
        }
        assert_eq!(read("0", ""), Ok(Limits::BANNED));
        let days = read("5/day", "burst = \"7d\"\n").unwrap();
        assert_eq!((days.burst_ns, days.dearest()), (7 * DAY * 1_000_000_000, 34_999));
        assert_eq!(read("0.5/hour", "max_debt = \"2h\"\nburst = \"1h\"\n").unwrap().dearest(), 1_499);
        for (quota, fault) in [
            ("0/day", "must be above 0"),
            ("0.5/hour", "would refuse every request"),
            ("5/fortnight", "must be a rate"),
            ("/day", "must be a rate"),
            ("-5/day", "must be a rate"),
            ("5/day/day", "must be a rate"),
            ("1000000000/s", "must be less than"),
            ("0 RU/s", "must be above 0"),
        ] {
            assert!(read(quota, "").unwrap_err().contains(fault), "{quota}: {:?}", read(quota, ""));
        }
    }

    #[test]
    fn limits_of_the_same_names_have_labels() {
        let text = |label: &str| {
            format!("[[limit]]\nname = \"shop/user=*\"\nquota = \"5/day\"\nlabel = \"{label}\"\n")
        };
        let plain = "[[limit]]\nname = \"shop/user=*\"\nquota = \"5/s\"\n";
        let rules = parse(&format!("{plain}{}", text("daily"))).unwrap();
        let found: Vec<_> = rules.list().iter().map(|rule| rule.pattern.as_str()).collect();
        assert_eq!(found, ["shop/user=*", "shop/user=*/=daily"]);
        let faults = parse(&format!("{}{}", text("daily"), text("daily"))).unwrap_err();
        assert!(faults[0].contains("is taken, on line 2"), "{faults:?}");
        for label in ["", "Daily", "a/b", &"x".repeat(33)] {
            let faults = parse(&text(label)).unwrap_err();
            assert!(faults[0].contains("must be 1 to 32 lower-case letters"), "{faults:?}");
        }
        let many: String = ["a", "b", "c", "d", "e", "f", "g", "h"].map(text).concat();
        assert!(parse(&many).is_ok());
        assert!(
            parse(&(many.clone() + &text("i"))).unwrap_err()[0]
                .contains("is one too many: a domain may have 8")
        );
        let other = "[[limit]]\nname = \"other\"\nquota = \"5/day\"\nlabel = \"i\"\n";
        assert!(parse(&(many + other)).is_ok());
    }

    #[test]
    fn a_window_of_the_calendar_is_read_with_its_zone() {
        let read = |more: &str| {
            parse(&format!("[[limit]]\nname = \"a\"\n{more}")).map(|rules| rules.list()[0].clone())
        };
        let rule = read("quota = \"5/day\"\nwindow = \"calendar\"\nzone = \"Europe/Berlin\"\n").unwrap();
        assert_eq!(rule.limits, Limits::in_window(5_000, Period::Day));
        assert_eq!(
            (rule.limits.dearest(), rule.limits.evenly().rate),
            (5_000, Rate::within(5_000, Nanos::from_secs(DAY)))
        );
        let rules = parse("[[limit]]\nname = \"a\"\nquota = \"5/day\"\nwindow = \"calendar\"\n").unwrap();
        assert!(short_limits(&rules).is_empty(), "a window holds what it was written to hold");
        let berlin = Calendar::new(Period::Day, Calendar::zone("Europe/Berlin").unwrap());
        assert_eq!(rule.calendar.as_deref(), Some(&berlin));
        let in_utc = read("quota = \"100/min\"\nwindow = \"calendar\"\n").unwrap();
        assert_eq!(in_utc.calendar.as_deref(), Some(&Calendar::new(Period::Minute, TimeZone::UTC)));
        let sliding = read("quota = \"5/day\"\nwindow = \"sliding\"\n").unwrap();
        assert_eq!((sliding.limits.window, sliding.calendar), (None, None));
        for (more, fault) in [
            (
                "quota = \"5 RU/s\"\nwindow = \"calendar\"\n",
                "limit[0].window = \"calendar\": needs a quota in a time",
            ),
            (
                "quota = \"5/s\"\nwindow = \"calendar\"\n",
                "limit[0].window = \"calendar\": needs a quota in a time",
            ),
            (
                "quota = \"20_000_000_000/day\"\nwindow = \"calendar\"\n",
                "must be at most 10000000000 in a window",
            ),
            (
                "quota = \"0\"\nwindow = \"calendar\"\n",
                "limit[0].window = \"calendar\": needs a quota in a time",
            ),
            ("quota = \"5/day\"\nwindow = \"weekly\"\n", "must be \"sliding\" or \"calendar\""),
            ("quota = \"5/day\"\nzone = \"UTC\"\n", "limit[0].zone = \"UTC\": is for window"),
            (
                "quota = \"5/day\"\nwindow = \"calendar\"\nzone = \"Europe/Atlantis\"\n",
                "is no time zone that is known",
            ),
            (
                "quota = \"5/day\"\nwindow = \"calendar\"\nburst = \"7d\"\n",
                "limit[0].burst = \"7d\": is for buckets",
            ),
        ] {
            let faults = read(more).unwrap_err();
            assert!(faults.join("\n").contains(fault), "{more}: {faults:?}");
        }
    }

    #[test]
    fn every_fault_of_a_limit_is_reported_with_its_line() {
        let faults = parse(
            "[[limit]]\nquota = \"50\"\n\
             [[limit]]\nname = \"shop/user=*al\"\nquota = \"1 RU/s\"\n\
             [[limit]]\nname = \"shop/user=a\"\nquota = \"10 RU/s\"\nqouta = \"1\"\n\
             [[limit]]\nname = \"shop/user=%61\"\nburst = \"1ms\"\n",
        );
        assert_eq!(
            faults.unwrap_err(),
            [
                "1: limit[0].name: is missing, e.g. name = \"shop/user=*\"",
                "2: limit[0].quota = \"50\": must be a rate, e.g. \"5000 RU/s\" or \"5/day\" (/s, /min, /hour, /day, /week, \
                 /month, /year), \"unlimited\", or \"0\" to refuse everything",
                "4: limit[1].name = \"shop/user=*al\": has a '*' that does not end a value; write '*' \
                 itself as %2A",
                "9: limit[2].qouta = \"1\": unknown key; did you mean quota?",
                "10: limit[3].quota: is missing, e.g. quota = \"5000 RU/s\" or \"5/day\"",
                "11: limit[3].name = \"shop/user=%61\": is taken, on line 7; a further limit of the same names has a label, e.g. \
                 label = \"daily\"",
                "12: limit[3].burst = \"1ms\": must be from 4ms to 31622400s",
            ]
        );
        let never = parse("[[limit]]\nname = \"a\"\nquota = \"3 RU/s\"\n").unwrap_err();
        assert!(
            never[0].starts_with("3: limit[0].quota = \"3 RU/s\": would refuse every request of 1 RU"),
            "{never:?}"
        );
    }
}
