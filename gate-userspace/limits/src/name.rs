//! Names of limits: `shop/user=alice/path=%2Fx`.
//!
//! A name is a domain and up to eight entries of a key and a value, in the order in which the request has them. Each name
//! has one spelling: what has a meaning here (`/`, `=`, `*`, `%`), control characters and what is not ASCII are
//! percent-encoded in a domain, a key and a value, with capital digits. So two names are equal if their texts are.
//!
//! A label at the end (`shop/user=alice/=daily`) makes the name that of a further limit of the same requests. It stands where an entry has no key,
//! so no request has it.

use std::cmp::Reverse;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// A name in its one spelling; 1 to [`Name::MAX_BYTES`] bytes. Cheap to copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// The values of an entry that a pattern fits, not encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit<'p> {
    /// This one.
    Exact(&'p str),
    /// Each that begins so; if it is empty, any.
    Beginning(&'p str),
}

impl<'p> Fit<'p> {
    /// Reads a value of a pattern: a `*` ends one that leaves the rest open.
    #[must_use]
    pub fn of(value: &'p str) -> Self {
        value.strip_suffix('*').map_or(Self::Exact(value), Self::Beginning)
    }

    /// Its place in the order in which those are tried that fit a value: the most specific first.
    #[must_use]
    pub const fn order(self) -> (bool, Reverse<usize>) {
        match self {
            Self::Exact(_) => (false, Reverse(0)),
            Self::Beginning(beginning) => (true, Reverse(beginning.len())),
        }
    }
}

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The domain or a key is empty.
    #[error("has an empty domain or key; write a name such as \"acme\" or \"shop/user=alice\"")]
    Empty,
    /// An entry has no `=`, or several.
    #[error("has an entry that is not key=value; write '/' and '=' within one as %2F and %3D")]
    NotAnEntry,
    /// A `%` is not followed by two hexadecimal digits, or what is encoded is not UTF-8.
    #[error("has a '%' that begins no UTF-8 in percent-encoding; write '%' itself as %25")]
    Encoding,
    /// A `*` stands where no value may be left open.
    #[error("has a '*' that does not end a value; write '*' itself as %2A")]
    Star,
    /// A pattern has the character that begins the hash of a long value.
    #[error("has a %01, which begins the hash of a long value")]
    Mark,
    /// An entry without a key is not at the end, or is no label.
    #[error("has a label that is not 1 to {} lower-case letters, digits, '-' and '_'", Name::MAX_LABEL)]
    Label,
    /// There are more entries than a name may have.
    #[error("has more than {} entries", Name::MAX_ENTRIES)]
    TooManyEntries,
    /// The spelling is longer than a name may be.
    #[error("is longer than {} bytes in percent-encoding", Name::MAX_BYTES)]
    TooLong,
    /// Beside its `*`s, the spelling leaves no room for the hash of long values.
    #[error("has a '*', and more than {} bytes beside it in percent-encoding, less {} for each further '*'", Name::MAX_BYTES - Name::HASH_BYTES, Name::MARK_BYTES)]
    NoRoom,
}

impl Name {
    /// The longest spelling, in bytes, without a label.
    pub const MAX_BYTES: usize = 256;
    /// The longest label, in bytes.
    pub const MAX_LABEL: usize = 32;
    /// The most entries.
    pub const MAX_ENTRIES: usize = 8;
    /// The room for the hash of a long value, in bytes: [`Name::MARK`] as it is spelt, and 16 bytes in hexadecimal.
    pub const HASH_BYTES: usize = Self::MARK_BYTES + 32;
    /// Begins a hash in place of what a pattern leaves open of a value. No pattern has it.
    pub const MARK: char = '\u{1}';
    /// Its length as it is spelt.
    pub const MARK_BYTES: usize = "%01".len();

    /// The name of these parts, none of which is encoded yet.
    ///
    /// # Errors
    ///
    /// [`NameError::Empty`], [`NameError::TooManyEntries`] or [`NameError::TooLong`].
    pub fn of<'e>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'e str, &'e str)>,
    ) -> Result<Self, NameError> {
        let mut spelling = Spelling::of(domain)?;
        for (key, value) in entries {
            spelling.push(key, Fit::Exact(value))?;
        }
        Ok(Self(spelling.text.into()))
    }

    /// Reads a name; what is encoded needlessly, or not though it should be, gets its one spelling.
    ///
    /// # Errors
    ///
    /// [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (text, label) = split_label(text);
        let name = Self(Spelling::parse(text, false)?.text.into());
        match label {
            None => Ok(name),
            Some(label) if is_label(label) => Ok(name.with_label(label)),
            Some(_) => Err(NameError::Label),
        }
    }

    /// The name of a further limit of the same requests.
    #[must_use]
    pub fn with_label(&self, label: &str) -> Self {
        Self(format!("{}{LABEL}{label}", self.0).into())
    }

    /// Its spelling.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its label; `None` if it has none.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        split_label(&self.0).1
    }

    /// Its domain and its entries, as they are spelt.
    pub(super) fn parts(&self) -> (&str, impl Iterator<Item = (&str, &str)> + Clone) {
        parts(&self.0)
    }

    /// The name of a bucket that requests of this name with an override of its limit have: `*` is in no name.
    #[must_use]
    pub fn with_override(&self, limit: impl fmt::Display) -> Self {
        Self(format!("{}/*{limit}", self.0).into())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A spelling without its label, and that.
pub(super) fn split_label(spelling: &str) -> (&str, Option<&str>) {
    spelling.rsplit_once(LABEL).map_or((spelling, None), |(name, label)| (name, Some(label)))
}

/// True if it is one.
pub(super) fn is_label(text: &str) -> bool {
    let may_be_in_it = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=Name::MAX_LABEL).contains(&text.len()) && text.bytes().all(may_be_in_it)
}

/// Begins a label.
pub(super) const LABEL: &str = "/=";

/// A name or a pattern while it is written.
pub(super) struct Spelling {
    pub(super) text: String,
    entries: usize,
}

impl Spelling {
    /// Reads a text; with `may_star`, a `*` may end a value.
    pub(super) fn parse(text: &str, may_star: bool) -> Result<Self, NameError> {
        if text.len() > MAX_READ {
            return Err(NameError::TooLong);
        }
        let mut segments = text.split('/');
        let mut spelling = Self::of(&decode(segments.next().unwrap_or_default())?)?;
        for segment in segments {
            let (key, value) = segment.split_once('=').ok_or(NameError::NotAnEntry)?;
            if value.contains('=') {
                return Err(NameError::NotAnEntry);
            }
            let beginning = value.strip_suffix('*').filter(|_| may_star);
            let value = decode(beginning.unwrap_or(value))?;
            let fit = if beginning.is_some() { Fit::Beginning(&value) } else { Fit::Exact(&value) };
            spelling.push(&decode(key)?, fit)?;
        }
        Ok(spelling)
    }

    pub(super) fn of(domain: &str) -> Result<Self, NameError> {
        if domain.is_empty() {
            return Err(NameError::Empty);
        }
        let mut spelling = Self { text: String::new(), entries: 0 };
        spelling.encode(domain)?;
        Ok(spelling)
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, key: &str, value: Fit<'_>) -> Result<(), NameError> {
        if key.is_empty() {
            return Err(NameError::Empty);
        }
        if self.entries == Name::MAX_ENTRIES {
            return Err(NameError::TooManyEntries);
        }
        self.entries += 1;
        self.text.push('/');
        self.encode(key)?;
        self.text.push('=');
        match value {
            Fit::Exact(value) => self.encode(value)?,
            Fit::Beginning(value) => {
                self.encode(value)?;
                self.text.push('*');
            }
        }
        if self.text.len() > Name::MAX_BYTES { Err(NameError::TooLong) } else { Ok(()) }
    }

    /// Stops at the first piece that has no room, however long the text is.
    fn encode(&mut self, text: &str) -> Result<(), NameError> {
        for piece in utf8_percent_encode(text, ENCODED) {
            if self.text.len() + piece.len() > Name::MAX_BYTES {
                return Err(NameError::TooLong);
            }
            self.text.push_str(piece);
        }
        Ok(())
    }
}

/// A domain, a key or a value as it is spelt; of one that has no room in a name its beginning, with a `*` in place of the rest.
pub(super) fn spelling(text: &str) -> String {
    let mut spelling = Spelling { text: String::new(), entries: 0 };
    for (place, character) in text.char_indices() {
        if spelling.encode(&text[place..place + character.len_utf8()]).is_err() {
            return spelling.text + "*";
        }
    }
    spelling.text
}

/// The domain and the entries of a spelling.
pub(super) fn parts(spelling: &str) -> (&str, impl Iterator<Item = (&str, &str)> + Clone) {
    let mut segments = spelling.split('/');
    let domain = segments.next().unwrap_or_default();
    (domain, segments.map(|segment| segment.split_once('=').unwrap_or((segment, ""))))
}

fn decode(text: &str) -> Result<String, NameError> {
    if text.contains('*') {
        return Err(NameError::Star);
    }
    if text.contains('=') {
        return Err(NameError::NotAnEntry);
    }
    let is_encoded =
        |after: &str| after.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_encoded) {
        return Err(NameError::Encoding);
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| NameError::Encoding)?;
    Ok(decoded.into_owned())
}

/// Encoded within a domain, a key and a value, as is what is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'/').add(b'=').add(b'*').add(b'%');
/// A text whose every byte is encoded is three times as long as it has to be.
const MAX_READ: usize = 3 * Name::MAX_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        for (domain, entries, spelt) in [
            ("acme", &[][..], "acme"),
            ("shop", &[("user", "alice"), ("path", "/x")], "shop/user=alice/path=%2Fx"),
            ("a/b", &[("k=*", "%\n")], "a%2Fb/k%3D%2A=%25%0A"),
            ("shop", &[("user", "")], "shop/user="),
            ("shop", &[("user", "é \"~")], "shop/user=%C3%A9 \"~"),
        ] {
            let name = Name::of(domain, entries.iter().copied()).unwrap();
            assert_eq!(name.as_str(), spelt);
            assert_eq!(Name::parse(spelt), Ok(name));
        }
        for (text, spelt) in [("%73hop/user=é", "shop/user=%C3%A9"), ("shop/p=%2fx", "shop/p=%2Fx")] {
            assert_eq!(Name::parse(text).unwrap().as_str(), spelt);
        }
    }

    #[test]
    fn a_label_is_no_entry_of_a_request() {
        let alice = Name::of("shop", [("user", "alice")]).unwrap();
        let daily = Name::parse("shop/user=alice/=daily").unwrap();
        assert_eq!(daily, alice.with_label("daily"));
        assert_eq!(daily.as_str(), "shop/user=alice/=daily");
        assert_eq!(Name::of("shop", [("user", "alice"), ("", "daily")]), Err(NameError::Empty));
        let other = Name::of("shop", [("user", "alice/=daily")]).unwrap();
        assert_eq!(other.as_str(), "shop/user=alice%2F%3Ddaily");
    }

    #[test]
    fn a_text_that_is_no_name_says_why() {
        let long = format!("shop/user={}", "x".repeat(Name::MAX_BYTES));
        let deep = format!("shop{}", "/a=b".repeat(Name::MAX_ENTRIES + 1));
        for (text, error) in [
            ("", NameError::Empty),
            ("/user=alice", NameError::Empty),
            ("shop/=Alice", NameError::Label),
            ("shop/=", NameError::Label),
            ("shop/=a/user=b", NameError::Label),
            ("shop/=a/=b", NameError::Empty),
            ("/=a", NameError::Empty),
            ("shop/user", NameError::NotAnEntry),
            ("shop/", NameError::NotAnEntry),
            ("shop/a=b=c", NameError::NotAnEntry),
            ("a=b", NameError::NotAnEntry),
            ("shop/user=*", NameError::Star),
            ("*", NameError::Star),
            ("shop/user=al*", NameError::Star),
            ("shop/user=%", NameError::Encoding),
            ("shop/user=%2", NameError::Encoding),
            ("shop/user=%zz", NameError::Encoding),
            ("shop/user=%FF", NameError::Encoding),
            (&long, NameError::TooLong),
            (&deep, NameError::TooManyEntries),
        ] {
            assert_eq!(Name::parse(text), Err(error), "{text}");
        }
        let huge = "/".repeat(1 << 20);
        assert_eq!(Name::of("shop", [("user", huge.as_str())]), Err(NameError::TooLong));
    }

    proptest::proptest! {
        #[test]
        fn names_of_different_parts_differ(
            a in proptest::collection::vec(("[a/=*%é\n]{1,4}", "[a/=*%é\n]{0,4}"), 0..4),
            b in proptest::collection::vec(("[a/=*%é\n]{1,4}", "[a/=*%é\n]{0,4}"), 0..4),
        ) {
            let name = |entries: &[(String, String)]| {
                Name::of("d", entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))
            };
            if let (Ok(first), Ok(second)) = (name(&a), name(&b)) {
                proptest::prop_assert_eq!(first == second, a == b);
                proptest::prop_assert_eq!(Name::parse(first.as_str()), Ok(first.clone()));
                let (_, entries) = first.parts();
                proptest::prop_assert_eq!(entries.count(), a.len());
            }
        }

        #[test]
        fn no_text_makes_it_panic_and_a_name_reads_back(text in "\\PC{0,300}") {
            if let Ok(name) = Name::parse(&text) {
                let (unlabelled, _) = split_label(name.as_str());
                proptest::prop_assert!(unlabelled.len() <= Name::MAX_BYTES);
                proptest::prop_assert_eq!(Name::parse(name.as_str()), Ok(name.clone()));
            }
        }
    }
}
