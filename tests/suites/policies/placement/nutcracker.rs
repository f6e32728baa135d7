//! nutcracker itself, before servers that each say of themselves which they are.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{PATIENCE, address};
use gate_tests::unix_store::socket_path;
use gate_tests::wait::until_up;
use gate_userspace::policy::placement::{HashTag, KeyHash, Node, Scheme};
use xtask::lab::process::ChildProcess;

use super::{WEIGHTS, compare, count, keys, node};

/// A server for each place, and how nutcracker names it: by its address and weight, with a name or none.
struct Servers {
    /// As nutcracker's configuration names them, without the weight, and the name behind it.
    places: Vec<(String, &'static str)>,
    socket: PathBuf,
}

impl Servers {
    fn start(name: &str) -> Result<Self> {
        let socket = socket_path(name);
        let mut places = Vec::new();
        for number in 0..8 {
            if number == 5 {
                let listener = UnixListener::bind(&socket)?;
                std::thread::spawn(move || {
                    for stream in listener.incoming().map_while(Result::ok) {
                        std::thread::spawn(move || serve(number, &stream, &stream));
                    }
                });
                places.push((socket.display().to_string(), ""));
                continue;
            }
            let mut place = address();
            // nutcracker leaves this port out of a node's name.
            place.set_port(if number % 2 == 0 { 11_211 } else { 11_212 });
            let listener = TcpListener::bind(place)?;
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    std::thread::spawn(move || serve(number, &stream, &stream));
                }
            });
            places.push((place.to_string(), if number == 3 { "third" } else { "" }));
        }
        Ok(Self { places, socket })
    }

    /// The first servers, as nutcracker's configuration lists them, and as gate has to name them.
    fn pool(&self, weights: &[u32]) -> (Vec<String>, Vec<Node>) {
        let listed = |((place, name), weight): (&(String, &str), &u32)| {
            let text = format!("{place}:{weight} {name}").trim_end().to_owned();
            // A socket is named as if a port followed that has no digits.
            let ring = match (*name, place.strip_suffix(":11211")) {
                ("", None) if place.starts_with('/') => format!("{place}:"),
                ("", host) => host.unwrap_or(place).to_owned(),
                (name, _) => name.to_owned(),
            };
            (text, node(&ring, *weight))
        };
        self.places.iter().zip(weights).map(listed).unzip()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Answers each `get` with the number of the server.
fn serve(number: usize, input: impl Read, mut output: impl Write) -> std::io::Result<()> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut answers = Vec::new();
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        let key = line.trim_ascii_end().strip_prefix(b"get ").unwrap_or(b"none").trim_ascii();
        answers.extend_from_slice(b"VALUE ");
        answers.extend_from_slice(key);
        answers.extend_from_slice(format!(" 0 1\r\n{number}\r\nEND\r\n").as_bytes());
        line.clear();
        if input.buffer().is_empty() {
            output.write_all(&answers)?;
            answers.clear();
        }
    }
    Ok(())
}

/// A pool of nutcracker's.
struct Pool {
    listen: SocketAddr,
    scheme: Scheme,
    nodes: Vec<Node>,
    text: String,
}

impl Pool {
    fn new(servers: &Servers, weights: &[u32], hash: Option<(&str, KeyHash)>, tag: &str) -> Self {
        let listen = address();
        let (listed, nodes) = servers.pool(weights);
        let mut text = format!(
            "pool_{}:\n  listen: {listen}\n  distribution: ketama\n  timeout: 20000\n",
            listen.ip().to_string().replace('.', "_")
        );
        if let Some((name, _)) = hash {
            text.push_str(&format!("  hash: {name}\n"));
        }
        if !tag.is_empty() {
            text.push_str(&format!("  hash_tag: \"{tag}\"\n"));
        }
        text.push_str("  servers:\n");
        listed.iter().for_each(|server| text.push_str(&format!("    - {server}\n")));
        let tag = tag.as_bytes().first_chunk().map(|&[open, close]| HashTag { open, close });
        let key_hash = hash.map_or(KeyHash::default(), |(_, hash)| hash);
        Self { listen, scheme: Scheme::Twemproxy { key_hash, tag }, nodes, text }
    }

    /// The server of each key, as nutcracker chooses it.
    fn ask(&self, keys: &[Vec<u8>]) -> Result<Vec<usize>> {
        let mut stream = TcpStream::connect(self.listen)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answers = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        let mut servers = Vec::with_capacity(keys.len());
        let mut line = Vec::new();
        for some in keys.chunks(500) {
            let asked: Vec<u8> =
                some.iter().flat_map(|key| [b"get ".as_slice(), key, b"\r\n"].concat()).collect();
            stream.write_all(&asked)?;
            for key in some {
                let mut next = || {
                    line.clear();
                    answers.read_until(b'\n', &mut line)?;
                    Ok::<_, std::io::Error>(line.trim_ascii_end().to_vec())
                };
                ensure!(next()? == [b"VALUE ".as_slice(), key, b" 0 1"].concat(), "{}", key.escape_ascii());
                servers.push(String::from_utf8(next()?)?.parse()?);
                ensure!(next()? == b"END");
            }
        }
        Ok(servers)
    }
}

/// Has nutcracker serve these pools, and compares its choices with gate's.
fn check(pools: &[Pool], keys: &[Vec<u8>]) -> Result<()> {
    let config = socket_path("nutcracker").with_extension(format!("{}.yml", pools[0].listen.ip()));
    std::fs::write(&config, pools.iter().map(|pool| pool.text.as_str()).collect::<String>())?;
    let stats = address();
    let mut command = Command::new("nutcracker");
    command
        .args(["-a", &stats.ip().to_string(), "-s", &stats.port().to_string(), "-m", "65536", "-c"])
        .arg(&config);
    let mut nutcracker = ChildProcess::start("nutcracker", command)?;
    until_up(&mut nutcracker, "nutcracker", || {
        Ok(pools.iter().all(|pool| TcpStream::connect(pool.listen).is_ok()))
    })?;
    for pool in pools {
        let theirs = pool.ask(keys).context(pool.text.clone())?;
        let counts = compare(pool.scheme, &pool.nodes, keys, &theirs);
        // `crc16` and `crc32` hand out numbers so small that one node has nearly all keys.
        assert!(counts.iter().sum::<usize>() == keys.len() && counts.len() == pool.nodes.len(), "{counts:?}");
    }
    Ok(std::fs::remove_file(config)?)
}

#[test]
fn pools_place_each_key_as_nutcracker_does() -> Result<()> {
    let servers = Servers::start("pools")?;
    let sizes = WEIGHTS.iter().flat_map(|weights| [1, 2, 3, 5, 8].map(|size| &weights[..size]));
    let pools: Vec<_> = sizes.map(|weights| Pool::new(&servers, weights, None, "")).collect();
    check(&pools, &keys(count()))
}

#[test]
fn key_hashes_and_tags_are_nutcrackers() -> Result<()> {
    let servers = Servers::start("hashes")?;
    let hashes =
        KeyHash::ALL.iter().map(|&hash| Pool::new(&servers, &[1, 2, 1, 1, 3, 1, 1, 1], Some(hash), ""));
    let tags = ["{}", "::", "//"].map(|tag| Pool::new(&servers, &[1; 8], None, tag));
    let pools: Vec<_> = hashes.chain(tags).collect();
    check(&pools, &keys(count()))
}
