//! The file of an owner of limits (`quota.toml`).

use std::net::SocketAddr;
use std::path::Path;

use super::error::Error;
use super::fault::Faults;
use super::parsers::address;
use super::raw::{self, Section};
use super::text::read_text;
use super::{limits, units};
use crate::limits::Rules;

/// The configuration of `gate quota run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Where gates report; on loopback.
    pub listen: SocketAddr,
    /// The most memory that accounts may take, in bytes; 1 MiB to 1 TiB.
    pub memory: u64,
    /// The limits.
    pub rules: Rules,
}

impl QuotaConfig {
    /// Reads and parses a file.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if it is not there, not text, or larger than 64 MiB; otherwise [`Error::Invalid`] with everything
    /// that is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Ok(Self::parse(&path.display().to_string(), &read_text(path)?)?)
    }

    /// Parses a document; `file` is what faults call it.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, by line.
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        raw::parse(file, text, quota)
    }
}

fn quota(mut root: Section<'_>) -> QuotaConfig {
    let mut s = root.section("quota");
    let listen = s.get("listen", address).unwrap_or(DEFAULT_LISTEN);
    if !listen.ip().is_loopback() {
        let message = "is no loopback address: what gates report is neither encrypted nor signed, so name one, e.g. \
                       \"127.0.0.1:9920\"";
        s.fault("listen", message.to_owned());
    }
    let memory = s.get("memory", |text| units::size(text, 1 << 20, 1 << 40)).unwrap_or(256 << 20);
    s.finish();
    let rules = limits::rules(&mut root);
    if rules.list().is_empty() && !root.has("limit") {
        root.fault("limit", "is missing; write at least one [[limit]]".to_owned());
    }
    root.finish();
    QuotaConfig { listen, memory, rules }
}

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9920);
