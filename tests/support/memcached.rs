//! Debian's memcached, and just enough of a client.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};
use xtask::lab::net::{Net, SERVER_V4};
use xtask::lab::part::Part;

/// Where it listens, on TCP and UDP.
pub const PORT: u16 = 11_211;

/// A memcached at the server's end of a network; ends when dropped.
#[derive(Debug)]
pub struct Memcached {
    _server: Part,
}

impl Memcached {
    /// Starts it and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// If it is not installed or does not come up.
    pub fn start(net: &Net) -> Result<Self> {
        let mut command = net.server.command("memcached");
        let port = PORT.to_string();
        command.args(["-u", "root", "-l", SERVER_V4, "-p", &port, "-U", &port, "-m", "64", "-t", "1"]);
        let mut server = Part::start("memcached", command)?;
        let deadline = Instant::now() + PATIENCE;
        while net.client.enter(|| TcpStream::connect(address()))?.is_err() {
            if !server.is_running()? || Instant::now() > deadline {
                bail!("memcached does not accept connections");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
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
        let stream = net.client.enter(|| connect(source))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
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
        let socket = net.client.enter(|| UdpSocket::bind((source, 0)))??;
        socket.connect(address())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, request: 0x1234 })
    }

    /// Sends one datagram, and returns the text of the one that answers its request id.
    ///
    /// # Errors
    ///
    /// If there is no answer in time, or its frame is not what it should be.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.request = self.request.wrapping_add(1);
        let id = self.request.to_be_bytes();
        // Request id, number of this datagram, how many there are, reserved.
        let frame = [id[0], id[1], 0, 0, 0, 1, 0, 0];
        self.socket.send(&[&frame, request.as_bytes()].concat())?;
        let mut answer = [0; 2_048];
        let length = self.socket.recv(&mut answer).context("no answer")?;
        match answer[..length].split_at_checked(frame.len()) {
            Some((head, text)) if head == frame => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => bail!("the answer to {frame:?} begins {:?}", &answer[..length.min(frame.len())]),
        }
    }
}

fn connect(source: IpAddr) -> Result<TcpStream> {
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(address()))?;
    Ok(TcpStream::from(socket))
}

fn address() -> SocketAddr {
    SocketAddr::new(SERVER_V4.parse().expect("a constant address"), PORT)
}

const PATIENCE: Duration = Duration::from_secs(5);
