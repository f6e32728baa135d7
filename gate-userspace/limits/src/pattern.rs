//! Patterns of names: `shop/user=*` is any user's name in the domain `shop`, `shop/path=%2Fapi%2F*` that of any path below `/api/`.

use std::fmt;

use super::name::{Fit, LABEL, Name, NameError, Spelling, is_label, parts, split_label};

/// A name, or one in which a `*` stands for the rest of some entries' values, or for all of them. It fits names with the same domain and the same
/// keys in the same order.
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

    /// The pattern of these parts.
    ///
    /// # Errors
    ///
    /// [`NameError`].
    pub fn of<'e>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'e str, Fit<'e>)>,
    ) -> Result<Self, NameError> {
        let mut spelling = Spelling::of(domain)?;
        for (key, value) in entries {
            spelling.push(key, value)?;
        }
        Self::spelt(spelling)
    }

    /// Every name that it is to fit has room, however long what it leaves open of the values is: one hash and a mark in place of each other.
    fn spelt(Spelling { text, .. }: Spelling) -> Result<Self, NameError> {
        // In its one spelling, nothing else is spelt so.
        if text.contains("%01") {
            return Err(NameError::Mark);
        }
        let stars = text.matches('*').count();
        let longest = |others| text.len() - stars + Name::HASH_BYTES + others * Name::MARK_BYTES;
        let has_room = stars.checked_sub(1).is_none_or(|others| longest(others) <= Name::MAX_BYTES);
        if has_room { Ok(Self(text.into())) } else { Err(NameError::NoRoom) }
    }

    /// The same pattern with a label, of a further limit of the same names.
    ///
    /// # Errors
    ///
    /// [`NameError::Label`].
    pub fn with_label(self, label: &str) -> Result<Self, NameError> {
        if is_label(label) {
            Ok(Self(format!("{}{LABEL}{label}", self.0).into()))
        } else {
            Err(NameError::Label)
        }
    }

    /// Its label; `None` if it has none.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        split_label(&self.0).1
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

    /// For each entry what is given of a value that it leaves open, as it is spelt; `None` where it leaves nothing open.
    pub fn open(&self) -> impl Iterator<Item = Option<&str>> {
        self.parts().1.map(|(_, value)| match value {
            Fit::Exact(_) => None,
            Fit::Beginning(beginning) => Some(beginning),
        })
    }

    /// Its domain and its entries as they are spelt.
    pub(super) fn parts(&self) -> (&str, impl Iterator<Item = (&str, Fit<'_>)>) {
        let (domain, entries) = parts(&self.0);
        (domain, entries.map(|(key, value)| (key, Fit::of(value))))
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
    fn a_star_ends_a_value_or_is_a_fault() {
        for (text, name) in [
            ("acme", Some("acme")),
            ("shop/user=alice", Some("shop/user=alice")),
            ("shop/user=*", None),
            ("shop/user=a*/path=%2Fapi%2F*", None),
            ("shop/user=%2A", Some("shop/user=%2A")),
        ] {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(pattern.name().as_ref().map(Name::as_str), name, "{text}");
            assert_eq!(Pattern::parse(pattern.as_str()), Ok(pattern));
        }
        for text in ["*", "shop/*=alice", "shop/user=*a", "shop/user=a*b*", "shop/user=**", "*/user=alice"] {
            assert_eq!(Pattern::parse(text), Err(NameError::Star), "{text}");
        }
        for text in ["shop/user=a%01*", "shop/user=%01", "%01/user=a"] {
            assert_eq!(Pattern::parse(text), Err(NameError::Mark), "{text}");
        }
    }

    #[test]
    fn a_pattern_with_a_star_leaves_room_for_a_hash() {
        let of = |len: usize, value: &str| Pattern::parse(&format!("{}/user={value}", "d".repeat(len)));
        let most = Name::MAX_BYTES - Name::HASH_BYTES - "/user=".len();
        assert!(of(most, "*").is_ok());
        assert_eq!(of(most + 1, "*"), Err(NameError::NoRoom));
        assert!(of(most - 1, "a*").is_ok());
        assert_eq!(of(most, "a*"), Err(NameError::NoRoom));
        let other = "/path=".len() + Name::MARK_BYTES;
        assert!(of(most - other, "*/path=*").is_ok());
        assert_eq!(of(most - other + 1, "*/path=*"), Err(NameError::NoRoom));
        assert!(of(most + 1, "alice").is_ok());
    }
}
