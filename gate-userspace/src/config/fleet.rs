//! The section `[fleet]`: who owns the limits that gates share.

use std::net::SocketAddr;

use super::parsers::{address, one_of};
use super::raw::Section;
use super::units::Wrong;
use crate::fleet::gate::book::OnLost;

/// The owners that a gate reports to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Distinct, at least one; the same set at every gate.
    pub owners: Vec<SocketAddr>,
    /// This gate's name, no other gate's; `None` for the host's.
    pub name: Option<String>,
    /// The quota of limits whose owner is lost.
    pub on_lost: OnLost,
}

/// Reads `[fleet]`, if it is there.
pub(super) fn fleet(root: &mut Section<'_>) -> Option<Fleet> {
    let is_there = root.has("fleet");
    let mut s = root.section("fleet");
    let fleet = is_there.then(|| {
        let mut owners: Vec<SocketAddr> = Vec::new();
        for item in s.need_list("owners", "[\"127.0.0.1:9920\"]", owner) {
            if owners.contains(&item.value) {
                item.fault("is listed twice".to_owned());
            } else if owners.len() == MAX_OWNERS {
                item.fault(format!("is one too many: there may be {MAX_OWNERS}"));
            } else {
                owners.push(item.value);
            }
        }
        let name = s.get("name", name);
        let on_lost = s.get("on_lost", one_of(&ON_LOST)).unwrap_or_default();
        Fleet { owners, name, on_lost }
    });
    s.finish();
    fleet
}

/// The address of an owner.
fn owner(text: &str) -> Result<SocketAddr, Wrong> {
    let address = address(text)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("is no loopback address: what gate reports is neither encrypted nor signed, so name one, e.g. \"127.0.0.1:9920\""
        .to_owned())
}

fn name(text: &str) -> Result<String, Wrong> {
    if (1..=256).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err("must be 1 to 256 bytes without control characters, e.g. \"gate-1\"".to_owned())
}

const ON_LOST: [(&str, OnLost); 2] = [("share", OnLost::Share), ("local", OnLost::Local)];
const MAX_OWNERS: usize = 64;
