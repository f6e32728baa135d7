//! The addresses of this network namespace, at which connections of services end here.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

use super::error::Error;
use super::process::Daemon;
use super::settings::rules;
use crate::control::layout::Layout;

/// Those that packets from elsewhere may be for; none if the system does not say.
pub(super) fn addresses() -> BTreeSet<IpAddr> {
    let listed = getifaddrs().inspect_err(|error| {
        tracing::debug!(%error, "cannot list the machine's own addresses");
    });
    let address = |one: nix::ifaddrs::InterfaceAddress| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    let addresses = listed.into_iter().flatten().filter_map(address);
    addresses.filter(|address| !address.is_loopback()).collect()
}

impl Daemon {
    /// Lays the configuration in force out again if this machine's addresses have changed.
    pub(super) fn look_after_local_addresses(&mut self) -> Result<(), Error> {
        if self.attached.is_none() || self.ticker.stabilising() {
            return Ok(());
        }
        let addresses = addresses();
        if addresses == self.local {
            return Ok(());
        }
        self.local = addresses;
        let config = self.changes.config();
        match Layout::build(&config, &self.occupied()) {
            Ok(layout) => self.ticker.install(layout, rules(&config))?,
            Err(error) => tracing::debug!(%error, "no room for this machine's new addresses"),
        }
        Ok(())
    }
}
