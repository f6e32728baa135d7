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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_larger_than_its_file_system_is_warned_of() {
        for (dir, disk, is_warned) in [("/none/yet", "1048576GiB", true), ("/none/yet", "16MiB", false)] {
            let text = format!(
                "[gate]\nxdp = \"off\"\n[[service]]\nname = \"s\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:1\"\n\
                 backend = \"127.0.0.1:2\"\ncache = {{ dir = \"{dir}\", disk = \"{disk}\" }}\n\
                 [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"\n"
            );
            let config = Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
            let warnings = room_warnings(&config);
            assert_eq!(warnings.len(), usize::from(is_warned), "{disk}: {warnings:?}");
            assert!(
                warnings.iter().all(|warning| warning.contains("cache.disk is 1048576GiB")),
                "{warnings:?}"
            );
        }
    }
}
