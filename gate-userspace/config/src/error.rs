//! Why there is no configuration.

use std::io;
use std::path::PathBuf;

use super::fault::Faults;
use super::overrides::Wrong;
use gate_system::system_error::in_words;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {}", path.display(), in_words(error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not a valid configuration.
    #[error(transparent)]
    Invalid(#[from] Faults),
    /// An override does not fit the configuration.
    #[error(transparent)]
    Override(#[from] Wrong),
}
