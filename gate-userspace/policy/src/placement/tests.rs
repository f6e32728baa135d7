use super::*;

fn pool(weights: &[u32]) -> Vec<Node> {
    let node = |(place, &weight): (usize, &u32)| Node { name: format!("198.18.0.{place}"), weight };
    weights.iter().enumerate().map(node).collect()
}

fn keys(count: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(|number| format!("user:{{{}}}:{number}", number / 2).into_bytes())
}

const SCHEMES: [Scheme; 4] = [
    Scheme::Ketama,
    Scheme::Twemproxy { key_hash: KeyHash::Fnv1aOf64, tag: None },
    Scheme::Rendezvous,
    Scheme::Crc16,
];

#[test]
fn nodes_have_keys_in_proportion_to_their_weights() {
    const KEYS: usize = 100_000;
    for scheme in SCHEMES {
        for weights in [&[1, 1, 1, 1][..], &[1, 2, 3, 4], &[10, 10, 20]] {
            let placement = Placement::new(scheme, &pool(weights));
            let mut counts = vec![0; weights.len()];
            keys(KEYS).for_each(|key| counts[placement.node(&key)] += 1);
            let total: u32 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(weights) {
                let share = f64::from(*count) / KEYS as f64 * f64::from(total) / f64::from(*weight);
                assert!((0.75..1.25).contains(&share), "{scheme:?} {weights:?}: {counts:?}");
            }
        }
    }
}

#[test]
fn a_node_less_moves_its_own_keys_alone_by_rendezvous() {
    let all = pool(&[1, 5, 2, 3]);
    let [before, after] = [&all[..], &all[..3]].map(|nodes| Placement::new(Scheme::Rendezvous, nodes));
    for key in keys(20_000) {
        let was = before.node(&key);
        assert!(was == 3 || after.node(&key) == was);
    }
}

#[test]
fn a_node_less_moves_its_own_keys_alone_by_equal_ketama() {
    let all = pool(&[1; 5]);
    let [before, after] = [&all[..], &all[..4]].map(|nodes| Placement::new(Scheme::Ketama, nodes));
    for key in keys(20_000) {
        let was = before.node(&key);
        assert!(was == 4 || after.node(&key) == was);
    }
}

#[test]
fn a_pool_of_one_has_all_keys() {
    for scheme in SCHEMES {
        let placement = Placement::new(scheme, &pool(&[7]));
        assert!(keys(100).all(|key| placement.node(&key) == 0));
        assert_eq!(placement.points(0), None);
    }
}

#[test]
fn a_tag_is_the_part_between_its_bytes_unless_that_is_empty() {
    let braces = HashTag { open: b'{', close: b'}' };
    let bars = HashTag { open: b'|', close: b'|' };
    for (tag, key, part) in [
        (braces, "a{b}c", "b"),
        (braces, "{b}{c}", "b"),
        (braces, "a{}b{c}", "a{}b{c}"),
        (braces, "a}b{c", "a}b{c"),
        (braces, "a{{b}}", "{b"),
        (braces, "{b", "{b"),
        (braces, "", ""),
        (bars, "a|b|c", "b"),
        (bars, "a|b", "a|b"),
        (bars, "||a|", "||a|"),
    ] {
        assert_eq!(tag.part(key.as_bytes()), part.as_bytes(), "{key}");
    }
}

#[test]
fn slots_are_all_given_away_and_each_node_has_one() {
    for weights in [&[1, 1, 1][..], &[1, 1000], &[1; MOST_NODES], &[1000, 1, 1, 1]] {
        let placement = Placement::new(Scheme::Crc16, &pool(weights));
        let slots: Vec<_> = (0..weights.len()).map(|node| placement.points(node).unwrap()).collect();
        assert_eq!(slots.iter().sum::<usize>(), 16_384, "{slots:?}");
        assert!(slots.iter().all(|&slots| slots > 0), "{slots:?}");
    }
    let thirds = Placement::new(Scheme::Crc16, &pool(&[1; 3]));
    assert_eq!([0, 1, 2].map(|node| thirds.points(node).unwrap()), [5_461, 5_462, 5_461]);
    // From the specification of Redis Cluster.
    assert_eq!(slots::slot(b"123456789"), 0x31c3);
    assert_eq!(slots::slot(b"{user1000}.following"), slots::slot(b"{user1000}.followers"));
}

#[test]
fn a_tiny_weight_on_a_ring_is_without_points() {
    let placement = Placement::new(Scheme::Ketama, &pool(&[1, 1_000]));
    assert_eq!([placement.points(0), placement.points(1)], [Some(0), Some(316)]);
    let equal = Placement::new(Scheme::Ketama, &pool(&[3, 3, 3]));
    assert_eq!(equal.points(1), Some(160));
}
