//! Whose a pool is: the identity of its clients, and what they may share.

use std::cell::{Cell, RefCell};

use crate::dispatcher::identity::Identity;
use crate::dispatcher::identity::scopes::Scope;

/// The identity of a pool's clients. The pool owns it; its connections refer to it.
#[derive(Debug)]
pub(crate) struct PoolIdentity {
    /// Which answers its clients share, with those of other threads' pools.
    pub(super) scope: RefCell<Scope>,
    /// Who its clients are, by the password that was accepted last.
    pub(super) identity: RefCell<Identity>,
    pub(super) may_cache: Cell<bool>,
}

impl PoolIdentity {
    /// Who its clients are.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.borrow().clone()
    }

    /// The number of what its clients share.
    #[inline]
    pub(crate) fn scope(&self) -> u64 {
        self.scope.borrow().number
    }

    /// The scope of what its clients may be given that the store has answered another of them; `None` unless they may
    /// read everything, as far as is known.
    #[inline]
    pub(crate) fn shares(&self) -> Option<u64> {
        self.may_cache.get().then(|| self.scope())
    }

    /// Whether its clients may read everything has become known.
    pub(crate) fn set_may_cache(&self, may_cache: bool) {
        self.may_cache.set(may_cache);
    }
}
