//! The identity of a pool's clients, and the answers that they may share.

use std::cell::{Cell, RefCell};

use crate::dispatcher::identity::Identity;
use crate::dispatcher::identity::scopes::Scope;

/// The identity of a pool's clients. The pool owns it; its connections refer to it.
#[derive(Debug)]
pub(crate) struct PoolIdentity {
    /// The scope of answers that its clients share, with those of other threads' pools.
    pub(super) scope: RefCell<Scope>,
    /// The identity of its clients, with the password that was accepted last.
    pub(super) identity: RefCell<Identity>,
    pub(super) may_cache: Cell<bool>,
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
}
