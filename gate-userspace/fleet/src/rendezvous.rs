//! The owner of a name, by rendezvous hashing: the one whose hash together with the name is the largest. A change among the
//! owners moves only the names of those that come or go.

use sha2::{Digest as _, Sha256};

/// The place of the owner of a name among these, whose addresses come first; `None` if there are none.
pub(super) fn owner_of<T>(name: &str, owners: &[(String, T)]) -> Option<usize> {
    let weight = |owner: &String| {
        let mut hash = Sha256::new();
        hash.update((owner.len() as u64).to_le_bytes());
        hash.update(owner);
        hash.update(name);
        hash.finalize()
    };
    (0..owners.len()).max_by_key(|&place| weight(&owners[place].0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(count: usize) -> Vec<(String, ())> {
        (0..count).map(|number| (format!("198.18.0.{number}:9920"), ())).collect()
    }

    #[test]
    fn names_are_spread_and_only_those_of_who_left_move() {
        let five = owners(5);
        let mut counts = [0; 5];
        for number in 0..10_000 {
            let name = format!("shop/user={number}");
            let before = owner_of(&name, &five).unwrap();
            counts[before] += 1;
            let after = owner_of(&name, &five[..4]).unwrap();
            assert!(before == 4 || before == after, "{name}");
        }
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_owner_of_a_name_is_the_same_everywhere_and_always() {
        let places =
            ["acme", "initech", "shop/user=alice", ""].map(|name| owner_of(name, &owners(3)).unwrap());
        assert_eq!(places, [2, 0, 0, 1]);
        assert_eq!(owner_of("acme", &owners(0)), None);
    }
}
