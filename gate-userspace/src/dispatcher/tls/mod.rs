//! TLS, by rustls with ring: versions 1.2 and 1.3, what a service shows its clients, and what its store has to show.
//!
//! [`socket`]: a connection that speaks it. Handshakes are the connection's own work; what they take of a thread's time is
//! bounded by [`turns`].
//!
//! **Certificates** are read at the start, and again whenever the configuration is. What cannot be read then leaves what is in
//! use as it is, and a line in the log. A connection keeps the certificate that it has begun with. Nothing here prints a key.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use tokio::net::TcpStream;

use self::socket::TlsSocket;
use crate::certificates::{Credentials, chain, private_key, roots, unusable};
use crate::config::{BackendTls, Config, Fault, NamedFile, NetworkAddress, Protocol, StoreAddress, Tls};

pub(super) mod socket;
pub(super) mod turns;

/// The certificate that a service shows its clients.
#[derive(Clone, Debug)]
pub(super) struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// The certificate and key in these files, for a service with this protocol.
    ///
    /// # Errors
    ///
    /// The fault of a file, with the remedy.
    pub(super) fn read(tls: &Tls, protocol: Protocol) -> Result<Self, Fault> {
        let chain = chain(&tls.certificate)?;
        let key = private_key(&tls.key)?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|error| unusable(&error, &tls.certificate, &tls.key))?;
        config.alpn_protocols = choice(protocol).iter().map(|name| name.to_vec()).collect();
        Ok(Self(Arc::new(config)))
    }

    /// A connection that a client has begun; its handshake is still to come.
    ///
    /// # Errors
    ///
    /// None that a configuration which could be read gives rise to.
    pub(super) fn accept(&self, socket: TcpStream) -> std::io::Result<TlsSocket> {
        let server = ServerConnection::new(Arc::clone(&self.0)).map_err(std::io::Error::other)?;
        Ok(TlsSocket::new(socket, server.into()))
    }
}

/// The certificates that origins over HTTPS are checked with.
#[derive(Clone, Debug)]
pub(super) struct OriginTls(Arc<ClientConfig>);

impl OriginTls {
    /// Those in this file.
    ///
    /// # Errors
    ///
    /// The file's fault, with the remedy.
    pub(super) fn read(ca: &NamedFile) -> Result<Self, Fault> {
        client_config(ca).map(Self)
    }

    /// A connection to an origin with this name or address, after its handshake. An end without a word is an error.
    ///
    /// # Errors
    ///
    /// The handshake's.
    pub(super) async fn connect(&self, socket: TcpStream, host: &str) -> std::io::Result<TlsSocket> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(std::io::Error::other)?;
        Ok(connect(&self.0, name, socket).await?.with_end())
    }
}

/// The certificates that a store has to show one of.
#[derive(Clone, Debug)]
pub(super) struct StoreTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl StoreTls {
    /// For a store at `address`: the certificates in this file are trusted.
    ///
    /// # Errors
    ///
    /// The fault of the file or the name, with the remedy.
    pub(super) fn read(tls: &BackendTls, address: &StoreAddress) -> Result<Self, Fault> {
        let config = client_config(&tls.ca)?;
        let name = match (&tls.name, address) {
            (Some(name), _) => name.clone(),
            (None, StoreAddress::Network(NetworkAddress::Named { host, .. })) => host.clone(),
            (None, StoreAddress::Network(NetworkAddress::Fixed(address))) => address.ip().to_string(),
            // The configuration refuses it.
            (None, StoreAddress::Unix(_)) => LOCALHOST.to_owned(),
        };
        let name = ServerName::try_from(name.trim_end_matches('.').to_owned());
        let name =
            name.map_err(|_| tls.ca.fault("needs a name that a certificate may have; say name".to_owned()))?;
        Ok(Self { config, name })
    }

    /// A connection to the store, after its handshake. What it says may end without a word, since its replies say how long they
    /// are.
    ///
    /// # Errors
    ///
    /// The handshake's.
    pub(super) async fn connect(&self, socket: TcpStream) -> std::io::Result<TlsSocket> {
        connect(&self.config, self.name.clone(), socket).await
    }

    /// The same, by a protocol that the store must choose.
    ///
    /// # Errors
    ///
    /// The handshake's, or that the store has not chosen it.
    pub(super) async fn connect_by(&self, socket: TcpStream, protocol: &[u8]) -> std::io::Result<TlsSocket> {
        let config = Arc::clone(&self.config);
        let client = ClientConnection::new_with_alpn(config, self.name.clone(), vec![protocol.to_vec()]);
        let socket = TlsSocket::new(socket, client.map_err(std::io::Error::other)?.into());
        socket.handshake(None, || {}).await?;
        match socket.speaks(protocol) {
            true => Ok(socket),
            false => Err(std::io::Error::other(format!("it does not choose {}", protocol.escape_ascii()))),
        }
    }
}

/// The settings of connections to whoever shows a certificate that those in this file lead to.
fn client_config(ca: &NamedFile) -> Result<Arc<ClientConfig>, Fault> {
    let roots = roots(ca)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ca.fault(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

async fn connect(
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
    socket: TcpStream,
) -> std::io::Result<TlsSocket> {
    let client = ClientConnection::new(Arc::clone(config), name).map_err(std::io::Error::other)?;
    let socket = TlsSocket::new(socket, client.into());
    socket.handshake(None, || {}).await?;
    Ok(socket)
}

/// Everything that is wrong with the certificates and keys that a configuration names.
#[must_use]
pub fn certificate_faults(config: &Config) -> Vec<Fault> {
    let backends = config.services.iter().filter_map(|service| service.backend.as_ref());
    let faults = backends.flat_map(|backend| {
        // The protocol makes no difference to files.
        let server = backend.tls.as_ref().map(|tls| ServerTls::read(tls, Protocol::Opaque).err());
        let store = backend.backend_tls.as_ref().map(|tls| StoreTls::read(tls, &backend.address).err());
        let ca = backend.process.as_ref().and_then(|process| process.origins_ca.as_ref());
        let origins = ca.map(|ca| OriginTls::read(ca).err());
        [server, store, origins]
    });
    let fleet = config.fleet.as_ref().and_then(Credentials::of_gate).and_then(Result::err);
    faults.flatten().flatten().chain(fleet).collect()
}

/// The protocols that clients may choose from in the handshake (ALPN), the preferred first; none if there is nothing to choose.
/// A client that names none speaks HTTP/1.1.
const fn choice(protocol: Protocol) -> &'static [&'static [u8]] {
    match protocol {
        Protocol::Http => &[HTTP2, b"http/1.1", b"http/1.0"],
        Protocol::Memcached | Protocol::Resp | Protocol::Opaque => &[],
    }
}

/// The host of a store at a Unix socket.
pub(super) const LOCALHOST: &str = "localhost";
/// The name of HTTP/2 in the handshake.
pub(super) const HTTP2: &[u8] = b"h2";
