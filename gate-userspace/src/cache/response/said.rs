//! Fields for caches as they are said: directives, times and ages (RFC 9111, RFC 9110 5.6.7). Pure.

use std::time::SystemTime;

use hyper::header::{
    AGE, CACHE_CONTROL, DATE, EXPIRES, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED, PRAGMA,
};

/// Makes an age one that can be added to: of several the first counts, which is the longest if it is none, and as if it were
/// not there if it is no number (RFC 9111, 1.2.2 and 5.1).
pub(super) fn bound_age(headers: &mut HeaderMap) {
    let Some(said) = headers.get(AGE) else { return };
    let first = said.as_bytes().split(|&byte| byte == b',').next().unwrap_or_default().trim_ascii();
    match number(first) {
        Some(secs) => drop(headers.insert(AGE, HeaderValue::from(secs))),
        None => drop(headers.remove(AGE)),
    }
}

/// Writes lifetimes that are longer than HTTP can say as the longest (RFC 9111, 1.2.2): the policy takes them for none. So it
/// may, where the origin says several.
pub(super) fn bound_lifetimes(headers: &mut HeaderMap) {
    let mut names: Vec<_> = directives(headers).map(name_of).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    if names.len() < count {
        return;
    }
    let hyper::header::Entry::Occupied(mut values) = headers.entry(CACHE_CONTROL) else { return };
    for value in values.iter_mut() {
        let Ok(said) = value.to_str() else { continue };
        let bounded: Vec<String> = said.split(',').map(bounded).collect();
        if let Ok(bounded) = HeaderValue::try_from(bounded.join(",")) {
            *value = bounded;
        }
    }
}

/// A directive whose number, if it has one, is at most the longest.
fn bounded(directive: &str) -> String {
    let named = directive.split_once('=');
    let number = named.and_then(|(name, said)| Some((name, number(said.trim().as_bytes())?)));
    match number {
        Some((name, MOST_SECS)) => format!("{name}={MOST_SECS}"),
        _ => directive.to_owned(),
    }
}

/// A number of digits, at most the longest time; `None` for what is no number.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let said = || str::from_utf8(digits).ok()?.parse::<u64>().ok();
    is_number.then(|| said().map_or(MOST_SECS, |secs| secs.min(MOST_SECS)))
}

/// Writes dates in the form that the policy reads; RFC 9110, 5.6.7, has two older ones.
pub(super) fn rewrite_dates(headers: &mut HeaderMap) {
    for name in [DATE, EXPIRES, LAST_MODIFIED] {
        let Some(said) = headers.get(&name).and_then(|said| said.to_str().ok()) else { continue };
        let date = date(said);
        // The policy would read more than a date has blanks for.
        if date.is_none() && name == EXPIRES && said.contains("  ") {
            headers.insert(name, HeaderValue::from_static("0"));
            continue;
        }
        let written = date.and_then(|date| HeaderValue::try_from(httpdate::fmt_http_date(date)).ok());
        if let Some(written) = written {
            headers.insert(name, written);
        }
    }
}

/// A date of HTTP, whatever it says of the day of the week.
fn date(said: &str) -> Option<SystemTime> {
    let of_day = |day: &&str| {
        let rest = said.get(3..).filter(|_| said.as_bytes().iter().take(3).all(u8::is_ascii_alphabetic))?;
        httpdate::parse_http_date(&format!("{day}{rest}")).ok()
    };
    httpdate::parse_http_date(said).ok().or_else(|| DAYS.iter().find_map(of_day))
}

/// The directives of `Cache-Control`, which is in lower case.
pub(super) fn directives(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CACHE_CONTROL).into_iter();
    values.flat_map(|value| value.to_str().unwrap_or_default().split(',')).map(str::trim)
}

pub(super) fn name_of(directive: &str) -> &str {
    directive.split('=').next().unwrap_or_default().trim()
}

/// True if `Cache-Control` has one of these directives, with a value or without.
pub(super) fn says_any(headers: &HeaderMap, names: &[&str]) -> bool {
    directives(headers).any(|said| names.contains(&name_of(said)))
}

/// True if a request says how fresh an answer has to be. What no cache knows says nothing (RFC 9111, 5.2.3).
pub(crate) fn says_of_freshness(headers: &HeaderMap) -> bool {
    let asks_anew = |value: &HeaderValue| {
        value.as_bytes().to_ascii_lowercase().windows(8).any(|part| part == b"no-cache")
    };
    let is_of_freshness =
        |said: &str| OF_FRESHNESS.iter().any(|name| name_of(said).eq_ignore_ascii_case(name));
    headers.get_all(PRAGMA).iter().any(asks_anew)
        || headers.get_all(CACHE_CONTROL).iter().any(|value| value.to_str().is_err())
        || directives(headers).any(is_of_freshness)
}

/// Writes the directives for caches in lower case, as the policy knows them (RFC 9111, 5.2 and 5.4).
pub(crate) fn lower_case(headers: &mut HeaderMap) {
    for name in [CACHE_CONTROL, PRAGMA] {
        let hyper::header::Entry::Occupied(mut values) = headers.entry(name) else { continue };
        for value in values.iter_mut() {
            if let Ok(lower) = HeaderValue::from_bytes(&value.as_bytes().to_ascii_lowercase()) {
                *value = lower;
            }
        }
    }
}

/// The value of a field with all its lines; `None` if it has no name, or the lines cannot be joined.
pub(super) fn value_of(headers: &HeaderMap, name: &str) -> Option<(HeaderName, Option<HeaderValue>)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut values = headers.get_all(&name).into_iter();
    let value = match (values.next(), values.next()) {
        (Some(_), Some(_)) => {
            let all: Vec<_> = headers.get_all(&name).into_iter().map(HeaderValue::as_bytes).collect();
            Some(HeaderValue::from_bytes(&all.join(&b", "[..])).ok()?)
        }
        (value, _) => value.cloned(),
    };
    Some((name, value))
}

/// The longest time that HTTP can say (RFC 9111, 1.2.2).
const MOST_SECS: u64 = 1 << 31;
/// Directives of a request about the answer that it takes.
const OF_FRESHNESS: [&str; 5] = ["max-age", "max-stale", "min-fresh", "no-cache", "stale-if-error"];
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
