//! Single flight: of the reads of a hot key that are due at once, one goes to the store.
//!
//! The first read of a key's present version leads a flight, and whoever reads the same of the same version
//! before the answer has come follows it. Flights are shared by the threads; each thread knows its own followers, the
//! flight only which threads have any. What becomes of it is posted to these.
//!
//! **Invariants.** A flight is owned by the request that leads it ([`FlightLeader`]), not by a client: it lands
//! when that is answered, refused or dropped, whatever it was, and followers are always told. A lock is
//! held for a look-up at most.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::versions::{KeyHash, Version};
use crate::protocol::Refusal;

/// What is asked, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightKey<'q> {
    /// Whose clients may have the same answer: a user, a database, a protocol version.
    pub(crate) scope: u64,
    /// The whole request. What is spelled differently is another question.
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
    /// The answer may be kept until then, if the version still holds.
    Cacheable(Arc<[u8]>, Nanos),
}

/// A note, and which flight it is about.
pub(crate) type MailboxMessage = (Arc<Flight>, Completion);

/// The flights of one service, for all its threads.
#[derive(Debug)]
pub(crate) struct Flights {
    hasher: FixedState,
    shards: [Mutex<HashMap<u64, Arc<Flight>, FixedState>>; SHARDS],
    mailboxes: Vec<UnboundedSender<MailboxMessage>>,
    unread: Mutex<Vec<Option<UnboundedReceiver<MailboxMessage>>>>,
}

/// A reader's part in a flight.
#[derive(Debug)]
pub(crate) enum JoinResult {
    /// The flight is under way.
    Follower(Arc<Flight>),
    /// It begins with this.
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

    /// What a thread hears; for the first who asks.
    pub(crate) fn mailbox(&self, thread: usize) -> Option<UnboundedReceiver<MailboxMessage>> {
        lock(&self.unread)[thread].take()
    }

    /// One number for a question, the same in all threads.
    #[inline]
    pub(crate) fn number(&self, flight_key: FlightKey<'_>) -> u64 {
        self.hasher.hash_one(flight_key)
    }

    /// Joins a flight of this version, or begins one whose answer may be `most` bytes long.
    pub(crate) fn join(
        self: &Arc<Self>,
        flight_key: FlightKey<'_>,
        key: KeyHash,
        version: Version,
        thread: usize,
        most: usize,
    ) -> JoinResult {
        let number = self.number(flight_key);
        let mut flights = lock(&self.shards[number as usize % SHARDS]);
        if let Some(flight) = flights.get(&number)
            && flight.version == version
            && flight.flight_key() == flight_key
        {
            lock(&flight.threads).push(thread);
            return JoinResult::Follower(Arc::clone(flight));
        }
        let flight = Arc::new(Flight {
            scope: flight_key.scope,
            request: flight_key.request.into(),
            key,
            version,
            threads: Mutex::new(vec![thread]),
        });
        // An older version's flight lands by itself; nobody joins it any more.
        flights.insert(number, Arc::clone(&flight));
        let flights = Arc::clone(self);
        let heard = Vec::new();
        let for_one = false;
        let complete_followers = false;
        JoinResult::Leader(Box::new(FlightLeader {
            flights,
            flight,
            heard,
            most,
            for_one,
            complete_followers,
        }))
    }

    /// Ends a flight. Returns which threads follow it.
    fn end(&self, flight: &Arc<Flight>) -> Vec<usize> {
        let number = self.number(flight.flight_key());
        let mut flights = lock(&self.shards[number as usize % SHARDS]);
        if flights.get(&number).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            flights.remove(&number);
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
    heard: Vec<u8>,
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
        if self.heard.len() <= self.most {
            self.heard.extend_from_slice(&bytes[..bytes.len().min(self.most + 1 - self.heard.len())]);
        }
    }

    /// The answer is whole. What it says can be kept once it is known for how long.
    pub(crate) fn finish_flight(mut self) -> Option<Box<PendingTtl>> {
        let fits = self.heard.len() <= self.most;
        let answer: Arc<[u8]> = std::mem::take(&mut self.heard).into();
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
        if self.ttl.len() + bytes.len() <= LONGEST_LIFE {
            self.ttl.extend_from_slice(bytes);
        }
    }

    /// It may be kept until then.
    pub(crate) fn keep(self, until: Nanos) {
        self.flights.post(&self.threads, &self.flight, &Completion::Cacheable(self.answer, until));
    }
}

/// What a panic elsewhere leaves is whole: nothing is done in between.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number and a few letters.
const LONGEST_LIFE: usize = 64;
/// Enough for as many threads never to meet.
const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::versions::{Marker, Versions};
    use super::*;

    const READ: FlightKey<'_> = FlightKey { scope: 0, request: b"get key\r\n" };
    const DOWN: Refusal = Refusal::after(Reason::StoreDown, Nanos(7));

    struct Scene {
        versions: Arc<Versions>,
        flights: Arc<Flights>,
        mailboxes: Vec<UnboundedReceiver<MailboxMessage>>,
    }

    impl Scene {
        fn new() -> Self {
            let flights = Arc::new(Flights::new(3, 1));
            let mailboxes = (0..3).map(|thread| flights.mailbox(thread).unwrap()).collect();
            assert!(flights.mailbox(0).is_none(), "a mailbox has one owner");
            Self { versions: Arc::new(Versions::new(1)), flights, mailboxes }
        }

        fn join(&self, flight_key: FlightKey<'_>, thread: usize) -> JoinResult {
            let key = self.versions.hash(b"key");
            self.flights.join(flight_key, key, self.versions.of(key).unwrap(), thread, 8)
        }

        fn lead(&self, thread: usize) -> FlightLeader {
            let JoinResult::Leader(leading) = self.join(READ, thread) else { panic!("it follows") };
            *leading
        }

        fn follow(&self, thread: usize) -> Arc<Flight> {
            let JoinResult::Follower(flight) = self.join(READ, thread) else { panic!("it leads") };
            flight
        }

        fn write(&self) {
            Marker::new(Arc::clone(&self.versions)).mark_all().over();
        }

        /// What each thread hears, as words.
        fn heard(&mut self) -> [Vec<String>; 3] {
            std::array::from_fn(|thread| {
                std::iter::from_fn(|| self.mailboxes[thread].try_recv().ok())
                    .map(|(_, note)| match note {
                        Completion::Answer(answer) => String::from_utf8(answer.to_vec()).unwrap(),
                        Completion::TooLong => "too long".to_owned(),
                        Completion::ForOneClient(_) => "for one".to_owned(),
                        Completion::Retry => "for another".to_owned(),
                        Completion::Failed(refusal) => format!("failed {}", refusal.retry_after.0),
                        Completion::Cacheable(answer, until) => {
                            format!("keep {} bytes until {}", answer.len(), until.0)
                        }
                    })
                    .collect()
            })
        }
    }

    fn words(words: [&[&str]; 3]) -> [Vec<String>; 3] {
        words.map(|words| words.iter().map(|&word| word.to_owned()).collect())
    }

    #[test]
    fn one_leads_and_every_thread_that_follows_hears_of_it_once() {
        let mut scene = Scene::new();
        let mut leading = scene.lead(1);
        let flight = scene.follow(0);
        assert!(Arc::ptr_eq(leading.flight(), &flight));
        leading.read(b"ans");
        leading.read(b"wer");
        let keeping = leading.finish_flight().unwrap();
        assert_eq!(scene.heard(), words([&["answer"], &["answer"], &[]]));
        keeping.keep(Nanos(9));
        assert_eq!(scene.heard(), words([&["keep 6 bytes until 9"], &["keep 6 bytes until 9"], &[]]));
        // It has landed: the next one leads.
        scene.lead(2);
    }

    #[test]
    fn what_is_asked_otherwise_or_by_others_is_another_flight() {
        let scene = Scene::new();
        let _leading = scene.lead(0);
        for other in [FlightKey { scope: 1, ..READ }, FlightKey { request: b"get  key\r\n", ..READ }] {
            assert!(matches!(scene.join(other, 1), JoinResult::Leader(_)), "{other:?}");
        }
    }

    #[test]
    fn nobody_joins_a_flight_of_an_older_version_and_it_lands_all_the_same() {
        let mut scene = Scene::new();
        let old = scene.lead(0);
        scene.write();
        let new = scene.lead(1);
        let _ = scene.follow(2);
        old.complete_with(b"old");
        assert_eq!(scene.heard(), words([&["old"], &[], &[]]));
        // The old one's end is not the new one's.
        let _ = scene.follow(0);
        new.complete_with(b"new");
        assert_eq!(scene.heard(), words([&["new"], &["new"], &["new"]]));
    }

    #[test]
    fn who_follows_hears_of_a_failure_and_of_one_that_is_forgotten() {
        let mut scene = Scene::new();
        let leading = scene.lead(0);
        let _ = scene.follow(1);
        leading.fail(DOWN);
        assert_eq!(scene.heard(), words([&["failed 7"], &["failed 7"], &[]]));
        drop(scene.lead(0));
        assert_eq!(scene.heard(), words([&["failed 20000000"], &[], &[]]));
        scene.lead(1);
    }

    #[test]
    fn what_is_for_one_reader_is_heard_in_one_thread_however_long_and_is_not_kept() {
        let mut scene = Scene::new();
        let mut leading = scene.lead(1);
        let _ = (scene.follow(0), scene.follow(2));
        leading.is_for_one_client();
        leading.read(b"longer than what is shared");
        assert_eq!(leading.heard.len(), 26);
        assert!(leading.finish_flight().is_none());
        assert_eq!(scene.heard(), words([&["for another"], &["for one"], &["for another"]]));
        scene.lead(0);
    }

    #[test]
    fn an_answer_that_is_too_long_is_not_gathered() {
        let mut scene = Scene::new();
        let mut leading = scene.lead(0);
        (0..1_000).for_each(|_| leading.read(b"12345"));
        assert!(leading.heard.capacity() < 64);
        assert!(leading.finish_flight().is_none());
        assert_eq!(scene.heard(), words([&["too long"], &[], &[]]));
        let mut leading = scene.lead(0);
        leading.read(b"12345678");
        assert!(leading.finish_flight().is_some(), "as long as may be");
    }
}
