//! The processing of originals, as far as all threads of a service share it.
//!
//! ```text
//! path ──► target: spec and URL ──► original, by its URL ──► processed, by (digest, spec)
//!          target.rs                downloaded with a permit  processed with a permit, by who fetches a blob
//! ```
//!
//! - `target`: what a path asks for, and whether gate may go there. Pure.
//! - `permits`: so many at a time, and those who wait, each tenant in its turn.
//! - `blobs`: originals that are being processed, by names that nobody can guess.

pub(crate) mod blobs;
pub(crate) mod permits;
pub(crate) mod target;

use std::sync::Arc;

use gate_common::units::Nanos;

use self::blobs::Blobs;
use self::permits::Permits;
use crate::config::Process;

/// The part of the processing of originals that the threads of a service share.
#[derive(Debug)]
pub(crate) struct Processing {
    /// Its part of the configuration.
    pub(crate) settings: Process,
    /// Those of processings.
    pub(crate) permits: Arc<Permits>,
    /// Those of downloads.
    pub(crate) downloads: Arc<Permits>,
    pub(crate) blobs: Arc<Blobs>,
}

impl Processing {
    pub(crate) fn new(settings: &Process) -> Self {
        let Process { concurrency, downloads, queue, objective, .. } = *settings;
        Self {
            settings: settings.clone(),
            permits: Arc::new(Permits::new(concurrency, queue, objective)),
            downloads: Arc::new(Permits::new(downloads, queue, Nanos::MAX)),
            blobs: Arc::default(),
        }
    }
}
