//! libmemcached itself (Debian's libmemcached11), asked by Python for the server of each key.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_userspace::policy::placement::{Node, Scheme};

use super::{WEIGHTS, compare, count, keys, node};

/// Reads a pool by its arguments (`HOST PORT WEIGHT`, again and again) and a key a line, and prints a letter for each key.
const ASK: &str = r#"
import ctypes, sys
lib = ctypes.CDLL("libmemcached.so.11")
lib.memcached_create.restype = ctypes.c_void_p
ketama_weighted = 16
memc = ctypes.c_void_p(lib.memcached_create(None))
lib.memcached_behavior_set(memc, ketama_weighted, ctypes.c_uint64(1))
assert lib.memcached_behavior_get(memc, ketama_weighted) == 1
servers = sys.argv[1:]
for host, port, weight in zip(servers[::3], servers[1::3], servers[2::3]):
    if host.startswith("/"):
        failed = lib.memcached_server_add_unix_socket_with_weight(memc, host.encode(), int(weight))
    else:
        failed = lib.memcached_server_add_with_weight(memc, host.encode(), int(port), int(weight))
    assert failed == 0, failed
ask, size = lib.memcached_generate_hash, ctypes.c_size_t
keys = sys.stdin.buffer.read().split(b"\n")[:-1]
sys.stdout.write("".join(chr(65 + ask(memc, key, size(len(key)))) for key in keys))
"#;

/// The server of each key, by its place.
fn ask(servers: &[(&str, u16, u32)], keys: &[Vec<u8>]) -> Result<Vec<usize>> {
    let mut command = Command::new("python3");
    command.args(["-c", ASK]).stdin(Stdio::piped()).stdout(Stdio::piped());
    for (host, port, weight) in servers {
        command.args([host, port.to_string().as_str(), weight.to_string().as_str()]);
    }
    let mut python = command.spawn()?;
    let mut input = python.stdin.take().context("it has an input")?;
    let mut lines = keys.join(&b'\n');
    lines.push(b'\n');
    let writing = std::thread::spawn(move || input.write_all(&lines));
    let output = python.wait_with_output()?;
    writing.join().expect("it does not panic")?;
    ensure!(output.status.success());
    Ok(output.stdout.iter().map(|letter| usize::from(letter - b'A')).collect())
}

/// The name that libmemcached has for a server on its ring.
fn named((host, port, weight): &(&str, u16, u32)) -> Node {
    match port {
        11_211 => node(host, *weight),
        port => node(&format!("{host}:{port}"), *weight),
    }
}

const SERVERS: [(&str, u16); 8] = [
    ("198.18.0.1", 11_211),
    ("198.18.0.1", 11_212),
    ("cache.example", 11_211),
    ("cache.example", 11_311),
    ("/run/memcached.sock", 0),
    ("198.18.0.2", 11_211),
    ("fd00::1", 11_211),
    ("fd00::1", 11_212),
];

#[test]
fn ketama_places_each_key_as_libmemcached_does() -> Result<()> {
    let keys = keys(count());
    for weights in WEIGHTS {
        let pool: Vec<_> =
            SERVERS.iter().zip(weights).map(|((host, port), weight)| (*host, *port, weight)).collect();
        for size in [1, 2, 3, 5, 8] {
            let nodes: Vec<_> = pool[..size].iter().map(named).collect();
            let counts = compare(Scheme::Ketama, &nodes, &keys, &ask(&pool[..size], &keys)?);
            // A node that weighs 1 beside one of 100 has no point on the ring.
            assert!(weights.contains(&100) || counts.iter().all(|&count| count > 0), "{counts:?}");
        }
    }
    Ok(())
}

#[test]
fn a_node_less_moves_what_it_moves_with_libmemcached() -> Result<()> {
    let keys = keys(count());
    for weights in WEIGHTS {
        let pool: Vec<_> =
            SERVERS.iter().zip(weights).map(|((host, port), weight)| (*host, *port, weight)).collect();
        // The second leaves: those behind it have other places.
        let fewer: Vec<_> =
            pool.iter().enumerate().filter(|(place, _)| *place != 1).map(|(_, of)| *of).collect();
        let [before, after] = [&pool, &fewer].map(|pool| {
            let nodes: Vec<_> = pool.iter().map(named).collect();
            let theirs = ask(pool, &keys)?;
            compare(Scheme::Ketama, &nodes, &keys, &theirs);
            Ok::<_, anyhow::Error>(theirs)
        });
        let moved = before?
            .iter()
            .zip(after?)
            .filter(|(was, is)| **was == 1 || **was - usize::from(**was > 1) != *is)
            .count();
        assert!((1..keys.len() / 2).contains(&moved), "{weights:?}: {moved}");
    }
    Ok(())
}
