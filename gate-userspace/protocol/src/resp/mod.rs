//! RESP2 and RESP3: what Redis and its kin speak.
//!
//! Source: the RESP specification, and where that is silent what Redis 7.0 does.
//!
//! - [`Decoder`]: requests out of a stream, as arrays of bulk strings or inline.
//! - [`Command`]: what each command does to keys and to its connection.
//! - [`Replies`]: where each reply of the store ends, whatever it holds.
//! - [`refuse`]: what a client reads whose request gate refuses.
//!
//! **Where gate is stricter than Redis**, because what is forwarded must have one meaning only: a length
//! ends with a carriage return *and* a newline, and so does an argument; Redis skips those bytes unread. A
//! length too long to be one is an error at once and not after 64 KiB, and so is a NUL in an inline request,
//! where Redis waits for a newline that it cannot see. An inline request is forwarded as an array.

mod args;
mod change;
pub mod cluster;
mod command;
mod command_types;
mod denied;
mod extent;
mod fault;
mod inline;
mod length;
mod named;
mod reply;
mod request;
mod shape;
mod touched;

pub use args::{Args, Keys};
pub use change::{Change, Version};
pub use command::{Command, OPEN_ROWS, State};
pub use command_types::CommandTypes;
pub use denied::Denied;
pub use extent::{Extent, ReadKind, says_unknown_command, told_size};
pub use fault::{Fault, FaultKind};
pub use named::{is_command, names};
pub use reply::{Elements, Garbage, Kind, Part, Replies, error_code, rows};
pub use request::{Decoder, Limits, Request, Step};
pub use touched::Touched;

use super::{Refusal, Rule};

/// The version of Redis that the table of commands is compared with. A row that it does not know says so
/// ([`Command::is_compared`]), and is not taken for all that its command touches.
pub const COMPARED_WITH: &str = "7.0";

/// Appends what a client reads whose request is refused.
pub fn refuse(refusal: Refusal, out: &mut Vec<u8>) {
    match refusal.rule {
        // In Redis' own words, by which clients know that they have to log in.
        Some(Rule::Users) => out.extend_from_slice(b"-NOAUTH Authentication required."),
        // As a node of a cluster says it; clients look for the whole.
        Some(Rule::CrossSlot) => {
            return out.extend_from_slice(b"-CROSSSLOT Keys in request don't hash to the same slot\r\n");
        }
        Some(
            Rule::Deny
            | Rule::Keys
            | Rule::Backends
            | Rule::Cluster
            | Rule::Size
            | Rule::MaxRows
            | Rule::Burst
            | Rule::TenantHeader,
        )
        | None => {
            out.push(b'-');
            out.extend_from_slice(refusal.blame().code().as_bytes());
        }
    }
    out.push(b' ');
    refusal.write(out);
    out.extend_from_slice(b"\r\n");
}

/// A request in place of one that `rule` denies, on a connection of the client's own: Redis does not know the command, and says its
/// name.
#[must_use]
pub const fn unknown_command(rule: Option<Rule>) -> &'static [u8] {
    match rule {
        Some(Rule::Deny) => b"*1\r\n$35\r\nDENIED reason=unsupported rule=deny\r\n",
        Some(Rule::Keys) => b"*1\r\n$35\r\nDENIED reason=unsupported rule=keys\r\n",
        Some(Rule::Size) => b"*1\r\n$33\r\nDENIED reason=too-large rule=size\r\n",
        Some(Rule::MaxRows) => b"*1\r\n$37\r\nDENIED reason=too-large rule=max_rows\r\n",
        Some(Rule::CrossSlot) => b"*1\r\n$43\r\nCROSSSLOT reason=unsupported rule=crossslot\r\n",
        Some(Rule::Cluster) => b"*1\r\n$38\r\nDENIED reason=unsupported rule=cluster\r\n",
        Some(Rule::Backends | Rule::Burst | Rule::Users | Rule::TenantHeader) | None => {
            b"*1\r\n$25\r\nDENIED reason=unsupported\r\n"
        }
    }
}

#[cfg(test)]
mod tests;
