//! The keys that a tenant may touch: those that begin with one of its prefixes.

/// Prefixes of keys. Pure, and without an allocation for a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnKeys {
    /// In the order of their bytes; none begins with another.
    prefixes: Vec<Box<[u8]>>,
}

impl OwnKeys {
    /// Those that begin with any of `prefixes`.
    pub fn new<'p>(prefixes: impl IntoIterator<Item = &'p str>) -> Self {
        let mut prefixes: Vec<Box<[u8]>> =
            prefixes.into_iter().map(|prefix| prefix.as_bytes().into()).collect();
        prefixes.sort_unstable();
        // What begins with a prefix comes behind it, and whatever lies between begins with it too.
        prefixes.dedup_by(|next, before| next.starts_with(before));
        Self { prefixes }
    }

    /// True if a key is among them.
    #[must_use]
    #[inline]
    pub fn has(&self, key: &[u8]) -> bool {
        let after = self.prefixes.partition_point(|prefix| **prefix <= *key);
        after.checked_sub(1).is_some_and(|place| key.starts_with(&self.prefixes[place]))
    }

    /// The prefix of everything that a pattern of Redis can match.
    pub(crate) fn literal(pattern: &[u8]) -> &[u8] {
        let literal = pattern.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(pattern.len());
        &pattern[..literal]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn a_key_is_own_if_it_begins_with_a_prefix() {
        let own = OwnKeys::new(["web:", "web:img:", "w", "é"]);
        for (key, expected) in [
            ("web:1", true),
            ("web:", true),
            ("web", true),
            ("w", true),
            ("é1", true),
            ("W", false),
            ("xweb:", false),
            ("", false),
            ("v\u{ff}", false),
        ] {
            assert_eq!(own.has(key.as_bytes()), expected, "{key}");
        }
        let own = OwnKeys::new(["web:", "img:"]);
        assert!(!own.has(b"web") && !own.has(b"img") && own.has(b"img:\xff") && !own.has(b"zzz"));
        assert!(!OwnKeys::new([]).has(b"a"));
    }

    #[test]
    fn a_pattern_is_literal_up_to_its_first_special_character() {
        for (pattern, literal) in [
            ("web:*", "web:"),
            ("web:?", "web:"),
            ("web:", "web:"),
            ("*a", ""),
            ("we[b]", "we"),
            ("a\\:", "a"),
            ("", ""),
        ] {
            assert_eq!(OwnKeys::literal(pattern.as_bytes()), literal.as_bytes(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn it_says_what_looking_at_every_prefix_would(
            prefixes in proptest::collection::vec("[ab]{1,5}", 0..20),
            key in "[ab]{0,8}",
        ) {
            let own = OwnKeys::new(prefixes.iter().map(String::as_str));
            let expected = prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()));
            prop_assert_eq!(own.has(key.as_bytes()), expected);
        }
    }
}
