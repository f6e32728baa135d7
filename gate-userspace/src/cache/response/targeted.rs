//! Cache control for gate by name: `CDN-Cache-Control` (RFC 9213). Pure.
//!
//! An answer whose field is a dictionary with at least one member is kept as that says, whatever its `Cache-Control` and `Expires`
//! say to others. Any other field counts as if it were not there. A directive with a value of another type than its own says nothing,
//! but for those that forbid, which count by their name.

use hyper::header::{CACHE_CONTROL, EXPIRES, HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// The field that is for caches of the origin's own, such as gate.
pub(crate) const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// Puts what an answer says to gate in the place of what it says to all caches.
pub(super) fn apply(headers: &mut HeaderMap) {
    let Some(directives) = directives(headers) else { return };
    headers.remove(EXPIRES);
    headers.remove(CACHE_CONTROL);
    headers.extend(HeaderValue::try_from(directives).ok().map(|directives| (CACHE_CONTROL, directives)));
}

/// The directives as `Cache-Control` would have them; `None` without a valid field.
fn directives(headers: &HeaderMap) -> Option<String> {
    let lines: Vec<_> = headers.get_all(CDN_CACHE_CONTROL).into_iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        return None;
    }
    let members = Parser::new(&lines.join(&b", "[..])).parse::<Dictionary>().ok()?;
    let directive = |(name, value): (&sfv::Key, &ListEntry)| directive(name.as_str(), value);
    let directives: Vec<String> = members.iter().filter_map(directive).collect();
    (!members.is_empty()).then(|| directives.join(", "))
}

/// One of them; `None` if it says nothing.
fn directive(name: &str, value: &ListEntry) -> Option<String> {
    let value = match value {
        ListEntry::Item(item) => Some(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    if FORBIDDING.contains(&name) {
        return Some(name.to_owned());
    }
    if IN_SECONDS.contains(&name) {
        let Some(BareItem::Integer(secs)) = value else { return None };
        return u64::try_from(i64::from(*secs)).ok().map(|secs| format!("{name}={secs}"));
    }
    matches!(value, Some(BareItem::Boolean(true))).then(|| name.to_owned())
}

const FORBIDDING: [&str; 6] =
    ["must-revalidate", "must-understand", "no-cache", "no-store", "private", "proxy-revalidate"];
const IN_SECONDS: [&str; 4] = ["max-age", "s-maxage", "stale-if-error", "stale-while-revalidate"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_dictionary_counts_in_the_place_of_what_others_read() {
        const OTHERS: &str = "max-age=1";
        for (said, expected) in [
            (&["max-age=60"][..], Some("max-age=60")),
            (
                &["max-age=60, stale-if-error=9", "s-maxage=7"],
                Some("max-age=60, stale-if-error=9, s-maxage=7"),
            ),
            (&["max-age=1, max-age=60"], Some("max-age=60")),
            (&["max-age=60;x=1"], Some("max-age=60")),
            (&["no-store"], Some("no-store")),
            (&["no-cache=\"set-cookie\""], Some("no-cache")),
            (&["private=?0"], Some("private")),
            (&["max-age=60, none, other=1.5"], Some("max-age=60, none")),
            // The value has another type.
            (&["max-age=\"60\""], Some("")),
            (&["max-age=60.0"], Some("")),
            (&["max-age=-1"], Some("")),
            (&["max-age"], Some("")),
            (&["max-age=(60)"], Some("")),
            (&["public=1"], Some("")),
            // No dictionary, or an empty one.
            (&[""], None),
            (&["", " "], None),
            (&["max-age=60,"], None),
            (&["max-age=60, &&&&&"], None),
            (&["MaX-aGe=60"], None),
            (&["max-age =60"], None),
            (&["max-age= 60"], None),
            (&["max-age=99999999999999999999"], None),
            (&["no-store", "\u{e9}"], None),
            (&[], None),
        ] {
            let lines = said.iter().map(|line| HeaderValue::from_str(line).unwrap());
            let mut headers: HeaderMap = lines.map(|line| (CDN_CACHE_CONTROL, line)).collect();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static(OTHERS));
            headers.insert(EXPIRES, HeaderValue::from_static("0"));
            apply(&mut headers);
            let counts = headers.get(CACHE_CONTROL).map_or("", |value| value.to_str().unwrap());
            assert_eq!(counts, expected.unwrap_or(OTHERS), "{said:?}");
            assert_eq!(headers.contains_key(EXPIRES), expected.is_none(), "{said:?}");
            assert_eq!(headers.get_all(CDN_CACHE_CONTROL).iter().count(), said.len(), "it is passed on");
        }
    }
}
