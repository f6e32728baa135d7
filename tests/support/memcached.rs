//! Debian's memcached, and just enough of a client.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};
use xtask::lab::net::{Net, SERVER_V4};
use xtask::lab::process::ChildProcess;

use crate::wait::{PATIENCE, until_up};

/// Where it listens, on TCP and UDP.
pub const PORT: u16 = 11_211;

/// A memcached at the server's end of a network; ends when dropped.
#[derive(Debug)]
pub struct Memcached {
    _server: ChildProcess,
}

impl Memcached {
    /// Starts it and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not come up.
    pub fn start(net: &Net) -> Result<Self> {
        Self::start_at(net, PORT)
    }

    /// Starts one at another port.
    ///
    /// # Errors
    ///
    /// As [`Memcached::start`].
    pub fn start_at(net: &Net, port: u16) -> Result<Self> {
        let mut command = net.server.command("memcached");
        let address = SocketAddr::new(SERVER_V4.parse()?, port);
        let port = port.to_string();
        command.args(["-u", "root", "-l", SERVER_V4, "-p", &port, "-U", &port, "-m", "64", "-t", "1"]);
        let mut server = ChildProcess::start("memcached", command)?;
        let connects = || Ok(net.client.enter(|| TcpStream::connect(address))?.is_ok());
        until_up(&mut server, "memcached", connects)?;
        Ok(Self { _server: server })
    }
}

/// Requests over one TCP connection.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects from `source`.
    ///
    /// # Errors
    ///
    /// If the client cannot enter the network or the connection is refused.
    pub fn open(net: &Net, source: IpAddr) -> Result<Self> {
        Self::to(net, source, address())
    }

    /// Connects from `source` to another server than [`Memcached`].
    ///
    /// # Errors
    ///
    /// As [`Connection::open`].
    pub fn to(net: &Net, source: IpAddr, server: SocketAddr) -> Result<Self> {
        let stream = net.client.enter(|| connect(source, server))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends bytes that nothing answers.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.0.get_mut().write_all(bytes)?)
    }

    /// Sends `request` and returns the first line of the answer, without its end.
    ///
    /// # Errors
    ///
    /// If the connection ends or there is no answer.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.0.read_line(&mut line).context("no answer")?;
        Ok(line.trim_end().to_owned())
    }
}

/// Requests in datagrams, each with memcached's frame of 8 bytes before it.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    request: u16,
}

impl Datagrams {
    /// Sends from `source`.
    ///
    /// # Errors
    ///
    /// If the address is not the client's.
    pub fn open(net: &Net, source: IpAddr) -> Result<Self> {
        net.client.enter(|| Self::to(source, address()))?
    }

    /// Sends from `source`, in this thread's network, to `server`, and reads from no other.
    ///
    /// # Errors
    ///
    /// If the address is not this machine's.
    pub fn to(source: IpAddr, server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((source, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, request: 0x1234 })
    }

    /// The socket.
    #[must_use]
    pub const fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends one datagram, and returns the text of the one that answers its request id.
    ///
    /// # Errors
    ///
    /// If there is no answer in time, or its frame is not what it should be.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        let id = self.send(request.as_bytes())?;
        let (answer, datagrams) = self.answer(id)?;
        ensure!(datagrams == 1, "{datagrams} datagrams");
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends one datagram; returns its request id.
    ///
    /// # Errors
    ///
    /// If it cannot be sent.
    pub fn send(&mut self, request: &[u8]) -> Result<u16> {
        self.request = self.request.wrapping_add(1);
        let [a, b] = self.request.to_be_bytes();
        // Request id, number of this datagram, how many there are, reserved.
        self.send_raw(&[&[a, b, 0, 0, 0, 1, 0, 0], request].concat())?;
        Ok(self.request)
    }

    /// Sends a datagram as it is, frame included.
    ///
    /// # Errors
    ///
    /// If it cannot be sent.
    pub fn send_raw(&mut self, datagram: &[u8]) -> Result<()> {
        self.socket.send(datagram)?;
        Ok(())
    }

    /// The text of the next answer, which must be to `id`, and in how many datagrams it came.
    ///
    /// # Errors
    ///
    /// If there is no answer in time, or a frame is not what it should be.
    pub fn answer(&mut self, id: u16) -> Result<(Vec<u8>, usize)> {
        let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
        let mut datagram = [0; 2_048];
        loop {
            let length = self.socket.recv(&mut datagram).context("no answer")?;
            ensure!((8..=1_400).contains(&length), "a datagram of {length} bytes");
            let word = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
            let place = usize::from(word(2));
            let total = usize::from(word(4));
            ensure!(word(0) == id && place < total && word(6) == 0, "to {id}: {:?}", &datagram[..8]);
            parts.resize(total, None);
            ensure!(parts[place].replace(datagram[8..length].to_vec()).is_none(), "{place} came twice");
            if parts.iter().all(Option::is_some) {
                return Ok((parts.into_iter().flatten().collect::<Vec<_>>().concat(), total));
            }
        }
    }

    /// True if nothing has come that was not asked for; to be called when all that could come has.
    ///
    /// # Errors
    ///
    /// If the socket fails.
    pub fn is_silent(&self) -> Result<bool> {
        self.socket.set_nonblocking(true)?;
        let silent = self.socket.recv(&mut [0; 8]).is_err();
        self.socket.set_nonblocking(false)?;
        Ok(silent)
    }
}

fn connect(source: IpAddr, server: SocketAddr) -> Result<TcpStream> {
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(socket))
}

fn address() -> SocketAddr {
    SocketAddr::new(SERVER_V4.parse().expect("a constant address"), PORT)
}
