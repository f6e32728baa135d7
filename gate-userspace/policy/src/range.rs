//! Parameters are checked once, when a policy is built.

use std::fmt::Display;

/// A parameter outside of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: must be {range}")]
pub struct OutOfRange {
    /// The parameter, as a path: `types[2].objective[0].limit`.
    pub field: String,
    /// The value that was given.
    pub value: String,
    /// The range that it has to be in.
    pub range: &'static str,
}

impl OutOfRange {
    /// The same fault, seen from outside: `field` becomes `parent.field`.
    #[must_use]
    pub fn within(self, parent: &str) -> Self {
        Self { field: format!("{parent}.{}", self.field), ..self }
    }
}

/// Fails, naming `field`, what it was and its `range`, unless `holds`.
///
/// # Errors
///
/// [`OutOfRange`] if not `holds`.
pub fn ensure(holds: bool, field: &str, value: impl Display, range: &'static str) -> Result<(), OutOfRange> {
    if holds {
        return Ok(());
    }
    Err(OutOfRange { field: field.to_owned(), value: value.to_string(), range })
}
