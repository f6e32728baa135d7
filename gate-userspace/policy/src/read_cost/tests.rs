use proptest::prelude::*;

use super::*;

const OPEN: RequestedRows = RequestedRows::shown_by_reply(100);
const RANGE: usize = 4;

fn reply(rows: u32, bytes: u64) -> Reply {
    Reply { rows, bytes }
}

#[test]
fn unseen_requests_are_expected_to_read_what_they_state() {
    let sizes = ReadSizes::new(2);
    for requested in [OPEN, RequestedRows::stated(7), RequestedRows::shown_in_part(100)] {
        for tenant in [0, 1, 2, u32::MAX] {
            assert_eq!(
                sizes.expected(tenant, RANGE, requested),
                ReadSize { rows: requested.rows, more_bytes: 0 },
                "{tenant}"
            );
        }
    }
    // A tenant that there is no room for is measured, and not remembered.
    assert_eq!(sizes.observe(2, RANGE, OPEN, reply(5, 0)).rows, 5);
    assert_eq!(sizes.expected(2, RANGE, OPEN).rows, 100);
}

#[test]
fn each_class_is_expected_to_read_what_its_last_ones_read() {
    for (requested, reply, rows, more_bytes) in [
        // An open range costs what it returned, however few.
        (OPEN, reply(3, 60), 3, 0),
        (OPEN, reply(0, 4), 1, 0),
        (OPEN, reply(100_000, 1_000_000), 100_000, 0),
        // A row has a KiB; what is beyond is counted.
        (OPEN, reply(2, 10 * 1_024), 2, 8 * 1_024),
        (RequestedRows::stated(1), reply(0, 1_024), 1, 0),
        (RequestedRows::stated(1), reply(0, 1 << 20), 1, (1 << 20) - 1_024),
        (RequestedRows::stated(10), reply(0, 30 * 1_024), 10, 20 * 1_024),
        // A transaction says nothing of rows, and its reply has many: they are in their own requests' prices.
        (RequestedRows::stated(1), reply(100, 100 * 1_024), 1, 0),
        // What reads more than it returns costs no less than the guess.
        (RequestedRows::shown_in_part(100), reply(3, 60), 100, 0),
        (RequestedRows::shown_in_part(100), reply(200_000, 9), 200_000, 0),
    ] {
        let sizes = ReadSizes::new(1);
        let read = ReadSize { rows, more_bytes };
        assert_eq!(sizes.observe(0, RANGE, requested, reply), read, "{requested:?} {reply:?}");
        assert_eq!(sizes.expected(0, RANGE, requested), read, "{requested:?} {reply:?}");
        let other_class = sizes.expected(0, RANGE + 1, requested);
        assert_eq!(other_class, ReadSize { rows: requested.rows, more_bytes: 0 });
        sizes.forget(0);
        assert_eq!(sizes.expected(0, RANGE, requested), other_class);
    }
}

#[test]
fn bytes_are_expected_in_proportion_to_requested_rows() {
    let sizes = ReadSizes::new(1);
    sizes.observe(0, 1, RequestedRows::stated(10), reply(10, 30 * 1_024));
    for (rows, more_bytes) in [(1, 2 * 1_024), (10, 20 * 1_024), (1_000, 2_000 * 1_024)] {
        assert_eq!(sizes.expected(0, 1, RequestedRows::stated(rows)).more_bytes, more_bytes);
    }
    // Open requests and others are of one class, and only the open ones are taken for open.
    sizes.observe(0, 1, OPEN, reply(5_000, 0));
    for _ in 0..100 {
        sizes.observe(0, 1, RequestedRows::stated(1), reply(1, 0));
    }
    assert_eq!(sizes.expected(0, 1, OPEN).rows, 5_000);
}

#[test]
fn a_mean_comes_to_rest_and_large_numbers_saturate() {
    let sizes = ReadSizes::new(1);
    sizes.observe(0, RANGE, OPEN, reply(u32::MAX, u64::MAX));
    assert_eq!(sizes.expected(0, RANGE, OPEN).rows, u32::MAX);
    for _ in 0..1_000 {
        sizes.observe(0, RANGE, OPEN, reply(2, 20));
    }
    assert_eq!(sizes.expected(0, RANGE, OPEN), ReadSize { rows: 2, more_bytes: 0 });
    assert_eq!(unpack(sizes.tenants[0][RANGE].more_bytes.load(Ordering::Relaxed)), (0.0, 2.0));
}

fn requested() -> impl Strategy<Value = RequestedRows> {
    prop_oneof![
        (1..10_000_u32).prop_map(RequestedRows::stated),
        Just(RequestedRows::shown_by_reply(100)),
        Just(RequestedRows::shown_in_part(100)),
    ]
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let rows = prop_oneof![Just(0), 1..10_u32, 50_000..100_000_u32, Just(u32::MAX)];
    (rows, prop_oneof![0..100_u64, 1_000_000..10_000_000_u64, Just(u64::MAX)])
        .prop_map(|(rows, bytes)| Reply { rows, bytes })
}

proptest! {
    #[test]
    fn nothing_that_a_tenant_does_moves_another(
        own in proptest::collection::vec((0..QueryClass::COUNT, requested(), any_reply()), 1..50),
        hostile in proptest::collection::vec((any::<bool>(), 0..QueryClass::COUNT, requested(), any_reply()), 0..200),
    ) {
        let sizes = ReadSizes::new(3);
        for (class, requested, reply) in &own {
            sizes.observe(1, *class, *requested, *reply);
        }
        let all = |sizes: &ReadSizes| {
            let of = |class| [OPEN, RequestedRows::stated(3)].map(|requested| sizes.expected(1, class, requested));
            (0..QueryClass::COUNT).map(of).collect::<Vec<_>>()
        };
        let before = all(&sizes);
        for (is_first, class, requested, reply) in hostile {
            let tenant = if is_first { 0 } else { 2 };
            sizes.observe(tenant, class, requested, reply);
            // Numbers that no tenant has.
            sizes.observe(tenant + 3, class, requested, reply);
        }
        prop_assert_eq!(all(&sizes), before);
        prop_assert_eq!(size_of_val(&*sizes.tenants), 3 * size_of::<ByClass<Means>>());
    }

    #[test]
    fn whatever_came_before_it_converges_to_what_comes_now(
        before in proptest::collection::vec((requested(), any_reply()), 0..50),
        rows in 1..100_000_u32,
        more in 0..100_000_u64,
    ) {
        let sizes = ReadSizes::new(1);
        for (requested, reply) in before {
            sizes.observe(0, RANGE, requested, reply);
        }
        for _ in 0..400 {
            sizes.observe(0, RANGE, OPEN, reply(rows, u64::from(rows) * ROW_BYTES + more));
        }
        let ReadSize { rows: expected, more_bytes } = sizes.expected(0, RANGE, OPEN);
        prop_assert!(expected.abs_diff(rows) <= 1, "{} of {}", expected, rows);
        prop_assert!(u64::from(more_bytes).abs_diff(more) <= 1 + more / 1_000, "{} of {}", more_bytes, more);
    }

    /// However large and small replies alternate, what is charged comes to what is read.
    #[test]
    fn charged_rows_are_rows_read_but_for_a_few_replies(
        replies in proptest::collection::vec(prop_oneof![Just(1_u32), 1..10_u32, Just(100_000_u32)], 1..500),
    ) {
        let sizes = ReadSizes::new(1);
        let mut charged = 0.0_f64;
        let mut read = 0.0_f64;
        for rows in &replies {
            charged += f64::from(sizes.expected(0, RANGE, OPEN).rows);
            read += f64::from(sizes.observe(0, RANGE, OPEN, reply(*rows, 0)).rows);
        }
        let most = f64::from(*replies.iter().max().expect("there is one"));
        // Rounding moves each by half a row at most.
        let slack = f64::from(MEMORY) * most + replies.len() as f64;
        prop_assert!(charged + slack >= read, "{} of {}", charged, read);
        prop_assert!(charged <= read + slack + 100.0, "{} of {}", charged, read);
    }

    #[test]
    fn no_less_is_expected_than_is_certain(
        replies in proptest::collection::vec((requested(), any_reply()), 0..100),
        then in requested(),
    ) {
        let sizes = ReadSizes::new(1);
        for (requested, reply) in replies {
            let read = sizes.observe(0, RANGE, requested, reply);
            prop_assert!(read.rows >= requested.least);
        }
        let expected = sizes.expected(0, RANGE, then);
        prop_assert!(expected.rows >= then.least && (then.is_open || expected.rows == then.rows));
    }
}
