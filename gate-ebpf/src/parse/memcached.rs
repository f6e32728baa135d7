//! What a datagram of memcached's text protocol costs.
//!
//! memcached runs every command that a datagram holds, so every command is priced. What follows is what
//! memcached does (1.6, `proto_text.c`); where gate cannot be sure, the dearer reading counts.
//!
//! - A frame header of 8 bytes comes first. memcached ignores a request of several datagrams, and one
//!   without a payload: malformed.
//! - A line ends with `\n`; one `\r` before it does not count. Words are parted by spaces, and by nothing
//!   else. A last line without an end is never run: malformed.
//! - Storage commands are followed by data. It is skipped only if memcached surely takes it for data: if the
//!   line holds what the command needs, each number in its range. Otherwise memcached would run the
//!   "data" as commands, and so they are priced. Data that ends beyond the datagram is malformed: memcached
//!   would take the next datagram, whoever sent it, for the rest.
//! - Of commands that are not known, each word is priced as a row.
//! - From where a line cannot be read (in a later fragment, or memcached's binary protocol), the rest costs the most that
//!   so many bytes can: [`ServiceState::upper_bound`]. Data that is skipped may lie in later fragments.

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::{Exit, QueryClass, ServiceState};

use super::Reader as _;
use super::buffers::Buffers;
use super::frame::Frame;
use super::scan::{self, Scan, Status};
use super::transport::Payload;
use crate::maps::read_once;

/// Reads the commands of a datagram in `frame` into `scan`.
///
/// # Errors
///
/// [`Exit::Malformed`].
#[inline(always)]
pub(crate) fn read(ctx: *mut xdp_md, frame: &Frame, payload: &Payload, scan: *mut Scan) -> Result<(), Exit> {
    let header = Buffers(ctx).bytes::<8>(payload.at as usize).ok_or(Exit::Malformed)?;
    let (id, datagrams) = (header.get::<u16, 0>(), header.get::<u16, 4>());
    let shown = frame.end as u32;
    if payload.len <= FRAME_HEADER || payload.at + FRAME_HEADER > shown || datagrams != ONE_DATAGRAM {
        return Err(Exit::Malformed);
    }
    scan::run(ctx, scan, payload.at, payload.end(), shown);
    // SAFETY: this CPU's own scratch.
    unsafe {
        (*scan).id = id;
        if (*scan).status == Status::Malformed { Err(Exit::Malformed) } else { Ok(()) }
    }
}

impl Scan {
    /// How many bytes could not be read.
    #[inline(always)]
    pub(crate) fn unread(&self) -> u32 {
        if self.status == Status::Unread { self.end - self.line } else { 0 }
    }

    /// What the commands cost with a payload of `len` bytes, in thousandths of a request unit. Saturates.
    #[inline(always)]
    pub(crate) fn price(&self, prices: *const ServiceState, len: u32) -> u32 {
        let mut commands = 0;
        let mut latency = 0;
        for class in 0..QueryClass::COUNT {
            commands += self.commands[class];
            latency += u64::from(self.commands[class]) * u64::from(read_once!((*prices).latency_mru[class]));
        }
        let latency = if latency > u32::MAX.into() { u32::MAX } else { latency as u32 };
        let prices = ServiceState {
            base_mru: read_once!((*prices).base_mru),
            row_mru: read_once!((*prices).row_mru),
            kib_mru: read_once!((*prices).kib_mru),
            latency_mru: [read_once!((*prices).latency_mru[QueryClass::Unread as usize]); QueryClass::COUNT],
            ..ServiceState::default()
        };
        let read = prices.price(commands, self.rows, len);
        read.saturating_add(latency).saturating_add(prices.upper_bound(self.unread()))
    }
}

/// Bytes of memcached's frame header: request id, number in sequence, how many datagrams, reserved.
pub(crate) const FRAME_HEADER: u32 = 8;
/// The one number of datagrams that memcached takes, in network order.
pub(crate) const ONE_DATAGRAM: u16 = 1_u16.to_be();
