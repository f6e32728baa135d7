//! Writes what a run is to read, before it: directly at the store, since quotas would refuse it through gate.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::keys::push_key;
use super::memcached::Reply;
use super::mix::{Command, Entry, Request};
use super::plan::{Plan, TenantLoad};
use super::protocol::Protocol;
use super::replies::Replies;
use super::resp;

/// Why it is not filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// More than [`MAX_BYTES`] or [`MAX_WRITES`].
    #[error(
        "the keys that are read take {writes} writes of {bytes} bytes in all, and at most {MAX_WRITES} and {MAX_BYTES} are \
         filled; lower keys, value or count"
    )]
    TooMuch {
        /// Keys.
        writes: u64,
        /// Bytes of values.
        bytes: u64,
    },
    /// The connection failed.
    #[error("filling {0}")]
    Connection(SocketAddr, #[source] io::Error),
    /// The store answered with an error, or with something else than its protocol.
    #[error("{0} does not take what is filled: it answered {1:?}")]
    Answer(SocketAddr, String),
}

/// Writes every key that the plan's gets, multi-gets and ranges read, to `store`. Returns how many it wrote.
///
/// # Errors
/// If it is too much, or the store does not take it.
pub fn fill(plan: &Plan, store: SocketAddr) -> Result<u64, FillError> {
    let pairs = || plan.tenants.iter().flat_map(|tenant| tenant.mix.entries.iter().map(move |e| (tenant, e)));
    let writes = pairs().map(|(_, entry)| if reads(entry) { entry.keys.count() } else { 0 }).sum();
    let bytes = pairs().map(|(_, entry)| bytes_of(entry)).fold(0, u64::saturating_add);
    if writes > MAX_WRITES || bytes > MAX_BYTES {
        return Err(FillError::TooMuch { writes, bytes });
    }
    let failed = |error| FillError::Connection(store, error);
    let stream = TcpStream::connect_timeout(&store, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let replies = Replies::new(plan.protocol);
    let mut writer = Writer { store, stream, replies, out: Vec::new(), expected: 0 };
    for (tenant, entry) in pairs().filter(|(_, entry)| reads(entry)) {
        writer.entry(tenant, entry)?;
    }
    for hot in plan.tenants.iter().filter_map(|tenant| Some((tenant, tenant.hot.as_ref()?))) {
        let value_bytes = hot.0.mix.entries[0].value_bytes;
        writer.put(&hot.1.key, None, value_bytes)?;
    }
    writer.flush()?;
    Ok(writes)
}

/// True for what reads keys whose values are known.
fn reads(entry: &Entry) -> bool {
    let read = matches!(entry.command, Command::Get | Command::MultiGet { .. } | Command::Range { .. });
    read && entry.weight > 0
}

fn bytes_of(entry: &Entry) -> u64 {
    let rows = if let Command::Range { rows } = entry.command { rows } else { 1 };
    let each = (rows as u64).saturating_mul(entry.value_bytes as u64);
    if reads(entry) { entry.keys.count().saturating_mul(each) } else { 0 }
}

struct Writer {
    store: SocketAddr,
    stream: TcpStream,
    replies: Replies,
    out: Vec<u8>,
    /// Answers that are outstanding.
    expected: usize,
}

impl Writer {
    fn entry(&mut self, tenant: &TenantLoad, entry: &Entry) -> Result<(), FillError> {
        let rows = if let Command::Range { rows } = entry.command { Some(rows) } else { None };
        let prefix = entry.prefix(tenant.name());
        let mut key = String::new();
        for rank in 0..entry.keys.count() {
            key.clear();
            push_key(&mut key, &prefix, rank);
            self.put(&key, rows, entry.value_bytes)?;
        }
        Ok(())
    }

    /// Writes a value, or a list of so many.
    fn put(&mut self, key: &str, rows: Option<usize>, value_bytes: usize) -> Result<(), FillError> {
        match rows {
            Some(rows) if self.replies.protocol() == Protocol::Resp => {
                resp::encode_list(key, rows, value_bytes, &mut self.out);
                self.expected += 2;
            }
            _ => {
                self.replies.encode(Request::Set { key, value_bytes }, &mut self.out);
                self.expected += 1;
            }
        }
        if self.out.len() >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends what has gathered, and reads its answers.
    fn flush(&mut self) -> Result<(), FillError> {
        let store = self.store;
        let failed = |error| FillError::Connection(store, error);
        self.stream.write_all(&self.out).map_err(failed)?;
        self.out.clear();
        let mut buffer = [0; 16 << 10];
        while self.expected > 0 {
            let bytes = match self.stream.read(&mut buffer).map_err(failed)? {
                0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                bytes => &buffer[..bytes],
            };
            let mut taken = 0;
            let mut refused = false;
            let fed = self.replies.feed(bytes, |reply| {
                taken += 1;
                refused |= !matches!(reply, Reply::Done | Reply::Miss);
            });
            if refused || fed.is_err() {
                let said = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
                return Err(FillError::Answer(store, said));
            }
            self.expected = self.expected.saturating_sub(taken);
        }
        Ok(())
    }
}

/// Requests are sent together up to about so many bytes: less than a socket holds of their answers.
const BATCH_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
/// Keys that are written at most.
pub const MAX_WRITES: u64 = 10_000_000;
/// Bytes of values that are written at most.
pub const MAX_BYTES: u64 = 1 << 30;
