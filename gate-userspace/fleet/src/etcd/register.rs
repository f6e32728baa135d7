//! An owner's key, and the lease that it hangs on.
//!
//! Of two owners at one address the one that registered last is in charge: the other one finds its key on another lease, decides nothing, and
//! registers anew when the key is gone.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::sleep;

use super::api::{PutRequest, RangeRequest};
use super::calls::Client;
use super::client::{NextMember, connect, connect_to_any};
use super::error::Error;
use super::keys::{of_owner, revision_of};
use super::members::Members;
use crate::owner::lease::{LEASE, LeaseKeeper};
use gate_system::clock;

/// Registers an owner and keeps its lease, until `until` is ready: then its key is deleted.
pub async fn register(
    members: Members,
    address: SocketAddr,
    mut keeper: LeaseKeeper,
    until: impl Future<Output = ()>,
) {
    let mut lease = None;
    tokio::select! {
        () = keep(&members, address, &mut keeper, &mut lease) => {}
        () = until => {}
    }
    let Some(lease) = lease else { return };
    let left = async { connect_to_any(&members).await?.0.revoke(lease).await };
    match left.await {
        Ok(()) => tracing::info!("no owner any more"),
        Err(error) => tracing::warn!(%error, "the key stays in etcd until the lease is over"),
    }
}

async fn keep(members: &Members, address: SocketAddr, keeper: &mut LeaseKeeper, lease: &mut Option<i64>) {
    let mut next = NextMember::draw();
    loop {
        let mut is_new = true;
        keeper.begin(clock::boottime());
        let Err(error) = match connect(members, &mut next) {
            Ok(client) => stay(client, address, keeper, lease, &mut is_new).await,
            Err(error) => Err(error),
        };
        tracing::debug!(%error, "the lease is not kept");
        match error {
            Error::LeaseOver => {
                keeper.over();
                *lease = None;
                tracing::warn!("the lease is over: registering anew");
            }
            _ if is_new => {
                keeper.failed(clock::boottime());
                sleep(EVERY).await;
            }
            // The connection may have been lost long ago, while this process was stopped.
            _ => {}
        }
    }
}

/// Registers if there is no lease, and keeps it while etcd answers. `is_new` becomes false with the first answer.
async fn stay(
    mut client: Client,
    address: SocketAddr,
    keeper: &mut LeaseKeeper,
    lease: &mut Option<i64>,
    is_new: &mut bool,
) -> Result<Infallible, Error> {
    loop {
        match *lease {
            None => {
                let (id, revision) = enter(&mut client, address).await?;
                *lease = Some(id);
                keeper.registered(clock::boottime(), revision);
                tracing::info!(%address, revision, "registered as an owner");
            }
            Some(id) => {
                client.keep_alive(id).await?;
                keeper.kept(clock::boottime());
                if key_is_gone(&mut client, address).await? {
                    keeper.over();
                    let revision = put(&mut client, address, id).await?;
                    keeper.registered(clock::boottime(), revision);
                    tracing::warn!(%address, revision, "the key was gone: registered anew");
                }
            }
        }
        *is_new = false;
        sleep(EVERY).await;
        keeper.begin(clock::boottime());
    }
}

/// A lease, and the key on it. Returns its number, and the revision.
async fn enter(client: &mut Client, address: SocketAddr) -> Result<(i64, u64), Error> {
    let ttl = LEASE.0.div_ceil(1_000_000_000).cast_signed();
    let lease = client.grant(ttl).await?;
    Ok((lease, put(client, address, lease).await?))
}

/// Puts the key on a lease, in the place of one that is there. Returns the revision.
async fn put(client: &mut Client, address: SocketAddr, lease: i64) -> Result<u64, Error> {
    let since = (clock::unix_millis() / 1_000).to_string();
    let key = PutRequest { key: of_owner(address).into(), value: since.into(), lease };
    revision_of(client.put(key).await?.header)
}

async fn key_is_gone(client: &mut Client, address: SocketAddr) -> Result<bool, Error> {
    let key = RangeRequest { key: of_owner(address).into(), ..RangeRequest::default() };
    Ok(client.range(key).await?.kvs.is_empty())
}

/// Time between two signs of life.
const EVERY: Duration = Duration::from_millis(500);
