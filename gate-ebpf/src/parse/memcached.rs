//! The price of a datagram of memcached's text protocol.
//!
//! memcached runs every command in a datagram, so every command is priced. The rules below are those of
//! memcached 1.6 (`proto_text.c`); where several readings are possible, the dearest one counts.
//!
//! - A frame header of 8 bytes comes first. memcached ignores a request of several datagrams, and one
//!   without a payload: malformed.
//! - A line ends with `\n`; one `\r` before it does not count. Only spaces separate words. memcached
//!   never runs a last line without an end: malformed.
//! - Data follows a storage command. gate skips it only if memcached surely reads it as data: the line holds all
//!   words that the command needs, and each number is in its range. Otherwise memcached would run the bytes as
//!   commands, and gate prices them as commands. Data that ends beyond the datagram is malformed: memcached would
//!   read the next datagram, of any sender, as the rest.
//! - Each word of an unknown command is priced as a row.
//! - Bytes that cannot be read (in a later fragment, or of memcached's binary protocol) cost the most that so many bytes
//!   can: [`ServiceState::upper_bound`]. Skipped data may lie in later fragments.

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::{Exit, QueryClass, ServiceState};

use super::Reader as _;
use super::buffers::Buffers;
use super::frame::Frame;
use super::scan::{self, CommandScan, ScanStatus};
use super::transport::Payload;
use crate::maps::read_once;

/// Parses the commands of a datagram in `frame` into `scan`.
///
/// # Errors
///
/// [`Exit::Malformed`].
#[inline(always)]
pub(crate) fn parse(
    ctx: *mut xdp_md,
    frame: &Frame,
    payload: &Payload,
    scan: *mut CommandScan,
) -> Result<(), Exit> {
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
        if (*scan).status == ScanStatus::Malformed { Err(Exit::Malformed) } else { Ok(()) }
    }
}

impl CommandScan {
    /// The number of bytes that could not be read.
    #[inline(always)]
    pub(crate) fn unread(&self) -> u32 {
        if self.status == ScanStatus::Unread { self.end - self.line } else { 0 }
    }

    /// The price of the commands in a payload of `len` bytes, in thousandths of a request unit. Saturates.
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

/// Bytes of memcached's frame header: request id, sequence number, number of datagrams, reserved.
pub(crate) const FRAME_HEADER: u32 = 8;
/// The only number of datagrams that memcached accepts, in network order.
pub(crate) const ONE_DATAGRAM: u16 = 1_u16.to_be();
