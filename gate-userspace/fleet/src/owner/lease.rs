//! The lease of an owner, by which it may decide: it is alive in etcd, or etcd itself is gone.
//!
//! **Problem.** A process that was stopped past its lease does not know it. When it goes on, reports lie before it that others have
//! charged meanwhile.
//!
//! **Rule.** An owner decides if its last question to etcd, which was answered or in vain, began less than a lease ago. It asks several times
//! within one. A question that took so long itself says nothing: a process that was stopped over it takes what lay there for an
//! answer, or for none. When etcd is gone questions are in vain, and all goes on: nobody can have taken over. An owner that was cut off
//! from etcd alone gets reports of a newer revision, or none.
//!
//! Time is `CLOCK_BOOTTIME`, which goes on while a machine sleeps.

use std::net::SocketAddr;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::membership::Membership;
use gate_system::clock;

/// The present knowledge of the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    /// When the last question began that says something; `None` before the first registration.
    asked: Option<Nanos>,
    /// The revision of the registration.
    registered: u64,
}

/// An owner's lease, for those who decide.
#[derive(Clone, Debug)]
pub struct Lease {
    address: String,
    membership: Membership,
    standing: watch::Receiver<Standing>,
}

/// An owner's lease, for who keeps it.
#[derive(Debug)]
pub struct LeaseKeeper {
    standing: watch::Sender<Standing>,
    /// When the present question began.
    began: Nanos,
}

/// Why an owner does not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// The owner does not know whether its lease is alive.
    #[error("this owner has not heard of its lease for too long")]
    Lease,
    /// The owner cannot read what the gate has read.
    #[error("this owner cannot read revision {0} of etcd, which the gate knows")]
    Behind(u64),
    /// There is no such owner.
    #[error("this is no owner at revision {0}")]
    NoOwner(u64),
    /// Another one has registered since, at the same address.
    #[error("another owner has registered at {address}, at revision {revision}: this one decides nothing")]
    Displaced {
        /// The address of both.
        address: String,
        /// When it did.
        revision: u64,
    },
    /// The gate knows it from before it registered anew.
    #[error("a report under revision {reported}: this owner has registered anew at {registered}")]
    Old {
        /// The gate's.
        reported: u64,
        /// Its own.
        registered: u64,
    },
}

impl Lease {
    /// A lease that is not there yet, of the owner at this address.
    #[must_use]
    pub fn new(address: SocketAddr, membership: Membership) -> (Self, LeaseKeeper) {
        let (sender, standing) = watch::channel(Standing::default());
        (
            Self { address: address.to_string(), membership, standing },
            LeaseKeeper { standing: sender, began: Nanos::ZERO },
        )
    }

    /// True if a report under the present revision would be decided, as far as is known without asking etcd.
    #[must_use]
    pub fn decides(&self) -> bool {
        let standing = *self.standing.borrow();
        let view = self.membership.view();
        let member = view.member(&self.address);
        standing.is_sure(clock::boottime()) && member.is_some_and(|own| own.revision <= standing.registered)
    }

    /// Waits until it is known whether a report under this revision may be decided. Returns the revision under which it is.
    ///
    /// # Errors
    ///
    /// [`Undecided`], if it may not, or that is not known in time.
    pub async fn check(&self, reported: u64) -> Result<u64, Undecided> {
        let mut standing = self.standing.clone();
        let is_sure = standing.wait_for(|standing| standing.is_sure(clock::boottime()));
        let registered = match timeout(PATIENCE, is_sure).await {
            Ok(Ok(standing)) => standing.registered,
            _ => return Err(Undecided::Lease),
        };
        if reported < registered {
            return Err(Undecided::Old { reported, registered });
        }
        let view = self.membership.catch_up(reported, PATIENCE).await;
        let view = view.ok_or(Undecided::Behind(reported))?;
        match view.member(&self.address) {
            Some(member) if member.revision > registered => {
                let address = self.address.clone();
                Err(Undecided::Displaced { address, revision: member.revision })
            }
            Some(_) => Ok(view.revision),
            None => Err(Undecided::NoOwner(view.revision)),
        }
    }
}

impl Standing {
    fn is_sure(&self, now: Nanos) -> bool {
        self.asked.is_some_and(|asked| now < asked.saturating_add(LEASE))
    }
}

impl LeaseKeeper {
    /// A question to etcd begins.
    pub const fn begin(&mut self, now: Nanos) {
        self.began = now;
    }

    /// Notes that it registered, at this revision.
    pub fn registered(&mut self, now: Nanos, revision: u64) {
        self.ended(now, Some(revision));
    }

    /// The lease was renewed.
    pub fn kept(&mut self, now: Nanos) {
        self.ended(now, None);
    }

    /// A question over a new connection was in vain. Before the first registration that says nothing.
    pub fn failed(&mut self, now: Nanos) {
        self.ended(now, None);
    }

    /// The lease is over.
    pub fn over(&mut self) {
        self.standing.send_replace(Standing::default());
    }

    fn ended(&mut self, now: Nanos, registered: Option<u64>) {
        let began = self.began;
        self.standing.send_modify(|standing| {
            standing.registered = registered.unwrap_or(standing.registered);
            if standing.registered > 0 && now < began.saturating_add(LONGEST_QUESTION) {
                standing.asked = Some(began);
            }
        });
    }
}

/// The time to live of an owner's key.
pub const LEASE: Nanos = Nanos::from_secs(3);
/// A question that took longer says nothing.
const LONGEST_QUESTION: Nanos = Nanos::from_secs(2);
/// How long a report waits for what etcd says.
const PATIENCE: Duration = Duration::from_millis(700);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::membership::{Member, Source, View};

    const ADDRESS: &str = "127.0.0.1:9920";

    fn ago(millis: u64) -> Nanos {
        clock::boottime().saturating_sub(Nanos::from_millis(millis))
    }

    /// A lease that was registered at revision 5, of whom etcd says the same.
    fn registered() -> (Lease, LeaseKeeper, Source) {
        let address = ADDRESS.parse().unwrap();
        let (membership, source) = Membership::new();
        publish(&source, 5, 5, &[address]);
        let (lease, mut keeper) = Lease::new(address, membership);
        keeper.begin(ago(10));
        keeper.registered(ago(9), 5);
        (lease, keeper, source)
    }

    /// A view as of `revision`, in which these owners registered at `registered`.
    fn publish(source: &Source, revision: u64, registered: u64, owners: &[SocketAddr]) {
        let owners = owners
            .iter()
            .map(|address| Member { address: address.to_string(), since: 0, revision: registered })
            .collect();
        source.views.send_replace(Arc::new(View { revision, as_of: revision, owners, ..View::default() }));
    }

    #[tokio::test]
    async fn an_owner_decides_while_it_knows_of_its_lease() {
        let (lease, mut keeper, _source) = registered();
        assert_eq!(lease.check(5).await, Ok(5));
        assert!(lease.decides());
        // Nothing was heard for longer than the lease: it was stopped.
        keeper.begin(ago(3_100));
        keeper.kept(ago(3_000));
        assert_eq!(lease.check(5).await, Err(Undecided::Lease));
        assert!(!lease.decides());
        // A question over which it was stopped says nothing, answered or in vain.
        keeper.begin(ago(2_900));
        keeper.failed(ago(0));
        keeper.kept(ago(0));
        assert_eq!(lease.check(5).await, Err(Undecided::Lease));
        // Without etcd all goes on.
        keeper.begin(ago(400));
        keeper.failed(ago(0));
        assert_eq!(lease.check(5).await, Ok(5));
    }

    #[tokio::test]
    async fn a_report_waits_until_the_lease_is_known_and_is_refused_if_it_is_another_one() {
        let (lease, mut keeper, source) = registered();
        keeper.over();
        let (decided, ()) = tokio::join!(lease.check(5), async {
            tokio::task::yield_now().await;
            publish(&source, 8, 8, &[ADDRESS.parse().unwrap()]);
            keeper.begin(ago(10));
            keeper.registered(ago(0), 8);
        });
        assert_eq!(decided, Err(Undecided::Old { reported: 5, registered: 8 }));
        assert_eq!(lease.check(8).await, Ok(8));
    }

    #[tokio::test]
    async fn of_two_owners_at_one_address_the_later_one_decides() {
        let (lease, mut keeper, source) = registered();
        let address = ADDRESS.parse().unwrap();
        publish(&source, 7, 7, &[address]);
        let displaced = Undecided::Displaced { address: ADDRESS.to_owned(), revision: 7 };
        assert_eq!(lease.check(5).await, Err(displaced.clone()));
        assert_eq!(lease.check(7).await, Err(displaced));
        assert!(!lease.decides());
        keeper.begin(ago(10));
        keeper.registered(ago(0), 9);
        publish(&source, 9, 9, &[address]);
        assert_eq!(lease.check(9).await, Ok(9));
        assert!(lease.decides());
    }

    #[tokio::test]
    async fn a_newer_revision_is_read_first() {
        let (lease, _keeper, mut source) = registered();
        assert_eq!(lease.check(6).await, Err(Undecided::Behind(6)));
        assert_eq!(*source.wanted.borrow_and_update(), 6);
        publish(&source, 7, 5, &[ADDRESS.parse().unwrap()]);
        assert_eq!(lease.check(6).await, Ok(7));
        publish(&source, 8, 5, &[]);
        assert_eq!(lease.check(6).await, Err(Undecided::NoOwner(8)));
    }
}
