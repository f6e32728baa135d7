//! Where the connections of a store lead: to addresses on the network, or to a Unix socket.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};

use crate::config::{Backend, Config, StoreAddress};
use crate::dispatcher::cluster::Cluster;
pub(crate) use crate::dispatcher::node_id::NodeId;
use crate::dispatcher::own_connections::OwnConnections;
use crate::dispatcher::resolver::Resolver;
use crate::system_error;

/// The place of a store.
#[derive(Clone, Debug)]
pub(crate) enum StorePlace {
    /// On the network, at one address or at those of a name.
    Network(Resolver),
    /// At a Unix socket.
    Unix(Arc<Path>),
    /// Where a node of a cluster is, if the cluster has one of this number.
    Node(Arc<Cluster>, NodeId),
}

/// The end of one connection to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
    Unix(Arc<Path>),
}

/// A connection to an endpoint, on which nothing has been said.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl StorePlace {
    /// The place of a service's store; the service listens at `own`.
    pub(crate) fn start(service: &str, store: &StoreAddress, own: &[SocketAddr]) -> Self {
        match store {
            StoreAddress::Network(network) => Self::Network(Resolver::start(service, network, own)),
            StoreAddress::Unix(path) => Self::Unix(path.as_path().into()),
        }
    }

    /// The endpoints to connect to, in this order; none if the store's name has never been resolved.
    pub(crate) async fn endpoints(&self) -> Vec<Endpoint> {
        match self {
            Self::Network(resolver) => resolver.addresses().await.into_iter().map(Endpoint::Tcp).collect(),
            Self::Unix(path) => vec![Endpoint::Unix(Arc::clone(path))],
            Self::Node(cluster, node) => match cluster.resolver(*node) {
                Some(resolver) => resolver.addresses().await.into_iter().map(Endpoint::Tcp).collect(),
                None => Vec::new(),
            },
        }
    }

    /// False if there is no such node of a cluster now.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Self::Network(_) | Self::Unix(_) => true,
            Self::Node(cluster, node) => cluster.resolver(*node).is_some(),
        }
    }

    /// Waits until there is such a node.
    pub(crate) async fn wanted(&self) {
        match self {
            Self::Network(_) | Self::Unix(_) => {}
            Self::Node(cluster, node) => cluster.has_node(*node).await,
        }
    }

    /// True if the store still has this endpoint, as far as is known.
    pub(crate) fn is_current(&self, endpoint: &Endpoint) -> bool {
        match (self, endpoint) {
            (Self::Network(resolver), Endpoint::Tcp(address)) => resolver.is_current(*address),
            (Self::Node(cluster, node), Endpoint::Tcp(address)) => cluster.is_current(*node, *address),
            // A store that is started again at its path has closed its connections before.
            (Self::Unix(_), _) | (_, Endpoint::Unix(_)) => true,
        }
    }

    /// Waits until the store no longer has this endpoint.
    pub(crate) async fn has_moved(&self, endpoint: &Endpoint) {
        match (self, endpoint) {
            (Self::Network(resolver), Endpoint::Tcp(address)) => resolver.has_moved(*address).await,
            (Self::Node(cluster, node), Endpoint::Tcp(address)) => cluster.has_moved(*node, *address).await,
            (Self::Unix(_), _) | (_, Endpoint::Unix(_)) => std::future::pending().await,
        }
    }
}

impl Endpoint {
    /// Its address on the network.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// A connection to it.
    ///
    /// # Errors
    ///
    /// The system's error; of a Unix socket in words that name the cause.
    pub(crate) async fn connect(&self, own: &OwnConnections) -> io::Result<Stream> {
        match self {
            Self::Tcp(address) => {
                let socket = own.connect(*address).await?;
                socket.set_nodelay(true)?;
                Ok(Stream::Tcp(socket))
            }
            Self::Unix(path) => {
                UnixStream::connect(path).await.map(Stream::Unix).map_err(|error| named(path, &error))
            }
        }
    }
}

/// Warnings of stores at Unix sockets that cannot be had now: the configuration may be another machine's, and a store may come
/// later.
#[must_use]
pub fn socket_warnings(config: &Config) -> Vec<String> {
    let warning = |(service, store): (&str, &StoreAddress)| {
        let StoreAddress::Unix(path) = store else { return None };
        let fault = socket_fault(path.as_path())?;
        let path = path.as_path().display();
        Some(format!(
            "service {service}: backend unix:{path}: {fault}: requests are refused until a store listens there"
        ))
    };
    let stores = config.services.iter().flat_map(|service| {
        let stores = service.backend.iter().flat_map(Backend::addresses);
        stores.map(|store| (&*service.name, store))
    });
    stores.filter_map(warning).collect()
}

/// The fault of the file at the path of a store's Unix socket, if there is one: it is missing, cannot be looked at, or is no
/// socket.
#[must_use]
pub(crate) fn socket_fault(path: &Path) -> Option<String> {
    match std::fs::metadata(path) {
        Ok(file) => (!file.file_type().is_socket()).then(|| "that is no socket".to_owned()),
        Err(error) => Some(system_error::in_words(&error)),
    }
}

/// The same error in words: to connect to a file that is no socket is refused as to a socket at which nobody listens.
fn named(path: &Path, error: &io::Error) -> io::Error {
    let words = match error.kind() {
        ErrorKind::ConnectionRefused => socket_fault(path).unwrap_or_else(|| system_error::in_words(error)),
        _ => system_error::in_words(error),
    };
    io::Error::new(error.kind(), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused_by(path: &Path) -> String {
        Endpoint::Unix(path.into()).connect(&OwnConnections::default()).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_path_without_a_listening_socket_is_named() {
        let dir = tempfile();
        let path = dir.join("socket");
        assert_eq!(refused_by(&path).await, "there is no such file");
        std::fs::write(&path, "").unwrap();
        assert_eq!(refused_by(&path).await, "that is no socket");
        assert_eq!(socket_fault(&path).unwrap(), "that is no socket");
        std::fs::remove_file(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert_eq!(refused_by(&path).await, "nobody listens there");
        assert_eq!(socket_fault(&path), None);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn each_socket_of_several_stores_is_warned_of() {
        let text = "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\n\
                    backends = [\"127.0.0.1:2\", \"unix:/nowhere/a\", \"unix:/nowhere/b\"]\n\
                    [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"";
        let config = Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"));
        let warnings = socket_warnings(&config);
        assert!(warnings.len() == 2 && warnings[1].contains("unix:/nowhere/b"), "{warnings:?}");
    }

    fn tempfile() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("gate-place-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
}
