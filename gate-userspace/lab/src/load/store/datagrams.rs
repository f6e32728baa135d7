//! The store's datagrams: many to a system call, and memcached's frame header.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

/// Buffers for what comes and goes.
pub(super) struct Datagrams {
    buffers: Vec<[u8; MAX_REQUEST]>,
    incoming: MultiHeaders<SockaddrStorage>,
    outgoing: MultiHeaders<SockaddrStorage>,
    queue: Vec<(SockaddrStorage, Vec<u8>)>,
}

impl Datagrams {
    pub(super) fn new() -> Self {
        Self {
            buffers: vec![[0; MAX_REQUEST]; BATCH],
            incoming: MultiHeaders::preallocate(BATCH, None),
            outgoing: MultiHeaders::preallocate(BATCH, None),
            queue: Vec::with_capacity(BATCH),
        }
    }

    /// Takes what is there, up to a batch: calls `each` with the sender and what it sent, and says how
    /// many it was.
    pub(super) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(SockaddrStorage, &[u8]),
    ) -> usize {
        let mut buffers = self.buffers.iter_mut();
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(buffers.next().expect("a buffer for each"))]);
        let fd = socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        // An error is an earlier answer's: its client has gone.
        let Ok(messages) = recvmmsg(fd, &mut self.incoming, slices.iter_mut(), flags, None) else { return 0 };
        let mut count = 0;
        for message in messages {
            count += 1;
            if let Some(from) = message.address {
                each(from, message.iovs().next().unwrap_or_default());
            }
        }
        count
    }

    /// Sends an answer with the next batch, in as many datagrams as it takes.
    pub(super) fn send(&mut self, socket: &UdpSocket, to: SockaddrStorage, id: [u8; 2], answer: &[u8]) {
        let parts = answer.chunks(MAX_ANSWER);
        let of = parts.len() as u16;
        for (number, part) in (0..of).zip(parts) {
            let header = [id, number.to_be_bytes(), of.to_be_bytes(), [0; 2]];
            self.queue.push((to, [header.as_flattened(), part].concat()));
            if self.queue.len() == BATCH {
                self.flush(socket);
            }
        }
    }

    /// Sends what is queued. What the kernel does not take is dropped, as datagrams may be.
    pub(super) fn flush(&mut self, socket: &UdpSocket) {
        let mut queued = &self.queue[..];
        while !queued.is_empty() {
            let slices: [[IoSlice<'_>; 1]; BATCH] =
                std::array::from_fn(|i| [IoSlice::new(queued.get(i).map_or(&[][..], |(_, bytes)| bytes))]);
            let addresses: [Option<SockaddrStorage>; BATCH] =
                std::array::from_fn(|i| queued.get(i).map(|(to, _)| *to));
            let fd = socket.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let slices = &slices[..queued.len()];
            let sent = match sendmmsg(fd, &mut self.outgoing, slices, addresses, [], flags) {
                Ok(sent) => sent.count().max(1),
                Err(_) => 1,
            };
            queued = &queued[sent..];
        }
        self.queue.clear();
    }
}

/// The request id of a datagram, and its commands; `None` if it is one of several, which memcached does
/// not take either.
pub(super) fn open(datagram: &[u8]) -> Option<([u8; 2], &[u8])> {
    match datagram {
        [high, low, 0, 0, 0, 1, _, _, commands @ ..] => Some(([*high, *low], commands)),
        _ => None,
    }
}

/// Datagrams to a system call.
const BATCH: usize = 64;
/// The largest request that is read whole.
const MAX_REQUEST: usize = 9_216;
/// Of an answer, in one datagram: memcached's own.
const MAX_ANSWER: usize = 1_392;
