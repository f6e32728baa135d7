//! File descriptors: as many as the configuration may need, or a word about it.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;

/// Raises what this process may have open as far as `config` needs it, and warns if that is not far enough.
pub(super) fn provide(config: &Config) {
    let needed = config.descriptors();
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => return tracing::warn!(%error, "cannot tell how many files may be open"),
    };
    let wanted = needed.min(hard);
    if soft < wanted {
        match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
            Ok(()) => tracing::info!(from = soft, to = wanted, "raised how many files may be open"),
            Err(error) => tracing::warn!(%error, "cannot raise how many files may be open"),
        }
    }
    if needed > hard {
        tracing::warn!(
            needed,
            allowed = hard,
            "more clients and connections are configured than files may be open: raise LimitNOFILE, or lower max_clients"
        );
    }
}
