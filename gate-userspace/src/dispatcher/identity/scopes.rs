//! Scopes of answers: one number for the clients that may have the same answer, the same in all threads.
//!
//! Each thread has pools of its own; the answers that their clients share are known by this number. It is asked for
//! when a pool is made or its password changes, never for a request.
//!
//! **Invariants.** A number stands for one user, password, database and protocol version. No number is used again: it
//! is removed with the last pool that holds it, or when the store refuses its user, and a later client of that identity
//! has a new one. So an answer that was kept for one identity never reaches another, not even one of the same name.
//!
//! **Secrets.** Passwords are not kept here: identities are known by a seeded hash.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Identity;

/// One service's numbers, for all its threads.
#[derive(Debug)]
pub(crate) struct Scopes {
    seed: u64,
    numbers: Mutex<Numbers>,
    /// How often the store has stopped letting in clients that do not say who they are.
    closed: AtomicU64,
}

#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    by_identity: HashMap<[u8; 32], (u64, Weak<()>)>,
}

/// A number in use.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The number.
    pub(crate) number: u64,
    in_use: Arc<()>,
}

impl Scopes {
    /// None are used yet but that of clients that have not said who they are.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, numbers: Mutex::default(), closed: AtomicU64::new(0) }
    }

    /// That of clients that have not said who they are.
    pub(crate) fn first() -> Scope {
        Scope { number: 0, in_use: Arc::default() }
    }

    /// That of an identity which the store has accepted.
    pub(crate) fn of(&self, identity: &Identity) -> Scope {
        let digest = identity.digest(self.seed);
        let numbers = &mut *self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, in_use)) = numbers.by_identity.get(&digest)
            && let Some(in_use) = in_use.upgrade()
        {
            return Scope { number: *number, in_use };
        }
        numbers.by_identity.retain(|_, (_, in_use)| in_use.strong_count() > 0);
        numbers.last += 1;
        let scope = Scope { number: numbers.last, in_use: Arc::default() };
        numbers.by_identity.insert(digest, (scope.number, Arc::downgrade(&scope.in_use)));
        scope
    }

    /// The store no longer lets in unauthenticated clients. Each thread learns of it ([`Scopes::closed`]).
    pub(crate) fn close(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that has happened.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Nobody else gets this number any more.
    pub(crate) fn retire(&self, scope: &Scope) {
        let numbers = &mut *self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.by_identity.retain(|_, (number, _)| *number != scope.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::resp::Version;

    #[test]
    fn an_identity_has_the_same_distinct_number_in_all_threads() {
        let scopes = Scopes::new(1);
        let alice = Identity::of("alice", "1");
        let scope = scopes.of(&alice);
        assert_eq!(scopes.of(&Identity::of("alice", "1")).number, scope.number);
        let named = Identity { name: Some((*b"me").into()), ..alice.clone() };
        assert_eq!(scopes.of(&named).number, scope.number, "how a connection is called says nothing");
        let mut seen = vec![Scopes::first(), scope];
        for other in [
            Identity::of("alice", "2"),
            Identity::of("bob", "1"),
            Identity::of("alice1", ""),
            Identity { database: 1, ..alice.clone() },
            Identity { version: Version::Three, ..alice.clone() },
            Identity { database: 1, ..Identity::default() },
            Identity { version: Version::Three, ..Identity::default() },
        ] {
            let scope = scopes.of(&other);
            assert!(seen.iter().all(|before| before.number != scope.number), "{other:?}");
            seen.push(scope);
        }
    }

    #[test]
    fn an_unused_or_retired_number_is_not_used_again() {
        let scopes = Scopes::new(1);
        let alice = Identity::of("alice", "1");
        let one = scopes.of(&alice);
        let other = scopes.of(&alice);
        drop(one);
        assert_eq!(scopes.of(&alice).number, other.number, "another thread holds it");
        scopes.retire(&other);
        let new = scopes.of(&alice);
        assert_ne!(new.number, other.number);
        let before = new.number;
        drop(new);
        assert_ne!(scopes.of(&alice).number, before);
        assert!(scopes.numbers.lock().unwrap().by_identity.len() <= 1, "what is forgotten takes memory");
    }
}
