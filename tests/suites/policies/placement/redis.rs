//! Debian's redis-server in cluster mode, and the slots that redis-cli would give its nodes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_userspace::policy::placement::{Node, Scheme};

use super::{compare, count, keys, node};

/// Nodes that are to be a cluster, and the directory with their files; removed when dropped.
struct Cluster {
    nodes: Vec<Listening>,
    directory: PathBuf,
}

impl Cluster {
    fn start(size: usize) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("gate-{}-cluster", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let place = directory.display().to_string();
        let start = |number: usize| {
            let file = format!("nodes-{number}.conf");
            let mode = ["--cluster-enabled", "yes", "--dir", &place, "--cluster-config-file", &file];
            Listening::redis_with(&mode)
        };
        Ok(Self { nodes: (0..size).map(start).collect::<Result<_>>()?, directory })
    }

    /// The place of the node of each slot, as redis-cli proposes it for the first `size` nodes.
    fn slots(&self, size: usize) -> Result<Vec<usize>> {
        let mut command = Command::new("redis-cli");
        let nodes = self.nodes[..size].iter().map(|node| node.address.to_string());
        command.args(["--cluster", "create"]).args(nodes);
        // It asks whether it shall do so, and takes the end for a no.
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8(output.stdout)?;
        let mut slots = vec![usize::MAX; 16_384];
        for line in said.lines().filter_map(|line| Some(&line[line.find("Master[")? + "Master[".len()..])) {
            let (place, range) = line.split_once("] -> Slots ").context("it says more of a node")?;
            let (first, last) = range.split_once(" - ").context("it says no range")?;
            slots[first.parse::<usize>()?..=last.parse::<usize>()?].fill(place.parse()?);
        }
        ensure!(slots.iter().all(|&place| place < size), "{said}");
        Ok(slots)
    }

    /// The slot of each key.
    fn slots_of(&self, keys: &[Vec<u8>]) -> Result<Vec<usize>> {
        let mut stream = self.nodes[0].connect()?;
        let mut slots = Vec::new();
        for some in keys.chunks(500) {
            let mut asked: Vec<u8> = Vec::new();
            for key in some {
                write!(asked, "*3\r\n$7\r\nCLUSTER\r\n$7\r\nKEYSLOT\r\n${}\r\n", key.len())?;
                asked.extend_from_slice(&[key, b"\r\n".as_slice()].concat());
            }
            asked.extend_from_slice(b"PING\r\n");
            stream.write_all(&asked)?;
            let said = String::from_utf8(read_until(&mut stream, b"+PONG\r\n")?)?;
            slots.extend(said.lines().filter_map(|line| line.strip_prefix(':')?.parse::<usize>().ok()));
        }
        Ok(slots)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn slots_and_their_nodes_are_those_of_a_redis_cluster() -> Result<()> {
    let keys = keys(count());
    let cluster = Cluster::start(7)?;
    let slots_of = cluster.slots_of(&keys)?;
    for size in [3, 5, 6, 7] {
        let slots = cluster.slots(size)?;
        let theirs: Vec<_> = slots_of.iter().map(|&slot| slots[slot]).collect();
        let nodes: Vec<Node> = (0..size).map(|place| node(&place.to_string(), 1)).collect();
        compare(Scheme::Crc16, &nodes, &keys, &theirs);
    }
    Ok(())
}
