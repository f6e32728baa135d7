//! Connections that gate makes itself: to stores, to origins and to the processor.
//!
//! All are made here. A connection to an address that gate intercepts has a source of its own, by which the program in the
//! kernel tells it from a client's: without it gate would be its own client.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};

use crate::config::Config;
use crate::kernel::own_source;

/// The way to make them: every address that is intercepted, of any service, needs a source of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnConnections {
    /// True beside an address at which connections from this machine are intercepted as well.
    intercepted: Arc<[(SocketAddr, bool)]>,
}

impl OwnConnections {
    pub(crate) fn of(config: &Config) -> Self {
        let services = config.services.iter();
        let intercepted = services.filter_map(|service| Some((&service.listen, service.intercept?.local)));
        let addresses = intercepted.flat_map(|(listen, local)| listen.iter().map(move |&at| (at, local)));
        Self { intercepted: addresses.collect() }
    }

    /// Connects to an address.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = match self.source(to) {
            None => TcpStream::connect(to).await?,
            Some(source) => match connect_from(source, to).await {
                // Another machine's address, of the port that is intercepted at all of this one's.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => TcpStream::connect(to).await?,
                connected => connected?,
            },
        };
        // Where nobody listens, a port that the kernel chooses for both ends connects a socket with itself, and keeps the store
        // from its own address.
        if socket.local_addr()? == to {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(socket)
    }

    /// The source of a connection to an address, if it is one that is intercepted.
    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        let ip = to.ip();
        let matches = |at: &SocketAddr| {
            let any = match at.ip() {
                // A connection from an address to itself passes anyway, and the kernel chooses that source.
                IpAddr::V6(any) => any.is_unspecified() && (ip.is_ipv4() || ip.is_loopback()),
                IpAddr::V4(any) => any.is_unspecified() && ip.is_ipv4(),
            };
            at.port() == to.port() && (any || at.ip() == ip)
        };
        let (_, local) = self.intercepted.iter().find(|(at, _)| matches(at))?;
        Some(own_source(ip, *local))
    }
}

async fn connect_from(source: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Its port is chosen when it connects, so that one serves for many stores.
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(to).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_what_is_intercepted_have_gates_source() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let own = OwnConnections {
            intercepted: [
                (at("198.18.0.1:1"), false),
                (at("198.18.0.1:2"), true),
                (at("0.0.0.0:3"), true),
                (at("[::]:4"), false),
                (at("[fd00::1]:5"), false),
            ]
            .into(),
        };
        for (to, source) in [
            ("198.18.0.1:1", Some("127.0.0.1")),
            ("198.18.0.2:1", None),
            ("198.18.0.1:2", Some("127.103.97.116")),
            ("198.18.0.9:3", Some("127.103.97.116")),
            ("[::1]:3", None),
            ("198.18.0.9:4", Some("127.0.0.1")),
            ("[::1]:4", Some("::1")),
            ("[fd00::7]:4", None),
            ("[fd00::1]:5", Some("::1")),
            ("198.18.0.1:5", None),
        ] {
            assert_eq!(own.source(at(to)), source.map(|source| source.parse().unwrap()), "{to}");
        }
    }

    #[tokio::test]
    async fn a_source_of_the_machines_own_is_left_for_other_machines() {
        let own = OwnConnections { intercepted: [("0.0.0.0:9".parse().unwrap(), true)].into() };
        // An address of the documentation's: nobody's. The machine may have no way to it, and is not to be asked for one.
        let to = "203.0.113.1:9".parse().unwrap();
        let source = own.source(to).unwrap();
        assert_eq!(connect_from(source, to).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
