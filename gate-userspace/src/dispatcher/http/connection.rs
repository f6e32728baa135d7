//! The state of a client's connection, as its requests, its task and the upkeep share it.
//!
//! **Timeouts.** The head of a request must be complete `client_timeout` after its first byte. A connection without a request
//! is closed after `idle_timeout`, one of HTTP/2, which can say so, after `client_timeout` at the latest, and one of an
//! unknown source after `unknown_timeout`, whatever it sends.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use gate_common::units::Nanos;

use super::head::BUFFER;
use super::unread::{Readers, Reading, Unread};
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::memory_budget::MemoryShare;
use crate::dispatcher::clients::slots::Slot;
use crate::dispatcher::settings::Limits;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::tenants::usage::UsageGuard;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The address that it comes from.
    pub(super) source: IpAddr,
    /// True if its word counts on where a request comes from, and whose it is.
    pub(super) is_trusted: bool,
    /// The tenant that it counts for.
    pub(super) tenant: Cell<TenantId>,
    /// Its slot, and its part of what its tenant may have open.
    pub(super) slot: RefCell<Option<Slot>>,
    pub(super) share: RefCell<Option<UsageGuard>>,
    /// The memory that it takes beside its requests.
    pub(super) memory: MemoryShare,
    /// The round in which one of its requests was refused last.
    pub(super) last_refused: Cell<Option<u32>>,
    begun: Nanos,
    /// Requests that are not answered.
    in_flight: Cell<usize>,
    /// True if something has been read since there was a request, and since when that is known.
    has_read: Cell<bool>,
    /// Bytes that were read since, and those that its socket takes.
    unused: Cell<usize>,
    /// True once a part of a request's body is left unread: it has no next request.
    leaves_unread: Cell<bool>,
    of_socket: Cell<usize>,
    is_secure: Cell<bool>,
    reading_since: Cell<Option<Nanos>>,
    quiet_since: Cell<Option<Nanos>>,
    /// The first bytes, until it is known which version they are of.
    is_http2: Cell<Option<bool>>,
    /// Why it ends, or that it accepts no more requests.
    ended: Cell<Option<CloseCause>>,
    drains: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    readers: Readers,
    /// The part of what was written that the client has not read.
    pub(super) unread: Unread,
    /// Requests that wait for the next round, and who reads then.
    held: Cell<usize>,
    reader: RefCell<Option<Waker>>,
}

/// A request that waits for the next round, as long as this is there.
#[derive(Debug)]
pub(super) struct ReadPause(Rc<Connection>);

/// A request of a connection that is not answered, as long as this is there.
#[derive(Debug)]
pub(super) struct InFlight(Rc<Connection>);

impl Connection {
    pub(super) fn new(
        source: IpAddr,
        is_trusted: bool,
        tenant: TenantId,
        memory: MemoryShare,
        now: Nanos,
    ) -> Self {
        Self {
            source,
            is_trusted,
            tenant: Cell::new(tenant),
            slot: RefCell::default(),
            share: RefCell::default(),
            memory,
            last_refused: Cell::new(None),
            begun: now,
            in_flight: Cell::new(0),
            has_read: Cell::new(false),
            unused: Cell::new(0),
            leaves_unread: Cell::new(false),
            of_socket: Cell::new(0),
            is_secure: Cell::new(false),
            reading_since: Cell::new(None),
            quiet_since: Cell::new(Some(now)),
            is_http2: Cell::new(None),
            ended: Cell::new(None),
            drains: Cell::new(false),
            waker: RefCell::default(),
            readers: Readers::default(),
            unread: Unread::default(),
            held: Cell::new(0),
            reader: RefCell::default(),
        }
    }

    /// True if no tenant can be named by it, nor by a field of its requests.
    pub(super) fn is_unknown(&self) -> bool {
        self.tenant.get() == TenantId::UNKNOWN && !self.is_trusted
    }

    /// One more of its requests.
    pub(super) fn request(self: &Rc<Self>) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        self.has_read.set(false);
        self.reading_since.set(None);
        self.quiet_since.set(None);
        self.unused.set(0);
        self.note_memory();
        InFlight(Rc::clone(self))
    }

    /// Has it not be read while one of its requests waits, unless it is many tenants'.
    pub(super) fn pause_reads(self: &Rc<Self>) -> ReadPause {
        self.held.set(self.held.get() + 1);
        ReadPause(Rc::clone(self))
    }

    /// True while it is not read; its reader is woken afterwards.
    pub(super) fn poll_paused(&self, cx: &Context<'_>) -> bool {
        let is_held = self.held.get() > 0 && !self.is_trusted;
        if is_held {
            *self.reader.borrow_mut() = Some(cx.waker().clone());
        }
        is_held
    }

    /// Notes that it speaks TLS, or is about to.
    pub(super) fn set_secure(&self) {
        self.is_secure.set(true);
    }

    /// Notes that its socket takes so much memory, in bytes.
    pub(super) fn note_socket(&self, bytes: usize) {
        self.of_socket.set(bytes);
        self.note_memory();
    }

    /// True if it speaks TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.is_secure.get()
    }

    /// Counts what it holds; ends it if a head that has not come whole is more than there is memory for.
    fn note_memory(&self) {
        let unused = Some(self.unused.get()).filter(|&unused| unused > FREE).unwrap_or(0);
        self.memory.note(self.of_socket.get() + unused.min(BUFFER));
        if unused > 0 && self.memory.is_exceeded() {
            self.end(CloseCause::SlowWriter);
        }
    }

    /// Notes what has been read from its stream; not empty.
    pub(super) fn on_read(&self, bytes: &[u8]) {
        self.has_read.set(true);
        if self.in_flight.get() == 0 {
            self.unused.set(self.unused.get().saturating_add(bytes.len()));
            self.note_memory();
        }
        if self.is_http2.get().is_none() {
            let len = bytes.len().min(PREFACE.len());
            self.is_http2.set(Some(bytes[..len] == PREFACE[..len]));
        }
    }

    /// Notes that a part of a request's body is left unread. Over HTTP/2 that concerns its stream alone.
    pub(super) fn leave_unread(&self) {
        self.leaves_unread.set(self.is_http2.get() != Some(true));
    }

    /// True if it has no next request, since a part of the last one's body is left unread.
    pub(super) const fn leaves_unread(&self) -> bool {
        self.leaves_unread.get()
    }

    /// Ends it at once.
    pub(super) fn end(&self, why: CloseCause) {
        if self.ended.get().is_none() {
            if why == CloseCause::SlowReader {
                self.unread.give_up();
            }
            self.ended.set(Some(why));
            self.wake();
        }
    }

    /// Ends it, and counts its memory as free.
    pub(super) fn end_for_memory(&self) {
        self.end(CloseCause::Idle);
        self.of_socket.set(0);
        self.memory.note(0);
    }

    /// True while it has no request, and has not ended.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.get() == 0 && self.ended.get().is_none()
    }

    /// Since when it has had no request, as far as that is known; the latest for one that has just had one.
    pub(super) fn idle_since(&self) -> Nanos {
        self.quiet_since.get().unwrap_or(Nanos(u64::MAX))
    }

    /// Has it accept no more requests.
    pub(super) fn drain(&self) {
        if !self.drains.replace(true) {
            self.wake();
        }
    }

    /// Why it has ended, if it has.
    pub(super) const fn ended(&self) -> Option<CloseCause> {
        self.ended.get()
    }

    /// Why it has ended, if it has; and true if it is to accept no more requests. Its task is woken when that changes.
    pub(super) fn poll_state(&self, cx: &Context<'_>) -> (Option<CloseCause>, bool) {
        let is_same = self.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if !is_same {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        (self.ended.get(), self.drains.get())
    }

    /// Why it has ended, once it has.
    pub(super) fn poll_ended(&self, cx: &Context<'_>) -> Poll<CloseCause> {
        self.poll_state(cx).0.map_or(Poll::Pending, Poll::Ready)
    }

    /// Ends it if it is slow, idle or unknown for too long.
    pub(super) fn check_timeout(&self, limits: &Limits, now: Nanos) {
        if self.is_unknown() && now.saturating_sub(self.begun) > limits.unknown_timeout {
            return self.end(CloseCause::Idle);
        }
        if self.unread.is_stalled(limits.client_timeout, now)
            || self.readers.has_slow(limits.client_timeout, now)
        {
            return self.end(CloseCause::SlowReader);
        }
        if self.in_flight.get() > 0 {
            return;
        }
        let since = |cell: &Cell<Option<Nanos>>| {
            let since = cell.get().unwrap_or(now);
            cell.set(Some(since));
            now.saturating_sub(since)
        };
        let quiet = since(&self.quiet_since);
        if self.is_http2.get() == Some(true) {
            let most =
                limits.idle_timeout.map_or(limits.client_timeout, |idle| idle.min(limits.client_timeout));
            if quiet > most {
                self.drain();
            }
            // A client that does not heed it has no more to say.
            if quiet > most.saturating_add(limits.client_timeout) {
                self.end(CloseCause::Idle);
            }
            return;
        }
        if self.has_read.get() {
            if since(&self.reading_since) > limits.client_timeout {
                self.end(CloseCause::SlowWriter);
            }
        } else if limits.idle_timeout.is_some_and(|idle| quiet > idle) {
            self.end(CloseCause::Idle);
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl InFlight {
    /// True if its connection carries several requests at a time, of which each may be read or not.
    pub(super) fn is_http2(&self) -> bool {
        self.0.is_http2.get() == Some(true)
    }

    /// Its client begins to read an answer.
    pub(super) fn reading(&self, now: Nanos) -> Reading {
        self.0.readers.begin(now)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        // What came with the request was its body.
        self.0.has_read.set(false);
    }
}

impl Drop for ReadPause {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
        let reader = if self.0.held.get() == 0 { self.0.reader.take() } else { None };
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The first bytes of HTTP/2, by which it is told from HTTP/1.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The bytes that every connection may have read without a request: those that hyper's buffer begins with.
const FREE: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::dispatcher::clients::memory_budget::{ClientMemory, MemoryLimits};

    fn limits() -> Limits {
        let text = "[gate]\nxdp = \"off\"\n[[service]]\nname = \"a\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:1\"\n\
                    backend = \"127.0.0.1:2\"\nclient_timeout = \"2s\"\nidle_timeout = \"9s\"\nunknown_timeout = \"5s\"\n\
                    [[tenant]]\nname = \"t\"\nsources = [\"10.0.0.0/8\"]\nquota = \"unlimited\"\n";
        let config = Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"));
        Limits::of(config.services[0].backend.as_ref().unwrap(), None)
    }

    const fn at(secs: u64) -> Nanos {
        Nanos::from_secs(secs)
    }

    fn client(tenant: u32) -> Rc<Connection> {
        client_with(tenant, MemoryLimits { all: 1 << 20, tenant: 1 << 20 })
    }

    fn client_with(tenant: u32, limits: MemoryLimits) -> Rc<Connection> {
        let tenant = TenantId(tenant);
        let memory = MemoryShare::new(&Rc::new(ClientMemory::new(Arc::default(), 1, limits)), tenant);
        Rc::new(Connection::new("10.0.0.1".parse().unwrap(), false, tenant, memory, at(0)))
    }

    #[test]
    fn a_head_takes_memory_until_it_is_whole() {
        let client = client_with(1, MemoryLimits { all: 20_000, tenant: 20_000 });
        client.on_read(&[b'x'; FREE]);
        assert_eq!(client.memory.bytes(), 0, "what every connection has");
        client.on_read(&[b'x'; 8_000]);
        assert_eq!(client.memory.bytes(), FREE + 8_000);
        let answered = client.request();
        client.on_read(&[b'x'; 30_000]);
        assert_eq!(client.memory.bytes(), 0, "bodies count for their requests");
        drop(answered);
        client.on_read(&[b'x'; 20_000]);
        assert_eq!(client.ended.get(), None);
        client.on_read(b"x");
        assert_eq!(client.ended.get(), Some(CloseCause::SlowWriter));
        let endless = client_with(1, MemoryLimits { all: 1 << 20, tenant: 1 << 20 });
        (0..100).for_each(|_| endless.on_read(&[b'x'; 30_000]));
        assert_eq!(endless.memory.bytes(), BUFFER, "no head is longer");
    }

    #[test]
    fn a_held_connection_is_read_again_once_nothing_waits() {
        let client = client(1);
        let cx = Context::from_waker(Waker::noop());
        let held = [client.pause_reads(), client.pause_reads()];
        assert!(client.poll_paused(&cx));
        let [first, second] = held;
        drop(first);
        assert!(client.poll_paused(&cx) && client.reader.borrow().is_some());
        drop(second);
        assert!(!client.poll_paused(&cx) && client.reader.borrow().is_none());
    }

    #[test]
    fn a_head_that_comes_too_slowly_ends_its_connection() {
        let client = client(1);
        let limits = limits();
        let answered = client.request();
        client.on_read(b"GET");
        client.check_timeout(&limits, at(10));
        drop(answered);
        client.check_timeout(&limits, at(18));
        assert_eq!(client.ended.get(), None, "it has said nothing since");
        for now in 18..=20 {
            client.on_read(b"G");
            client.check_timeout(&limits, at(now));
            assert_eq!(client.ended.get(), None, "{now}");
        }
        client.check_timeout(&limits, at(21));
        assert_eq!(client.ended.get(), Some(CloseCause::SlowWriter));
    }

    #[test]
    fn a_client_that_does_not_read_on_is_closed() {
        let limits = limits();
        let client = client(1);
        let answered = client.request();
        let slow = answered.reading(at(0));
        let quick = answered.reading(at(0));
        for now in 1..=2 {
            quick.progress(at(now));
            client.check_timeout(&limits, at(now));
            assert_eq!(client.ended.get(), None, "{now}");
        }
        slow.progress(at(2));
        quick.pause();
        client.check_timeout(&limits, at(4));
        assert_eq!(client.ended.get(), None);
        client.check_timeout(&limits, at(5));
        assert_eq!(client.ended.get(), Some(CloseCause::SlowReader));
    }

    #[test]
    fn idle_and_unknown_clients_are_closed_in_time() {
        let limits = limits();
        for (tenant, last, cause) in [(1, 9, CloseCause::Idle), (0, 5, CloseCause::Idle)] {
            let client = client(tenant);
            client.check_timeout(&limits, at(last));
            assert_eq!(client.ended.get(), None);
            client.check_timeout(&limits, at(last + 1));
            assert_eq!(client.ended.get(), Some(cause));
        }
        let other = client(1);
        other.on_read(b"PROPFIND / HTTP/1.1");
        other.check_timeout(&limits, at(3));
        assert!(!other.drains.get(), "it speaks HTTP/1.1");
        let http2 = client(1);
        http2.on_read(b"PRI * HTTP/2.0");
        http2.check_timeout(&limits, at(3));
        assert!(http2.drains.get() && http2.ended.get().is_none(), "it is asked to go first");
        http2.check_timeout(&limits, at(5));
        assert_eq!(http2.ended.get(), Some(CloseCause::Idle));
    }
}
