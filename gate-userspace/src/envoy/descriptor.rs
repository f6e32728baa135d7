//! From a descriptor to what is charged for it.

use std::borrow::Cow;

use gate_common::units::{MilliRu, Nanos};
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use super::wire::rls::rate_limit_descriptor::RateLimitOverride;
use super::wire::rls::{RateLimitDescriptor, RateLimitUnit};
use crate::limits::{Limits, Name, NameError, Rules};

/// A price, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Taken from the bucket.
    Take(MilliRu),
    /// Only asked whether it would pass.
    Ask(MilliRu),
    /// Given back to the bucket.
    GiveBack(MilliRu),
}

impl Demand {
    /// The hits of a descriptor, or else its request's, where 0 is not said and stands for 1.
    pub(super) fn of(descriptor: &RateLimitDescriptor, of_request: u32) -> Self {
        let hits = descriptor.hits_addend.as_ref().map_or(u64::from(of_request.max(1)), |hits| hits.value);
        match hits {
            0 => Self::Ask(price(1)),
            hits if descriptor.is_negative_hits => Self::GiveBack(price(hits)),
            hits => Self::Take(price(hits)),
        }
    }
}

/// The name of a domain and entries for the limits with this label, or without one. If it is too long, hashes stand in it for what its rule leaves open of the values, and the second is true:
/// for the longest, one after the other until it has room, else one for all. What the rule spells out stays, so that the name has the same
/// rule. A value that could be one with a hash gets a hash of its own, so that nobody says another's name.
///
/// # Errors
///
/// [`NameError`]: too long it is with longer keys than there is room for, which no rule has.
pub(super) fn name_of<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    label: Option<&str>,
    rules: &Rules,
) -> Result<(Name, bool), NameError> {
    let labelled = |name: Name| label.map_or(name.clone(), |label| name.with_label(label));
    match Name::of(domain, entries.clone()) {
        Err(NameError::TooLong) => {}
        Ok(_) if entries.clone().any(|(_, value)| value.contains(Name::MARK)) => {}
        result => return Ok((labelled(result?), false)),
    }
    Ok((labelled(shortened(domain, entries, label, rules)?), true))
}

fn shortened<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    label: Option<&str>,
    rules: &Rules,
) -> Result<Name, NameError> {
    let rule = rules.find_by_parts(domain, entries.clone(), label);
    let mut open = rule.map(|rule| rule.pattern.open());
    let mut entries: Vec<Shortened<'_>> = entries
        .map(|(key, value)| {
            let given = open.as_mut().map_or(Some(""), |open| open.next().flatten());
            let open_from = given.map(|given| percent_decode_str(given).count());
            Shortened { key, value: Cow::Borrowed(value), open_from }
        })
        .collect();
    let all = hash_of_all(&entries);
    entries.iter_mut().filter(|entry| entry.value.contains(Name::MARK)).for_each(Shortened::hash);
    loop {
        match name(domain, &entries) {
            Err(NameError::TooLong) => {}
            result => return result,
        }
        let longest = entries.iter_mut().filter(|entry| entry.may_go()).max_by_key(|entry| entry.value.len());
        let Some(longest) = longest else { break };
        longest.hash();
    }
    let mut hashes = [all].into_iter();
    entries.iter_mut().for_each(|entry| entry.replace(&hashes.next().unwrap_or_default()));
    name(domain, &entries)
}

fn name(domain: &str, entries: &[Shortened<'_>]) -> Result<Name, NameError> {
    Name::of(domain, entries.iter().map(|entry| (entry.key, &*entry.value)))
}

/// An entry of a name that is too long.
struct Shortened<'e> {
    key: &'e str,
    /// Owned once it ends with a hash.
    value: Cow<'e, str>,
    /// The length of what its rule spells out, or all rules leave open; `None` if that is all of it.
    open_from: Option<usize>,
}

impl Shortened<'_> {
    /// True if its name is shorter with its hash.
    fn may_go(&self) -> bool {
        let is_long = |from| self.value.len() - from > LONG_VALUE;
        matches!(self.value, Cow::Borrowed(_)) && self.open_from.is_some_and(is_long)
    }

    /// Has a hash of all of the value stand for what is open of it.
    fn hash(&mut self) {
        self.replace(&spelt(Sha256::new_with_prefix(self.value.as_bytes())));
    }

    /// Has this stand for what is open of the value.
    fn replace(&mut self, hash: &str) {
        if let Some(from) = self.open_from {
            self.value = Cow::Owned(format!("{}{}{hash}", &self.value[..from], Name::MARK));
        }
    }
}

/// One hash for all values that no rule spells out.
fn hash_of_all(entries: &[Shortened<'_>]) -> String {
    let mut digest = Sha256::new();
    for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.open_from.is_some()) {
        digest.update(format!("{place}:{}:", entry.value.len()));
        digest.update(entry.value.as_bytes());
    }
    spelt(digest)
}

/// The limits that a request brings for itself, and their name: so many in a unit of time, and as many at once. `None` if the unit is not known.
pub(super) fn override_of(limit: RateLimitOverride) -> Option<(Limits, String)> {
    let unit = RateLimitUnit::try_from(limit.unit).ok()?;
    let count = limit.requests_per_unit;
    let limits = Limits::requests_in(count.into(), Nanos::from_secs(seconds(unit)?));
    Some((limits, format!("{count}/{}", unit.as_str_name())))
}

/// The price of so many hits.
pub(super) fn price(hits: u64) -> MilliRu {
    MilliRu(u32::try_from(hits.saturating_mul(1_000)).unwrap_or(u32::MAX))
}

fn seconds(unit: RateLimitUnit) -> Option<u64> {
    Some(match unit {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => 86_400,
        RateLimitUnit::Month => 30 * 86_400,
        RateLimitUnit::Year => 365 * 86_400,
    })
}

/// A hash: behind [`Name::MARK`] it is [`Name::HASH_BYTES`] long.
fn spelt(digest: Sha256) -> String {
    digest.finalize().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Of SHA-256, enough that nobody finds two values with one name.
const HASH_BYTES: usize = 16;
/// Percent-encoded it is three times as long, and no longer than its hash.
const LONG_VALUE: usize = Name::HASH_BYTES / 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{Pattern, Rule};

    fn rules(patterns: &[&str]) -> Rules {
        let mut rules = Rules::default();
        for pattern in patterns {
            rules.add(Rule::new(Pattern::parse(pattern).unwrap(), Limits::BANNED)).unwrap();
        }
        rules
    }

    fn name(entries: &[(&str, &str)], rules: &Rules) -> Result<(String, bool), NameError> {
        let (name, was_hashed) = name_of("shop", entries.iter().copied(), None, rules)?;
        Ok((name.as_str().to_owned(), was_hashed))
    }

    #[test]
    fn long_values_stand_in_a_name_by_their_hash() {
        let none = Rules::default();
        let long = "x".repeat(300);
        let (first, was_hashed) = name(&[("user", "alice"), ("path", &long)], &none).unwrap();
        assert!(was_hashed);
        assert!(first.starts_with("shop/user=alice/path=%01"), "{first}");
        let (other, _) = name(&[("user", "alice"), ("path", &format!("{long}y"))], &none).unwrap();
        assert_ne!(first, other);
        assert_eq!(name(&[("user", "alice")], &none), Ok(("shop/user=alice".to_owned(), false)));
        // As many entries as a name may have, with the most that a client can bring.
        let control = "\n".repeat(60_000);
        let entries = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| (key, control.as_str()));
        let (all, _) = name(&entries, &none).unwrap();
        assert_eq!(
            all.len(),
            "shop/a=".len() + Name::HASH_BYTES + "/b=%01/c=%01/d=%01/e=%01/f=%01/g=%01/h=%01".len()
        );
        for place in 0..entries.len() {
            let mut others = entries;
            others[place].1 = "\n";
            assert_ne!(name(&others, &none).unwrap().0, all, "{place}");
        }
        let key = "k".repeat(Name::MAX_BYTES);
        assert_eq!(name(&[(&key, "x")], &none), Err(NameError::TooLong));
        assert_eq!(name(&[("user", "x"); 9], &none), Err(NameError::TooManyEntries));
    }

    #[test]
    fn a_long_value_of_one_entry_hides_no_other_from_its_rule() {
        let path = "/a/path/that/is/expensive/and/longer/than/its/hash/would/be";
        let spelt_path = path.replace('/', "%2F");
        let rules = rules(&[
            &format!("shop/user=*/path={spelt_path}"),
            &format!("shop/other=*/user=*/path={spelt_path}"),
            "shop/user=*/path=*",
        ]);
        for len in [300, 60_000, 170, 58] {
            let value = "x".repeat(len);
            for entries in [
                &[("user", value.as_str()), ("path", path)][..],
                &[("other", &value), ("user", &value), ("path", path)],
            ] {
                let (spelt, _) = name(entries, &rules).unwrap();
                assert!(spelt.ends_with(&spelt_path), "{spelt}");
            }
        }
        // Of what no rule spells out, no more is hashed than has to be.
        let (spelt, _) =
            name(&[("user", &"x".repeat(300)), ("agent", "neither short nor long")], &rules).unwrap();
        assert!(spelt.ends_with("/agent=neither short nor long"), "{spelt}");
    }

    proptest! {
        #[test]
        fn values_of_any_length_lead_to_the_rule_of_their_parts(
            patterns in proptest::collection::btree_set("s(/[kl]=(\\*|a|a\\*|aa|aab*\\*|b{90}|b{1,80}\\*|(%0A){1,30}\\*?)){0,8}", 1..20),
            names in proptest::collection::vec(
                proptest::collection::vec(("[kl]", "(a{1,2}|a{1,2}b{0,200}|a{0,2}\u{1}[0-9a-f]{32}|b{90}|b{60,260}|\n{30}|\n{100}|c{200}|d{13})"), 0..9), 1..20),
        ) {
            let patterns = patterns.iter().filter_map(|pattern| Pattern::parse(pattern).ok());
            let mut rules = Rules::default();
            for pattern in patterns {
                rules.add(Rule::new(pattern, Limits::BANNED)).unwrap();
            }
            for entries in names {
                let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                let by_parts = rules.find_by_parts("s", entries.iter().copied(), None);
                let (name, _) = name_of("s", entries.iter().copied(), None, &rules).unwrap();
                prop_assert_eq!(rules.find(&name), by_parts);
            }
        }
    }

    /// The entries of a spelling, as a client would have to bring them to be taken for it.
    fn read_back(spelling: &str) -> Vec<(String, String)> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
        let entries = spelling.split('/').skip(1).filter_map(|entry| entry.split_once('='));
        entries.map(|(key, value)| (decoded(key), decoded(value))).collect()
    }

    proptest! {
        #[test]
        fn a_name_is_said_by_its_own_values_alone(
            patterns in proptest::collection::btree_set("s(/[kl]=(\\*|a\\*|b{1,80}\\*|(%0A){1,30}\\*)){0,4}", 0..10),
            one in proptest::collection::vec(("[kl]", "(a{0,3}\u{1}?[0-9a-f]{0,32}|b{60,260}|\n{4,100}|d{5,13})"), 1..6),
            other in proptest::collection::vec("(a{0,3}\u{1}?[0-9a-f]{0,32}|b{60,260}|\n{4,100}|d{5,13})", 6),
        ) {
            let mut rules = Rules::default();
            for pattern in patterns.iter().filter_map(|pattern| Pattern::parse(pattern).ok()) {
                rules.add(Rule::new(pattern, Limits::BANNED)).unwrap();
            }
            let name = |entries: &[(String, String)]| {
                let entries = entries.iter().map(|(key, value)| (key.as_str(), value.as_str()));
                name_of("s", entries, None, &rules).unwrap().0
            };
            let said = name(&one);
            let others: Vec<_> = one.iter().zip(other).map(|((key, _), value)| (key.clone(), value)).collect();
            for entries in [others, read_back(said.as_str())] {
                prop_assert_eq!(name(&entries) == said, entries == one, "{} by {:?}", said, entries);
            }
        }
    }

    #[test]
    fn no_value_is_taken_for_one_with_a_hash() {
        let rules = rules(&["shop/path=%2Fapi%2F*", "shop/path=%2Fapi%2Fx*", "shop/path=%2Fapi%2F"]);
        let long = format!("/api/{}", "y".repeat(300));
        let (hashed, _) = name(&[("path", &long)], &rules).unwrap();
        let (given, hash) = hashed.split_once("%01").unwrap();
        assert_eq!((given, hash.len()), ("shop/path=%2Fapi%2F", 32));
        let (other, _) = name(&[("path", &format!("/api/\u{1}{hash}"))], &rules).unwrap();
        assert_ne!(other, hashed);
        assert_eq!(rules.find(&Name::parse(&other).unwrap()), rules.find(&Name::parse(&hashed).unwrap()));
    }

    #[test]
    fn an_override_allows_so_many_at_once_and_never_more() {
        let of = |requests_per_unit, unit: RateLimitUnit| {
            override_of(RateLimitOverride { requests_per_unit, unit: unit as i32 })
        };
        let (limits, name) = of(10, RateLimitUnit::Minute).unwrap();
        assert_eq!((limits.dearest() / 1_000, name.as_str()), (10, "10/MINUTE"));
        assert_eq!(limits.rate.units_per_sec(), Some(166));
        let (daily, _) = of(5, RateLimitUnit::Day).unwrap();
        assert_eq!((daily.dearest(), daily.rate.nano()), (5_000, 57_870));
        let (none, _) = of(0, RateLimitUnit::Second).unwrap();
        assert_eq!(none.dearest(), 0);
        assert_eq!(of(1, RateLimitUnit::Unknown), None);
        assert_eq!(override_of(RateLimitOverride { requests_per_unit: 1, unit: 99 }), None);
        let (most, _) = of(u32::MAX, RateLimitUnit::Second).unwrap();
        assert!(most.burst_ns > 0);
    }

    #[test]
    fn hits_are_the_descriptors_before_the_requests() {
        let descriptor = |hits: Option<u64>, is_negative_hits| RateLimitDescriptor {
            hits_addend: hits.map(|value| crate::envoy::wire::rls::UInt64Value { value }),
            is_negative_hits,
            ..RateLimitDescriptor::default()
        };
        for (hits, negative, of_request, demand) in [
            (None, false, 0, Demand::Take(MilliRu(1_000))),
            (None, false, 3, Demand::Take(MilliRu(3_000))),
            (Some(2), false, 3, Demand::Take(MilliRu(2_000))),
            (Some(0), false, 3, Demand::Ask(MilliRu(1_000))),
            (Some(2), true, 3, Demand::GiveBack(MilliRu(2_000))),
            (Some(u64::MAX), false, 0, Demand::Take(MilliRu(u32::MAX))),
        ] {
            assert_eq!(Demand::of(&descriptor(hits, negative), of_request), demand);
        }
    }
}
