//! Connections that come by a proxy which says whose they are.
//!
//! **Problem.** Behind a proxy all clients have the proxy's address, by which no tenant can be told; and whoever may say
//! whose a connection is can spend any tenant's quota. **Rule.** Only proxies at trusted addresses say so, by a header that
//! must come first, whole and soon. Any other connection is its own sender's, and may not begin with such a header.
//!
//! **Invariants.** No more connections wait for their header than clients may be connected.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use crate::protocol::proxy_header::{HeaderError, PREAMBLE, Preamble, SIGNATURE};

/// Connections of one service in one thread that wait for their header.
#[derive(Debug, Default)]
pub(crate) struct PendingHeaders(Rc<Cell<usize>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct PendingHeader(Rc<Cell<usize>>);

impl PendingHeaders {
    /// One more; to be dropped when it waits no longer.
    pub(crate) fn add(&self) -> PendingHeader {
        self.0.set(self.0.get() + 1);
        PendingHeader(Rc::clone(&self.0))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }
}

impl Drop for PendingHeader {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Why a connection is closed before its first request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejected {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("a PROXY header that did not come whole within {} s", PATIENCE.as_secs())]
    Late,
    #[error("a PROXY header that ends too soon")]
    Truncated,
    #[error("a PROXY header from an address that is not trusted")]
    Untrusted,
    /// The connection has ended without a byte, as that of a proxy's health check does.
    #[error("nothing")]
    Nothing,
}

/// Reads the header that a connection begins with, and nothing behind it. Where its client is; `None` if it is the proxy's own.
///
/// # Errors
///
/// [`Rejected`].
pub(crate) async fn read(socket: &mut TcpStream) -> Result<Option<IpAddr>, Rejected> {
    timeout(PATIENCE, read_whole(socket)).await.unwrap_or(Err(Rejected::Late))
}

async fn read_whole(socket: &mut TcpStream) -> Result<Option<IpAddr>, Rejected> {
    let mut preamble = [0; PREAMBLE];
    let mut len = 0;
    while len < PREAMBLE {
        match socket.read(&mut preamble[len..]).await {
            Ok(0) if len == 0 => return Err(Rejected::Nothing),
            Ok(0) => return Err(Rejected::Truncated),
            Ok(more) => len += more,
            Err(_) if len == 0 => return Err(Rejected::Nothing),
            Err(_) => return Err(Rejected::Truncated),
        }
        // What begins otherwise may be short, and nothing may follow it.
        if !SIGNATURE.starts_with(&preamble[..len.min(SIGNATURE.len())]) && len < PREAMBLE {
            preamble[len..].fill(b' ');
            len = PREAMBLE;
        }
    }
    let preamble = Preamble::read(&preamble)?;
    let mut rest = [0; LONGEST_ADDRESSES];
    let mut left = preamble.rest;
    let addresses = left.min(LONGEST_ADDRESSES);
    socket.read_exact(&mut rest[..addresses]).await.map_err(|_| Rejected::Truncated)?;
    left -= addresses;
    let mut extensions = [0; 256];
    while left > 0 {
        let piece = left.min(extensions.len());
        socket.read_exact(&mut extensions[..piece]).await.map_err(|_| Rejected::Truncated)?;
        left -= piece;
    }
    Ok(preamble.source(&rest[..addresses]))
}

/// Waits for the first bytes of a connection; whether they are such a header. Nothing is taken of what it says.
pub(crate) async fn begins_with_one(socket: &mut OwnedReadHalf) -> bool {
    let mut beginning = [0; SIGNATURE.len()];
    // One that comes in pieces is no request either, and is told so.
    matches!(socket.peek(&mut beginning).await, Ok(len) if beginning[..len] == SIGNATURE)
}

/// A proxy sends its header in one piece with what opens the connection.
const PATIENCE: Duration = Duration::from_secs(3);
/// Two addresses of IPv6, and their ports.
const LONGEST_ADDRESSES: usize = 36;
