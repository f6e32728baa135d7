//! One gate after another, before the same clients.
//!
//! A gate that another takes over from (`gate run --takeover`) does not end while it has clients: the other one owns the maps and
//! listens, and it drains those that it has. For a moment both accept connections from the very same
//! sockets, so that none is refused in between. Where there is no XDP, no map leads to the old one's sockets: the other one listens
//! at the same addresses with its own, and the old one has new clients wait there before it closes those that it has.
//!
//! **Invariants.** A write through one of the two is not seen by the other, so neither gives an answer twice while both
//! have clients: the old one stops before it gives up the maps, and the other begins when the old one is gone.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{SockType, SockaddrStorage, getsockname, getsockopt, sockopt};
use tokio::sync::watch;

use super::hot_cache;
use crate::kernel::owner::Predecessor;
use crate::system_error::with_causes;

/// How far a gate's threads have come. They never go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// They serve.
    Serving,
    /// They serve, and another gate rules.
    Draining,
    /// They leave new clients to another gate, which listens with sockets of its own.
    HandingOver,
    /// They serve the clients that they have, and accept no more.
    NotAccepting,
    /// They close the connections of clients that want nothing.
    ClosingIdle,
    /// They end.
    Stopped,
}

/// Waits for that phase, or for the end of the sender.
pub(crate) async fn wait_for_phase(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|&phase| phase >= wanted).await;
}

/// The ways in that are open: listening sockets, and connections that are not counted as clients yet. A thread learns a little later
/// that it is to accept no more, and until then what it accepts is to be served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entrances(Arc<AtomicUsize>);

/// One way in; it is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Entrance(Entrances);

impl Entrances {
    /// One more.
    pub(crate) fn open(&self) -> Entrance {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entrance(self.clone())
    }

    /// True if none is open. What has come in by them is counted by then.
    pub(crate) fn are_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Entrance {
    /// One more beside it.
    pub(crate) fn another(&self) -> Self {
        self.0.open()
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// The gate before this one, which still has clients.
#[derive(Debug)]
pub(crate) struct LivePredecessor {
    predecessor: Predecessor,
    hot: Vec<hot_cache::SharedHotCache>,
}

impl LivePredecessor {
    /// Nothing of what is `hot` is answered twice while it is there.
    pub(crate) fn new<'h>(
        predecessor: Predecessor,
        hot: impl Iterator<Item = &'h hot_cache::SharedHotCache>,
    ) -> Self {
        let hot: Vec<_> = hot.cloned().collect();
        hot.iter().for_each(|hot| hot.versions.suspend());
        Self { predecessor, hot }
    }

    /// True if the predecessor has gone; false if that is not known.
    pub(crate) fn is_gone(&self) -> bool {
        self.predecessor.is_gone().unwrap_or(false)
    }
}

impl Drop for LivePredecessor {
    fn drop(&mut self) {
        self.hot.iter().for_each(|hot| hot.versions.resume());
    }
}

/// The sockets that the gate before this one listens with, and the groups that this one's are in.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(SockType, SocketAddr, OwnedFd)>,
    groups: HashMap<SocketAddr, SocketGroup>,
}

/// All sockets of this gate that listen at one address, as each of them knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketGroup(Arc<()>);

impl SocketGroup {
    /// Leaves the group. True if no other socket is left in it.
    pub(crate) fn leave(self) -> bool {
        Arc::into_inner(self.0).is_some()
    }
}

impl InheritedSockets {
    /// The sockets of `predecessor` at `wanted` addresses; none if they cannot be had.
    pub(crate) fn of(predecessor: &Predecessor, wanted: impl Fn(SocketAddr) -> bool) -> Self {
        let mut this = Self::default();
        match predecessor.open_files() {
            Ok(files) => this.sockets.extend(files.filter_map(|file| {
                let (kind, address) = listens(&file)?;
                wanted(address).then_some((kind, address, file))
            })),
            Err(error) => {
                tracing::warn!(
                    error = with_causes(&error),
                    "cannot inherit listening sockets: connection attempts during the takeover may fail"
                );
            }
        }
        this
    }

    /// True if there is any.
    pub(crate) fn has_any(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// One that listens for connections at `address`.
    pub(crate) fn tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.take(SockType::Stream, address).map(TcpListener::from)
    }

    /// One for datagrams to `address`.
    pub(crate) fn udp(&mut self, address: SocketAddr) -> Option<UdpSocket> {
        self.take(SockType::Datagram, address).map(UdpSocket::from)
    }

    /// The group of the sockets that listen for connections at `address`.
    pub(crate) fn group(&mut self, address: SocketAddr) -> SocketGroup {
        self.groups.entry(address).or_default().clone()
    }

    fn take(&mut self, kind: SockType, address: SocketAddr) -> Option<OwnedFd> {
        let seq = self.sockets.iter().position(|(of, at, _)| *of == kind && *at == address)?;
        Some(self.sockets.swap_remove(seq).2)
    }
}

/// Where a file listens, and for what, if it is a socket that does.
fn listens(file: &OwnedFd) -> Option<(SockType, SocketAddr)> {
    let kind = getsockopt(file, sockopt::SockType).ok()?;
    if kind == SockType::Stream && !getsockopt(file, sockopt::AcceptConn).ok()? {
        return None;
    }
    let name: SockaddrStorage = getsockname(file.as_raw_fd()).ok()?;
    let v4 = name.as_sockaddr_in().map(|name| SocketAddr::from(std::net::SocketAddrV4::from(*name)));
    let v6 = || name.as_sockaddr_in6().map(|name| SocketAddr::from(std::net::SocketAddrV6::from(*name)));
    Some((kind, v4.or_else(v6)?))
}
