//! Real redis-servers in cluster mode on loopback, and a client that reads whole replies.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_userspace::policy::placement::slot;
use gate_userspace::protocol::resp::{Part, Replies};

use crate::proxy::{Listening, address, shown};
use crate::wait::wait_until;

/// Primaries that share the slots in equal ranges, and the directory with their files; removed when dropped.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, in the order of their slots.
    pub nodes: Vec<Listening>,
    /// A replica of each, if there are any.
    pub replicas: Vec<Listening>,
    ids: Vec<String>,
    directory: PathBuf,
}

impl RedisCluster {
    /// So many primaries.
    ///
    /// # Errors
    ///
    /// If they do not become a cluster.
    pub fn start(size: usize) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("gate-{}-nodes-{number}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let nodes = (0..size).map(|number| node(&directory, number)).collect::<Result<_>>()?;
        let mut this = Self { nodes, replicas: Vec::new(), ids: Vec::new(), directory };
        for (place, node) in this.nodes.iter().enumerate() {
            let mut client = Client::of(node)?;
            client.check(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1), "+OK\r\n")?;
            let first = place * SLOTS / size;
            let last = (place + 1) * SLOTS / size - 1;
            client.check(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"), "+OK\r\n")?;
            let other = this.nodes[0].address;
            client.check(&format!("CLUSTER MEET {} {}", other.ip(), other.port()), "+OK\r\n")?;
            this.ids.push(client.ask("CLUSTER MYID")?[5..45].to_owned());
        }
        this.is_whole()?;
        Ok(this)
    }

    /// So many primaries, and a replica of each, which takes its place within some seconds.
    ///
    /// # Errors
    ///
    /// If they do not become a cluster.
    pub fn with_replicas(size: usize) -> Result<Self> {
        let mut this = Self::start(size)?;
        let first = this.nodes[0].address;
        for place in 0..size {
            let replica = node(&this.directory, size + place)?;
            Client::of(&replica)?
                .check(&format!("CLUSTER MEET {} {}", first.ip(), first.port()), "+OK\r\n")?;
            this.replicas.push(replica);
        }
        this.is_whole()?;
        for (replica, id) in this.replicas.iter().zip(&this.ids) {
            Client::of(replica)?.check(&format!("CLUSTER REPLICATE {id}"), "+OK\r\n")?;
        }
        wait_until("they follow their primaries", || {
            this.replicas.iter().try_fold(true, |all, replica| {
                let info = Client::of(replica)?.ask("INFO replication")?;
                Ok(all && info.contains("master_link_status:up"))
            })
        })?;
        for (place, node) in this.nodes.iter().enumerate() {
            let key = this.keys_at(place, 1).remove(0);
            let mut client = Client::of(node)?;
            client.check(&format!("SET {key} v"), "+OK\r\n")?;
            client.check(&format!("DEL {key}"), ":1\r\n")?;
            client.check("WAIT 1 20000", ":1\r\n")?;
        }
        wait_until("all know that they do", || {
            this.all().try_fold(true, |all, node| {
                let nodes = Client::of(node)?.ask("CLUSTER NODES")?;
                Ok(all && nodes.matches("slave ").count() == size)
            })
        })?;
        let dies_after = "CONFIG SET cluster-node-timeout 2000";
        this.all().try_for_each(|node| Client::of(node)?.check(dies_after, "+OK\r\n"))?;
        Ok(this)
    }

    /// Waits until all nodes know each other and the slots.
    fn is_whole(&self) -> Result<()> {
        let size = self.all().count();
        wait_until("they become a cluster", || {
            self.all().try_fold(true, |all, node| {
                let info = Client::of(node)?.ask("CLUSTER INFO")?;
                let knows = info.contains(&format!("cluster_known_nodes:{size}\r"));
                Ok(all
                    && knows
                    && info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384"))
            })
        })
    }

    /// Has a replica take its primary's place, as often as that takes: a failover ends in vain where its time is over.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn take_over(&self, replica: &Listening) -> Result<()> {
        let mut client = Client::of(replica)?;
        wait_until("it follows its primary", || {
            Ok(client.ask("INFO replication")?.contains("master_link_status:up"))
        })?;
        let mut asked = None::<Instant>;
        wait_until("it becomes a primary", || {
            if client.ask("ROLE")?.contains("master") {
                return Ok(true);
            }
            if asked.is_none_or(|asked| asked.elapsed() > FAILOVER_ENDS) {
                client.check("CLUSTER FAILOVER", "+OK\r\n")?;
                asked = Some(Instant::now());
            }
            Ok(false)
        })
    }

    /// All nodes.
    fn all(&self) -> impl Iterator<Item = &Listening> {
        self.nodes.iter().chain(&self.replicas)
    }

    /// The addresses of its nodes.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address.to_string()).collect()
    }

    /// The place of the primary that a key's slot was given first.
    #[must_use]
    pub fn place(&self, key: &str) -> usize {
        let slot = slot(key.as_bytes());
        (0..self.nodes.len()).find(|place| slot < (place + 1) * SLOTS / self.nodes.len()).unwrap_or_default()
    }

    /// The first keys of a name that are at this node.
    #[must_use]
    pub fn keys_at(&self, place: usize, count: usize) -> Vec<String> {
        let keys = (0..).map(|number| format!("k{number}"));
        keys.filter(|key| self.place(key) == place).take(count).collect()
    }

    /// A client of a node.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn client(&self, place: usize) -> Result<Client> {
        Client::of(&self.nodes[place])
    }

    /// Begins to move a key's slot from one node to another: what is not there yet is sent on by `ASK`.
    ///
    /// # Errors
    ///
    /// If a node refuses it.
    pub fn begin_move(&self, key: &str, from: usize, to: usize) -> Result<()> {
        let slot = slot(key.as_bytes());
        self.client(to)?.check(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[from]), "+OK\r\n")?;
        self.client(from)?.check(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[to]), "+OK\r\n")
    }

    /// Gives a key's slot to a node, as these nodes see it.
    ///
    /// # Errors
    ///
    /// If a node refuses it.
    pub fn give(&self, key: &str, to: usize, seen_by: &[usize]) -> Result<()> {
        let slot = slot(key.as_bytes());
        let asked = format!("CLUSTER SETSLOT {slot} NODE {}", self.ids[to]);
        seen_by.iter().try_for_each(|&place| self.client(place)?.check(&asked, "+OK\r\n"))
    }

    /// Moves so many slots from one node to another, keys included, as `redis-cli --cluster reshard` does.
    ///
    /// # Errors
    ///
    /// If that cannot be run.
    pub fn reshard(&self, from: usize, to: usize, slots: usize) -> Result<Output> {
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "reshard", &self.nodes[to].address.to_string(), "--cluster-yes"]);
        command.args(["--cluster-from", &self.ids[from], "--cluster-to", &self.ids[to]]);
        Ok(command.args(["--cluster-slots", &slots.to_string()]).output()?)
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        self.nodes.clear();
        self.replicas.clear();
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A server in cluster mode that knows no others, whose files are in this directory.
fn node(directory: &Path, number: usize) -> Result<Listening> {
    let place = directory.display().to_string();
    let file = format!("nodes-{number}.conf");
    let mode = ["--cluster-enabled", "yes", "--dir", &place, "--cluster-config-file", &file];
    // A node that a busy machine stops is not to be taken for a dead one, where nobody is to take its place.
    let bounds = ["--cluster-node-timeout", "30000", "--cluster-require-full-coverage", "no"];
    // A replica is asked at once, and need not wait for others.
    let replicas = ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"];
    // Else the others take it for the address that its own connections come from.
    let address = address();
    let ip = address.ip().to_string();
    let announced = ["--cluster-announce-ip", &ip];
    Listening::redis_at(address, &[&mode[..], &bounds, &replicas, &announced].concat())
}

/// A client that reads whole replies.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    replies: Replies,
    received: Vec<u8>,
}

impl Client {
    /// One of this store or gate.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn of(store: &Listening) -> Result<Self> {
        let replies = Replies::new(LONGEST);
        Ok(Self { stream: store.connect()?, replies, received: Vec::new() })
    }

    /// One of gate, from this address.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn from(gate: &Listening, source: Ipv4Addr) -> Result<Self> {
        Ok(Self { stream: gate.connect_from(source)?, replies: Replies::new(LONGEST), received: Vec::new() })
    }

    /// Sends these lines, each a request, at once.
    ///
    /// # Errors
    ///
    /// If the connection is lost.
    pub fn send(&mut self, lines: &[impl AsRef<str>]) -> Result<()> {
        let bytes: String = lines.iter().map(|line| format!("{}\r\n", line.as_ref())).collect();
        Ok(self.stream.write_all(bytes.as_bytes())?)
    }

    /// The next reply.
    ///
    /// # Errors
    ///
    /// If it does not come.
    pub fn reply(&mut self) -> Result<String> {
        loop {
            match self.replies.next(&self.received).context("no reply")? {
                Part::Reply { len, last: true, .. } => {
                    return Ok(
                        String::from_utf8_lossy(&self.received.drain(..len).collect::<Vec<_>>()).into()
                    );
                }
                Part::Reply { .. } | Part::Body { .. } => anyhow::bail!("a reply is too long"),
                Part::More { .. } => {
                    let mut piece = [0; 4 << 10];
                    let len = self.stream.read(&mut piece)?;
                    ensure!(len > 0, "closed after {}", shown(&self.received));
                    self.received.extend_from_slice(&piece[..len]);
                }
            }
        }
    }

    /// The reply to one request.
    ///
    /// # Errors
    ///
    /// If it does not come.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        self.send(&[line])?;
        self.reply()
    }

    /// Checks the reply to one request.
    ///
    /// # Errors
    ///
    /// If it is another.
    pub fn check(&mut self, line: &str, expected: &str) -> Result<()> {
        let said = self.ask(line)?;
        ensure!(said == expected, "{line}: {said:?} rather than {expected:?}");
        Ok(())
    }
}

/// Redis gives up a failover after 5 s.
const FAILOVER_ENDS: Duration = Duration::from_secs(6);
const SLOTS: usize = 16_384;
const LONGEST: usize = 8 << 20;
