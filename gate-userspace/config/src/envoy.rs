//! The section `[envoy]`: where Envoys ask whether a request may pass.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::parsers::{SWITCH, absolute_path, number, one_of};
use super::raw::Section;
use super::units::{self, Wrong};

/// The settings of the server that Envoys ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envoy {
    /// Where it listens.
    pub listen: EnvoyAddress,
    /// The most memory that the buckets of patterns' names take, in bytes; 1 MiB to 16 GiB.
    pub memory: u64,
    /// How many limits `/metrics` names, those that were asked for most; 0 to 100.
    pub metrics_limits: u32,
}

/// Where the server that Envoys ask listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvoyAddress {
    /// A TCP port: of this host alone, unless `allow_remote` is on.
    Tcp(SocketAddr),
    /// A Unix socket that its owner and its group may open.
    Unix(PathBuf),
}

/// The section `[envoy]`; `None` if it is absent.
pub(super) fn envoy(root: &mut Section<'_>) -> Option<Envoy> {
    let is_there = root.has("envoy");
    let mut section = root.section("envoy");
    if !is_there {
        if root.has("limit") {
            let message = "means something only beside [envoy]: nothing else asks about names";
            root.fault("limit", message.to_owned());
        }
        return None;
    }
    let listen = section.need("listen", "\"127.0.0.1:8081\"", address);
    let allow_remote = section.get("allow_remote", one_of(&SWITCH)).unwrap_or(false);
    let memory = section.get("memory", |text| units::size(text, 1 << 20, 16 << 30)).unwrap_or(64 << 20);
    let metrics_limits =
        section.get("metrics_limits", number(0, 100)).and_then(|most| u32::try_from(most).ok());
    if let Some(EnvoyAddress::Tcp(address)) = listen
        && !address.ip().is_loopback()
        && !allow_remote
    {
        let message = "is no address of this host alone, and whoever reaches it can spend every quota: write a loopback \
                       address, a Unix socket, or allow_remote = \"on\" where a network of its own protects it";
        section.fault("listen", message.to_owned());
    }
    section.finish();
    Some(Envoy { listen: listen?, memory, metrics_limits: metrics_limits.unwrap_or(0) })
}

fn address(text: &str) -> Result<EnvoyAddress, Wrong> {
    if text.starts_with('/') {
        return absolute_path(text).map(EnvoyAddress::Unix);
    }
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.map(EnvoyAddress::Tcp).ok_or_else(|| {
        "must be an address and a port, e.g. \"127.0.0.1:8081\", or the absolute path of a Unix socket"
            .to_owned()
    })
}
