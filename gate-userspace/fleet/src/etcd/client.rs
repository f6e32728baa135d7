//! A connection to etcd, and one reading.

use super::api::RangeRequest;
use super::calls::Client;
use super::error::Error;
use super::keys::{END, Keys, LIMITS, MOST_KEYS, PREFIX};
use super::members::Members;
use crate::membership::View;
use gate_system::clock;

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
pub(super) fn connect(members: &Members, next: &mut NextMember) -> Result<Client, Error> {
    let url = &members.urls[next.0 % members.urls.len()];
    next.0 = next.0.wrapping_add(1);
    let tls = members.tls.borrow().clone();
    Client::new(url, tls.filter(|_| url.starts_with("https:")))
}

/// A client of a member that answers, and all of gate's keys.
pub(super) async fn connect_to_any(members: &Members) -> Result<(Client, Keys), Error> {
    let mut next = NextMember::draw();
    let mut attempts = members.urls.len();
    loop {
        attempts -= 1;
        let read = async {
            let mut client = connect(members, &mut next)?;
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
    let all = RangeRequest {
        key: PREFIX.into(),
        range_end: END.into(),
        limit: MOST_KEYS as i64,
        ..RangeRequest::default()
    };
    Keys::new(client.range(all).await?)
}

/// Waits until etcd answers at all.
pub(super) async fn probe(client: &mut Client) -> Result<(), Error> {
    let count = RangeRequest { key: LIMITS.into(), count_only: true, ..RangeRequest::default() };
    client.range(count).await.map(drop)
}

/// Owners and limits as they are now.
///
/// # Errors
///
/// [`Error`], if etcd cannot be read.
pub async fn read(members: &Members) -> Result<View, Error> {
    Ok(connect_to_any(members).await?.1.view(false))
}
