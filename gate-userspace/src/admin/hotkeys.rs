//! The most requested keys.

use gate_common::abi::TopKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::hot_keys::published;
use crate::kernel::Maps;

/// The document of the most requested keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hotkeys {
    /// The most popular first.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// From 1.
    pub rank: usize,
    /// Its service.
    pub service: String,
    /// Bytes that are not printable ASCII as `\xNN`.
    pub key: String,
    /// The upper bound of its requests.
    pub estimate: u64,
    /// By how much that may be too many.
    pub error: u64,
    /// True for a hot key.
    pub hot: bool,
    /// True for a hot key that has a bucket of its own at the interface (`hot_key_limit`).
    #[serde(default)]
    pub limited: bool,
}

/// The most popular first.
#[must_use]
pub fn read(maps: &Maps) -> Vec<Key> {
    let view = maps.view();
    let services: Vec<_> = (view.first_service..view.first_service + view.services)
        .map(|slot| maps.services.load(slot as usize))
        .collect();
    let name = |id: u32| {
        let service = services.iter().find(|service| service.id == id);
        service.map_or_else(|| format!("service {id}"), |service| service.name.as_str().to_owned())
    };
    let keys = published(maps).into_iter().enumerate().map(|(place, key)| Key {
        rank: place + 1,
        service: name(key.service),
        key: key.key[..usize::from(key.key_len).min(key.key.len())].escape_ascii().to_string(),
        estimate: key.estimate,
        error: key.error,
        hot: key.hot != 0,
        limited: key.hot == TopKey::LIMITED,
    });
    keys.collect()
}
