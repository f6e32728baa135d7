use proptest::prelude::*;

use super::*;

const ALL: RequestedRows = RequestedRows::shown_by_reply(100);
const PART: RequestedRows = RequestedRows::shown_in_part(100);
const KIND: u8 = 1;
const NOW: Nanos = Nanos::from_secs(1_000);

/// The read of all of a key.
fn of(key: u32) -> KeyRead {
    KeyRead { key, kind: KIND, values: 1, ..KeyRead::NONE }
}

fn reply(rows: u32) -> Reply {
    Reply { rows, bytes: u64::from(rows) * 10 }
}

/// A request as the dispatcher makes it: with the size that is known of its key. Returns the charge in rows.
fn ask(reads: &KeyReads, tenant: u32, key: u32, rows: u32, now: Nanos) -> u32 {
    let mut read = of(key);
    if let Some(seen) = reads.seen(tenant, key, now) {
        read = KeyRead { rows: seen.elements, known: Known::Seen, ..read };
    }
    let charged = reads.expected(tenant, &read, ALL).rows;
    assert_eq!(reads.observe(tenant, &read, ALL, reply(rows), now).rows, rows.max(1));
    charged
}

#[test]
fn a_large_key_costs_its_size_and_small_ones_do_not() {
    let reads = KeyReads::new(2);
    assert_eq!(ask(&reads, 0, 1, 3, NOW), 100, "the guess");
    assert_eq!(ask(&reads, 0, 2, 100_000, NOW), 3, "as the unknown key before");
    for _ in 0..100 {
        assert_eq!(ask(&reads, 0, 2, 100_000, NOW), 100_000);
    }
    // The one large read that was not foreseen is paid by the next ones, and no other.
    let paid: u32 = (0..100).map(|_| ask(&reads, 0, 1, 3, NOW)).sum();
    assert!((90_000..110_000).contains(&paid), "{paid}");
    assert_eq!(ask(&reads, 0, 1, 3, NOW), 3);
    assert_eq!(ask(&reads, 0, 2, 100_000, NOW), 100_000);
    assert_eq!(ask(&reads, 1, 2, 100_000, NOW), 100, "another tenant has its own");
}

#[test]
fn a_key_that_changes_is_charged_as_it_was_one_reply_ago() {
    let reads = KeyReads::new(1);
    ask(&reads, 0, 7, 50_000, NOW);
    for (rows, charged) in [(200_000, 50_000), (10, 200_000), (90_000, 10), (90_000, 90_000)] {
        assert_eq!(ask(&reads, 0, 7, rows, NOW), charged);
    }
    // An error, or a range that the key does not have, says nothing of it; a key that is gone is not known any more.
    let error = Reply { rows: 0, bytes: 68 };
    reads.observe(0, &of(7), ALL, error, NOW);
    reads.observe(0, &KeyRead { beyond: 90_001, ..of(7) }, ALL, reply(0), NOW);
    assert_eq!(reads.seen(0, 7, NOW).map(|seen| seen.elements), Some(90_000));
    ask(&reads, 0, 7, 0, NOW);
    assert_eq!(reads.seen(0, 7, NOW), None);
}

#[test]
fn elements_follow_from_the_values_and_bounds_of_a_reply() {
    for (values, beyond, rows, elements) in [(1, 0, 5_000, 5_000), (2, 0, 5_000, 2_500), (1, 7, 5_000, 5_007)]
    {
        let reads = KeyReads::new(1);
        reads.observe(0, &KeyRead { values, beyond, ..of(9) }, ALL, reply(rows), NOW);
        assert_eq!(reads.seen(0, 9, NOW).map(|seen| seen.elements), Some(elements));
    }
    let reads = KeyReads::new(1);
    for untold in [KeyRead { values: 0, ..of(9) }, of(0)] {
        reads.observe(0, &untold, ALL, reply(5_000), NOW);
        assert_eq!(reads.seen(0, untold.key, NOW), None);
    }
}

#[test]
fn the_told_size_is_charged_and_a_lie_counts_no_more() {
    let reads = KeyReads::new(1);
    let asked = |rows| KeyRead { rows, known: Known::Asked, ..of(5) };
    assert_eq!(reads.expected(0, &asked(40_000), ALL).rows, 40_000);
    assert_eq!(reads.expected(0, &asked(40_000), PART).rows, 40_000);
    // The reply to a union shows less than was read for it; that to a read of all shows it.
    assert_eq!(reads.observe(0, &asked(40_000), PART, reply(3), NOW).rows, 40_000);
    assert_eq!(reads.observe(0, &asked(40_000), ALL, reply(30_000), NOW).rows, 30_000);
    assert!(!asked(40_000).was_told_wrong(81_000) && asked(4).was_told_wrong(1_009));
    reads.observe(0, &asked(4), ALL, reply(30_000), NOW);
    // It is not believed again while it is not.
    reads.observe(0, &KeyRead { known: Known::Seen, ..asked(30_000) }, ALL, reply(30_000), NOW);
    assert_eq!(reads.seen(0, 5, NOW), Some(SeenKey { elements: 30_000, is_understated: true }));
    reads.observe(0, &asked(30_000), ALL, reply(30_000), NOW);
    assert!(reads.seen(0, 5, NOW).is_some_and(|seen| !seen.is_understated));
    // A sorting with `LIMIT` states the rows of its reply, and walks over all.
    let limited = RequestedRows::stated(1);
    assert_eq!(reads.expected(0, &asked(30_000), limited).rows, 30_000);
    assert_eq!(reads.observe(0, &asked(30_000), limited, reply(1), NOW).rows, 30_000);
}

#[test]
fn long_values_are_expected_by_the_size_of_the_key() {
    let reads = KeyReads::new(1);
    let long = Reply { rows: 2_000, bytes: 2_000 * 3 * ROW_BYTES };
    reads.observe(0, &of(5), ALL, long, NOW);
    let seen = |rows| KeyRead { rows, known: Known::Seen, ..of(5) };
    assert_eq!(reads.expected(0, &seen(1_000), ALL).more_bytes, 2_000 * ROW_BYTES as u32);
    // Another key has values as its size class has, of which nothing is known yet.
    let other = KeyRead { key: 6, ..seen(1_000) };
    assert_eq!(reads.expected(0, &other, ALL).more_bytes, 0);
    reads.observe(0, &seen(2_000), ALL, long, NOW);
    assert_eq!(reads.expected(0, &other, ALL).more_bytes, 2_000 * ROW_BYTES as u32);
}

#[test]
fn large_reads_are_remembered_and_keys_not_read_leave() {
    let reads = KeyReads::new(1);
    ask(&reads, 0, 1, LARGE_ROWS - 1, NOW);
    assert!(reads.seen(0, 1, NOW).is_none() && !reads.were_large(0, KIND, NOW));
    ask(&reads, 0, 1, LARGE_ROWS, NOW);
    assert!(reads.seen(0, 1, NOW).is_some() && reads.were_large(0, KIND, NOW));
    assert!(!reads.were_large(0, KIND + 1, NOW));
    let after = |times: u64| Nanos(NOW.0 + times * HALVING.0);
    assert!(reads.seen(0, 1, after(9)).is_some());
    assert!(reads.seen(0, 1, Nanos::ZERO).is_some(), "an earlier time changes nothing");
    assert!(reads.seen(0, 1, after(21)).is_none());
    assert!(!reads.were_large(0, KIND, Nanos(NOW.0 + REMEMBERED.0)));
}

#[test]
fn the_heaviest_keys_of_a_tenant_are_known() {
    let reads = KeyReads::new(1);
    for round in 0..50_u32 {
        for key in 1..=20 {
            ask(&reads, 0, key, 50_000, NOW);
        }
        for key in 0..100 {
            ask(&reads, 0, 1_000 + round * 100 + key, 2_000, NOW);
        }
    }
    assert!((1..=20).all(|key| reads.seen(0, key, NOW).is_some()));
    let tenant = reads.known(0).unwrap();
    assert_eq!((tenant.sketch.keys.len(), tenant.sketch.keys.capacity()), (CAPACITY, CAPACITY));
}

#[test]
fn a_tenant_without_room_is_measured_and_not_remembered() {
    let reads = KeyReads::new(1);
    assert_eq!(reads.observe(1, &of(3), ALL, reply(5_000), NOW).rows, 5_000);
    assert_eq!(reads.expected(1, &of(3), ALL).rows, 100);
    reads.observe(0, &of(3), ALL, reply(5_000), NOW);
    reads.forget(0);
    assert_eq!(reads.seen(0, 3, NOW), None);
    assert_eq!(reads.expected(0, &of(3), ALL).rows, 100);
}

proptest! {
    /// Whatever the order of large and small keys, a tenant pays for what it reads.
    #[test]
    fn charges_come_to_what_was_read(
        asked in proptest::collection::vec((1..40_u32, 0..4_u32), 1..400),
    ) {
        let reads = KeyReads::new(1);
        let largest = 300_000;
        let mut paid = 0_u64;
        let mut read = 0_u64;
        let mut last = std::collections::HashMap::new();
        for (key, size) in asked {
            let rows = [1, 30, 5_000, largest][size as usize];
            paid += u64::from(ask(&reads, 0, key, rows, NOW));
            read += u64::from(rows);
            last.insert(key, rows);
        }
        // Each key lags by one reply, and the mean of the unknown ones by as many as it remembers.
        let lag = (last.len() as u64 + 8) * u64::from(largest);
        prop_assert!(paid + lag >= read, "{paid} of {read}");
    }

    #[test]
    fn nothing_that_a_tenant_does_moves_another(
        hostile in proptest::collection::vec((any::<bool>(), any::<u32>(), any::<u32>()), 0..400),
    ) {
        let reads = KeyReads::new(3);
        (1..=10).for_each(|key| _ = ask(&reads, 1, key, 10_000 * key, NOW));
        let all = || {
            let unknown = reads.expected(1, &of(99), ALL);
            (unknown, (1..=10).map(|key| reads.seen(1, key, NOW)).collect::<Vec<_>>())
        };
        let before = all();
        for (is_first, key, rows) in hostile {
            ask(&reads, if is_first { 0 } else { 2 }, key, rows.max(1), NOW);
        }
        prop_assert_eq!(all(), before);
    }
}
