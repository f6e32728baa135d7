//! Datagrams: a frame of 8 bytes, then requests or part of an answer.
//!
//! Source: `protocol.txt` of memcached, "UDP protocol": four 16-bit numbers in network order, which are the
//! client's number for its request, the datagram's place, how many there are, and 0. memcached itself drops requests of
//! more than one datagram, and so does gate; [`Reassembly`] is for what comes in several all the same: answers.

use std::ops::Range;

use gate_common::units::Nanos;

/// Bytes of a frame.
pub const FRAME: usize = 8;

/// The most bytes of an answer in one datagram: with its frame 1,400, as memcached has it.
pub const MAX_PAYLOAD: usize = 1_392;

/// The header before the payload of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The client's number for its request; its answer bears the same.
    pub id: u16,
    /// The place of this datagram, the first being 0.
    pub index: u16,
    /// How many there are.
    pub total: u16,
}

impl Frame {
    /// A datagram's frame and payload; `None` if it has neither. memcached too ignores the reserved bytes.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (frame, payload) = datagram.split_at_checked(FRAME)?;
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let frame = Self { id: word(0), index: word(2), total: word(4) };
        (!payload.is_empty()).then_some((frame, payload))
    }

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FRAME] {
        let [a, b] = self.id.to_be_bytes();
        let [c, d] = self.index.to_be_bytes();
        let [e, f] = self.total.to_be_bytes();
        [a, b, c, d, e, f, 0, 0]
    }
}

/// The datagrams of an answer of `len` bytes to request `id`: each one's frame, and which bytes it holds.
///
/// `None` if they would be more than can be counted, that is, from 91 MB on.
pub fn answer(
    id: u16,
    len: usize,
) -> Option<impl ExactSizeIterator<Item = ([u8; FRAME], Range<usize>)> + Clone> {
    let total = u16::try_from(len.div_ceil(MAX_PAYLOAD)).ok()?;
    Some((0..total).map(move |index| {
        let start = usize::from(index) * MAX_PAYLOAD;
        (Frame { id, index, total }.to_bytes(), start..len.min(start + MAX_PAYLOAD))
    }))
}

/// How much of requests in several datagrams is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that are waiting for more of them; the oldest gives way.
    pub waiting: usize,
    /// Datagrams of one request; at most 64.
    pub datagrams: u16,
    /// Bytes of one request.
    pub bytes: usize,
    /// How long one may wait: a client's numbers come round again.
    pub patience: Nanos,
}

impl Default for Limits {
    /// 64 requests of 64 KiB in at most 48 datagrams, within a second: 4 MiB in all.
    fn default() -> Self {
        Self { waiting: 64, datagrams: 48, bytes: 64 << 10, patience: Nanos(1_000_000_000) }
    }
}

/// The result of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'d> {
    /// Requests: all that the datagram, or several, held.
    Whole {
        /// The client's number for them.
        id: u16,
        /// The text.
        bytes: &'d [u8],
    },
    /// Part of a request; the rest may come.
    Part,
    /// Nothing that can be read, or more than the limits let in.
    Dropped,
}

/// Puts together the requests of peers `P`.
#[derive(Clone, Debug)]
pub struct Reassembly<P> {
    limits: Limits,
    /// The oldest first.
    waiting: Vec<PartialRequest<P>>,
    /// The last request that was put together.
    whole: Vec<u8>,
}

#[derive(Clone, Debug)]
struct PartialRequest<P> {
    peer: P,
    id: u16,
    total: u16,
    since: Nanos,
    /// Where each datagram's payload lies in `bytes`, by its place; `None` if it has not come.
    parts: Vec<Option<Range<usize>>>,
    bytes: Vec<u8>,
}

impl<P: PartialEq> Reassembly<P> {
    /// One that holds nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, waiting: Vec::new(), whole: Vec::new() }
    }

    /// Takes a datagram that came `now`. One that is a request by itself costs nothing. A `now` before an
    /// earlier one counts as no time passed.
    pub fn receive<'d>(&'d mut self, peer: P, datagram: &'d [u8], now: Nanos) -> Received<'d> {
        let Some((frame, payload)) = Frame::parse(datagram) else { return Received::Dropped };
        if frame.total == 1 {
            return Received::Whole { id: frame.id, bytes: payload };
        }
        let patience = self.limits.patience.0;
        self.waiting.retain(|waiting| now.0.saturating_sub(waiting.since.0) < patience);
        let Limits { datagrams, bytes, .. } = self.limits;
        if frame.index >= frame.total || frame.total > datagrams || payload.len() > bytes {
            return Received::Dropped;
        }
        let index = self.index(peer, frame, now);
        let waiting = &mut self.waiting[index];
        let part = &mut waiting.parts[usize::from(frame.index)];
        let start = waiting.bytes.len();
        if part.is_some() || start + payload.len() > bytes {
            return Received::Dropped;
        }
        *part = Some(start..start + payload.len());
        waiting.bytes.extend_from_slice(payload);
        if waiting.parts.contains(&None) {
            return Received::Part;
        }
        let PartialRequest { parts, bytes, .. } = self.waiting.remove(index);
        self.whole.clear();
        parts.into_iter().flatten().for_each(|part| self.whole.extend_from_slice(&bytes[part]));
        Received::Whole { id: frame.id, bytes: &self.whole }
    }

    /// The place of the request that `frame` is part of.
    fn index(&mut self, peer: P, frame: Frame, now: Nanos) -> usize {
        let same = |waiting: &PartialRequest<P>| waiting.peer == peer && waiting.id == frame.id;
        if let Some(index) = self.waiting.iter().position(same) {
            if self.waiting[index].total == frame.total {
                return index;
            }
            // The number has come round, and the earlier request never became whole.
            self.waiting.remove(index);
        }
        if self.waiting.len() >= self.limits.waiting.max(1) {
            self.waiting.remove(0);
        }
        let parts = vec![None; usize::from(frame.total)];
        let Frame { id, total, .. } = frame;
        self.waiting.push(PartialRequest { peer, id, total, since: now, parts, bytes: Vec::new() });
        self.waiting.len() - 1
    }
}
