//! The messages between gates and owners: `quota.proto`, and the code that prost and tonic make of it.

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    reason = "generated from quota.proto; a test compares the two"
)]
#[rustfmt::skip]
mod generated;
mod columns;
mod handles;
mod rates;

pub use columns::{column, common_unit};
pub(crate) use columns::{fits, value};
pub use generated::quota_client::QuotaClient;
pub(crate) use generated::quota_server::{Quota, QuotaServer};
pub(crate) use generated::{Account, Counter, Gate, Share, ShowReply, ShowRequest};
pub use generated::{Answer, Hello, Introduction, Limit, Report, Reservation, Reserved, Welcome};
pub(crate) use generated::{ResetReply, ResetRequest};
pub(crate) use handles::{pack, unpack};
pub(crate) use rates::{decoded, encoded};

/// The version of the messages' meaning. An owner and a gate of different versions do not talk.
pub const VERSION: u32 = 2;
/// The most handles of one report: with the longest names, and with an answer, it is smaller than the largest message. What is left is in the
/// next one.
pub const MOST_ENTRIES: usize = 100_000;
/// The largest message that is read, in bytes: some 10^5 names at once.
pub(crate) const MAX_MESSAGE: usize = 8 << 20;
