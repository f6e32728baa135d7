//! The requests on their way over one connection to the store, gathered or sent, and their replies.

use std::collections::VecDeque;
use std::io::ErrorKind;

use gate_common::units::Nanos;

use super::error::StoreError;
use super::events::{Failure, FollowUp, ReplyPart, ReplyProgress, ReplyTiming, StoreEvents};
use super::health::Health;
use super::socket::StoreSocket;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::{Answer, Codec, Link};

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Outstanding<E: StoreEvents> {
    pub(crate) health: Health,
    pub(crate) link: <E::Wire as Codec>::Link,
    /// Gathered, not yet sent.
    pub(crate) out: Buffer,
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
}

impl<E: StoreEvents> Unanswered<E> {
    #[inline]
    fn new(
        in_flight: E::InFlight,
        expect: Expect<E>,
        since: Nanos,
        (is_slow, hands_over): (bool, bool),
    ) -> Self {
        Self { in_flight, expect, since, is_slow, hands_over, is_paused: false }
    }
}

type Expect<E> = <<<E as StoreEvents>::Wire as Codec>::Link as Link>::Expect;

impl<E: StoreEvents> Outstanding<E> {
    pub(crate) fn new(health: Health) -> Self {
        Self {
            health,
            link: Default::default(),
            out: Buffer::default(),
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

    /// Adds a request to those gathered.
    #[inline]
    pub(crate) fn push(
        &mut self,
        in_flight: E::InFlight,
        request: &<E::Wire as Codec>::Request,
        bytes: &[u8],
        follow_up: Option<FollowUp<E>>,
        now: Nanos,
    ) {
        let expect = self.link.encode(request, bytes, &mut self.out);
        let is_slow = E::Wire::meta(request).may_take_long();
        self.slow += usize::from(is_slow);
        let hands_over = follow_up.is_some();
        self.waiting.push_back(Unanswered::new(in_flight, expect, now, (is_slow, hands_over)));
        if let Some(FollowUp { in_flight, request, bytes }) = follow_up {
            let expect = self.link.encode(&request, &bytes, &mut self.out);
            self.waiting.push_back(Unanswered::new(in_flight, expect, now, (false, false)));
        }
    }

    /// Writes what is gathered, as far as the socket takes it.
    pub(crate) fn flush(&mut self, socket: &StoreSocket) -> std::io::Result<()> {
        self.link.seal(&mut self.out);
        self.sent = self.waiting.len();
        self.blocked = false;
        while !self.out.is_empty() && !self.blocked {
            match socket.try_write(self.out.bytes()) {
                Ok(len) => self.out.consume(len),
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
                let timing = ReplyTiming { sent: front.since, now, received, is_paused };
                let hands_over = front.hands_over;
                let result = events.reply_end(&mut self.observations, &mut front.in_flight, timing);
                self.waiting.pop_front();
                if hands_over && let Some((result, next)) = result.zip(self.waiting.front_mut()) {
                    events.hand_over(&mut next.in_flight, result);
                }
            }
        }
    }

    /// True if the replies should wait at the store: all are one client's, which does not read as fast as they come.
    pub(crate) fn pause(&mut self, events: &E, is_paused: bool) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let first = &first.in_flight;
        let is_one_client =
            || self.waiting.iter().all(|other| events.is_same_client(first, &other.in_flight));
        let pauses = events.is_held_up(first, is_paused) && is_one_client();
        if pauses {
            for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.is_paused) {
                waiting.is_paused = true;
                events.paused(&mut waiting.in_flight);
            }
        }
        pauses
    }

    /// Ends all requests without a reply. `unsent` is the failure of those that were not sent, `sent` of the others.
    pub(crate) fn fail_all(&mut self, events: &E, unsent: Failure<'_>, sent: Failure<'_>) {
        let mut reply_started = std::mem::take(&mut self.reply_started);
        let sent_count = std::mem::take(&mut self.sent);
        self.slow = 0;
        for (index, waiting) in self.waiting.drain(..).enumerate() {
            let failure = if index < sent_count { sent } else { unsent };
            let is_started = std::mem::take(&mut reply_started);
            let progress = ReplyProgress { is_started, is_paused: waiting.is_paused };
            events.failed(waiting.in_flight, progress, failure);
        }
    }
}
