//! Whose clients may have the same answer: one number for an identity, the same in all threads.
//!
//! Each thread has pools of its own; the answers that their clients share are known by this number. It is asked for
//! when a pool is made or its password changes, never for a request.
//!
//! **Invariants.** A number stands for one user, password, database and protocol version. No number is used again: it
//! is forgotten with the last pool that holds it, or when the store refuses its user, and whoever comes then has a
//! new one. So nothing that was kept for someone can become another's, not even if they have the same name.
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

    /// The store no longer lets in clients that do not say who they are. Each thread hears of it ([`Scopes::closed`]).
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
    fn all_threads_have_one_number_for_an_identity_and_another_for_every_other() {
        let scopes = Scopes::new(1);
        let alice = Identity::of("alice", "1");
        let held = scopes.of(&alice);
        assert_eq!(scopes.of(&Identity::of("alice", "1")).number, held.number);
        let named = Identity { name: Some((*b"me").into()), ..alice.clone() };
        assert_eq!(scopes.of(&named).number, held.number, "how a connection is called says nothing");
        let mut seen = vec![Scopes::first(), held];
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
    fn a_number_that_nobody_holds_or_that_is_retired_is_not_used_again() {
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
