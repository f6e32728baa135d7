//! Limits from a file into etcd.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use super::client::{connect_to_any, read_keys, within};
use super::error::{Error, MAX_LIMITS_BYTES};
use super::keys::LIMITS;
use super::members::Members;

/// Puts limits, a checked document, in the place of those of the revision `expected`; of those that are there now, if it is `None`.
/// All or nothing. Returns the new revision.
///
/// # Errors
///
/// [`Error::Conflict`] if others have been applied since; or any other.
pub async fn apply(members: &Members, text: &str, expected: Option<u64>) -> Result<u64, Error> {
    if text.len() > MAX_LIMITS_BYTES {
        return Err(Error::TooLong(text.len()));
    }
    let (mut client, keys) = connect_to_any(members).await?;
    let expected = expected.unwrap_or_else(|| keys.view(false).limits_revision());
    let compared =
        Compare::mod_revision(LIMITS, CompareOp::Equal, i64::try_from(expected).unwrap_or(i64::MAX));
    let put = Txn::new().when([compared]).and_then([TxnOp::put(LIMITS, text, None)]);
    let answer = within(client.txn(put)).await?;
    if answer.succeeded() {
        return Ok(answer.header().ok_or(Error::NoRevision)?.revision().cast_unsigned());
    }
    let found = read_keys(&mut client).await?.view(false).limits_revision();
    Err(Error::Conflict { expected, found })
}
