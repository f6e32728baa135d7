//! From a descriptor to what is charged for it.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use gate_common::units::{MilliRu, Nanos};
use sha2::{Digest as _, Sha256};

use crate::limits::{Limits, Name, NameError};

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

/// The name of a domain and entries. If values make it too long, those that are long themselves stand in it by their hash,
/// so that no client gets out of a limit by a long value; then the second is true.
///
/// # Errors
///
/// [`NameError`].
pub(super) fn name_of<'e>(
    domain: &str,
    entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
) -> Result<(Name, bool), NameError> {
    match Name::of(domain, entries.clone()) {
        Err(NameError::TooLong) => {}
        result => return Ok((result?, false)),
    }
    let hashed: Vec<_> = entries.map(|(key, value)| (key, hashed(value))).collect();
    let name = Name::of(domain, hashed.iter().map(|(key, value)| (*key, value.as_str())))?;
    Ok((name, true))
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

/// A value that is no longer than its hash stays.
fn hashed(value: &str) -> String {
    if value.len() <= LONG_VALUE {
        return value.to_owned();
    }
    let digest = Sha256::digest(value.as_bytes());
    let hex: String = digest.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{hex}")
}

/// Of SHA-256, enough that nobody finds two values with one name.
const HASH_BYTES: usize = 16;
/// Percent-encoded, three times as long.
const LONG_VALUE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_stand_in_a_name_by_their_hash() {
        let long = "x".repeat(300);
        let (name, was_hashed) =
            name_of("shop", [("user", "alice"), ("path", long.as_str())].into_iter()).unwrap();
        assert!(was_hashed);
        assert!(name.as_str().starts_with("shop/user=alice/path=sha256-"), "{name}");
        let other = format!("{long}y");
        let (other, _) = name_of("shop", [("user", "alice"), ("path", other.as_str())].into_iter()).unwrap();
        assert_ne!(name, other);
        let (short, was_hashed) = name_of("shop", [("user", "alice")].into_iter()).unwrap();
        assert_eq!((short.as_str(), was_hashed), ("shop/user=alice", false));
        // Eight entries with the most that a client can bring still have a name.
        let control = "\n".repeat(60_000);
        let entries = ["a", "b", "c", "d"].map(|key| (key, control.as_str()));
        assert!(name_of("shop", entries.into_iter()).is_ok());
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
