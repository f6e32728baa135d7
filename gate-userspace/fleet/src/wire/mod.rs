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

/// The version of the messages' meaning. An owner and a gate speak the newest one that both do; fields that a version does not know are passed over.
pub const VERSION: u32 = 2;
/// The oldest version that is spoken: that of two releases before, once there are any.
pub const OLDEST: u32 = 2;

/// The newest version that both speak, of a peer that speaks those from `oldest`, or `newest` alone if that is 0; `None` if there is none.
pub(crate) fn common_version(newest: u32, oldest: u32) -> Option<u32> {
    let oldest = if oldest == 0 { newest } else { oldest };
    let common = newest.min(VERSION);
    (common >= oldest.max(OLDEST)).then_some(common)
}
/// The most handles of one report: with the longest names, and with an answer, it is smaller than the largest message. What is left is in the
/// next one.
pub const MOST_ENTRIES: usize = 100_000;
/// The largest message that is read, in bytes: some 10^5 names at once.
pub(crate) const MAX_MESSAGE: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn the_newest_version_that_both_speak_is_spoken() {
        for (newest, oldest, common) in [
            (VERSION, 0, Some(VERSION)),
            (VERSION, OLDEST, Some(VERSION)),
            (VERSION + 1, VERSION, Some(VERSION)),
            (VERSION + 2, OLDEST - 1, Some(VERSION)),
            (VERSION + 1, 0, None),
            (VERSION + 2, VERSION + 1, None),
            (OLDEST - 1, 0, None),
            (0, 0, None),
        ] {
            assert_eq!(common_version(newest, oldest), common, "{newest} {oldest}");
        }
    }

    #[test]
    fn fields_of_a_later_version_are_passed_over() {
        let answer = Answer { number: 7, gates: 2, ..Answer::default() };
        let mut bytes = answer.encode_to_vec();
        // Field 100, a string.
        bytes.extend([0xa2, 0x06, 0x03, b'n', b'e', b'w']);
        assert_eq!(Answer::decode(bytes.as_slice()), Ok(answer));
    }
}
