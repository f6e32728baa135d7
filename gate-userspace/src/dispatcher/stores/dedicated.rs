//! A connection to the store that is set up for one client, and asked one thing at a time.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::time::timeout;

use super::error::StoreError;
use super::socket::StoreSocket;
use crate::clock;
use crate::config::Protocol;
use crate::dispatcher::identity::{Handshake, Identity, memcached_login};
use crate::dispatcher::listen::keep_alive;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::store_place::Stream;
use crate::dispatcher::wire::MalformedReply;
use crate::protocol::resp::cluster::{self, Shard};
use crate::protocol::resp::{Kind, Part, Replies, error_code};

/// A connection that nobody shares yet.
#[derive(Debug)]
pub(crate) struct DedicatedConnection {
    /// The store that it leads to.
    pub(crate) node: NodeId,
    socket: StoreSocket,
    replies: Replies,
    unread: Vec<u8>,
    /// `RESET` has been sent, and its answer not been read.
    resets: bool,
    /// The store has answered something on it.
    has_answered: bool,
    /// The generation of the kept connections ([`super::idle_connections`]) when it was made.
    pub(crate) generation: u64,
}

impl DedicatedConnection {
    /// A new connection on which the store has answered.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`]; [`StoreError::Cluster`] if the store says that it is in cluster mode.
    pub(crate) async fn open_answering(
        settings: &Settings,
        node: NodeId,
        identity: Option<&Identity>,
    ) -> Result<Self, StoreError> {
        let steps = async {
            let mut connection = Self::open(settings, node, identity).await?;
            match settings.protocol {
                // No shared connection may have asked yet, and the store's name may have moved since one did.
                Protocol::Resp => match (connection.is_in_cluster(settings).await?, &settings.cluster) {
                    (Some(true), None) => return Err(StoreError::Cluster),
                    (Some(false), Some(_)) => return Err(StoreError::NoCluster),
                    (None, _) | (Some(true), Some(_)) | (Some(false), None) => {}
                },
                Protocol::Memcached if !connection.has_answered => {
                    connection.ask_line(settings, b"version\r\n").await?;
                }
                Protocol::Memcached | Protocol::Opaque | Protocol::Http => {}
            }
            Ok(connection)
        };
        in_time(settings, node, steps).await
    }

    /// True if the store is in cluster mode; `None` if its user may not ask.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::ask`].
    pub(crate) async fn is_in_cluster(&mut self, settings: &Settings) -> Result<Option<bool>, StoreError> {
        let info = self.ask(settings, b"INFO cluster\r\n", BULK).await?;
        let says = |words: &[u8]| memchr::memmem::find(&info, words).is_some();
        Ok(says(b"cluster_enabled:").then(|| says(b"cluster_enabled:1")))
    }

    /// The slots that it says its cluster has, by the newer way to ask or the older; and the address that says so.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::ask`]; [`StoreError::BadSlots`] if they cannot be used.
    pub(crate) async fn shards(
        &mut self,
        settings: &Settings,
    ) -> Result<(Vec<Shard>, Option<IpAddr>), StoreError> {
        self.replies = Replies::new(LONGEST_SLOTS);
        let mut reply = self.ask(settings, b"CLUSTER SHARDS\r\n", HASH).await?;
        if reply.starts_with(b"-ERR") {
            reply = self.ask(settings, b"CLUSTER SLOTS\r\n", HASH).await?;
        }
        if error_code(&reply).is_some() {
            let said = String::from_utf8_lossy(&reply).trim_end().to_owned();
            return Err(StoreError::BadSlots(said));
        }
        let shards = cluster::shards(&reply).map_err(|error| StoreError::BadSlots(error.to_string()))?;
        let from = self.socket.endpoint().ok().and_then(|endpoint| endpoint.ip());
        Ok((shards, from))
    }

    /// A new connection of a client that is `identity`; with `None` as the store has it before any greeting.
    ///
    /// # Errors
    ///
    /// If it cannot be had in time, or the store does not accept the identity ([`StoreError::Refused`]).
    pub(crate) async fn open(
        settings: &Settings,
        node: NodeId,
        identity: Option<&Identity>,
    ) -> Result<Self, StoreError> {
        let steps = async {
            let socket = connect(settings, node).await?;
            let mut this = Self {
                node,
                socket,
                replies: Replies::new(LONGEST),
                unread: Vec::new(),
                resets: false,
                has_answered: false,
                generation: 0,
            };
            this.greet(settings, identity).await?;
            Ok(this)
        };
        in_time(settings, node, steps).await
    }

    /// True if the connection leads to an address that the store's name still has.
    pub(crate) fn is_to_current_address(&self, settings: &Settings) -> bool {
        self.socket.endpoint().is_ok_and(|endpoint| settings.store(self.node).is_current(&endpoint))
    }

    /// True if no byte that was received waits to be decoded.
    pub(crate) fn has_nothing_unread(&self) -> bool {
        self.unread.is_empty()
    }

    /// True if the connection is open, and nothing has come that nobody has read.
    pub(crate) fn is_silent(&self) -> bool {
        let read = self.socket.try_read(&mut [0]);
        self.unread.is_empty() && matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// The same connection, greeted again.
    ///
    /// # Errors
    ///
    /// As [`DedicatedConnection::open`]; [`StoreError::Moved`] if the store's name no longer has its address.
    pub(crate) async fn again(
        mut self,
        settings: &Settings,
        identity: Option<&Identity>,
    ) -> Result<Self, StoreError> {
        if self.socket.endpoint().is_ok_and(|endpoint| !settings.store(self.node).is_current(&endpoint)) {
            return Err(StoreError::Moved);
        }
        self.greet(settings, identity).await?;
        // The store may have closed it after the last answer.
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
    pub(crate) async fn anew(
        mut self,
        settings: &Settings,
        identity: Option<&Identity>,
    ) -> Result<Self, StoreError> {
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
    pub(crate) async fn adopt_writes(&mut self, settings: &Settings) -> Result<(), StoreError> {
        let info = self.ask(settings, b"INFO server\r\n", BULK).await?;
        if redis_version(&info).is_none_or(|version| version >= LAST_WRITE_COUNTS) {
            self.ask(settings, EMPTY_PUBLISH, b":").await?;
        }
        self.ask(settings, b"PING\r\n", STATUS).await?;
        Ok(())
    }

    /// Its socket, for one request that is passed on piece by piece, and its answer.
    pub(crate) fn socket(&self) -> &StoreSocket {
        &self.socket
    }

    /// Sends one request and returns its whole answer: an error, or a reply that begins with one of `kinds`.
    ///
    /// # Errors
    ///
    /// If no answer comes in time; [`StoreError::Closed`] if the connection is lost, [`StoreError::Unasked`] if another answer comes.
    pub(crate) async fn ask(
        &mut self,
        settings: &Settings,
        request: &[u8],
        kinds: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let asked = async {
            self.socket.write_all(request).await?;
            self.reply(settings).await
        };
        let answer = asked.await.map_err(|error| match error {
            // It was there: that it ends says nothing of the store.
            StoreError::Io(_) => StoreError::Closed,
            error => error,
        })?;
        let is_asked_for = answer.first().is_some_and(|kind| *kind == b'-' || kinds.contains(kind));
        if is_asked_for { Ok(answer) } else { Err(StoreError::Unasked) }
    }

    /// True if the store knows `UNLINK`: without a key it misses one then.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub(crate) async fn knows_unlink(&mut self, settings: &Settings) -> Result<bool, StoreError> {
        let answer = self.ask(settings, b"*1\r\n$6\r\nUNLINK\r\n", b"-+:").await?;
        Ok(answer.starts_with(b"-ERR wrong number of arguments"))
    }

    /// The connection, of which nothing is outstanding.
    pub(crate) fn into_socket(self) -> StoreSocket {
        self.socket
    }

    async fn greet(&mut self, settings: &Settings, identity: Option<&Identity>) -> Result<(), StoreError> {
        if settings.protocol == Protocol::Memcached {
            return self.log_in(settings).await;
        }
        let greeting = match identity {
            Some(identity) => identity.greeting(settings.backend.store_login.as_ref())?,
            None => Handshake::default(),
        };
        self.socket.write_all(greeting.bytes.bytes()).await?;
        if std::mem::take(&mut self.resets) && self.reply(settings).await? != b"+RESET\r\n" {
            return Err(StoreError::Unasked);
        }
        let Some((refusal, left)) = self.first_refusal(settings, &greeting).await? else { return Ok(()) };
        let Some(identity) = identity.filter(|identity| identity.database != 0) else {
            return Err(refused(refusal));
        };
        if error_code(&refusal) != Some(b"NOPERM") {
            return Err(refused(refusal));
        }
        // The user may not select a database. The client has been in this one since before it logged in.
        for _ in 0..left {
            self.reply(settings).await?;
        }
        let greeting = identity.greeting_from_database(settings.backend.store_login.as_ref())?;
        self.socket.write_all(&[RESET, greeting.bytes.bytes()].concat()).await?;
        if self.reply(settings).await? != b"+RESET\r\n"
            || self.first_refusal(settings, &greeting).await?.is_some()
        {
            return Err(refused(refusal));
        }
        Ok(())
    }

    /// The first error in reply to a greeting that has been sent, and how many replies follow it.
    async fn first_refusal(
        &mut self,
        settings: &Settings,
        greeting: &Handshake,
    ) -> Result<Option<(Vec<u8>, usize)>, StoreError> {
        for left in (0..greeting.requests).rev() {
            let reply = self.reply(settings).await?;
            match error_code(&reply) {
                // To `HELLO` the store tells of itself.
                None if reply == b"+OK\r\n" || HASH.contains(&reply[0]) => {}
                None => return Err(StoreError::Unasked),
                // A connection without a name serves as well.
                Some(_) if greeting.named && left == 0 => {}
                Some(_) => return Ok(Some((reply, left))),
            }
        }
        Ok(None)
    }

    /// Logs in to memcached, once, if it wants that. memcached takes the first `set` of a connection for a login. Without a
    /// list of users it would keep the password as a value, so `version` first shows whether it wants a login.
    async fn log_in(&mut self, settings: &Settings) -> Result<(), StoreError> {
        let Some(login) = settings.backend.store_login.as_ref().filter(|_| !self.has_answered) else {
            return Ok(());
        };
        let answer = self.ask_line(settings, b"version\r\n").await?;
        if answer != b"CLIENT_ERROR unauthenticated\r\n" {
            return Ok(());
        }
        match self.ask_line(settings, memcached_login(login)?.bytes()).await? {
            answer if answer == b"STORED\r\n" => Ok(()),
            answer => Err(StoreError::Unhealthy(String::from_utf8_lossy(&answer).into_owned())),
        }
    }

    /// The line that answers a request, in time.
    async fn ask_line(&mut self, settings: &Settings, request: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut answer = Vec::new();
        in_time(settings, self.node, async {
            self.socket.write_all(request).await?;
            while !answer.ends_with(b"\n") && answer.len() < LONGEST_PROBE_ANSWER {
                if self.socket.read_buf(&mut answer).await? == 0 {
                    return Err(StoreError::Closed);
                }
            }
            Ok(())
        })
        .await?;
        self.has_answered = true;
        Ok(answer)
    }

    /// The next reply, in time.
    async fn reply(&mut self, settings: &Settings) -> Result<Vec<u8>, StoreError> {
        let reply = in_time(settings, self.node, self.read_reply()).await?;
        if reply.starts_with(b"-ERR max number of clients") {
            Err(StoreError::Full(reply))
        } else {
            Ok(reply)
        }
    }

    async fn read_reply(&mut self) -> Result<Vec<u8>, StoreError> {
        loop {
            let part =
                self.replies.next(&self.unread).map_err(|garbage| MalformedReply(garbage.to_string()))?;
            match part {
                Part::More { .. } => {
                    if self.socket.read_buf(&mut self.unread).await? == 0 {
                        return Err(StoreError::Closed);
                    }
                }
                Part::Reply { len, kind: Kind::Push, last: true } => drop(self.unread.drain(..len)),
                Part::Reply { len, last: true, .. } => {
                    self.has_answered = true;
                    return Ok(self.unread.drain(..len).collect());
                }
                Part::Reply { .. } | Part::Body { .. } => {
                    return Err(MalformedReply("an answer that is too long".to_owned()).into());
                }
            }
        }
    }
}

/// The result of steps that wait for the store, unless they take longer than the store may be silent. Steps that set up a
/// connection have that time together, so that a store that hangs at the last one keeps a client waiting no longer than one
/// that hangs at the first.
///
/// # Errors
///
/// Those of the steps; [`StoreError::TimedOut`] if they take longer.
pub(crate) async fn in_time<T>(
    settings: &Settings,
    node: NodeId,
    steps: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let since = clock::monotonic();
    let mut steps = pin!(steps);
    loop {
        // A pause of the store's clients may begin or end meanwhile.
        let left = settings.silence_limits(node).end(since, false).saturating_sub(clock::monotonic());
        if left == Nanos::ZERO {
            return Err(StoreError::TimedOut);
        }
        let look = left.min(settings.store_timeout());
        if let Ok(result) = timeout(look.into(), &mut steps).await {
            return result;
        }
    }
}

/// Connects to the store, and speaks TLS to it where that is configured.
async fn connect(settings: &Settings, node: NodeId) -> Result<StoreSocket, StoreError> {
    let socket = match connect_plainly(settings, node).await? {
        Stream::Tcp(socket) => socket,
        Stream::Unix(socket) => return Ok(StoreSocket::Unix(socket)),
    };
    keep_alive(&socket)?;
    let Some(tls) = settings.store_tls.as_ref().map(|tls| tls.borrow().clone()) else {
        return Ok(StoreSocket::Plain(socket));
    };
    let socket = tls.connect(socket).await.map_err(StoreError::Tls)?;
    Ok(StoreSocket::Tls(Box::new(socket)))
}

/// Connects to the first of the store's endpoints that accepts it. No endpoint takes the time of those behind it.
async fn connect_plainly(settings: &Settings, node: NodeId) -> Result<Stream, StoreError> {
    let endpoints = settings.store(node).endpoints().await;
    let share = Duration::from(settings.store_timeout()) / endpoints.len().max(1) as u32;
    let mut failed = StoreError::Unresolved;
    for endpoint in endpoints {
        failed = match timeout(share, endpoint.connect(&settings.own_connections)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error.into(),
            Err(_) => StoreError::TimedOut,
        };
    }
    Err(failed)
}

/// The meaning of an error in answer to a greeting: the store is not ready now, or it does not accept this greeting.
fn refused(reply: Vec<u8>) -> StoreError {
    if matches!(error_code(&reply), Some(b"LOADING" | b"MASTERDOWN" | b"BUSY" | b"TRYAGAIN")) {
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
const EMPTY_PUBLISH: &[u8] = b"*3\r\n$7\r\nPUBLISH\r\n$9\r\ngate:wait\r\n$0\r\n\r\n";
/// The beginnings of replies, by what they are: a status, a text, a hash or, before the third protocol version, an array.
pub(crate) const STATUS: &[u8] = b"+";
const BULK: &[u8] = b"$=";
pub(crate) const HASH: &[u8] = b"%*";
const LONGEST_PROBE_ANSWER: usize = 1 << 10;
const RESET: &[u8] = b"RESET\r\n";
/// Answers to what is asked here are short.
const LONGEST: usize = 64 << 10;
/// 16,384 slots, each of another node than the one before.
const LONGEST_SLOTS: usize = 8 << 20;
