//! A connection to etcd, and one reading.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions};
use tokio::time::timeout;

use super::error::Error;
use super::keys::{Keys, LIMITS, MOST_KEYS, PREFIX};
use super::members::Members;
use crate::fleet::membership::View;

/// Waits for an answer of etcd's, at most [`PATIENCE`].
pub(super) async fn within<T>(
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    timeout(PATIENCE, answer).await.map_err(|_| Error::Silent)?.map_err(Error::Etcd)
}

/// A client of these members. It connects when it is used.
pub(super) async fn connect(members: &Members) -> Result<Client, Error> {
    // Without HTTP/2's pings: etcd ends connections on which they come more often than every 5 s.
    let mut options = ConnectOptions::new().with_connect_timeout(PATIENCE).with_require_leader(true);
    let tls = members.tls.borrow().clone();
    // Beside other URLs a certificate is a fault to the client.
    if let Some(tls) = tls.filter(|_| members.urls.iter().all(|url| url.starts_with("https:"))) {
        options = options.with_tls(tls);
    }
    within(Client::connect(&members.urls, Some(options))).await
}

/// All of gate's keys, at one revision.
pub(super) async fn read_keys(client: &mut Client) -> Result<Keys, Error> {
    let options = GetOptions::new().with_prefix().with_limit(MOST_KEYS as i64);
    Keys::new(within(client.get(PREFIX, Some(options))).await?)
}

/// Waits until etcd answers at all.
pub(super) async fn probe(client: &mut Client) -> Result<(), Error> {
    let options = GetOptions::new().with_count_only();
    within(client.get(LIMITS, Some(options))).await.map(drop)
}

/// Owners and limits as they are now.
///
/// # Errors
///
/// [`Error`], if etcd cannot be read.
pub async fn read(members: &Members) -> Result<View, Error> {
    let mut client = connect(members).await?;
    Ok(read_keys(&mut client).await?.view(false))
}

/// How long etcd is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
