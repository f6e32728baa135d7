//! From a descriptor to what is charged for it.

use std::borrow::Cow;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use gate_common::units::{MilliRu, Nanos};
use sha2::{Digest as _, Sha256};

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

/// The name of a domain and entries. If it is too long, its longest values stand in it by their hash, one after the other until it has
/// room; then the second is true. A value that a rule spells out stays, so that no client gets out of a limit by a long value of another
/// entry.
///
/// # Errors
///
/// [`NameError`]: too long it is with more such values, or longer keys, than there is room for.
pub(super) fn name_of<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
    rules: impl FnOnce() -> Arc<Rules>,
) -> Result<(Name, bool), NameError> {
    match Name::of(domain, entries.clone()) {
        Err(NameError::TooLong) => Ok((shortened(domain, entries, &rules())?, true)),
        result => Ok((result?, false)),
    }
}

fn shortened<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)>,
    rules: &Rules,
) -> Result<Name, NameError> {
    let mut entries: Vec<_> = entries.map(|(key, value)| (key, Cow::Borrowed(value))).collect();
    loop {
        let may_go = |(key, value): &&mut (&str, Cow<'_, str>)| {
            matches!(value, Cow::Borrowed(_))
                && value.len() > LONG_VALUE
                && !rules.spell_out(domain, key, value)
        };
        let longest = entries.iter_mut().filter(may_go).max_by_key(|(_, value)| value.len());
        let (_, value) = longest.ok_or(NameError::TooLong)?;
        *value = Cow::Owned(hash(value));
        match Name::of(domain, entries.iter().map(|(key, value)| (*key, &**value))) {
            Err(NameError::TooLong) => {}
            result => return result,
        }
    }
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

fn hash(value: &str) -> String {
    let digest = Sha256::digest(value.as_bytes());
    let hex: String = digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{hex}")
}

/// Of SHA-256, enough that nobody finds two values with one name.
const HASH_BYTES: usize = 16;
/// Percent-encoded it is three times as long, and no longer than its hash.
const LONG_VALUE: usize = 12;

#[cfg(test)]
mod tests {
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
        let (name, was_hashed) = name_of("shop", entries.iter().copied(), || Arc::new(rules.clone()))?;
        Ok((name.as_str().to_owned(), was_hashed))
    }

    #[test]
    fn long_values_stand_in_a_name_by_their_hash() {
        let none = Rules::default();
        let long = "x".repeat(300);
        let (first, was_hashed) = name(&[("user", "alice"), ("path", &long)], &none).unwrap();
        assert!(was_hashed);
        assert!(first.starts_with("shop/user=alice/path=sha256-"), "{first}");
        let (other, _) = name(&[("user", "alice"), ("path", &format!("{long}y"))], &none).unwrap();
        assert_ne!(first, other);
        assert_eq!(name(&[("user", "alice")], &none), Ok(("shop/user=alice".to_owned(), false)));
        // As many entries as there is room for, with the most that a client can bring, still have a name.
        let control = "\n".repeat(60_000);
        let entries = ["a", "b", "c", "d", "e"].map(|key| (key, control.as_str()));
        assert!(name(&entries, &none).is_ok());
        assert_eq!(name(&[("user", long.as_str()); 7], &none), Err(NameError::TooLong));
    }

    #[test]
    fn a_long_value_of_one_entry_hides_no_other_from_its_rule() {
        let path = "/a/path/that/is/expensive/and/longer/than/its/hash/would/be";
        let rules = rules(&[
            "shop/user=*/path=%2Fa%2Fpath%2Fthat%2Fis%2Fexpensive%2Fand%2Flonger%2Fthan%2Fits%2Fhash%2Fwould%2Fbe",
        ]);
        for (users, len) in [(1, 300), (1, 60_000), (1, 170), (3, 58)] {
            let value = "x".repeat(len);
            let mut entries = vec![("other", value.as_str()); users - 1];
            entries.extend([("user", value.as_str()), ("path", path)]);
            let (spelt, was_hashed) = name(&entries, &rules).unwrap();
            assert!(was_hashed && spelt.ends_with("%2Fwould%2Fbe"), "{spelt}");
        }
        // Of what no rule spells out, no more is hashed than has to be.
        let (spelt, _) =
            name(&[("user", &"x".repeat(300)), ("agent", "neither short nor long")], &rules).unwrap();
        assert!(spelt.ends_with("/agent=neither short nor long"), "{spelt}");
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
            hits_addend: hits.map(|value| envoy_types::pb::google::protobuf::UInt64Value { value }),
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
