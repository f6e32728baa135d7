//! Places of keys, compared key by key with those that libmemcached, nutcracker and Redis Cluster choose.
//!
//! `GATE_LONG=1` compares a million keys of each pool instead of ten thousand.

mod libmemcached;
mod nutcracker;
mod redis;

use gate_userspace::policy::placement::{Node, Placement, Scheme};

/// Keys of a pool.
fn count() -> usize {
    if std::env::var_os("GATE_LONG").is_some() { 1_000_000 } else { 10_000 }
}

/// Keys of several kinds: short and long ones, some with a part in braces, some with bytes that are no ASCII.
fn keys(count: usize) -> Vec<Vec<u8>> {
    let key = |number: usize| match number % 4 {
        0 => format!("user:{number}").into_bytes(),
        1 => format!("cart{{{}}}:{number}", number / 8).into_bytes(),
        2 => [b"caf\xc3\xa9-\xff".as_slice(), &number.to_be_bytes().map(|byte| byte | 0x80)].concat(),
        _ => format!("{}{number}", "long/".repeat(number % 40)).into_bytes(),
    };
    (0..count).map(key).collect()
}

fn node(name: &str, weight: u32) -> Node {
    Node { name: name.to_owned(), weight }
}

/// Compares what others chose with gate's choice, and says how many keys of each node there are.
fn compare(scheme: Scheme, nodes: &[Node], keys: &[Vec<u8>], theirs: &[usize]) -> Vec<usize> {
    let placement = Placement::new(scheme, nodes);
    let mut counts = vec![0; nodes.len()];
    assert_eq!(keys.len(), theirs.len());
    for (key, theirs) in keys.iter().zip(theirs) {
        assert_eq!(placement.node(key), *theirs, "{scheme:?} {nodes:?}: {}", key.escape_ascii());
        counts[*theirs] += 1;
    }
    counts
}

/// The weights of pools of up to eight nodes.
const WEIGHTS: [[u32; 8]; 4] =
    [[1; 8], [1, 2, 3, 4, 5, 6, 7, 8], [100, 1, 100, 50, 30, 100, 7, 100], [3, 3, 1, 3, 3, 3, 3, 3]];
