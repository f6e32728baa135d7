//! memcached: the text protocol and the meta commands.
//!
//! Source: `protocol.txt` of memcached 1.6, and where that is silent what memcached 1.6.18 does.
//!
//! - [`Decoder`]: requests out of a stream or a datagram.
//! - [`Answers`]: the store's answers, each with its end.
//! - [`Merge`], [`Split`]: many gets as one, and its values back to those who asked.
//! - [`udp`]: the frame of a datagram, requests in several of them, answers in several.
//! - [`refuse`]: what a client reads whose request gate refuses.
//!
//! **Where gate is stricter than memcached**, because what is forwarded must have one meaning only:
//!
//! - A line that holds a NUL ends the connection: memcached reads such a line up to there.
//! - A storage line is taken only in the form that every memcached since 1.5 reads the same: nothing before its name, digits
//!   alone, flags of at most 32 bits, a length of at most 10 digits, a letter at the front of each flag of `ms`. Any other is
//!   answered with an error, and its value is swallowed, as memcached does since 1.6.40; where its length is none of these,
//!   the connection ends. An older memcached reads the value as commands.
//! - A key in base64 that decodes to blanks or control characters is unsupported: memcached writes some such keys into its
//!   answers as they are, and connections to it are shared.
//! - Commands that are not known are answered `ERROR` here, as memcached does, and never forwarded.
//! - `watch`, `shutdown` and `lru_crawler metadump` take over a connection, or end the store: unsupported.
//! - A line has a limit of its own, [`Limits::line`]; memcached closes a connection for one without a newline
//!   after 2 KiB, unless it is a `get`. Longer ones are answered with an error, but for `gat`, whose keys can be asked for
//!   in several.

mod answer;
mod base64;
mod command;
mod fault;
mod line;
mod multiget;
mod request;
mod touched;
pub mod udp;

pub use answer::{AnswerLine, Answers, Garbage, Part, Status};
pub use command::{Command, Expect, Quiet};
pub use fault::{Fault, FaultKind};
pub use multiget::{Merge, Split};
pub use request::{Decoder, Keys, Limits, Request, Step};

use super::Refusal;

/// The longest key, in bytes, as it is written.
pub const MAX_KEY: usize = 250;

/// The longest line that memcached reads whatever it says, in bytes, its end included. Of a longer one it may see the
/// beginning first, and closes a connection with so much of a line that is no `get` and has no end.
pub const LONGEST_LINE: usize = 2_048;

/// Appends what a client reads whose request is refused. Nothing is to be written where the request
/// said `noreply` ([`Quiet::NoReply`]); a quiet meta command is told, as it is of any error.
pub fn refuse(refusal: Refusal, out: &mut Vec<u8>) {
    out.extend_from_slice(b"SERVER_ERROR ");
    out.extend_from_slice(refusal.blame().word().as_bytes());
    out.push(b' ');
    refusal.write(out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
