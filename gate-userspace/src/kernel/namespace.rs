//! Network namespaces: an interface's index means nothing in another.

use std::os::unix::fs::MetadataExt as _;

/// This thread's network namespace, by its inode's number.
pub(super) fn of_thread() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}

/// The name of an interface of this network namespace; `None` if there is none of this index.
#[must_use]
pub fn interface_name(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?.to_string_lossy().into_owned();
    // An index that is nobody's comes back as no name rather than as an error.
    Some(name).filter(|name| !name.is_empty())
}
