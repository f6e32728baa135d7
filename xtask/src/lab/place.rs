//! Where the lab's programs run: on a network of its own, which needs root, or on loopback addresses.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{self, Command};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::loopback::{self, Directory};
use super::net::{Net, SERVER_INTERFACE};
use super::process::bound_command;
use super::programs::{PORT, PROXIED_PORT};

/// Where the programs run, and with what everything goes.
#[derive(Debug)]
pub enum Place {
    /// Two namespaces, with gate's XDP program between them.
    Network(Net),
    /// Loopback addresses, and a directory for gate's configuration and socket.
    Loopback(Directory),
}

/// How many source addresses there are for tenants.
pub const SOURCES: u8 = 4;

impl Place {
    /// Makes it: a network, or loopback as any user.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn open(network: bool) -> Result<Self> {
        if !network {
            return Directory::make().map(Self::Loopback);
        }
        let place = Self::Network(Net::open()?);
        if let Self::Network(net) = &place {
            (1..=SOURCES).try_for_each(|number| net.add_client_address(place.source(number)))?;
        }
        Ok(place)
    }

    /// True for a network, whose packets gate can judge.
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// The address of a tenant, from 1 to [`SOURCES`].
    #[must_use]
    pub fn source(&self, number: u8) -> IpAddr {
        match self {
            Self::Network(_) => Ipv4Addr::new(198, 18, 1, number),
            Self::Loopback(_) => Ipv4Addr::new(127, 0, 0, number + 1),
        }
        .into()
    }

    /// The store's address.
    #[must_use]
    pub fn store(&self) -> SocketAddr {
        match self {
            Self::Network(_) => SocketAddr::from(([198, 18, 0, 1], PORT)),
            Self::Loopback(_) => loopback::store_address(process::id()),
        }
    }

    /// The address at which gate takes requests for the store.
    #[must_use]
    pub fn gate(&self) -> SocketAddr {
        match self {
            Self::Network(_) => SocketAddr::from(([198, 18, 0, 1], PROXIED_PORT)),
            Self::Loopback(_) => loopback::gate_address(process::id()),
        }
    }

    /// The section `[gate]` of the configuration.
    #[must_use]
    pub fn section(&self) -> String {
        match self {
            Self::Network(net) => format!(
                "[gate]\ninterface = \"{SERVER_INTERFACE}\"\nxdp = \"native\"\npin_dir = \"{}\"\n",
                net.pins().display()
            ),
            Self::Loopback(directory) => {
                format!("[gate]\nxdp = \"off\"\nadmin = \"{}\"\n", directory.socket().display())
            }
        }
    }

    /// The arguments by which commands find this gate.
    #[must_use]
    pub fn query(&self) -> [&OsStr; 2] {
        match self {
            Self::Network(net) => ["--pin-dir".as_ref(), net.pins().as_ref()],
            Self::Loopback(directory) => ["--socket".as_ref(), directory.socket().as_ref()],
        }
    }

    /// A command beside the store.
    #[must_use]
    pub fn server_command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Network(net) => net.server.command(program),
            Self::Loopback(_) => bound_command(program),
        }
    }

    /// A command where the clients are.
    #[must_use]
    pub fn client_command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Network(net) => net.client.command(program),
            Self::Loopback(_) => bound_command(program),
        }
    }

    /// A file for gate's configuration; it goes with the place.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        match self {
            Self::Network(net) => std::env::temp_dir().join(format!("{}.toml", net.server.name())),
            Self::Loopback(directory) => directory.path().join("gate.toml"),
        }
    }

    /// A connection from where the clients are.
    ///
    /// # Errors
    ///
    /// If nobody accepts it.
    pub fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let connect = || TcpStream::connect_timeout(&to, ANSWER);
        let stream = match self {
            Self::Network(net) => net.client.enter(connect)?,
            Self::Loopback(_) => connect(),
        };
        let stream = stream.with_context(|| format!("cannot connect to {to}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(stream)
    }
}

/// Sends a request and reads its answer up to and with `end`.
///
/// # Errors
///
/// If the connection fails, or nothing comes for `ANSWER`.
pub fn ask(stream: &mut TcpStream, request: &[u8], end: &str) -> Result<String> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4_096];
    while !answer.ends_with(end.as_bytes()) {
        let count = stream.read(&mut piece).context("no answer")?;
        anyhow::ensure!(count > 0, "the connection was closed");
        answer.extend_from_slice(&piece[..count]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The longest wait for a connection or for an answer.
const ANSWER: Duration = Duration::from_secs(2);
