//! Patterns of names: `shop/user=*` is any user's name in the domain `shop`.

use std::fmt;

use super::name::{Name, NameError, Spelling, parts};

/// A name, or one in which a `*` stands for any value of some entries. It fits names with the same domain and the same keys
/// in the same order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Self::spelt(Spelling::parse(text, true)?)
    }

    /// The pattern of these parts, none of which is encoded yet; a `*` in place of a value that is `None`.
    ///
    /// # Errors
    ///
    /// [`NameError`].
    pub fn of<'e>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'e str, Option<&'e str>)>,
    ) -> Result<Self, NameError> {
        let mut spelling = Spelling::of(domain)?;
        for (key, value) in entries {
            spelling.push(key, value)?;
        }
        Self::spelt(spelling)
    }

    /// Every name that it is to fit has room, however long the values are that it leaves open.
    fn spelt(Spelling { text, .. }: Spelling) -> Result<Self, NameError> {
        let stars = text.matches('*').count();
        let has_room = stars == 0 || text.len() - stars + Name::HASH_BYTES <= Name::MAX_BYTES;
        if has_room { Ok(Self(text.into())) } else { Err(NameError::NoRoom) }
    }

    /// Its spelling.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The only name that it fits; `None` if there is a `*` in it.
    #[must_use]
    pub fn name(&self) -> Option<Name> {
        // In its one spelling, a `*` is one that stands for a value.
        if self.0.contains('*') { None } else { Name::parse(&self.0).ok() }
    }

    /// The places of the entries whose value it leaves open, from 0.
    pub fn open(&self) -> impl Iterator<Item = usize> {
        let stars = self.parts().1.enumerate().filter(|(_, (_, value))| value.is_none());
        stars.map(|(place, _)| place)
    }

    /// Its domain and its entries as they are spelt; `None` in place of a `*`.
    pub(super) fn parts(&self) -> (&str, impl Iterator<Item = (&str, Option<&str>)>) {
        let (domain, entries) = parts(&self.0);
        (domain, entries.map(|(key, value)| (key, (value != "*").then_some(value))))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_a_whole_value_or_a_fault() {
        for (text, name) in [
            ("acme", Some("acme")),
            ("shop/user=alice", Some("shop/user=alice")),
            ("shop/user=*", None),
            ("shop/user=%2A", Some("shop/user=%2A")),
        ] {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(pattern.name().as_ref().map(Name::as_str), name, "{text}");
            assert_eq!(Pattern::parse(pattern.as_str()), Ok(pattern));
        }
        for text in ["*", "shop/*=alice", "shop/user=a*", "shop/user=**", "*/user=alice"] {
            assert_eq!(Pattern::parse(text), Err(NameError::Star), "{text}");
        }
    }

    #[test]
    fn a_pattern_with_a_star_leaves_room_for_a_hash() {
        let of = |len: usize, value: &str| Pattern::parse(&format!("{}/user={value}", "d".repeat(len)));
        let most = Name::MAX_BYTES - Name::HASH_BYTES - "/user=".len();
        assert!(of(most, "*").is_ok());
        assert_eq!(of(most + 1, "*"), Err(NameError::NoRoom));
        assert!(of(most + 1, "alice").is_ok());
    }
}
