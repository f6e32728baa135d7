//! A store beside its peers: is one of several slower than the others?
//!
//! **Problem.** Of several stores that share the keys of a service a slow one hurts its own keys alone. The times of the service
//! hide it among the others', and a latency ratio compares each with what it was before: one that was always slow is usual.
//!
//! **How.** A store's p90 over the median of its peers' p90s, all of one window. Of an even number of peers the lower of the two in
//! the middle counts: two slow stores of four are both slow.
//!
//! **Invariants.** Pure. Nothing is said of a store that has answered fewer than [`ENOUGH`] requests, nor by such a peer. No store
//! whose p90 is below [`FLOOR`] is slow, and never are all of them: the median is one of theirs.

use gate_common::units::Nanos;

/// The answers of a store in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// How many.
    pub count: u64,
    /// The time that a tenth of them exceeded; nothing if there were none.
    pub p90: Option<Nanos>,
}

/// A store's times over its peers'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// How many times its p90 is the median of its peers': 1 if it is like them.
    pub times: f64,
    /// True if it is so slow that its keys are felt to be slow.
    pub is_slow: bool,
}

/// Each store beside its peers; `None` where too little was answered to say.
#[must_use]
pub fn compare(stores: &[Answers]) -> Vec<Option<Comparison>> {
    let p90s: Vec<_> = stores.iter().map(|store| store.p90.filter(|_| store.count >= ENOUGH)).collect();
    let of = |(place, own): (usize, &Option<Nanos>)| {
        let own = (*own)?;
        let peers = p90s.iter().enumerate().filter(|(peer, _)| *peer != place);
        let mut peers: Vec<_> = peers.filter_map(|(_, p90)| *p90).collect();
        peers.sort_unstable();
        let median = *peers.get(peers.len().checked_sub(1)? / 2)?;
        // A time of zero is below a clock's tick.
        let times = own.0 as f64 / median.0.max(1) as f64;
        Some(Comparison { times, is_slow: own >= FLOOR && times >= SLOW })
    };
    p90s.iter().enumerate().map(of).collect()
}

/// Answers in a window that a p90 is taken of.
pub const ENOUGH: u64 = 50;
/// A p90 below it is no problem, whatever the peers' is.
pub const FLOOR: Nanos = Nanos::from_millis(1);
/// A store that takes so many times as long as its peers is slow.
pub const SLOW: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(p90_us: u64) -> Answers {
        Answers { count: ENOUGH, p90: Some(Nanos::from_micros(p90_us)) }
    }

    fn slow(stores: &[Answers]) -> Vec<bool> {
        compare(stores).iter().map(|found| found.is_some_and(|found| found.is_slow)).collect()
    }

    #[test]
    fn a_store_is_slow_beside_faster_peers_alone() {
        for (p90s, expected) in [
            (&[1_000, 1_100, 4_000][..], &[false, false, true][..]),
            // Alike, however slow.
            (&[90_000, 100_000, 110_000], &[false; 3]),
            // Two stores: each is the other's only peer.
            (&[1_000, 3_000], &[false, true]),
            (&[1_000, 2_999], &[false, false]),
            // Half of them.
            (&[1_000, 1_000, 9_000, 9_000], &[false, false, true, true]),
            // Fast enough.
            (&[10, 10, 900], &[false; 3]),
            (&[0, 0, 1_000], &[false, false, true]),
            (&[1_000], &[false]),
        ] {
            let stores: Vec<_> = p90s.iter().copied().map(answers).collect();
            assert_eq!(slow(&stores), expected, "{p90s:?}");
        }
        let found = compare(&[answers(1_000), answers(4_000)]);
        assert_eq!(found[1], Some(Comparison { times: 4.0, is_slow: true }));
    }

    #[test]
    fn too_few_answers_say_nothing_of_a_store_nor_of_its_peers() {
        let few = Answers { count: ENOUGH - 1, ..answers(90_000) };
        let none = Answers { count: 0, p90: None };
        assert_eq!(compare(&[few, none, answers(1_000)]), [None, None, None]);
        assert_eq!(compare(&[]), []);
        assert_eq!(slow(&[few, answers(1_000), answers(1_000)]), [false; 3]);
    }

    proptest::proptest! {
        #[test]
        fn never_are_all_slow(p90s in proptest::collection::vec(0_u64..10_000_000, 1..20)) {
            let stores: Vec<_> = p90s.into_iter().map(answers).collect();
            proptest::prop_assert!(slow(&stores).contains(&false));
        }
    }
}
