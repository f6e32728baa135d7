//! The parts of a tenant: the tenant that a request is charged to, by the prefixes of its keys.
//!
//! A request belongs to a part if all its keys do. A key belongs to the part with the longest prefix that it begins
//! with. A request with keys of several parts, with a key of none, or without keys belongs to the whole. Pure, and
//! without an allocation for a request.

use super::ledger::TenantId;
use crate::protocol::deny::Deny;

/// One tenant's parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    parts: Vec<Part>,
    /// In the order of their bytes.
    prefixes: Vec<Prefix>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Part {
    /// The tenant that is charged.
    pub(crate) tenant: TenantId,
    /// The commands that are denied to it, beside those that are denied to the whole.
    pub(crate) deny: Option<Deny>,
}

#[derive(Debug)]
struct Prefix {
    bytes: Box<[u8]>,
    /// The place of its part.
    part: u32,
    /// The place of the longest other prefix that this one begins with.
    within: Option<u32>,
}

impl Parts {
    /// Adds a part. Prefixes are distinct; [`Parts::sort`] comes after the last.
    pub(crate) fn add(&mut self, part: Part, prefixes: impl IntoIterator<Item = impl Into<Box<[u8]>>>) {
        let seq = self.parts.len() as u32;
        self.parts.push(part);
        let prefix = |bytes: Box<[u8]>| Prefix { bytes, part: seq, within: None };
        self.prefixes.extend(prefixes.into_iter().map(|bytes| prefix(bytes.into())));
    }

    /// Makes it ready to be asked.
    pub(crate) fn sort(&mut self) {
        self.prefixes.sort_unstable_by(|one, other| one.bytes.cmp(&other.bytes));
        // Whatever a prefix lies within comes before it, and all that comes between lies within that too.
        let mut open: Vec<u32> = Vec::new();
        for seq in 0..self.prefixes.len() {
            let bytes = &self.prefixes[seq].bytes;
            while open.pop_if(|last| !bytes.starts_with(&self.prefixes[*last as usize].bytes)).is_some() {}
            self.prefixes[seq].within = open.last().copied();
            open.push(seq as u32);
        }
    }

    /// The part that a request belongs to; `None` if it is the whole's. These are the keys that are at hand, of so
    /// many.
    pub(crate) fn of<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>, count: u32) -> Option<&Part> {
        let part = self.of_key(keys.next()?)?;
        let mut seen = 1;
        for key in keys {
            if self.of_key(key) != Some(part) {
                return None;
            }
            seen += 1;
        }
        (seen == count).then(|| &self.parts[part as usize])
    }

    /// The place of the part whose key this is.
    fn of_key(&self, key: &[u8]) -> Option<u32> {
        // All prefixes of a key are prefixes of the last one that does not come after it.
        let after = self.prefixes.partition_point(|prefix| *prefix.bytes <= *key);
        let mut prefix = &self.prefixes[after.checked_sub(1)?];
        while !key.starts_with(&prefix.bytes) {
            prefix = &self.prefixes[prefix.within? as usize];
        }
        Some(prefix.part)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    /// The parts are numbered from 1.
    fn parts(prefixes: &[&[&[u8]]]) -> Parts {
        let mut parts = Parts::default();
        for (tenant, prefixes) in (1..).zip(prefixes) {
            parts.add(Part { tenant: TenantId(tenant), deny: None }, prefixes.iter().copied());
        }
        parts.sort();
        parts
    }

    fn of(parts: &Parts, keys: &[&[u8]]) -> Option<u32> {
        parts.of(keys.iter().copied(), keys.len() as u32).map(|part| part.tenant.0)
    }

    #[test]
    fn a_key_belongs_to_whoever_has_the_longest_prefix_of_it() {
        let parts =
            parts(&[&[b"web:", b"web:img:"], &[b"web:img", b"w", b"\xff\x00"], &[b"web:img:big:", b"\xff"]]);
        for (key, part) in [
            (&b"web:1"[..], Some(1)),
            (b"web:", Some(1)),
            (b"web", Some(2)),
            (b"web:img", Some(2)),
            (b"web:imgs", Some(2)),
            (b"web:img:1", Some(1)),
            (b"web:img:big", Some(1)),
            (b"web:img:big:", Some(3)),
            (b"web:img:zzz", Some(1)),
            (b"web:zzz", Some(1)),
            (b"wzzz", Some(2)),
            (b"x", None),
            (b"a", None),
            (b"Web:1", None),
            (b"", None),
            (b"\xff", Some(3)),
            (b"\xff\x00\x00", Some(2)),
            (b"\xff\xff", Some(3)),
            (b"\xfe", None),
            (b"\0", None),
        ] {
            assert_eq!(of(&parts, &[key]), part, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn a_request_belongs_to_a_part_if_all_its_keys_do() {
        let parts = parts(&[&[b"a:", b"b:"], &[b"c:", b"a:c:"]]);
        for (keys, part) in [
            (&[&b"a:1"[..]][..], Some(1)),
            (&[b"a:1", b"b:1", b"a:2"], Some(1)),
            (&[b"c:1", b"a:c:1"], Some(2)),
            (&[b"a:1", b"c:1"], None),
            (&[b"a:1", b"a:c:1"], None),
            (&[b"a:1", b"d:1"], None),
            (&[b"d:1", b"a:1"], None),
            (&[], None),
        ] {
            assert_eq!(of(&parts, keys), part, "{keys:?}");
        }
    }

    #[test]
    fn what_has_more_keys_than_are_at_hand_is_the_wholes() {
        let parts = parts(&[&[b"a:"]]);
        let keys = || [&b"a:1"[..], b"a:2"].into_iter();
        assert!(parts.of(keys(), 2).is_some() && parts.of(keys(), 3).is_none());
    }

    #[test]
    fn whoever_has_no_parts_is_charged_for_everything() {
        assert_eq!(of(&parts(&[]), &[b"a"]), None);
    }

    proptest! {
        #[test]
        fn it_says_what_looking_at_every_prefix_would(
            prefixes in proptest::collection::btree_set(proptest::collection::vec(0..3_u8, 1..6), 0..40),
            key in proptest::collection::vec(0..3_u8, 0..8),
        ) {
            let slices: Vec<[&[u8]; 1]> = prefixes.iter().map(|prefix| [prefix.as_slice()]).collect();
            let parts = parts(&slices.iter().map(|prefix| &prefix[..]).collect::<Vec<_>>());
            let longest = (1..).zip(&prefixes).filter(|(_, prefix)| key.starts_with(prefix));
            let longest = longest.max_by_key(|(_, prefix)| prefix.len()).map(|(number, _)| number);
            prop_assert_eq!(of(&parts, &[&key]), longest);
        }
    }
}
