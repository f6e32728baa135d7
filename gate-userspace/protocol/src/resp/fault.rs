//! Input that is no request, and Redis' answer to it.

use gate_common::abi::Reason;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An array's length is no number, or beyond [`super::Limits::args`].
    ArrayLength,
    /// A bulk string's length is no number, negative, or beyond [`super::Limits::bulk`].
    BulkLength,
    /// An argument that is not a bulk string, but begins with this byte.
    NotBulk(u8),
    /// An argument that goes on after its length.
    BulkEnd,
    /// No newline within [`super::Limits::inline`].
    EndlessLine,
    /// An inline request whose quotes do not match.
    Quotes,
    /// An inline request with a NUL in it.
    Nul,
    /// A login whose outcome no reply tells for certain ([`super::Request::login_may_half_happen`]).
    Login,
    /// An HTTP request: Redis ends the connection, and so would a shared connection end.
    Http,
    /// A client that wants to speak TLS.
    Tls,
}

/// Bytes that are not a request. The connection ends: no one can tell where the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
}

impl Fault {
    /// The counter of this fault.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self.kind {
            FaultKind::Tls | FaultKind::Login => Reason::Unsupported,
            FaultKind::ArrayLength
            | FaultKind::BulkLength
            | FaultKind::NotBulk(_)
            | FaultKind::BulkEnd
            | FaultKind::EndlessLine
            | FaultKind::Quotes
            | FaultKind::Nul
            | FaultKind::Http => Reason::Malformed,
        }
    }

    /// Appends its answer, if it has any.
    pub fn answer(&self, out: &mut Vec<u8>) {
        let text: &[u8] = match self.kind {
            FaultKind::ArrayLength => b"invalid multibulk length",
            FaultKind::BulkLength => b"invalid bulk length",
            FaultKind::NotBulk(_) => b"expected '$', got '",
            FaultKind::BulkEnd => b"bulk string goes on after its length",
            FaultKind::EndlessLine => b"too big inline request",
            FaultKind::Quotes => b"unbalanced quotes in request",
            FaultKind::Nul => b"NUL in inline request",
            FaultKind::Login => return out.extend_from_slice(LOGIN),
            FaultKind::Http => return,
            FaultKind::Tls => return out.extend_from_slice(b"-ERR gate does not support TLS\r\n"),
        };
        out.extend_from_slice(b"-ERR Protocol error: ");
        out.extend_from_slice(text);
        if let FaultKind::NotBulk(byte) = self.kind {
            // As Redis, which keeps its own line in one piece.
            let byte = if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
            out.extend_from_slice(&[byte, b'\'']);
        }
        out.extend_from_slice(b"\r\n");
    }
}

const LOGIN: &[u8] = b"-ERR gate takes a login only if it is shorter than 64 KiB and names one user, and a name that is allowed\r\n";
