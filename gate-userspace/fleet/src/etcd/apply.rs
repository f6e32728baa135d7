//! Limits from a file into etcd.

use super::api::{Compare, CompareTarget, PutRequest, RequestOp, TxnRequest};
use super::client::{connect_to_any, read_keys};
use super::error::{Error, MAX_LIMITS_BYTES};
use super::keys::{LIMITS, revision_of};
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
    let unchanged = Compare {
        target: CompareTarget::Mod.into(),
        key: LIMITS.into(),
        mod_revision: Some(i64::try_from(expected).unwrap_or(i64::MAX)),
    };
    let put = PutRequest { key: LIMITS.into(), value: text.into(), lease: 0 };
    let request =
        TxnRequest { compare: vec![unchanged], success: vec![RequestOp { request_put: Some(put) }] };
    let answer = client.txn(request).await?;
    if answer.succeeded {
        return revision_of(answer.header);
    }
    let found = read_keys(&mut client).await?.view(false).limits_revision();
    Err(Error::Conflict { expected, found })
}
