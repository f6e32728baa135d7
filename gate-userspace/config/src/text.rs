//! The text of a configuration file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::error::Error;

/// The text of a configuration file.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn read_text(path: &Path) -> Result<String, Error> {
    let unreadable = |error| Error::Unreadable { path: path.to_owned(), error };
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(unreadable(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    Ok(text)
}

/// Ten times what 10,000 tenants with 100,000 prefixes take.
const MAX_FILE_BYTES: u64 = 64 << 20;
