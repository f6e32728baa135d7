//! Single flight: of the reads of a hot key that are due at once, one goes to the store.
//!
//! The first read of a key's present version leads a flight. Equal reads of the same version follow it until its answer
//! has come. Flights are shared by the threads. Each thread knows its own followers, and a flight knows the threads
//! that have any. Its completion is posted to these.
//!
//! A flight waits before the store with its leader's [`Rank`]. A read follows one of its own rank or of one that goes before
//! it, never one that goes after it: it would wait for that. So at most one read of each rank goes to the store. Where a
//! flight is refused for its leader's sake, only the leader's tenant is refused with it: the others lead one anew.
//!
//! **Invariants.** A flight is owned by the request that leads it ([`FlightLeader`]), not by a client. It ends when
//! that request is answered, refused or dropped, and its followers always receive a completion. A lock is held for a
//! look-up at most.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::versions::{KeyHash, Version};
use crate::dispatcher::tenants::ledger::TenantId;
use crate::policy::rank::Rank;
use crate::protocol::Refusal;

/// The read, and the clients that may share its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightKey<'q> {
    /// The clients that may have the same answer: those of a user, a database and a protocol version.
    pub(crate) scope: u64,
    /// The whole request. One that is spelled differently is another read.
    pub(crate) request: &'q [u8],
}

impl Hash for FlightKey<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.scope);
        state.write(self.request);
    }
}

/// A read that many wait for.
#[derive(Debug)]
pub(crate) struct Flight {
    scope: u64,
    request: Box<[u8]>,
    /// The key that is read, and its version when the flight began.
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
    /// The rank with which it waits.
    pub(crate) rank: Rank,
    /// The threads with followers.
    threads: Mutex<Vec<usize>>,
}

impl Flight {
    pub(crate) fn flight_key(&self) -> FlightKey<'_> {
        FlightKey { scope: self.scope, request: &self.request }
    }
}

/// A message to a thread about a flight.
#[derive(Clone, Debug)]
pub(crate) enum Completion {
    /// The store's answer, whatever it says.
    Answer(Arc<[u8]>),
    /// The answer is too long to be shared.
    TooLong,
    /// This is for one of those who follow; the others ask for themselves.
    ForOneClient(Arc<[u8]>),
    /// They ask for themselves.
    Retry,
    /// There is none.
    Failed(Refusal),
    /// A refusal for the sake of the leader's tenant, which this is.
    Declined(TenantId, Refusal),
    /// The answer may be kept until then, if the version still holds.
    Cacheable(Arc<[u8]>, Nanos),
}

/// A note, and which flight it is about.
pub(crate) type MailboxMessage = (Arc<Flight>, Completion);

/// Flights by the hash of the key and the rank.
type Shard = HashMap<(u64, Rank), Arc<Flight>, FixedState>;

/// The flights of one service, for all its threads.
#[derive(Debug)]
pub(crate) struct Flights {
    hasher: FixedState,
    shards: [Mutex<Shard>; SHARDS],
    mailboxes: Vec<UnboundedSender<MailboxMessage>>,
    unread: Mutex<Vec<Option<UnboundedReceiver<MailboxMessage>>>>,
}

/// A reader's part in a flight.
#[derive(Debug)]
pub(crate) enum JoinResult {
    /// The flight is under way.
    Follower(Arc<Flight>),
    /// The reader leads a new flight.
    Leader(Box<FlightLeader>),
}

impl Flights {
    pub(crate) fn new(threads: usize, seed: u64) -> Self {
        let (mailboxes, unread) =
            (0..threads).map(|_| unbounded_channel()).map(|(to, from)| (to, Some(from))).unzip();
        let hasher = FixedState::with_seed(seed);
        let shards = std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hasher.clone())));
        Self { hasher, shards, mailboxes, unread: Mutex::new(unread) }
    }

    /// The receiver of a thread's completions; `None` if it was taken before.
    pub(crate) fn mailbox(&self, thread: usize) -> Option<UnboundedReceiver<MailboxMessage>> {
        lock(&self.unread)[thread].take()
    }

    /// One number for a question, the same in all threads.
    #[inline]
    pub(crate) fn number(&self, flight_key: FlightKey<'_>) -> u64 {
        self.hasher.hash_one(flight_key)
    }

    /// Joins a flight of this version that does not go after `rank`, or begins one with that, whose answer may
    /// be `most` bytes long.
    pub(crate) fn join(
        self: &Arc<Self>,
        flight_key: FlightKey<'_>,
        key: KeyHash,
        version: Version,
        rank: Rank,
        thread: usize,
        most: usize,
    ) -> JoinResult {
        let number = self.number(flight_key);
        let mut flights = lock(&self.shards[number as usize % SHARDS]);
        let mut under_way = rank.not_after().filter_map(|rank| flights.get(&(number, rank)));
        let is_same = |flight: &&Arc<Flight>| flight.version == version && flight.flight_key() == flight_key;
        if let Some(flight) = under_way.find(is_same) {
            lock(&flight.threads).push(thread);
            return JoinResult::Follower(Arc::clone(flight));
        }
        let flight = Arc::new(Flight {
            scope: flight_key.scope,
            request: flight_key.request.into(),
            key,
            version,
            rank,
            threads: Mutex::new(vec![thread]),
        });
        // An older version's flight completes by itself; no request joins it any more.
        flights.insert((number, rank), Arc::clone(&flight));
        let flights = Arc::clone(self);
        let received = Vec::new();
        let for_one = false;
        let complete_followers = false;
        JoinResult::Leader(Box::new(FlightLeader {
            flights,
            flight,
            received,
            most,
            for_one,
            complete_followers,
        }))
    }

    /// Ends a flight. Returns which threads follow it.
    fn end(&self, flight: &Arc<Flight>) -> Vec<usize> {
        let number = self.number(flight.flight_key());
        let mut flights = lock(&self.shards[number as usize % SHARDS]);
        let place = (number, flight.rank);
        if flights.get(&place).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            flights.remove(&place);
        }
        std::mem::take(&mut lock(&flight.threads))
    }

    fn post(&self, threads: &[usize], flight: &Arc<Flight>, note: &Completion) {
        for (seq, &thread) in threads.iter().enumerate() {
            // The thread that leads is the first.
            let note = if seq > 0 && matches!(note, Completion::ForOneClient(_)) {
                &Completion::Retry
            } else {
                note
            };
            // A thread that has ended has no followers.
            let _ = self.mailboxes[thread].send((Arc::clone(flight), note.clone()));
        }
    }
}

/// The read that goes to the store.
#[derive(Debug)]
pub(crate) struct FlightLeader {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    received: Vec<u8>,
    most: usize,
    for_one: bool,
    complete_followers: bool,
}

impl FlightLeader {
    /// Which flight it leads.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The answer is for one reader alone, who gets it however long it is.
    pub(crate) fn is_for_one_client(&mut self) {
        (self.for_one, self.most) = (true, usize::MAX - 1);
    }

    /// A part of the answer.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        if self.received.len() <= self.most {
            self.received.extend_from_slice(&bytes[..bytes.len().min(self.most + 1 - self.received.len())]);
        }
    }

    /// The answer is whole. What it says can be kept once it is known for how long.
    pub(crate) fn finish_flight(mut self) -> Option<Box<PendingTtl>> {
        let fits = self.received.len() <= self.most;
        let answer: Arc<[u8]> = std::mem::take(&mut self.received).into();
        if self.for_one {
            self.end(&Completion::ForOneClient(answer));
            return None;
        }
        let note = if fits { Completion::Answer(Arc::clone(&answer)) } else { Completion::TooLong };
        let threads = self.end(&note);
        let flights = Arc::clone(&self.flights);
        let flight = Arc::clone(&self.flight);
        fits.then(|| Box::new(PendingTtl { flights, flight, threads, answer, ttl: Vec::new() }))
    }

    /// The answer is this, which is not kept.
    pub(crate) fn complete_with(mut self, answer: &[u8]) {
        self.end(&Completion::Answer(answer.into()));
    }

    /// There will be no answer.
    pub(crate) fn fail(mut self, refusal: Refusal) {
        self.end(&Completion::Failed(refusal));
    }

    /// This tenant, the leader's, is refused; others may still be served.
    pub(crate) fn decline(mut self, tenant: TenantId, refusal: Refusal) {
        self.end(&Completion::Declined(tenant, refusal));
    }

    fn end(&mut self, note: &Completion) -> Vec<usize> {
        self.complete_followers = true;
        let threads = self.flights.end(&self.flight);
        self.flights.post(&threads, &self.flight, note);
        threads
    }
}

impl Drop for FlightLeader {
    fn drop(&mut self) {
        if !self.complete_followers {
            self.end(&Completion::Failed(Refusal::of(Reason::StoreDown)));
        }
    }
}

/// An answer of which it is being asked how long it lives.
#[derive(Debug)]
pub(crate) struct PendingTtl {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    threads: Vec<usize>,
    /// The reply.
    pub(crate) answer: Arc<[u8]>,
    /// The store's reply to the query for its TTL.
    pub(crate) ttl: Vec<u8>,
}

impl PendingTtl {
    /// A part of what the store says of its life.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        if self.ttl.len() + bytes.len() <= MAX_TTL_LEN {
            self.ttl.extend_from_slice(bytes);
        }
    }

    /// Allows the answer to be kept until then.
    pub(crate) fn keep(self, until: Nanos) {
        self.flights.post(&self.threads, &self.flight, &Completion::Cacheable(self.answer, until));
    }
}

/// Locks a mutex even after a panic elsewhere: nothing that can panic happens within a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A key and a few numbers.
const MAX_TTL_LEN: usize = 512;
/// Enough for as many threads never to meet.
const SHARDS: usize = 16;

#[cfg(test)]
mod tests;
