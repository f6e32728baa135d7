//! Input that is no request, and memcached's answer to it.

use gate_common::abi::Reason;

use super::refuse;
use crate::Refusal;

/// Why bytes are not a request that can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A command that is not known, or with too few or too many words.
    Unknown,
    /// A key that is too long, or a number that is none. A value that its line announces is swallowed.
    BadFormat,
    /// A storage line that says no length of its value, or one that versions of memcached read differently.
    NoLength,
    /// A meta command with more than 19 words. Its value is swallowed.
    TooManyFlags,
    /// A value longer than [`super::Limits::value`]. It is swallowed.
    TooLarge,
    /// A command or a key that gate does not let through. A value is swallowed.
    Unsupported,
    /// A line with a NUL in it.
    Nul,
    /// No newline within [`super::Limits::line`].
    EndlessLine,
    /// A line that memcached may close the connection for ([`super::LONGEST_LINE`]). Its value is swallowed.
    LongLine,
    /// An HTTP request.
    Http,
    /// A client that wants to speak TLS.
    Tls,
    /// The binary protocol. Holds the opcode and the opaque bytes, which its answer repeats.
    Binary {
        /// The opcode of the request.
        opcode: u8,
        /// The client's own number for its request.
        opaque: [u8; 4],
    },
}

/// Bytes that are not a request, and what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
    /// True if the client said that it wants no answer.
    pub quiet: bool,
}

impl Fault {
    /// One that is answered.
    pub(super) const fn answered(kind: FaultKind) -> Self {
        Self { kind, quiet: false }
    }

    /// True if the connection ends with its answer, because the start of the next request is unknown.
    #[must_use]
    pub const fn closes(&self) -> bool {
        use FaultKind as Kind;
        match self.kind {
            Kind::NoLength | Kind::Nul | Kind::EndlessLine | Kind::Http | Kind::Tls | Kind::Binary { .. } => {
                true
            }
            Kind::Unknown
            | Kind::BadFormat
            | Kind::TooManyFlags
            | Kind::TooLarge
            | Kind::Unsupported
            | Kind::LongLine => false,
        }
    }

    /// The counter of this fault.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self.kind {
            FaultKind::TooLarge | FaultKind::LongLine => Reason::TooLarge,
            FaultKind::Unsupported | FaultKind::Tls | FaultKind::Binary { .. } => Reason::Unsupported,
            FaultKind::Unknown
            | FaultKind::BadFormat
            | FaultKind::NoLength
            | FaultKind::TooManyFlags
            | FaultKind::Nul
            | FaultKind::EndlessLine
            | FaultKind::Http => Reason::Malformed,
        }
    }

    /// Appends its answer, if it has any.
    pub fn answer(&self, out: &mut Vec<u8>) {
        if self.quiet {
            return;
        }
        let text: &[u8] = match self.kind {
            FaultKind::Unknown => b"ERROR\r\n",
            FaultKind::BadFormat | FaultKind::NoLength | FaultKind::Nul => {
                b"CLIENT_ERROR bad command line format\r\n"
            }
            FaultKind::TooManyFlags => b"CLIENT_ERROR options flags too long\r\n",
            FaultKind::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
            FaultKind::EndlessLine | FaultKind::LongLine => b"CLIENT_ERROR line too long\r\n",
            FaultKind::Http => b"",
            FaultKind::Tls => b"SERVER_ERROR gate does not support TLS\r\n",
            FaultKind::Unsupported => {
                return refuse(Refusal::of(Reason::Unsupported), out);
            }
            FaultKind::Binary { opcode, opaque } => return refuse_binary(opcode, opaque, out),
        };
        out.extend_from_slice(text);
    }
}

/// An answer in the binary protocol: 24 bytes of header (magic, opcode, key length, extras length, data
/// type, status, body length, opaque, cas), then a text for people.
fn refuse_binary(opcode: u8, opaque: [u8; 4], out: &mut Vec<u8>) {
    const TEXT: &[u8] = b"gate speaks the text protocol only";
    const RESPONSE: u8 = 0x81;
    const NOT_SUPPORTED: [u8; 2] = [0, 0x83];
    out.extend_from_slice(&[RESPONSE, opcode, 0, 0, 0, 0]);
    out.extend_from_slice(&NOT_SUPPORTED);
    out.extend_from_slice(&(TEXT.len() as u32).to_be_bytes());
    out.extend_from_slice(&opaque);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(TEXT);
}
