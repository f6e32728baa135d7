//! The codecs, and names and reports of limits, on mutated seeds: what the fuzz targets check, for a few seconds and the same each time.

use std::fs;
use std::path::Path;

use gate_userspace::sim::rng::Rng;

#[path = "../../fuzz/checks.rs"]
mod checks;
#[path = "../../fuzz/limit_checks.rs"]
mod limit_checks;

#[test]
fn memcached_requests_survive_mutation() {
    survive("memcached_requests", checks::memcached_requests);
}

#[test]
fn memcached_answers_survive_mutation() {
    survive("memcached_answers", checks::memcached_answers);
}

#[test]
fn resp_requests_survive_mutation() {
    survive("resp_requests", checks::resp_requests);
}

#[test]
fn resp_replies_survive_mutation() {
    survive("resp_replies", checks::resp_replies);
}

#[test]
fn proxy_headers_survive_mutation() {
    survive("proxy_header", checks::proxy_header);
}

#[test]
fn reports_survive_mutation() {
    survive("reports", limit_checks::reports);
}

#[test]
fn descriptors_survive_mutation() {
    survive("descriptors", limit_checks::descriptors);
}

fn survive(target: &str, check: fn(&[u8])) {
    let seeds = seeds(target);
    let rounds = if std::env::var_os("GATE_LONG").is_some() { 1_000_000 } else { 10_000 };
    let mut rng = Rng::new(13, 0);
    for seed in &seeds {
        check(seed);
    }
    for round in 0..rounds {
        let data = mutant(&seeds, &mut rng);
        if std::panic::catch_unwind(|| check(&data)).is_err() {
            panic!("{target}, round {round}: b\"{}\"", data.escape_ascii());
        }
    }
}

/// The fuzzer's seeds; a last byte says that it is not cut.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 2, "few seeds in {}", directory.display());
    paths.iter().map(|path| [fs::read(path).unwrap(), vec![0]].concat()).collect()
}

/// A seed, or two of them joined, with a few changes, and cut at up to seven places.
fn mutant(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    const TOKENS: [&[u8]; 16] = [
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\0",
        b"-1",
        b"0",
        b"99999999999999999999",
        b"*",
        b"$",
        b"$300\r\n",
        b"noreply",
        b"END\r\n",
        b"VALUE ",
        b"set a 0 0 ",
        b"|1\r\n",
    ];
    let mut pick = |count: usize| (rng.bits() % count.max(1) as u64) as usize;
    let mut data = seeds[pick(seeds.len())].clone();
    if pick(4) == 0 {
        let other = &seeds[pick(seeds.len())];
        data.truncate(pick(data.len()));
        data.extend_from_slice(&other[pick(other.len())..]);
    }
    for _ in 0..pick(6) {
        let at = pick(data.len() + 1);
        let to = pick(data.len() + 1);
        let from = at.min(to);
        let to = at.max(to);
        match pick(5) {
            0 if at < data.len() => data[at] = pick(256) as u8,
            1 => drop(data.splice(at..at, TOKENS[pick(TOKENS.len())].iter().copied())),
            2 if to - from < 20 => drop(data.drain(from..to)),
            3 if to - from < 60 => {
                let piece = data[from..to].to_vec();
                drop(data.splice(at..at, piece));
            }
            _ if at < data.len() => data[at] ^= 1 << pick(8),
            _ => {}
        }
    }
    let cuts = pick(8);
    data.extend((0..cuts).map(|_| pick(256) as u8));
    data.push(cuts as u8);
    data
}
