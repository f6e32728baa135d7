//! From a hash to the number of a counter.

/// A hash table of counter numbers: open addressing, linear probing, no tombstones.
///
/// Sparse on purpose: at one entry in eight places or fewer, a look-up that finds nothing (which is
/// every other one, in a skewed stream) reads one place and is seldom predicted wrongly. That is
/// worth a third of an update's time, for 64 bytes a counter beside the 320 that its key takes.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// The hash, and the counter's number plus one; zero is an empty place.
    places: Box<[(u32, u32)]>,
}

impl Index {
    /// Room for `capacity` numbers (below 2^28).
    pub(super) fn new(capacity: usize) -> Self {
        Self { places: vec![(0, 0); (capacity * SPARSENESS).next_power_of_two()].into() }
    }

    /// The number under `hash` for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            match self.places[at] {
                (_, 0) => return None,
                (other, number) if other == hash && is_it(number - 1) => return Some(number - 1),
                _ => at = self.after(at),
            }
        }
    }

    /// Adds a number that is not there yet.
    #[inline]
    pub(super) fn insert(&mut self, hash: u32, number: u32) {
        let mut at = self.home(hash);
        while self.places[at].1 != 0 {
            at = self.after(at);
        }
        self.places[at] = (hash, number + 1);
    }

    /// Takes out a number that is there under `hash`.
    #[inline]
    pub(super) fn remove(&mut self, hash: u32, number: u32) {
        let mut hole = self.home(hash);
        while self.places[hole].1 != number + 1 {
            hole = self.after(hole);
        }
        // What was pushed past the hole moves back into it, or a look-up would stop too early.
        let mut at = self.after(hole);
        while self.places[at].1 != 0 {
            let home = self.home(self.places[at].0);
            if self.distance(home, at) >= self.distance(hole, at) {
                self.places[hole] = self.places[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.places[hole] = (0, 0);
    }

    pub(super) fn clear(&mut self) {
        self.places.fill((0, 0));
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.places.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.places.len() - 1)
    }
}

/// Places for each entry, at least.
const SPARSENESS: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((0..32_u32, 0..40_u32, any::<bool>()), 1..300),
        ) {
            // Few hashes, at both ends of the table, so that entries push each other around its end.
            let mut index = Index::new(40);
            let mut entries: HashMap<u32, u32> = HashMap::new();
            for (hash, number, put) in steps {
                let hash = hash.wrapping_sub(16);
                match entries.remove(&number) {
                    Some(hash) if !put => index.remove(hash, number),
                    Some(hash) => { entries.insert(number, hash); }
                    None if put => { index.insert(hash, number); entries.insert(number, hash); }
                    None => {}
                }
                prop_assert_eq!(index.find(hash, |other| other == number).is_some(), entries.get(&number) == Some(&hash));
            }
            for number in 0..40 {
                let found = (0..32_u32).map(|hash| hash.wrapping_sub(16))
                    .find(|&hash| index.find(hash, |other| other == number).is_some());
                prop_assert_eq!(found, entries.get(&number).copied());
            }
        }
    }
}
