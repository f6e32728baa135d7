//! The requests on their way over one connection to the store, gathered or sent, and their replies.

use std::collections::VecDeque;
use std::io::ErrorKind;

use gate_common::units::Nanos;

use super::error::StoreError;
use super::events::{Failure, FollowUp, ReplyPart, ReplyProgress, ReplyTiming, StoreEvents};
use super::health::Health;
use super::socket::StoreSocket;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_silence::SlowWork;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Answer, Codec, Link};
use crate::protocol::Access;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Outstanding<E: StoreEvents> {
    /// The store that answers.
    node: NodeId,
    pub(crate) health: Health,
    pub(crate) link: <E::Wire as Codec>::Link,
    /// Gathered, not yet sent.
    pub(crate) out: Buffer,
    /// The bytes in it that are of requests which count as sent.
    begun: usize,
    /// The reads among the waiting requests, which can be sent again; of a cluster's node the writes as well, which may have to be
    /// sent to another.
    reads: Buffer,
    /// True if the store is a cluster's node.
    is_node: bool,
    /// The requests without a complete reply, sent or only gathered.
    pub(crate) waiting: VecDeque<Unanswered<E>>,
    /// The number of them that have been sent.
    pub(crate) sent: usize,
    /// True if the last write left bytes over.
    pub(crate) blocked: bool,
    /// True if a part of the first one's reply has come.
    pub(crate) reply_started: bool,
    /// Received, and too short to decode.
    pub(crate) input: Buffer,
    /// The bytes that have come of the first one's reply.
    pub(crate) received: usize,
    /// The measurements of the replies.
    pub(crate) observations: E::Observations,
    /// When the store last sent anything.
    pub(crate) last_read: Nanos,
    /// The number of waiting requests that may take the store long.
    pub(crate) slow: usize,
}

/// A request that waits for its reply.
#[derive(Debug)]
pub(crate) struct Unanswered<E: StoreEvents> {
    pub(crate) in_flight: E::InFlight,
    pub(crate) expect: Expect<E>,
    /// When it was sent.
    pub(crate) since: Nanos,
    /// True if it may take the store long.
    pub(crate) is_slow: bool,
    /// True if the next request needs its result.
    pub(crate) hands_over: bool,
    /// True if its reply has waited at the store for the client.
    pub(crate) is_paused: bool,
    /// Its length as it is sent.
    len: u32,
    repeat: Repeat,
    /// True if its bytes are among [`Outstanding::reads`].
    is_kept: bool,
    /// Set if it may occupy the store for everyone.
    slow: Option<SlowWork>,
}

/// The fate of a request whose reply is lost with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// Fails: it may have run, and must not run twice, or it has been sent twice.
    Never,
    /// Sent again, once: it only reads, and is kept.
    Once,
}

impl<E: StoreEvents> Unanswered<E> {
    #[inline]
    fn new(
        in_flight: E::InFlight,
        expect: Expect<E>,
        since: Nanos,
        (is_slow, hands_over): (bool, bool),
        (len, repeat, is_kept): (u32, Repeat, bool),
        slow: Option<SlowWork>,
    ) -> Self {
        Self { in_flight, expect, since, is_slow, hands_over, is_paused: false, len, repeat, is_kept, slow }
    }
}

type Expect<E> = <<<E as StoreEvents>::Wire as Codec>::Link as Link>::Expect;

impl<E: StoreEvents> Outstanding<E> {
    pub(crate) fn new(node: NodeId, health: Health, is_node: bool) -> Self {
        Self {
            node,
            health,
            link: Default::default(),
            out: Buffer::default(),
            begun: 0,
            reads: Buffer::default(),
            is_node,
            waiting: VecDeque::new(),
            sent: 0,
            blocked: false,
            reply_started: false,
            input: Buffer::default(),
            received: 0,
            observations: E::Observations::default(),
            last_read: Nanos::ZERO,
            slow: 0,
        }
    }

    /// True if one of its requests is such, or if they are too many to look at.
    pub(crate) fn may_have(&self, is_such: impl Fn(&E::InFlight) -> bool) -> bool {
        let is_long = self.waiting.len() > MOST_LOOKED_AT || self.blocked;
        is_long || self.waiting.iter().any(|waiting| is_such(&waiting.in_flight))
    }

    /// Adds a request to those gathered.
    #[inline]
    pub(crate) fn push(
        &mut self,
        in_flight: E::InFlight,
        request: &<E::Wire as Codec>::Request,
        bytes: &[u8],
        (follow_up, slow): (Option<FollowUp<E>>, Option<SlowWork>),
        now: Nanos,
    ) {
        let (expect, sent_as) = self.encode(request, bytes);
        let is_slow = E::Wire::meta(request).may_take_long();
        self.slow += usize::from(is_slow);
        let hands_over = follow_up.is_some();
        self.waiting.push_back(Unanswered::new(in_flight, expect, now, (is_slow, hands_over), sent_as, slow));
        if let Some(FollowUp { in_flight, request, bytes }) = follow_up {
            let (expect, sent_as) = self.encode(&request, &bytes);
            self.waiting.push_back(Unanswered::new(in_flight, expect, now, (false, false), sent_as, None));
        }
    }

    /// Adds a request's bytes to those gathered.
    #[inline]
    fn encode(
        &mut self,
        request: &<E::Wire as Codec>::Request,
        bytes: &[u8],
    ) -> (Expect<E>, (u32, Repeat, bool)) {
        let expect = self.link.encode(request, bytes, &mut self.out);
        if !<<E::Wire as Codec>::Link as Link>::REPEATS {
            return (expect, (0, Repeat::Never, false));
        }
        let only_reads = E::Wire::meta(request).access == Access::Read && bytes.len() <= LONGEST_READ;
        let repeats = only_reads && self.reads.len() < MOST_READS;
        let is_kept = repeats || self.is_node && self.reads.len() < MOST_KEPT;
        if is_kept {
            self.reads.push(bytes);
        }
        (expect, (bytes.len() as u32, if repeats { Repeat::Once } else { Repeat::Never }, is_kept))
    }

    /// Writes what is gathered, as far as the socket takes it.
    pub(crate) fn flush(&mut self, socket: &StoreSocket) -> std::io::Result<()> {
        self.link.seal(&mut self.out);
        self.begun = self.out.len();
        self.sent = self.waiting.len();
        self.blocked = false;
        while !self.out.is_empty() && !self.blocked {
            match socket.try_write(self.out.bytes()) {
                Ok(len) => {
                    self.out.consume(len);
                    self.begun -= len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match socket.try_flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
            flushed => return flushed,
        }
        Ok(())
    }

    /// Takes complete and partial replies from `input`; returns how many bytes that took.
    pub(crate) fn take(&mut self, events: &E, input: &[u8], now: Nanos) -> Result<usize, StoreError> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            let Some(front) = self.waiting.front_mut().filter(|_| self.sent > 0) else {
                return if rest.is_empty() { Ok(taken) } else { Err(StoreError::Unasked) };
            };
            let answer = self.link.scan(&front.expect, rest)?;
            if answer == Answer::MORE {
                return Ok(taken);
            }
            let is_first = !self.reply_started;
            if self.is_node && is_first && rest[0] == b'-' {
                let error = &rest[..answer.len];
                if <<E::Wire as Codec>::Link as Link>::is_redirection(&answer) {
                    self.redirect(events, error);
                    taken += answer.len;
                    continue;
                }
                events.note_cluster_error(error);
            }
            events.reply_part(&mut front.in_flight, ReplyPart { input: rest, answer, is_first });
            self.reply_started |= answer.give > 0 || !answer.add.is_empty();
            taken += answer.len;
            self.received += answer.len;
            if answer.last {
                let received = std::mem::take(&mut self.received);
                self.reply_started = false;
                self.sent -= 1;
                self.health.answered();
                self.slow -= usize::from(front.is_slow);
                // In place: a request that is moved is copied twice.
                let is_paused = front.is_paused;
                let timing = ReplyTiming { node: self.node, sent: front.since, now, received, is_paused };
                let hands_over = front.hands_over;
                if let Some(slow) = front.slow.take() {
                    slow.over(now);
                }
                if front.is_kept {
                    self.reads.consume(front.len as usize);
                }
                let result = events.reply_end(&mut self.observations, &mut front.in_flight, timing);
                self.waiting.pop_front();
                if hands_over && let Some((result, next)) = result.zip(self.waiting.front_mut()) {
                    events.hand_over(&mut next.in_flight, result);
                }
            }
        }
    }

    /// Takes out the first request: a node of a cluster sends it to another by this error, which is all of its reply.
    #[cold]
    fn redirect(&mut self, events: &E, error: &[u8]) {
        let Some(front) = self.waiting.pop_front() else { return };
        self.received = 0;
        self.sent -= 1;
        self.health.answered();
        self.slow -= usize::from(front.is_slow);
        if let Some(slow) = front.slow {
            slow.over(self.last_read);
        }
        let len = front.len as usize;
        let bytes = front.is_kept.then(|| &self.reads.bytes()[..len]);
        let progress = ReplyProgress { is_started: false, is_paused: front.is_paused };
        events.redirected(front.in_flight, error, bytes, progress);
        if front.is_kept {
            self.reads.consume(len);
        }
    }

    /// True if the replies should wait at the store: all are one client's, which does not read as fast as they come.
    pub(crate) fn pause(&mut self, events: &E, is_paused: bool) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let first = &first.in_flight;
        // A redirection puts a request behind later ones of its client, whose replies wait for its own.
        let waits_for_it = |other: &Unanswered<E>| {
            events.is_same_client(first, &other.in_flight) && !events.is_earlier(&other.in_flight, first)
        };
        let is_one_client = || self.waiting.iter().all(waits_for_it);
        let pauses = events.is_held_up(first, is_paused) && is_one_client();
        if pauses {
            for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.is_paused) {
                waiting.is_paused = true;
                events.paused(&mut waiting.in_flight);
            }
        }
        pauses
    }

    /// The connection is lost, and there will be another one. What has not been sent, and reads that have no reply, are gathered for
    /// that; what may have run fails. A read behind which its client has sent what may have run is not repeated: it might see that.
    pub(crate) fn lose(&mut self, events: &E) {
        let sent = std::mem::take(&mut self.sent);
        let mut is_started = std::mem::take(&mut self.reply_started);
        let waiting = std::mem::take(&mut self.waiting);
        let repeated: Vec<bool> = (0..waiting.len())
            .map(|index| index >= sent || may_repeat(&waiting, index, sent, is_started, events))
            .collect();
        let reads = std::mem::take(&mut self.reads);
        let unsent = self.out.bytes()[self.begun..].to_vec();
        self.start_over();
        let mut at_read = 0;
        let mut at_unsent = 0;
        for ((index, mut waiting), repeats) in waiting.into_iter().enumerate().zip(repeated) {
            let len = waiting.len as usize;
            let is_kept = waiting.is_kept;
            let bytes =
                if is_kept { &reads.bytes()[at_read..] } else { &unsent[at_unsent.min(unsent.len())..] };
            at_read += if is_kept { len } else { 0 };
            at_unsent += if index >= sent { len } else { 0 };
            let progress =
                ReplyProgress { is_started: std::mem::take(&mut is_started), is_paused: waiting.is_paused };
            if !repeats {
                events.failed(waiting.in_flight, progress, Failure::Uncertain);
                continue;
            }
            self.out.push(&bytes[..len]);
            if index < sent {
                waiting.repeat = Repeat::Never;
                waiting.is_kept = self.is_node;
            }
            if waiting.is_kept {
                self.reads.push(&bytes[..len]);
            }
            self.slow += usize::from(waiting.is_slow);
            self.waiting.push_back(waiting);
        }
    }

    /// Forgets all that was on its way over a connection which has ended.
    pub(crate) fn start_over(&mut self) {
        self.link = Default::default();
        self.out.clear();
        self.begun = 0;
        self.input.clear();
        self.blocked = false;
        self.received = 0;
        self.slow = 0;
    }

    /// Ends all requests without a reply. `unsent` is the failure of those that were not sent, `sent` of the others.
    pub(crate) fn fail_all(&mut self, events: &E, unsent: Failure<'_>, sent: Failure<'_>) {
        let mut reply_started = std::mem::take(&mut self.reply_started);
        let sent_count = std::mem::take(&mut self.sent);
        self.slow = 0;
        self.reads.clear();
        for (index, waiting) in self.waiting.drain(..).enumerate() {
            let failure = if index < sent_count { sent } else { unsent };
            let is_started = std::mem::take(&mut reply_started);
            let progress = ReplyProgress { is_started, is_paused: waiting.is_paused };
            events.failed(waiting.in_flight, progress, failure);
        }
    }
}

/// True if the request at `index`, one of the `sent` that the store may have run, can be sent again.
fn may_repeat<E: StoreEvents>(
    waiting: &VecDeque<Unanswered<E>>,
    index: usize,
    sent: usize,
    is_started: bool,
    events: &E,
) -> bool {
    let this = &waiting[index];
    let has_begun = is_started && index == 0;
    let may_have_run = |later: &&Unanswered<E>| later.repeat == Repeat::Never;
    this.repeat == Repeat::Once
        && !has_begun
        && !waiting
            .range(index + 1..sent)
            .filter(may_have_run)
            .any(|later| events.is_same_client(&this.in_flight, &later.in_flight))
}

/// So many requests are looked at to find one client's: the store is fast if it has more.
const MOST_LOOKED_AT: usize = 64;
/// The longest read that is kept to be sent again, and the bytes of all, about.
const LONGEST_READ: usize = 4 << 10;
const MOST_READS: usize = 256 << 10;
/// The bytes of requests to a cluster's node that are kept; what is not kept follows no redirection.
const MOST_KEPT: usize = 4 << 20;
