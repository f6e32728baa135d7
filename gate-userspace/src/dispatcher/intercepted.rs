//! The sockets of services whose stores keep their address: on loopback addresses, at ports that nobody has to know.
//!
//! The gate that follows listens at the same ports, so that it inherits the sockets, or shares their ports until the one before
//! has left: a takeover goes its usual way.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use gate_common::abi::Name;
use nix::sys::socket::{SockaddrStorage, getsockname};

use super::hot_restart::InheritedSockets;
use super::settings::Settings;
use super::{Dispatcher, Error, listen};
use crate::config::{Config, Service};
use crate::kernel::owner::Predecessor;
use crate::kernel::{self, Interception, Target, loopbacks};
use crate::system_error::with_causes;

/// The loopback addresses of services that are intercepted. While it lives, nobody else gets their ports.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    sockets: Vec<OwnedFd>,
    /// By the service's place in the configuration.
    addresses: HashMap<usize, Vec<SocketAddr>>,
}

impl Reserved {
    /// Reserves them, and has the services listen there.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`].
    pub(super) fn listen_there(
        config: &Config,
        settings: &mut [Settings],
        interception: Option<&Interception>,
    ) -> Result<Self, Error> {
        let Some(interception) = interception else { return Ok(Self::default()) };
        let this = Self::of(config, interception).map_err(|(place, error)| Error::Listen {
            service: config.services[place].name.clone(),
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            error,
        })?;
        for settings in settings {
            if let Some(addresses) = this.addresses.get(&settings.service) {
                settings.listen.clone_from(addresses);
                settings.handed_on = Some(Arc::default());
            }
        }
        Ok(this)
    }

    /// Reserves the addresses of the gate before this one, as far as they can be had, else others.
    ///
    /// # Errors
    ///
    /// The system's error, with the service's place.
    fn of(config: &Config, interception: &Interception) -> Result<Self, (usize, io::Error)> {
        let mut this = Self::default();
        for (place, service) in config.services.iter().enumerate() {
            if service.intercept.is_none() {
                continue;
            }
            let before = interception.listens(&service.listen);
            let mut addresses = Vec::new();
            for ip in loopbacks(&service.listen) {
                let known = before.iter().find(|at| at.ip() == ip && !this.has(**at));
                let reserved = known.and_then(|at| this.reserve(*at).ok());
                let reserved = reserved.map_or_else(|| this.reserve(SocketAddr::new(ip, 0)), Ok);
                addresses.push(reserved.map_err(|error| (place, error))?);
            }
            this.addresses.insert(place, addresses);
        }
        Ok(this)
    }

    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.addresses.values().flatten().any(|taken| *taken == address)
    }

    fn reserve(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let socket = listen::reserve(address)?;
        let name: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let v4 = name.as_sockaddr_in().map(|name| name.port());
        let port = v4.or_else(|| name.as_sockaddr_in6().map(|name| name.port()));
        self.sockets.push(socket);
        Ok(SocketAddr::new(address.ip(), port.ok_or(io::ErrorKind::InvalidData)?))
    }
}

impl Dispatcher {
    /// The sockets that connections of intercepted services are to be given to. They are open as long as one of these is: to be
    /// dropped before this closes its own.
    #[must_use]
    pub fn take_targets(&mut self) -> Vec<Target> {
        std::mem::take(&mut self.targets)
    }

    /// True if it listens with sockets of the gate before this one.
    #[must_use]
    pub fn has_inherited(&self) -> bool {
        self.inherited
    }
}

/// The sockets of the gate before this one: all that it has where it is a `predecessor` by its maps. One that has none leaves those
/// of intercepted services, so that handshakes in progress end there; at its other addresses both have their own.
pub(super) fn inherited(
    predecessor: Option<&Predecessor>,
    interception: Option<&Interception>,
    reserved: &Reserved,
) -> InheritedSockets {
    if let Some(predecessor) = predecessor {
        return InheritedSockets::of(predecessor, |_| true);
    }
    match interception.map(Interception::predecessor) {
        None | Some(Ok(None)) => InheritedSockets::default(),
        Some(Ok(Some(predecessor))) => InheritedSockets::of(&predecessor, |address| reserved.has(address)),
        Some(Err(error)) => {
            tracing::warn!(
                error = with_causes(&error),
                "cannot inherit listening sockets: connection attempts during the takeover may fail"
            );
            InheritedSockets::default()
        }
    }
}

/// The sockets that connections of intercepted services are to be given to: `listeners` has one thread's, each with its
/// service's place in the configuration. The kernel spreads them over all threads'.
///
/// # Errors
///
/// The system's.
pub(super) fn targets<'l>(
    config: &Config,
    listeners: impl Iterator<Item = (usize, &'l TcpListener)>,
) -> kernel::Result<Vec<Target>> {
    let mut targets: HashMap<usize, Target> = HashMap::new();
    for (place, listener) in listeners {
        let service = &config.services[place];
        let Some(target) = target(service) else { continue };
        let system = |source| kernel::Error::System { what: "sharing a listening socket", source };
        let at = listener.local_addr().map_err(system)?;
        let target = targets.entry(place).or_insert(target);
        // One that is inherited beside is at the same address.
        if !target.listeners.iter().any(|known| known.local_addr().is_ok_and(|known| known == at)) {
            target.listeners.push(listener.try_clone().map_err(system)?);
        }
    }
    Ok(targets.into_values().collect())
}

fn target(service: &Service) -> Option<Target> {
    let intercept = service.intercept?;
    Some(Target {
        service: Name::new(&service.name).unwrap_or_default(),
        addresses: service.listen.clone(),
        listeners: Vec::new(),
        local: intercept.local,
        refuse: intercept.refuse,
    })
}
