//! Why there is no configuration.

use std::io;
use std::path::PathBuf;

use super::fault::Faults;
use super::overrides::Wrong;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a valid configuration.
    #[error(transparent)]
    Invalid(#[from] Faults),
    /// An override does not fit the configuration.
    #[error(transparent)]
    Override(#[from] Wrong),
}
