//! A veth pair: frames go in at the client's end as they are, and sockets at the server's end say what arrived.
//!
//! Nothing is lost unseen. At most [`CHUNK`] frames are under way, fewer than any queue holds; behind them come
//! datagrams to a port that nobody protects, whole and in fragments, which must arrive. The interface has one queue,
//! and this thread stays on its CPU, so what was sent before has arrived when they have.
//!
//! The kernel forgets fragments that are not complete after a second ([`prepare`]). On a busy machine this thread may be without
//! a CPU for longer, between two fragments: then a marker is sent again, and the caller is told that the frames were late.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gate_tests::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE, SERVER_V4, SERVER_V6};
use gate_tests::raw::packet_socket;
use gate_tests::wait::{PATIENCE, within};
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, setsockopt, sockopt,
};
use xtask::sh;

use super::losses::Counters;
use super::spec::Spec;

/// Where gate listens for nobody in these suites but at the server's own addresses.
pub(crate) const OPAQUE: u16 = 9_000;
/// As [`OPAQUE`], for memcached's datagrams.
pub(crate) const MEMCACHED: u16 = 11_211;
/// A service at any address.
pub(crate) const ANYWHERE: u16 = 9_001;
/// An unprotected port.
const MARKER: u16 = 7_777;
/// Frames under way at once. With the markers fewer than the 64 that the interface takes in one go, at whose end it
/// hands on the segments that it held back to merge them.
const CHUNK: usize = 56;
/// Half of the time after which the kernel forgets fragments.
const IN_TIME: Duration = Duration::from_millis(500);
/// Markers between two looks at the kernel's counters.
const LOOKS_EVERY: u32 = 1_000;

/// The data that a protected socket received.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Arrival {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) port: u16,
    pub(crate) got: Got,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Got {
    /// A datagram of so many bytes, from a socket.
    Datagram(usize),
    /// A segment, as IP hands it to TCP: whether it opens a connection, and how many bytes it carries.
    Segment { opens: bool, resets: bool, data: usize },
}

/// One veth pair with its sender and its sockets.
pub(crate) struct Lane {
    pub(crate) net: Net,
    sender: OwnedFd,
    datagrams: Vec<(u16, UdpSocket)>,
    segments: Vec<(u16, UdpSocket)>,
    markers: [UdpSocket; 2],
    marked: u32,
    /// Frames sent so far, markers included.
    pub(crate) sent: u64,
    /// The counters before anything was sent.
    at_start: Counters,
    /// The counters not long ago, and how many markers had been sent.
    recently: (u32, Counters),
}

impl Lane {
    /// Makes the pair. `attach` puts a program at the server's interface.
    pub(crate) fn open(attach: impl FnOnce(&Net) -> Result<()>) -> Result<Self> {
        let net = Net::open()?;
        prepare(&net)?;
        attach(&net)?;
        let (datagrams, segments, markers) = net.server.enter(sockets)??;
        let sender = net.client.enter(|| packet_socket(CLIENT_INTERFACE))??;
        let at_start = Counters::default();
        let recently = (0, Counters::default());
        let mut lane =
            Self { net, sender, datagrams, segments, markers, marked: 0, sent: 0, at_start, recently };
        lane.wait_until_up()?;
        lane.at_start = Counters::read(&lane.net)?;
        lane.recently = (0, Counters::read(&lane.net)?);
        Ok(lane)
    }

    /// Sends these frames and returns what arrived of them, in order, and whether they were sent in time: before the kernel
    /// forgot any fragment.
    pub(crate) fn run(&mut self, frames: &[Vec<u8>]) -> Result<(Vec<Arrival>, bool)> {
        let started = Instant::now();
        let mut arrived = Vec::new();
        for chunk in frames.chunks(CHUNK) {
            for frame in chunk {
                self.send(frame)?;
            }
            self.mark()?;
            self.collect(&mut arrived)?;
        }
        arrived.sort();
        Ok((arrived, started.elapsed() < IN_TIME))
    }

    /// The losses to full queues, by the kernel's counters.
    pub(crate) fn lost(&self) -> Result<u64> {
        Ok(Counters::read(&self.net)?.lost() - self.at_start.lost())
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.sent += 1;
        socket::send(self.sender.as_raw_fd(), frame, MsgFlags::empty())
            .map(|_| ())
            .with_context(|| format!("cannot send {} bytes", frame.len()))
    }

    /// Waits until the server receives by either family: addresses and routes come into force some time after the
    /// interface.
    fn wait_until_up(&mut self) -> Result<()> {
        for family in 0..2 {
            self.markers[family].set_nonblocking(true)?;
            within("nothing arrives", PATIENCE, || {
                self.send_marker(family, 0)?;
                Ok(self.markers[family].recv(&mut [0; 64]).is_ok())
            })?;
            self.markers[family].set_nonblocking(false)?;
        }
        Ok(())
    }

    /// Sends what must arrive, and waits until it has.
    fn mark(&mut self) -> Result<()> {
        if self.marked >= self.recently.0 + LOOKS_EVERY {
            self.recently = (self.marked, Counters::read(&self.net)?);
        }
        for family in 0..2 {
            loop {
                self.marked += 1;
                let started = Instant::now();
                self.send_marker(family, self.marked)?;
                if started.elapsed() < IN_TIME {
                    break;
                }
            }
            for arrived in 0..2 {
                self.receive_marker(family).with_context(|| self.state_after_loss(family, arrived))?;
            }
        }
        Ok(())
    }

    /// The loss of a marker, of which so many of two have arrived, as the counters show it.
    fn state_after_loss(&self, family: usize, arrived: u32) -> String {
        let family = ["IPv4", "IPv6"][family];
        let (marked, before) = &self.recently;
        let changes = Counters::read(&self.net).map(|now| now.since(before).to_string());
        format!(
            "of marker {} by {family}, whole and in fragments, {arrived} arrived, {} frames in all; since marker {marked}:{}",
            self.marked,
            self.sent,
            changes.unwrap_or_else(|error| error.to_string()),
        )
    }

    /// Sends a datagram with this number to a port that nobody protects, whole and in two fragments.
    fn send_marker(&mut self, family: usize, number: u32) -> Result<()> {
        let (source, server) = [("198.18.0.3", SERVER_V4), ("fd00::3", SERVER_V6)][family];
        let text = [&number.to_be_bytes()[..], &[0; 20]].concat();
        let whole = Spec::udp(source, server, MARKER, &text).with(|spec| spec.id = number);
        let cut = whole.clone().with(|spec| spec.cut(16));
        for frame in [&whole, &cut].into_iter().flat_map(Spec::frames) {
            self.send(&frame)?;
        }
        Ok(())
    }

    fn receive_marker(&self, family: usize) -> Result<()> {
        let number = self.marked;
        loop {
            let mut got = [0; 64];
            self.markers[family].recv(&mut got).with_context(|| {
                format!("marker {number} is lost: what was sent before it may be as well")
            })?;
            match u32::from_be_bytes([got[0], got[1], got[2], got[3]]) {
                // One of those that were sent again, or before the server was up.
                arrived if arrived < number => {}
                arrived if arrived == number => return Ok(()),
                other => bail!("marker {other} arrived, not {number}"),
            }
        }
    }

    fn collect(&self, arrived: &mut Vec<Arrival>) -> Result<()> {
        let mut buffer = [0; 1 << 16];
        for (port, socket) in &self.datagrams {
            while let Some((len, from)) = receive(socket, &mut buffer)? {
                let source = from.ip().to_canonical();
                let got = Got::Datagram(len);
                arrived.push(Arrival { source, source_port: from.port(), port: *port, got });
            }
        }
        for (port, socket) in &self.segments {
            while let Some((len, from)) = receive(socket, &mut buffer)? {
                // IPv4's header comes with it.
                let start = if from.is_ipv4() { usize::from(buffer[0] & 0x0f) * 4 } else { 0 };
                let segment = buffer.get(start..len).unwrap_or_default();
                arrived.extend(segment_arrival(from.ip(), segment).filter(|arrival| arrival.port == *port));
            }
        }
        Ok(())
    }
}

/// The kind of segment that TCP takes it for, if it has a whole header.
fn segment_arrival(source: IpAddr, segment: &[u8]) -> Option<Arrival> {
    let header = segment.get(..20)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let header_len = usize::from(header[12] >> 4) * 4;
    let flags = header[13];
    if header_len < 20 || header_len > segment.len() {
        return None;
    }
    let opens = flags & 0b01_0110 == 0b00_0010;
    let resets = flags & 0b100 != 0;
    let got = Got::Segment { opens, resets, data: segment.len() - header_len };
    Some(Arrival { source, source_port: word(0), port: word(2), got })
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>> {
    match socket.recv_from(buffer) {
        Ok(got) => Ok(Some(got)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Large frames, and nothing that the kernels at both ends would say to each other by themselves.
fn prepare(net: &Net) -> Result<()> {
    let ip = |end: &gate_tests::net::Namespace, arguments: String| {
        sh::run(end.command("ip").args(arguments.split_whitespace()))
    };
    ip(&net.client, format!("address flush dev {CLIENT_INTERFACE}"))?;
    net.client
        .enter(|| fs::write(format!("/proc/sys/net/ipv6/conf/{CLIENT_INTERFACE}/disable_ipv6"), "1"))??;
    ip(&net.client, format!("link set {CLIENT_INTERFACE} mtu 9000 arp off"))?;
    ip(&net.server, format!("link set {SERVER_INTERFACE} address 02:00:00:00:00:01 mtu 9000 arp off"))?;
    // What is never complete is forgotten soon, and until then leaves room for more.
    net.server.enter(|| -> std::io::Result<()> {
        for (name, value) in [
            ("ipv4/ipfrag_high_thresh", "536870912"),
            ("ipv4/ipfrag_time", "1"),
            ("ipv4/ipfrag_max_dist", "0"),
            ("ipv6/ip6frag_high_thresh", "536870912"),
            ("ipv6/ip6frag_time", "1"),
        ] {
            fs::write(format!("/proc/sys/net/{name}"), value)?;
        }
        Ok(())
    })??;
    Ok(())
}

/// By port, for datagrams and for segments; then those for markers.
type Sockets = (Vec<(u16, UdpSocket)>, Vec<(u16, UdpSocket)>, [UdpSocket; 2]);

fn sockets() -> Result<Sockets> {
    let mut datagrams = Vec::new();
    for (address, port) in [
        (SERVER_V4, OPAQUE),
        (SERVER_V6, OPAQUE),
        (SERVER_V4, MEMCACHED),
        (SERVER_V6, MEMCACHED),
        // Of either family.
        ("::", ANYWHERE),
    ] {
        let socket = UdpSocket::bind((address.parse::<IpAddr>()?, port))?;
        datagrams.push((port, receiving(socket)?));
    }
    // Bound as a server would be: what is for a group's or everyone's address is protected only at every address.
    let raw = |port: u16, address: &str| -> Result<(u16, UdpSocket)> {
        let address: IpAddr = address.parse()?;
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket::socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(address, 0)))?;
        Ok((port, receiving(UdpSocket::from(socket))?))
    };
    let segments = vec![
        raw(OPAQUE, SERVER_V4)?,
        raw(OPAQUE, SERVER_V6)?,
        raw(ANYWHERE, "0.0.0.0")?,
        raw(ANYWHERE, "::")?,
    ];
    let marker = |address: &str| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((address.parse::<IpAddr>()?, MARKER))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    Ok((datagrams, segments, [marker(SERVER_V4)?, marker(SERVER_V6)?]))
}

fn receiving(socket: UdpSocket) -> Result<UdpSocket> {
    setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
