//! The identity of a pool's clients, and the answers that they may share.

use std::cell::{Cell, RefCell};

use crate::dispatcher::identity::scopes::Scope;
use crate::dispatcher::identity::{Identity, Login};

/// The identity of a pool's clients. The pool owns it; its connections refer to it.
#[derive(Debug)]
pub(crate) struct PoolIdentity {
    /// The scope of answers that its clients share, with those of other threads' pools.
    pub(super) scope: RefCell<Scope>,
    /// The identity of its clients, with the password that was accepted last.
    pub(super) identity: RefCell<Identity>,
    pub(super) may_cache: Cell<bool>,
    /// True if its clients may send `UNLINK`, and the store knows it.
    pub(super) may_unlink: Cell<bool>,
}

impl PoolIdentity {
    /// The identity of its clients.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.borrow().clone()
    }

    /// The number of its clients' scope.
    #[inline]
    pub(crate) fn scope(&self) -> u64 {
        self.scope.borrow().number
    }

    /// The scope of answers that its clients may be given from the cache; `None` unless they are known to be allowed to
    /// read everything.
    #[inline]
    pub(crate) fn shares(&self) -> Option<u64> {
        self.may_cache.get().then(|| self.scope())
    }

    /// Notes that its clients may read everything, or may not.
    pub(crate) fn set_may_cache(&self, may_cache: bool) {
        self.may_cache.set(may_cache);
    }

    /// Takes over what is known of another pool, if its clients are the same user: what that may do is the same in any database.
    pub(super) fn learn_from(&self, other: &Self) {
        let own = self.identity.borrow();
        let others = other.identity.borrow();
        if own.login.as_deref().map(Login::user) == others.login.as_deref().map(Login::user) {
            self.may_unlink.set(other.may_unlink());
        }
    }

    /// True if its clients may send `UNLINK`, and the store knows it.
    #[inline]
    pub(crate) fn may_unlink(&self) -> bool {
        self.may_unlink.get()
    }

    /// Notes that they may, or may not.
    pub(crate) fn set_may_unlink(&self, may_unlink: bool) {
        self.may_unlink.set(may_unlink);
    }
}
