//! The room that a cache's file system has for it.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::config::Config;
use crate::config::units::print_size;

/// Warnings about caches that are larger than their file system, a sentence each.
#[must_use]
pub fn room_warnings(config: &Config) -> Vec<String> {
    let caches = config.services.iter().filter_map(|service| {
        let cache = service.backend.as_ref()?.cache.as_ref()?;
        Some((&service.name, &cache.dir, cache.disk))
    });
    let warnings = caches.filter_map(|(name, dir, disk)| {
        let size = size_of_file_system(dir).filter(|&size| size < disk)?;
        Some(format!(
            "service {name}: cache.disk is {}, and the file system of {} has {}: once that is full only memory keeps what is new; set \
             disk well below it",
            print_size(disk),
            dir.display(),
            print_size(size >> 20 << 20)
        ))
    });
    warnings.collect()
}

/// The bytes of the file system that a path is on, or will be; `None` if nobody can say.
fn size_of_file_system(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|path| path.exists())?;
    let said = statvfs(existing).ok()?;
    Some(said.blocks().saturating_mul(said.fragment_size()))
}
