//! The owners at present, and the limits, as etcd says.
//!
//! **Revisions.** Whatever happens below gate's prefix in etcd has a revision. A [`View`] is complete up to one of them, and names the
//! last one at which something changed. That one goes into every message between gates and owners: who gets a newer one than its own
//! view is complete up to is behind, and reads again ([`Membership::catch_up`]) before it decides.
//!
//! **Loss.** Without etcd the last view stays.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::rendezvous::owner_of;

/// How the owners are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// They are these, hosts and ports; distinct, at least one.
    Fixed(Vec<String>),
    /// They are at all addresses of this name, at the time.
    Dns(DnsName),
    /// They register with etcd, whose members are at these URLs; at least one.
    Etcd(Vec<String>),
}

/// A host name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    /// The name, for which owners' certificates are.
    pub host: String,
    /// Every owner's port.
    pub port: u16,
}

/// Owners and limits at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The last change; 0 without etcd, or before it has been read.
    pub revision: u64,
    /// Nothing is missing up to here.
    pub as_of: u64,
    /// The owners, in the order of their addresses' text.
    pub owners: Vec<Member>,
    /// The limits; `None` if there are none in etcd.
    pub limits: Option<Limits>,
    /// True while etcd says when something changes.
    pub is_live: bool,
}

/// An owner of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where gates report: a host and a port.
    pub address: String,
    /// When it registered, in seconds of Unix time by its own clock.
    pub since: u64,
    /// The revision at which it registered.
    pub revision: u64,
}

/// The limits that were applied last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The revision at which they were.
    pub revision: u64,
    /// The limits, as a file says them.
    pub text: Arc<str>,
}

impl View {
    /// The registration of an owner; `None` if it is none.
    #[must_use]
    pub fn member(&self, address: &str) -> Option<&Member> {
        self.owners.iter().find(|member| member.address == address)
    }

    /// The owner of a name; `None` if there are none.
    #[must_use]
    pub fn owner_of(&self, name: &str) -> Option<&Member> {
        let owners: Vec<_> = self.owners.iter().map(|owner| (owner.address.clone(), ())).collect();
        owner_of(name, &owners).map(|place| &self.owners[place])
    }

    /// The revision of the limits; 0 if there are none.
    #[must_use]
    pub fn limits_revision(&self) -> u64 {
        self.limits.as_ref().map_or(0, |limits| limits.revision)
    }

    /// The owners' addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.owners.iter().map(|member| member.address.clone()).collect()
    }
}

/// The view of a process. See the [module](self).
#[derive(Clone, Debug)]
pub struct Membership {
    views: watch::Receiver<Arc<View>>,
    wanted: Arc<watch::Sender<u64>>,
}

/// The other end of a [`Membership`], of whoever reads etcd.
#[derive(Debug)]
pub struct Source {
    /// Views, each more recent than the one before.
    pub views: watch::Sender<Arc<View>>,
    /// The largest revision that anybody has heard of.
    pub wanted: watch::Receiver<u64>,
}

impl Membership {
    /// A view of nothing, and the other end.
    #[must_use]
    pub fn new() -> (Self, Source) {
        let (views, receiver) = watch::channel(Arc::default());
        let (wanted, asked) = watch::channel(0);
        (Self { views: receiver, wanted: Arc::new(wanted) }, Source { views, wanted: asked })
    }

    /// Owners that never change.
    #[must_use]
    pub fn fixed(owners: Vec<String>) -> Self {
        let (membership, source) = Self::new();
        let owners = owners.into_iter().map(|address| Member { address, since: 0, revision: 0 }).collect();
        source.views.send_replace(Arc::new(View { owners, ..View::default() }));
        membership
    }

    /// The present view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.views.borrow())
    }

    /// Waits for another view than the one that this handle waited for last; for ever if there will be none.
    pub async fn changed(&mut self) {
        if self.views.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Has etcd read again if the view is older than this revision. Returns the view if it is complete up to there within `patience`.
    pub async fn catch_up(&self, revision: u64, patience: Duration) -> Option<Arc<View>> {
        self.wanted.send_if_modified(|wanted| {
            let is_newer = revision > (*wanted).max(self.views.borrow().as_of);
            *wanted = if is_newer { revision } else { *wanted };
            is_newer
        });
        let mut views = self.views.clone();
        let view = timeout(patience, views.wait_for(|view| view.as_of >= revision)).await;
        view.ok()?.ok().map(|view| Arc::clone(&view))
    }
}

/// The most owners of one fleet.
pub const MAX_OWNERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn view(as_of: u64) -> Arc<View> {
        Arc::new(View { as_of, ..View::default() })
    }

    #[tokio::test]
    async fn a_view_that_is_behind_has_etcd_read_again_once() {
        let (membership, mut source) = Membership::new();
        source.views.send_replace(view(7));
        assert!(membership.catch_up(7, Duration::ZERO).await.is_some());
        assert!(!source.wanted.has_changed().unwrap(), "nobody is behind");
        assert!(membership.catch_up(8, Duration::ZERO).await.is_none(), "not read yet");
        assert_eq!(*source.wanted.borrow_and_update(), 8);
        assert!(membership.catch_up(8, Duration::ZERO).await.is_none());
        assert!(!source.wanted.has_changed().unwrap(), "asked for already");
        source.views.send_replace(view(9));
        assert_eq!(membership.catch_up(8, Duration::ZERO).await.map(|view| view.as_of), Some(9));
    }
}
