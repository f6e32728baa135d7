//! Requests of Redis whose work depends on how much their keys hold.

use super::parsers::{SWITCH, number, one_of};
use super::raw::Section;
use super::units::Wrong;
use super::values::Protocol;

/// The settings of such requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeKeys {
    /// The most rows that a read of whole keys may have; `None` for any number.
    pub max_rows: Option<u32>,
    /// True if a store is asked for the size of what may be a large read.
    pub ask_sizes: bool,
    /// True if `DEL` is sent as `UNLINK`.
    pub unlink: bool,
}

/// Reads the settings. Nothing but Redis has such requests.
pub(super) fn read(s: &mut Section<'_>, protocol: Protocol) -> WholeKeys {
    let whole_keys = WholeKeys {
        max_rows: s.get("max_rows", rows).flatten(),
        ask_sizes: s.get("ask_sizes", one_of(&SWITCH)).unwrap_or(true),
        unlink: s.get("unlink", one_of(&SWITCH)).unwrap_or(true),
    };
    for key in ["max_rows", "ask_sizes", "unlink"] {
        if s.has(key) && protocol != Protocol::Resp {
            let message = "is about commands of Redis: it needs protocol = \"resp\"; leave it out";
            s.fault(key, message.to_owned());
        }
    }
    whole_keys
}

/// A number of rows, or `off`.
fn rows(text: &str) -> Result<Option<u32>, Wrong> {
    if text == "off" {
        return Ok(None);
    }
    let rows = number(1, u32::MAX.into())(text).map_err(|wrong| format!("{wrong}, or off"))?;
    Ok(u32::try_from(rows).ok())
}
