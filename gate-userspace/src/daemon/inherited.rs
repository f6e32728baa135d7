//! Values that were set in the gate that this one takes over from: they hold here as well, as they do after a reload.

use std::os::unix::fs::MetadataExt as _;

use super::neighbour;
use super::options::Options;
use super::reload::sound_overrides;
use crate::admin::change::Override;
use crate::admin::client;
use crate::admin::status::{Status, is_stale};
use crate::config::{Config, XdpMode};
use crate::kernel::Maps;
use crate::system_error::with_causes;

/// The configuration with what was set in the gate before, and that; nothing where none is taken over from.
///
/// Values that do not fit the file any more, or cannot be asked for, are lost, and the log says so.
///
/// `text` is that of its file.
pub(super) fn inherit(options: &Options, text: &str, config: Config) -> (Config, Vec<Override>) {
    let overrides = sound_overrides(text, set_before(options, &config));
    if overrides.is_empty() {
        return (config, overrides);
    }
    match Config::parse_with(&options.config, text, &overrides) {
        Ok(config) => {
            for Override { key, value } in &overrides {
                tracing::info!(key, value, "still set, as in the gate before");
            }
            (config, overrides)
        }
        Err(error) => {
            for Override { key, value } in &overrides {
                tracing::warn!(key, value, "no longer set: the configuration does not bear it");
            }
            for fault in error.to_string().lines() {
                tracing::warn!("with what was set in the gate before: {fault}");
            }
            (config, Vec::new())
        }
    }
}

/// True if the maps that are pinned say that their gate no longer ticks: it would answer nothing, and its successor be late.
fn stands_still(options: &Options, config: &Config) -> bool {
    let pins = options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
    // Without XDP these are another gate's.
    config.gate.xdp != XdpMode::Off && Maps::pinned(pins, false).is_ok_and(|maps| is_stale(&maps))
}

fn set_before(options: &Options, config: &Config) -> Vec<Override> {
    let Some(socket) = neighbour::socket(options, config).filter(|_| options.takeover) else {
        return Vec::new();
    };
    if stands_still(options, config) {
        tracing::warn!("the gate before stands still: what was set there holds no more");
        return Vec::new();
    }
    // Another user's answers change nothing here.
    if let Some(user) = std::fs::metadata(&socket).ok().map(|socket| socket.uid())
        && ![0, nix::unistd::geteuid().as_raw()].contains(&user)
    {
        tracing::warn!(
            "what was set in the gate before holds no more: {} is user {user}'s",
            socket.display()
        );
        return Vec::new();
    }
    match neighbour::ask(move || client::read::<Status>(&socket)) {
        Ok(status) => status.overrides,
        Err(client::Error::NoDaemon { .. }) => Vec::new(),
        Err(error) => {
            tracing::warn!(
                "what was set in the gate before is not known, and holds no more: {}",
                with_causes(&error)
            );
            Vec::new()
        }
    }
}
