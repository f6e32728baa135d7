//! A configuration from a file, or from text.

use std::path::Path;

use super::error::Error;
use super::fault::Faults;
use super::overrides::{Override, Wrong, edit, wrong_value};
use super::text::read_text;
use super::{Config, raw, read};

impl Config {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it is not there, not text, or larger than 64 MiB; otherwise
    /// [`Error::Invalid`] with everything that is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::read_with(path, &[])
    }

    /// [`Config::read`], with these values in place of the file's.
    ///
    /// # Errors
    /// As [`Config::read`]; and [`Error::Override`].
    pub fn read_with(path: &Path, overrides: &[Override]) -> Result<Self, Error> {
        Self::parse_with(path, &read_text(path)?, overrides)
    }

    /// Parses the text of the file at `path`, with these values in place of its own.
    ///
    /// # Errors
    /// As [`Config::read_with`].
    pub fn parse_with(path: &Path, text: &str, overrides: &[Override]) -> Result<Self, Error> {
        let file = path.display().to_string();
        if overrides.is_empty() {
            return Ok(Self::parse(&file, text)?);
        }
        // Whatever else is wrong with the file comes first.
        match edit(text, overrides) {
            Err(Wrong::Syntax(_)) => Ok(Self::parse(&file, text)?),
            edited => Self::parse(&file, &edited?).map_err(|faults| {
                let is_sound = Self::parse(&file, text).is_ok();
                let wrong = wrong_value(text, overrides, &faults.faults).filter(|_| is_sound);
                wrong.map_or(Error::Invalid(faults), Error::Override)
            }),
        }
    }

    /// Parses a document; `file` is what faults call it.
    ///
    /// # Errors
    /// Everything that is wrong, by line.
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        raw::parse(file, text, read::config)
    }
}
