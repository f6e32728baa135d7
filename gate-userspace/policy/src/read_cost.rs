//! Rows and bytes that a request is expected to read, learned from the replies that requests of its class had.
//!
//! **Problem.** A price must be known before the request runs, and what `GET` or `LRANGE 0 -1` reads is known after it.
//! **Source.** Airbnb's Mussel charges a read for its rows and bytes and not for its arrival; here the charge comes first,
//! by what the last ones read.
//!
//! **How.** For each tenant and price class there are two moving means over replies: the rows of requests that do not say
//! how many they read ([`RequestedRows::is_open`]), and the bytes beyond [`ROW_BYTES`] for each row, divided by the rows. A
//! mean is not a median on purpose: what a tenant is charged for many requests comes to what they have read, in
//! whatever order large and small ones come.
//!
//! **Invariants.** Memory is [`ReadSizes::new`]'s and never grows. A tenant's replies move nobody's expectations but its own.
//! Of requests one after another, the rows that are charged are fewer than those that were read by at most
//! [`MEMORY`] times the most that one of them read. A request is expected to read at least [`RequestedRows::least`] rows. Any
//! thread may read and write at any time: a mean that two threads write at once misses one of their replies.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gate_common::abi::QueryClass;

use super::pricing::ByClass;

/// The rows of a request, as far as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedRows {
    /// The rows that it states, or a guess. At least 1.
    pub rows: u32,
    /// However few the replies show, it reads so many.
    pub least: u32,
    /// True if [`RequestedRows::rows`] is a guess.
    pub is_open: bool,
}

impl RequestedRows {
    /// Those of a request that says how many it reads.
    #[must_use]
    #[inline]
    pub const fn stated(rows: u32) -> Self {
        Self { rows, least: rows, is_open: false }
    }

    /// Those of a request whose reply is all that it reads.
    #[must_use]
    #[inline]
    pub const fn shown_by_reply(guess: u32) -> Self {
        Self { rows: guess, least: 1, is_open: true }
    }

    /// Those of a request whose reply shows a part of what it reads, at most.
    #[must_use]
    #[inline]
    pub const fn shown_in_part(guess: u32) -> Self {
        Self { rows: guess, least: guess, is_open: true }
    }
}

/// The contents of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The rows that it shows; zero if it shows none.
    pub rows: u32,
    /// Its length.
    pub bytes: u64,
}

/// The rows and bytes that a request reads, as a price counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSize {
    /// Rows.
    pub rows: u32,
    /// Bytes beyond [`ROW_BYTES`] for each of them.
    pub more_bytes: u32,
}

/// Expected sizes, by tenant and price class. See the [module](self).
#[derive(Debug)]
pub struct ReadSizes {
    tenants: Box<[ByClass<Means>]>,
}

/// The means of one class of one tenant's requests.
#[derive(Debug, Default)]
struct Means {
    /// Bytes beyond what rows may have, and rows, each a float: of a reply. No rows if there was no reply.
    more_bytes: AtomicU64,
    /// The rows of open requests, a float; zero if there was none.
    open_rows: AtomicU32,
}

impl ReadSizes {
    /// Nothing is known of so many tenants, whose numbers are below that.
    #[must_use]
    pub fn new(tenants: usize) -> Self {
        Self { tenants: (0..tenants).map(|_| Default::default()).collect() }
    }

    /// The expected size of what a request of a class reads.
    #[must_use]
    #[inline]
    pub fn expected(&self, tenant: u32, class: usize, requested: RequestedRows) -> ReadSize {
        let unknown = ReadSize { rows: requested.rows, more_bytes: 0 };
        let Some(means) = self.means(tenant, class) else { return unknown };
        let rows = match f32::from_bits(means.open_rows.load(Ordering::Relaxed)) {
            mean if requested.is_open && mean > 0.0 => whole(mean).max(requested.least),
            _ => requested.rows,
        };
        let more_bytes = match unpack(means.more_bytes.load(Ordering::Relaxed)) {
            (more, per_rows) if more > 0.0 => whole(more / per_rows * rows as f32),
            _ => 0,
        };
        ReadSize { rows, more_bytes }
    }

    /// Learns from the reply to a request. Returns what the request read.
    #[inline]
    pub fn observe(&self, tenant: u32, class: usize, requested: RequestedRows, reply: Reply) -> ReadSize {
        let rows =
            if requested.is_open { reply.rows.max(requested.least).max(1) } else { requested.rows.max(1) };
        let included = u64::from(rows.max(reply.rows)) * ROW_BYTES;
        let more_bytes = u32::try_from(reply.bytes.saturating_sub(included)).unwrap_or(u32::MAX);
        if let Some(means) = self.means(tenant, class) {
            means.observe(rows, more_bytes, requested.is_open);
        }
        ReadSize { rows, more_bytes }
    }

    /// Forgets a tenant: its number is another's from now on.
    pub fn forget(&self, tenant: u32) {
        for means in self.tenants.get(tenant as usize).into_iter().flatten() {
            means.more_bytes.store(0, Ordering::Relaxed);
            means.open_rows.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn means(&self, tenant: u32, class: usize) -> Option<&Means> {
        Some(&self.tenants.get(tenant as usize)?[class % QueryClass::COUNT])
    }
}

impl Means {
    #[inline]
    fn observe(&self, rows: u32, more_bytes: u32, is_open: bool) {
        let current = self.more_bytes.load(Ordering::Relaxed);
        let next = match unpack(current) {
            (_, 0.0) => pack(more_bytes as f32, rows as f32),
            (more, per_rows) => pack(moved(more, more_bytes as f32), moved(per_rows, rows as f32)),
        };
        // Most replies are small and like those before: the line stays with all who read it.
        if next != current {
            self.more_bytes.store(next, Ordering::Relaxed);
        }
        if is_open {
            let current = self.open_rows.load(Ordering::Relaxed);
            let next = match f32::from_bits(current) {
                0.0 => rows as f32,
                mean => moved(mean, rows as f32),
            };
            if next.to_bits() != current {
                self.open_rows.store(next.to_bits(), Ordering::Relaxed);
            }
        }
    }
}

/// A mean after one more value.
#[inline]
pub(super) fn moved(mean: f32, value: f32) -> f32 {
    let next = mean + (value - mean) / MEMORY as f32;
    if (next - value).abs() < CLOSE { value } else { next }
}

/// The nearest integer; the largest for what is beyond.
#[inline]
pub(super) fn whole(value: f32) -> u32 {
    (value + 0.5) as u32
}

#[inline]
fn pack(more: f32, per_rows: f32) -> u64 {
    u64::from(more.to_bits()) << 32 | u64::from(per_rows.to_bits())
}

#[inline]
fn unpack(word: u64) -> (f32, f32) {
    (f32::from_bits((word >> 32) as u32), f32::from_bits(word as u32))
}

/// So many bytes of a reply are in the price of a row: a request unit is the read of one small row.
pub const ROW_BYTES: u64 = 1 << 10;
/// A reply moves a mean by one part in so many: few enough to follow a tenant that changes, and enough that one
/// large reply is paid by more than one request.
pub const MEMORY: u32 = 8;
/// A mean that is so close to the last reply becomes equal to it, so that it comes to rest.
const CLOSE: f32 = 0.25;

#[cfg(test)]
mod tests;
