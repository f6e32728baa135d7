//! A name that whoever reads the maps can print.

use core::mem::size_of;

/// Up to [`Name::MAX`] bytes of UTF-8, the rest zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Name([u8; 48]);

const _: () = assert!(size_of::<Name>() == Name::MAX);

impl Name {
    /// No name.
    pub const EMPTY: Self = Self([0; Self::MAX]);
    /// The longest name, in bytes.
    pub const MAX: usize = 48;

    /// A name; `None` if it is longer than [`Name::MAX`] or holds a zero byte.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let mut padded = [0; Self::MAX];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (!bytes.contains(&0)).then_some(Self(padded))
    }

    /// The name; empty if its bytes are not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(Self::MAX);
        core::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

impl Default for Name {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn a_name_is_kept_whole_or_refused() {
        let longest = core::str::from_utf8(&[b'x'; Name::MAX]).unwrap();
        for name in ["", "a", "käse", longest] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
        assert_eq!(Name::new("a\0b"), None);
        assert_eq!(Name::new(core::str::from_utf8(&[b'x'; Name::MAX + 1]).unwrap()), None);
    }
}
