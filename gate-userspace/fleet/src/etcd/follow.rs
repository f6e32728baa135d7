//! A view of owners and limits that is kept up to date: read once, then followed change by change; read again after each loss, and
//! when somebody has heard of a newer revision.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::api::WatchCreateRequest;
use super::client::{NextMember, connect, probe, read_keys};
use super::error::Error;
use super::keys::{END, Keys, PREFIX};
use super::members::Members;
use crate::membership::{Source, View};

/// Keeps the views of `source` up to date, for ever.
pub async fn follow(members: Members, mut source: Source) {
    let mut keys = Keys::default();
    let mut next = NextMember::draw();
    let mut pause = FIRST_PAUSE;
    loop {
        let before = keys.as_of();
        let Err(error) = session(&members, &mut next, &mut source, &mut keys).await;
        if source.views.borrow().is_live || before == 0 && pause == FIRST_PAUSE {
            tracing::warn!(%error, "without etcd: owners and limits stay as they were");
        }
        if source.views.borrow().is_live {
            pause = FIRST_PAUSE;
            source.views.send_modify(|view| *view = Arc::new(View { is_live: false, ..(**view).clone() }));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn session(
    members: &Members,
    next: &mut NextMember,
    source: &mut Source,
    keys: &mut Keys,
) -> Result<Infallible, Error> {
    let mut client = connect(members, next)?;
    *keys = read_keys(&mut client).await?;
    let from = i64::try_from(keys.as_of() + 1).unwrap_or(i64::MAX);
    let later = WatchCreateRequest { key: PREFIX.into(), range_end: END.into(), start_revision: from };
    let mut changes = client.watch(later).await?;
    publish(source, keys);
    tracing::info!(revision = keys.as_of(), owners = source.views.borrow().owners.len(), "following etcd");
    loop {
        tokio::select! {
            () = sleep(PROBE_EVERY) => {
                probe(&mut client).await?;
                continue;
            }
            message = changes.next() => keys.follow(message?)?,
            wanted = source.wanted.changed() => {
                if wanted.is_err() {
                    return std::future::pending().await;
                }
                if *source.wanted.borrow_and_update() <= keys.as_of() {
                    continue;
                }
                *keys = read_keys(&mut client).await?;
            }
        }
        publish(source, keys);
    }
}

fn publish(source: &Source, keys: &Keys) {
    let view = keys.view(true);
    source.views.send_if_modified(|before| {
        let is_new = **before != view;
        *before = Arc::new(view);
        is_new
    });
}

/// Nothing changes for hours, and a lost connection looks the same: etcd is asked something when it has said nothing for so long.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
