//! Owners by a name that stands for all of their addresses, as a headless service of Kubernetes has one, followed as it changes.
//!
//! **Loss.** A name that has no address, or that nobody answers for, changes nothing: the last owners stay. Gates ask by themselves, so that for about
//! [`EVERY`] two may hold different owners for a limit's; either counts what it is told of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::membership::{DnsName, MAX_OWNERS, Member, Source, View};

/// Asks for the name's addresses again and again, for as long as anybody follows.
pub(super) async fn follow(name: DnsName, source: Source) {
    let mut was_found = true;
    while !source.views.is_closed() {
        let found = timeout(PATIENCE, lookup_host((name.host.as_str(), name.port))).await;
        let view = match found {
            Ok(Ok(addresses)) => view_of(addresses),
            Ok(Err(_)) | Err(_) => None,
        };
        match &view {
            None if was_found => {
                tracing::warn!(host = name.host, "no owner of limits has this name; the last ones stay")
            }
            Some(view) if !was_found => {
                tracing::info!(host = name.host, owners = view.owners.len(), "found owners of limits")
            }
            None | Some(_) => {}
        }
        was_found = view.is_some();
        if let Some(view) = view {
            source.views.send_if_modified(|known| {
                let is_new = **known != view;
                if is_new {
                    *known = Arc::new(view);
                }
                is_new
            });
        }
        sleep(EVERY).await;
    }
}

/// The owners at these addresses, in the order of their text; `None` if there are none.
fn view_of(addresses: impl Iterator<Item = SocketAddr>) -> Option<View> {
    let mut addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MAX_OWNERS);
    let owners: Vec<Member> =
        addresses.into_iter().map(|address| Member { address, since: 0, revision: 0 }).collect();
    (!owners.is_empty()).then(|| View { owners, ..View::default() })
}

/// How often the name is asked about. A resolver on the machine keeps answers for as long as they last.
const EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Membership;

    #[test]
    fn addresses_are_owners_in_one_order() {
        let view = |addresses: &[&str]| view_of(addresses.iter().map(|address| address.parse().unwrap()));
        let one = view(&["198.18.0.2:9920", "198.18.0.1:9920", "198.18.0.2:9920"]).unwrap();
        assert_eq!(one.addresses(), ["198.18.0.1:9920", "198.18.0.2:9920"]);
        assert_eq!(view(&["198.18.0.1:9920", "198.18.0.2:9920"]), Some(one));
        assert_eq!(view(&[]), None);
    }

    #[tokio::test]
    async fn a_name_is_followed_and_one_that_is_gone_changes_nothing() {
        let (mut membership, source) = Membership::new();
        let name = |host: &str| DnsName { host: host.to_owned(), port: 9920 };
        let following = tokio::spawn(follow(name("localhost"), source));
        timeout(PATIENCE, membership.changed()).await.unwrap();
        let found = membership.view().addresses();
        assert!(
            found.iter().any(|address| address == "127.0.0.1:9920" || address == "[::1]:9920"),
            "{found:?}"
        );
        following.abort();
        let (membership, source) = Membership::new();
        // No resolver knows it (RFC 6761).
        let gone = timeout(Duration::from_millis(300), follow(name("gate.invalid"), source)).await;
        assert!(gone.is_err() && membership.view().owners.is_empty());
    }
}
