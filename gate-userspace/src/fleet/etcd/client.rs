//! A connection to etcd, and one reading.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions};
use tokio::time::timeout;

use super::error::Error;
use super::keys::{Keys, LIMITS, MOST_KEYS, PREFIX};
use super::members::Members;
use crate::clock;
use crate::fleet::membership::View;

/// Waits for an answer of etcd's, at most [`PATIENCE`].
pub(super) async fn within<T>(
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    timeout(PATIENCE, answer).await.map_err(|_| Error::Silent)?.map_err(Error::Etcd)
}

/// The member that is asked next.
#[derive(Debug)]
pub(super) struct NextMember(usize);

impl NextMember {
    /// Any of them, so that they have about as many clients.
    pub(super) fn draw() -> Self {
        Self(clock::entropy() as usize)
    }
}

/// A client of one member, another one each time. It connects when it is used. All that it asks goes over one connection: where that
/// is lost, a question to another member would be answered while changes are waited for in vain.
pub(super) async fn connect(members: &Members, next: &mut NextMember) -> Result<Client, Error> {
    let url = &members.urls[next.0 % members.urls.len()];
    next.0 = next.0.wrapping_add(1);
    // Without HTTP/2's pings: etcd ends connections on which they come more often than every 5 s.
    let mut options = ConnectOptions::new().with_connect_timeout(PATIENCE).with_require_leader(true);
    let tls = members.tls.borrow().clone();
    // Beside another URL a certificate is a fault to the client.
    if let Some(tls) = tls.filter(|_| url.starts_with("https:")) {
        options = options.with_tls(tls);
    }
    within(Client::connect(&[url], Some(options))).await
}

/// A client of a member that answers, and all of gate's keys.
pub(super) async fn connect_to_any(members: &Members) -> Result<(Client, Keys), Error> {
    let mut next = NextMember::draw();
    let mut attempts = members.urls.len();
    loop {
        attempts -= 1;
        let read = async {
            let mut client = connect(members, &mut next).await?;
            let keys = read_keys(&mut client).await?;
            Ok((client, keys))
        };
        match read.await {
            Err(_) if attempts > 0 => {}
            read => return read,
        }
    }
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
    Ok(connect_to_any(members).await?.1.view(false))
}

/// How long etcd is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
