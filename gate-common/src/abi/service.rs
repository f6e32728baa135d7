//! A protected service: where it listens, how it is spoken to, what its requests cost.

use core::mem::size_of;

use super::Name;
use crate::token_bucket::Limits;

/// One service over one transport. Services on the same port are chained by [`Service::next`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Service {
    /// The address, in network order; IPv4 as `::ffff:a.b.c.d`. See [`service_flags::ANY_ADDRESS`].
    pub address: [u8; 16],
    /// The slot of the next service on this port. Zero: none.
    pub next: u32,
    /// The tenant of sources that no rule names. Zero: none, such sources are unknown.
    pub default_tenant: u32,
    /// Its place in the configuration, for samples.
    pub id: u32,
    /// A [`Protocol`].
    pub protocol: u8,
    /// Which of its requests are noted, so that their answers are measured: a [`super::MeasuredShare`]. The daemon changes it in
    /// force.
    pub measured: u8,
    /// See [`service_flags`].
    pub flags: u16,
    /// The daemon's decisions; [`super::bank_of`] the generation is in force.
    pub banks: [ServiceState; 2],
    /// Its name, for whoever reads the maps.
    pub name: Name,
    /// The port, in host order.
    pub port: u16,
    /// 17 for UDP, 6 for TCP.
    pub transport: u8,
    /// Spelled out.
    pub _reserved_end: u8,
    /// The slot whose [`Service::unknown_syn_tat`] this slot spends: the first of the same service. Zero: none.
    pub unknown_syn_slot: u32,
    /// The connection attempts of unknown sources, in thousandths.
    pub unknown_syn: Limits,
    /// The word of their [token bucket](crate::token_bucket), changed only by compare-and-swap.
    pub unknown_syn_tat: u64,
    /// When XDP found the first connection to it in the kernel's table of sockets, on gate's clock. Zero: not yet.
    pub connection_seen_ns: u64,
    /// When XDP last looked.
    pub looked_up_ns: u64,
    /// How many of its requests were noted.
    pub noted: u64,
}

/// The value in the tables of protected addresses for one that a service listens at; [`LOCAL_ADDRESS`] if it is an address
/// of the interface's own namespace as well.
pub const PROTECTED_ADDRESS: u32 = 1;
/// See [`PROTECTED_ADDRESS`].
pub const LOCAL_ADDRESS: u32 = 2;

const _: () = assert!(size_of::<Service>() == 32 + 2 * 56 + 48 + 8 + 24 + 8 + 24);

/// The daemon's decisions about a service: its prices, in thousandths of a request unit, and the tiers that it sheds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ServiceState {
    /// Of any request.
    pub base_mru: u32,
    /// Of each row (key) that it names.
    pub row_mru: u32,
    /// Of each 1,024 bytes of it, charged in proportion and rounded up.
    pub kib_mru: u32,
    /// The load that is shed while its store cannot keep up.
    pub shed: Shed,
    /// Of the latency expected of its [`QueryClass`]. Of Redis, whose commands XDP does not look at, the places are other
    /// classes', but for the first and the last.
    pub latency_mru: [u32; QueryClass::COUNT],
    /// The generation that wrote this.
    pub stamp: u64,
}

const _: () = assert!(size_of::<ServiceState>() == 56);

/// The shedding of each tier at a service: a rung by tier, eight bits each, `critical` in the lowest.
///
/// Zero is nothing; up to [`Shed::DOUBLINGS`], prices double so often; [`Shed::REFUSED`] is a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Shed(pub u32);

impl Shed {
    /// The most doublings of a price.
    pub const DOUBLINGS: u32 = 6;
    /// Everything is refused.
    pub const REFUSED: u32 = Self::DOUBLINGS + 1;

    /// The rung of a tier, of which 0 is `critical` and 3 `best-effort`.
    #[must_use]
    #[inline(always)]
    pub const fn rung(self, tier: u8) -> u32 {
        (self.0 >> ((tier & 3) * 8)) & 0xff
    }

    /// The same, with a tier at a rung.
    #[must_use]
    pub const fn with(self, tier: u8, rung: u32) -> Self {
        let shift = (tier & 3) * 8;
        Self(self.0 & !(0xff << shift) | (rung & 0xff) << shift)
    }

    /// A price at a rung. Saturates.
    #[must_use]
    #[inline(always)]
    pub const fn price(rung: u32, price_mru: u32) -> u32 {
        let doublings = if rung > Self::DOUBLINGS { Self::DOUBLINGS } else { rung };
        let exact = (price_mru as u64) << doublings;
        if exact > u32::MAX as u64 { u32::MAX } else { exact as u32 }
    }
}

impl Service {
    /// How many services may share one port of one transport: XDP follows no longer chain.
    pub const MAX_CHAIN: usize = 8;
}

impl ServiceState {
    /// The price, in thousandths of a request unit, of `commands` that name `rows` keys in `bytes`
    /// bytes altogether, without what is expected of their latency. Saturates.
    #[must_use]
    #[inline(always)]
    pub const fn price(&self, commands: u32, rows: u32, bytes: u32) -> u32 {
        let exact = (commands as u64 * self.base_mru as u64)
            .saturating_add(rows as u64 * self.row_mru as u64)
            .saturating_add((bytes as u64 * self.kib_mru as u64 + 1023) >> 10);
        if exact > u32::MAX as u64 { u32::MAX } else { exact as u32 }
    }

    /// The most that `bytes` bytes of requests can cost beyond their bytes, in thousandths of a request
    /// unit. Saturates.
    ///
    /// Holds for every protocol in which a command takes a byte at least and each key of it two more: then
    /// `commands + 2 * rows <= bytes`, and a byte costs no more than the dearer of a command and half a row.
    /// [`QueryClass::Unread`] must be no cheaper than any other class.
    #[must_use]
    #[inline(always)]
    pub const fn upper_bound(&self, bytes: u32) -> u32 {
        let command = self.base_mru as u64 + self.latency_mru[QueryClass::Unread as usize] as u64;
        let half_row = (self.row_mru as u64).div_ceil(2);
        let of_byte = if command > half_row { command } else { half_row };
        // Capped before: 128 bits, which the saturating product needs, are beyond the BPF target.
        let of_byte = if of_byte > u32::MAX as u64 { u32::MAX as u64 } else { of_byte };
        let bound = of_byte * bytes as u64;
        if bound > u32::MAX as u64 { u32::MAX } else { bound as u32 }
    }
}

/// Bits of [`Service::flags`].
pub mod service_flags {
    /// The service listens on every address.
    pub const ANY_ADDRESS: u16 = 1 << 0;
    /// The daemon proxies it, and charges its TCP requests.
    pub const PROXIED: u16 = 1 << 1;
    /// SYNs of unknown sources are dropped.
    pub const DROP_UNKNOWN_SYN: u16 = 1 << 2;
    /// Segments with memcached's commands are priced by their lines.
    pub const PRICED_BY_LINES: u16 = 1 << 3;
    /// Hot keys in datagrams have buckets of their own ([`KeyBuckets`](crate::abi::KeyBuckets)).
    pub const LIMITS_KEYS: u16 = 1 << 4;
}

/// How a service is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Protocol {
    /// Not looked into: a packet is priced by its length.
    #[default]
    Opaque = 0,
    /// memcached's text protocol, with its frame header over UDP.
    Memcached = 1,
    /// RESP, Redis' protocol.
    Resp = 2,
    /// HTTP, which XDP does not look into.
    Http = 3,
}

/// Classes of requests that XDP tells apart for their expected latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueryClass {
    /// Reads of one key.
    Get = 0,
    /// Reads of several keys.
    MultiGet = 1,
    /// Writes of a value.
    Set = 2,
    /// Deletions.
    Delete = 3,
    /// Arithmetic on a value.
    Arithmetic = 4,
    /// Changes of expiry.
    Touch = 5,
    /// Anything else.
    Other = 6,
    /// Requests that could not be read; expected to be as slow as the slowest of the others.
    Unread = 7,
}

impl QueryClass {
    /// How many there are.
    pub const COUNT: usize = 8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_has_a_rung_of_its_own() {
        let shed = Shed::default().with(3, Shed::REFUSED).with(2, 4).with(2, 5).with(0, 1);
        assert_eq!([0, 1, 2, 3].map(|tier| shed.rung(tier)), [1, 0, 5, 7]);
        for (rung, price, dearer) in
            [(0, 5, 5), (1, 5, 10), (6, 5, 320), (7, 5, 320), (255, 5, 320), (1, u32::MAX, u32::MAX)]
        {
            assert_eq!(Shed::price(rung, price), dearer, "{rung} {price}");
        }
    }

    #[test]
    fn a_price_adds_up_rounds_up_and_saturates() {
        let state = ServiceState { base_mru: 1_000, row_mru: 500, kib_mru: 2_000, ..ServiceState::default() };
        for (commands, rows, bytes, price) in [
            (0, 0, 0, 0),
            (1, 1, 0, 1_500),
            (1, 1, 1, 1_502),
            (2, 5, 1_024, 6_500),
            (u32::MAX, u32::MAX, u32::MAX, u32::MAX),
            (u32::MAX, 0, 0, u32::MAX),
        ] {
            assert_eq!(
                state.price(commands, rows, bytes),
                price,
                "{commands} commands, {rows} rows, {bytes} bytes"
            );
        }
        let dearest = ServiceState { base_mru: u32::MAX, row_mru: u32::MAX, kib_mru: u32::MAX, ..state };
        assert_eq!(dearest.price(u32::MAX, u32::MAX, u32::MAX), u32::MAX);
    }
}
