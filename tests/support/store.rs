//! Debian's memcached and Redis on loopback, each with an address of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use xtask::lab::process::ChildProcess;

use crate::proxy::address;
use crate::wait::{PATIENCE, until_up};

/// A running store; ends when dropped.
#[derive(Debug)]
pub struct Store {
    _server: ChildProcess,
    address: SocketAddr,
}

impl Store {
    /// memcached, on TCP and UDP, with one thread for requests and none for upkeep: a `decr` keeps a value's
    /// length or not, depending on what else holds the item at the time.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not come up.
    pub fn memcached() -> Result<Self> {
        Self::start("memcached", |ip, port| {
            let listen = ["-u", "root", "-l", ip, "-p", port, "-U", port];
            let options = ["-m", "64", "-t", "1", "-o", "no_lru_crawler,no_lru_maintainer"];
            let mut command = Command::new("memcached");
            command.args(listen).args(options);
            command
        })
    }

    /// Redis, which keeps nothing.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not come up.
    pub fn redis() -> Result<Self> {
        Self::start("redis-server", |ip, port| {
            let listen = ["--bind", ip, "--port", port];
            let forgetful = ["--save", "", "--appendonly", "no", "--enable-debug-command", "local"];
            let mut command = Command::new("redis-server");
            command.args(listen).args(forgetful);
            command
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A new connection.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { stream })
    }

    fn start(name: &'static str, command: impl Fn(&str, &str) -> Command) -> Result<Self> {
        let address = address();
        let mut server =
            ChildProcess::start(name, command(&address.ip().to_string(), &address.port().to_string()))?;
        until_up(&mut server, name, || Ok(TcpStream::connect(address).is_ok()))?;
        Ok(Self { _server: server, address })
    }
}

/// A connection on which nothing is waited for longer than a few seconds.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Sends `bytes`.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("cannot send")
    }

    /// Appends what there is to `to`, at least a byte; false at the end of the connection.
    ///
    /// # Errors
    ///
    /// If nothing comes in time.
    pub fn receive(&mut self, to: &mut Vec<u8>) -> Result<bool> {
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer).context("nothing came")?;
        to.extend_from_slice(&buffer[..count]);
        Ok(count > 0)
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    ///
    /// If they do not come in time; with what came.
    pub fn receive_exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut have = 0;
        while have < count {
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => bail!("ended after {:?}", String::from_utf8_lossy(&bytes[..have])),
                Ok(more) => have += more,
                Err(error) => bail!("{error} after {:?}", String::from_utf8_lossy(&bytes[..have])),
            }
        }
        Ok(bytes)
    }

    /// All that comes before the connection ends.
    ///
    /// # Errors
    ///
    /// If it does not end in time.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.receive(&mut bytes)? {}
        Ok(bytes)
    }
}
