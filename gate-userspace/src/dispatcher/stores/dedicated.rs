//! A connection to the store that is set up for one client, and asked one thing at a time.
//!
//! One that has been asked what it was made for is used again: `RESET` makes it as it was at first. So clients that
//! come, log in and go cost the store no connections but gate's own. `RESET` is sent when the connection is used again and
//! not when it is put by: Redis treats it from then on as one that was made at that moment, and a password may have been set
//! or removed in between.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::StoreError;
use super::health::Health;
use crate::clock;
use crate::config::Protocol;
use crate::dispatcher::identity::{Identity, memcached_login};
use crate::dispatcher::listen::keep_alive;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::wire::MalformedReply;
use crate::protocol::resp::{Kind, Part, Replies, error_code};

/// A connection that nobody shares yet.
#[derive(Debug)]
pub(crate) struct DedicatedConnection {
    socket: TcpStream,
    patience: Duration,
    replies: Replies,
    heard: Vec<u8>,
    /// `RESET` has been sent, and its answer not been read.
    resets: bool,
    /// The store has answered something on it.
    has_answered: bool,
    /// The generation of the kept connections when it was made.
    generation: u64,
}

/// Connections that wait to be used again, and who may have a new one.
///
/// **A hung store** accepts connections and says nothing. So a new one counts as being made until the store has
/// answered something on it; so many are at a time, and whoever comes meanwhile waits for one of them. When one fails
/// everyone is refused for a pause, as on shared connections ([`Health`]).
///
/// **One is ready** for the identity that was asked for last, set up and without a word to be said. So a request that
/// needs a dedicated connection is sent at once, and no later request of another client overtakes it.
#[derive(Debug)]
pub(crate) struct IdleConnections {
    kept: RefCell<Vec<Idle>>,
    /// The identity that was asked for last.
    wanted: RefCell<Identity>,
    /// Raised when kept connections are forgotten.
    generation: Cell<u64>,
    health: RefCell<Health>,
    /// Those that may be made now; whoever holds one makes it.
    making: Semaphore,
    /// Clients that wait for a connection, or make one.
    waiting: Cell<usize>,
    /// True while one is made ready.
    preparing: Cell<bool>,
    /// When the next one may be made ready: later after a failure.
    prepare_at: Cell<Nanos>,
    /// Whether they have been somebody's, and must be made nobody's first.
    resets: bool,
}

/// A connection that no client has.
#[derive(Debug)]
struct Idle {
    connection: DedicatedConnection,
    /// The identity that it is set up for; `None` if it is still set up for whoever had it last.
    ready_for: Option<Identity>,
}

impl IdleConnections {
    /// None yet, to a store that has users or not.
    pub(crate) fn new(has_users: bool) -> Self {
        Self {
            kept: RefCell::default(),
            wanted: RefCell::default(),
            generation: Cell::new(0),
            health: RefCell::new(Health::new()),
            making: Semaphore::new(MOST_MAKING),
            waiting: Cell::new(0),
            preparing: Cell::new(false),
            prepare_at: Cell::new(Nanos::ZERO),
            resets: has_users,
        }
    }

    /// A connection to be the client's for long, as [`IdleConnections::take`]. Does not wait if one is ready.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`].
    pub(crate) async fn take_dedicated(
        &self,
        settings: &Settings,
        identity: &Identity,
    ) -> Result<DedicatedConnection, StoreError> {
        if !self.wanted.borrow().is_same(identity) {
            self.wanted.borrow_mut().clone_from(identity);
        }
        let is_there = |connection: &DedicatedConnection| {
            connection.socket.peer_addr().is_ok_and(|address| settings.store.is_current(address))
        };
        if let Some(connection) = self.take_ready(identity).filter(is_there) {
            self.check()?;
            return Ok(connection);
        }
        self.take(settings, identity).await
    }

    /// A connection for a client that is `identity`, for one login or one long request.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`].
    pub(crate) async fn take(
        &self,
        settings: &Settings,
        identity: &Identity,
    ) -> Result<DedicatedConnection, StoreError> {
        let generation = self.generation.get();
        let mut connection = self
            .admit(async {
                let kept = {
                    let kept = &mut *self.kept.borrow_mut();
                    let used = kept.iter().rposition(|idle| idle.ready_for.is_none());
                    used.map(|index| kept.swap_remove(index).connection)
                };
                if let Some(connection) = kept {
                    let connection = match self.resets {
                        true => connection.anew(settings, identity).await,
                        false => connection.again(settings, identity).await,
                    };
                    if connection.is_ok() {
                        return connection;
                    }
                }
                // Whatever was wrong with it: a new one tells for certain.
                DedicatedConnection::open_answering(settings, identity).await
            })
            .await?;
        connection.generation = generation;
        Ok(connection)
    }

    /// A connection that is set up for `identity`.
    fn take_ready(&self, identity: &Identity) -> Option<DedicatedConnection> {
        let is_ready = |idle: &Idle| idle.ready_for.as_ref().is_some_and(|ready| ready.is_same(identity));
        let kept = &mut *self.kept.borrow_mut();
        while let Some(index) = kept.iter().rposition(is_ready) {
            let connection = kept.swap_remove(index).connection;
            if connection.is_silent() {
                return Some(connection);
            }
        }
        None
    }

    /// True if no connection is ready for the identity that was asked for last, and the store takes new ones.
    pub(crate) fn wants_ready(&self) -> bool {
        if self.preparing.get() || clock::monotonic() < self.prepare_at.get() {
            return false;
        }
        let kept = &mut *self.kept.borrow_mut();
        kept.retain(|idle| idle.ready_for.is_none() || idle.connection.is_silent());
        let wanted = self.wanted.borrow();
        let is_ready = |idle: &Idle| idle.ready_for.as_ref().is_some_and(|ready| ready.is_same(&wanted));
        kept.len() < MOST_KEPT && !kept.iter().any(is_ready) && self.check().is_ok()
    }

    /// Makes a connection ready.
    pub(crate) async fn prepare(&self, settings: &Settings) {
        self.preparing.set(true);
        let wanted = self.wanted.borrow().clone();
        let generation = self.generation.get();
        match self.admit(DedicatedConnection::open_answering(settings, &wanted)).await {
            Ok(mut connection) => {
                connection.generation = generation;
                self.give_back(connection, wanted);
            }
            Err(error) => {
                self.prepare_at.set(clock::monotonic().saturating_add(PREPARE_AGAIN));
                // Its login may have changed.
                if let StoreError::Refused(_) = error {
                    *self.wanted.borrow_mut() = Identity::default();
                }
            }
        }
        self.preparing.set(false);
    }

    /// Keeps a connection of `identity` that has nothing outstanding, and keeps no state.
    pub(crate) fn give_back(&self, connection: DedicatedConnection, identity: Identity) {
        let kept = &mut *self.kept.borrow_mut();
        let is_current = connection.generation == self.generation.get();
        if is_current && kept.len() < MOST_KEPT && connection.is_silent() {
            kept.push(Idle { connection, ready_for: Some(identity) });
        }
    }

    /// Notes that the store has not answered in time over one of them.
    pub(crate) fn failed(&self) {
        self.health.borrow_mut().failed(clock::monotonic());
    }

    /// Asks the store something on one of them, which must not take forever either: what `asking` says.
    ///
    /// # Errors
    ///
    /// Those of `asking`; [`StoreError::Down`] where the store has just failed.
    pub(crate) async fn admit<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.check()?;
        let _waits = Waits::new(&self.waiting);
        // It is never closed.
        let _makes = self.making.acquire().await.map_err(|_| StoreError::Closed)?;
        // Those before may have found out that there is no use.
        self.check()?;
        let asked = asking.await;
        let health = &mut *self.health.borrow_mut();
        match &asked {
            Ok(_) => {
                health.connected(clock::monotonic());
                health.answered();
            }
            Err(StoreError::Io(_) | StoreError::TimedOut) => {
                health.failed(clock::monotonic());
            }
            // A client may have brought that about.
            Err(_) => {}
        }
        asked
    }

    /// Whether the store is worth one more try.
    ///
    /// # Errors
    ///
    /// [`StoreError::Down`] where it has just failed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let (now, health) = (clock::monotonic(), &mut *self.health.borrow_mut());
        if self.waiting.get() == 0 {
            health.idle(now);
        }
        if health.may_be_tried(now) {
            health.retry();
            health.connected(now);
        }
        health.accepts(self.waiting.get(), now).map_err(|retry_after| StoreError::Down { retry_after })
    }

    /// Forgets those that are kept: the store may not accept them any more.
    pub(crate) fn clear(&self) {
        self.generation.set(self.generation.get() + 1);
        self.kept.borrow_mut().clear();
    }

    /// Keeps a connection whose replies have all been read, for any identity.
    pub(crate) fn keep(&self, connection: DedicatedConnection) {
        let kept = &mut *self.kept.borrow_mut();
        if kept.len() < MOST_KEPT && connection.heard.is_empty() {
            kept.push(Idle { connection, ready_for: None });
        }
    }
}

/// One more client that waits, for as long as this is there.
struct Waits<'l>(&'l Cell<usize>);

impl<'l> Waits<'l> {
    fn new(count: &'l Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DedicatedConnection {
    /// A new connection on which the store has answered.
    async fn open_answering(settings: &Settings, identity: &Identity) -> Result<Self, StoreError> {
        let mut line = Self::open(settings, identity).await?;
        if !line.has_answered {
            let probe: &[u8] = match settings.protocol {
                Protocol::Memcached => b"version\r\n",
                Protocol::Resp | Protocol::Opaque => b"PING\r\n",
            };
            line.ask_line(probe).await?;
        }
        Ok(line)
    }

    /// A new connection of a client that is `identity`.
    ///
    /// # Errors
    ///
    /// If it cannot be had in time, or the store does not accept the identity ([`StoreError::Refused`]).
    pub(crate) async fn open(settings: &Settings, identity: &Identity) -> Result<Self, StoreError> {
        let patience = settings.store_timeout().into();
        let socket = timeout(patience, connect(settings)).await.map_err(|_| StoreError::TimedOut)??;
        socket.set_nodelay(true)?;
        keep_alive(&socket)?;
        let mut this = Self {
            socket,
            patience,
            replies: Replies::new(LONGEST),
            heard: Vec::new(),
            resets: false,
            has_answered: false,
            generation: 0,
        };
        this.greet(settings, identity).await?;
        Ok(this)
    }

    /// True if the connection is open, and nothing has come that nobody has read.
    fn is_silent(&self) -> bool {
        let read = self.socket.try_read(&mut [0]);
        self.heard.is_empty() && matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// The same connection, from the start.
    async fn again(mut self, settings: &Settings, identity: &Identity) -> Result<Self, StoreError> {
        if self.socket.peer_addr().is_ok_and(|address| !settings.store.is_current(address)) {
            return Err(StoreError::Moved);
        }
        self.greet(settings, identity).await?;
        // It may have been closed since, behind the answer to what was said last.
        match self.socket.try_read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(self),
            Err(error) => Err(error.into()),
            Ok(0) => Err(StoreError::Closed),
            Ok(_) => Err(StoreError::Unasked),
        }
    }

    /// The same connection as a new one of a client that is `identity`.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`]; and if the store does not know `RESET`.
    pub(crate) async fn anew(mut self, settings: &Settings, identity: &Identity) -> Result<Self, StoreError> {
        self.socket.write_all(RESET).await?;
        self.resets = true;
        self.again(settings, identity).await
    }

    /// Makes `WAIT` on this connection count all that has been written so far, over whichever connection.
    ///
    /// Redis waits for the replication offset that was reached when the connection's last command had run, and since 7.2
    /// for that of its last write. There a message to nobody is the write: it is replicated, and changes nothing.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::ask`].
    pub(crate) async fn adopt_writes(&mut self) -> Result<(), StoreError> {
        let info = self.ask(b"INFO server\r\n").await?;
        if redis_version(&info).is_none_or(|version| version >= LAST_WRITE_COUNTS) {
            self.ask(MESSAGE_TO_NOBODY).await?;
        }
        self.ask(b"PING\r\n").await?;
        Ok(())
    }

    /// Its socket, for one request that is passed on piece by piece, and its answer.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Sends one request; what is answered, whole.
    ///
    /// # Errors
    ///
    /// If no answer comes in time.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.socket.write_all(request).await?;
        self.reply().await
    }

    /// The connection, of which nothing is outstanding.
    pub(crate) fn into_socket(self) -> TcpStream {
        self.socket
    }

    async fn greet(&mut self, settings: &Settings, identity: &Identity) -> Result<(), StoreError> {
        if settings.protocol == Protocol::Memcached {
            return self.log_in(settings).await;
        }
        let greeting = identity.greeting(settings.backend.login.as_ref())?;
        self.socket.write_all(greeting.bytes.bytes()).await?;
        if std::mem::take(&mut self.resets) && self.reply().await? != b"+RESET\r\n" {
            return Err(StoreError::Unasked);
        }
        for left in (0..greeting.requests).rev() {
            let reply = self.reply().await?;
            // That a connection cannot be named harms nobody.
            if error_code(&reply).is_some() && !(greeting.named && left == 0) {
                return Err(refused(reply));
            }
        }
        Ok(())
    }

    /// Logs in to memcached, once, if it wants that. It takes the first `set` of a connection for a login; without a list of
    /// users it would keep the password as a value, so it is asked before.
    async fn log_in(&mut self, settings: &Settings) -> Result<(), StoreError> {
        let Some(login) = settings.backend.login.as_ref().filter(|_| !self.has_answered) else {
            return Ok(());
        };
        let answer = self.ask_line(b"version\r\n").await?;
        if answer != b"CLIENT_ERROR unauthenticated\r\n" {
            return Ok(());
        }
        match self.ask_line(memcached_login(login)?.bytes()).await? {
            answer if answer == b"STORED\r\n" => Ok(()),
            answer => Err(StoreError::Unhealthy(String::from_utf8_lossy(&answer).into_owned())),
        }
    }

    /// The line that answers a request, in time.
    async fn ask_line(&mut self, request: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut answer = Vec::new();
        timeout(self.patience, async {
            self.socket.write_all(request).await?;
            while !answer.ends_with(b"\n") && answer.len() < LONGEST_PROBE_ANSWER {
                if self.socket.read_buf(&mut answer).await? == 0 {
                    return Err(StoreError::Closed);
                }
            }
            Ok(())
        })
        .await
        .map_err(|_| StoreError::TimedOut)??;
        self.has_answered = true;
        Ok(answer)
    }

    /// The next reply, in time.
    async fn reply(&mut self) -> Result<Vec<u8>, StoreError> {
        timeout(self.patience, self.read_reply()).await.map_err(|_| StoreError::TimedOut)?
    }

    async fn read_reply(&mut self) -> Result<Vec<u8>, StoreError> {
        loop {
            let part =
                self.replies.next(&self.heard).map_err(|garbage| MalformedReply(garbage.to_string()))?;
            match part {
                Part::More { .. } => {
                    if self.socket.read_buf(&mut self.heard).await? == 0 {
                        return Err(StoreError::Closed);
                    }
                }
                Part::Reply { len, kind: Kind::Push, last: true } => drop(self.heard.drain(..len)),
                Part::Reply { len, last: true, .. } => {
                    self.has_answered = true;
                    return Ok(self.heard.drain(..len).collect());
                }
                Part::Reply { .. } | Part::Body { .. } => {
                    return Err(MalformedReply("an answer that is too long".to_owned()).into());
                }
            }
        }
    }
}

/// Connects to the first of the store's addresses that accepts it. No address takes the time of those behind it.
async fn connect(settings: &Settings) -> Result<TcpStream, StoreError> {
    let addresses = settings.store.addresses().await;
    let share = Duration::from(settings.store_timeout()) / addresses.len().max(1) as u32;
    let mut failed = StoreError::Unresolved;
    for address in addresses {
        failed = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error.into(),
            Err(_) => StoreError::TimedOut,
        };
    }
    Err(failed)
}

/// What an error in answer to a greeting means: that the store is not ready now, or that this is no way to greet it.
fn refused(reply: Vec<u8>) -> StoreError {
    let passing = matches!(error_code(&reply), Some(b"LOADING" | b"MASTERDOWN" | b"BUSY" | b"TRYAGAIN"));
    if passing || reply.starts_with(b"-ERR max number of clients") {
        return StoreError::Unhealthy(String::from_utf8_lossy(&reply).into_owned());
    }
    StoreError::Refused(reply)
}

/// The first two numbers of the version that a store says of itself.
fn redis_version(info: &[u8]) -> Option<(u32, u32)> {
    const NAME: &[u8] = b"redis_version:";
    let at = memchr::memmem::find(info, NAME)? + NAME.len();
    let mut numbers = std::str::from_utf8(info[at..].split(|&byte| byte == b'\r').next()?).ok()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The version since which `WAIT` is about a connection's last write.
const LAST_WRITE_COUNTS: (u32, u32) = (7, 2);
const MESSAGE_TO_NOBODY: &[u8] = b"*3\r\n$7\r\nPUBLISH\r\n$9\r\ngate:wait\r\n$0\r\n\r\n";
/// Connections of a thread that are being made at once: enough for any store that answers.
const MOST_MAKING: usize = 16;
const LONGEST_PROBE_ANSWER: usize = 1 << 10;
/// The pause after a connection could not be made ready.
const PREPARE_AGAIN: Nanos = Nanos::from_secs(1);
const RESET: &[u8] = b"RESET\r\n";
/// More at a time are rare: each is used for a moment, unless its client sends slowly.
const MOST_KEPT: usize = 16;
/// Answers to what is asked here are short.
const LONGEST: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::sync::Notify;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(future))
    }

    #[test]
    fn a_store_that_has_just_failed_is_not_asked() {
        run(async {
            let connections = IdleConnections::new(true);
            // The more in a row, the longer the pause.
            (0..20).for_each(|_| connections.failed());
            let asked = Cell::new(false);
            let refused = connections
                .admit(async {
                    asked.set(true);
                    Ok(())
                })
                .await;
            assert!(matches!(refused, Err(StoreError::Down { .. })), "{refused:?}");
            assert!(!asked.get());
        });
    }

    #[test]
    fn of_many_who_wait_for_a_hung_store_only_the_first_ask_it() {
        run(async {
            let connections = Rc::new(IdleConnections::new(true));
            let asked = Rc::new(Cell::new(0));
            let gives_up = Rc::new(Notify::new());
            let is_hung = Rc::new(Cell::new(true));
            let client = |_| {
                let connections = Rc::clone(&connections);
                let asked = Rc::clone(&asked);
                let gives_up = Rc::clone(&gives_up);
                let is_hung = Rc::clone(&is_hung);
                spawn_local(async move {
                    let asking = async {
                        asked.set(asked.get() + 1);
                        if is_hung.get() {
                            gives_up.notified().await;
                        }
                        Err::<(), _>(StoreError::TimedOut)
                    };
                    connections.admit(asking).await
                })
            };
            let clients: Vec<_> = (0..10 * MOST_MAKING).map(client).collect();
            while asked.get() < MOST_MAKING {
                yield_now().await;
            }
            is_hung.set(false);
            gives_up.notify_waiters();
            let mut timed_out = 0;
            for client in clients {
                match client.await.unwrap() {
                    Err(StoreError::TimedOut) => timed_out += 1,
                    refused => assert!(matches!(refused, Err(StoreError::Down { .. })), "{refused:?}"),
                }
            }
            assert_eq!((asked.get(), timed_out), (MOST_MAKING, MOST_MAKING));
        });
    }
}
