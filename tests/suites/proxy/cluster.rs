//! A Redis Cluster behind one service: each request at the node of its slot, wherever that moves, and one plain Redis for clients.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::Listening;
use gate_tests::redis_cluster::{Client, RedisCluster};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use gate_userspace::policy::placement;
use nix::sys::signal::Signal;

mod all_nodes;
mod failover;
mod split;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const CROSSSLOT: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";

/// Three primaries and a gate before them, which knows one at first.
struct Site {
    cluster: RedisCluster,
    gate: Listening,
}

impl Site {
    fn new(service: &str) -> Result<Self> {
        let cluster = RedisCluster::start(3)?;
        let gate = Listening::gate_before_cluster(&cluster.addresses()[..1], service, EVERYONE)?;
        let site = Self { cluster, gate };
        site.knows_slots()?;
        Ok(site)
    }

    /// Waits until gate has read the slots.
    fn knows_slots(&self) -> Result<()> {
        let mut client = self.client()?;
        wait_until("gate knows the slots", || {
            Ok(client.ask("CLUSTER INFO")?.contains("cluster_slots_assigned:16384"))
        })
    }

    fn client(&self) -> Result<Client> {
        Client::of(&self.gate)
    }

    /// A key at each node.
    fn keys(&self) -> Vec<String> {
        (0..3).map(|place| self.cluster.keys_at(place, 1).remove(0)).collect()
    }

    /// The values of a key at each node, asked past gate.
    fn values(&self, key: &str) -> Result<Vec<String>> {
        (0..3).map(|place| self.cluster.client(place)?.ask(&format!("GET {key}"))).collect()
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn each_key_is_at_the_node_of_its_slot() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let keys: Vec<_> = (0..300).map(|number| format!("key:{number}")).collect();
    client.send(&keys.iter().map(|key| format!("SET {key} v-{key}")).collect::<Vec<_>>())?;
    for _ in &keys {
        ensure!(client.reply()? == "+OK\r\n");
    }
    for place in 0..3 {
        let mut node = site.cluster.client(place)?;
        let size = keys.iter().filter(|key| site.cluster.place(key) == place).count();
        node.check("DBSIZE", &format!(":{size}\r\n"))?;
        ensure!(size > 50);
        for key in keys.iter().filter(|key| site.cluster.place(key) == place) {
            node.check(&format!("GET {key}"), &bulk(&format!("v-{key}")))?;
        }
    }
    // Random commands of one key, as the node answers them that has it.
    let mut rng = Rng::new(7);
    for _ in 0..500 {
        let key = &keys[rng.below(300) as usize];
        let line = match rng.below(5) {
            0 => format!("GET {key}"),
            1 => format!("STRLEN {key}"),
            2 => format!("EXISTS {key}"),
            3 => format!("TYPE {key}"),
            _ => format!("LLEN {key}"),
        };
        let expected = site.cluster.client(site.cluster.place(key))?.ask(&line)?;
        client.check(&line, &expected)?;
    }
    // Keys of one slot are one node's, and what is about several slots is refused as by a node.
    client.check("MSET {a}1 x {a}2 y", "+OK\r\n")?;
    client.check("MGET {a}1 {a}2", "*2\r\n$1\r\nx\r\n$1\r\ny\r\n")?;
    client.check("EVAL \"return redis.call('GET',KEYS[1])\" 1 {a}1", "$1\r\nx\r\n")?;
    let [one, other, ..] = &site.keys()[..] else { unreachable!() };
    for line in [format!("MSET {one} 1 {other} 2"), format!("RENAME {one} {other}")] {
        client.check(&line, CROSSSLOT)?;
    }
    ensure!(site.values("{a}1")?.iter().filter(|value| *value == "$1\r\nx\r\n").count() == 1);
    client.check("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n")?;
    client.check("WAIT 1 0", "-DENIED reason=unsupported rule=cluster\r\n")?;
    client.check("PING", "+PONG\r\n")?;
    ensure!(counter(&site.gate, "redirected")? == 0, "the map is right");
    Ok(())
}

#[test]
fn requests_follow_slots_that_move_and_no_client_notices() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let [key, ..] = &site.keys()[..] else { unreachable!() };
    let tagged: Vec<_> = (0..50).map(|number| format!("{{{key}}}:{number}")).collect();
    client.check(&format!("SET {key} old"), "+OK\r\n")?;
    site.cluster.begin_move(key, 0, 1)?;
    // What is not at the old node goes to the new one by ASK; requests behind it keep their order.
    for other in &tagged {
        client.send(&[format!("SET {other} 1"), format!("APPEND {other} 2"), format!("GET {other}")])?;
    }
    for other in &tagged {
        ensure!(
            [client.reply()?, client.reply()?, client.reply()?] == ["+OK\r\n", ":2\r\n", "$2\r\n12\r\n"],
            "{other}"
        );
    }
    client.check(&format!("GET {key}"), &bulk("old"))?;
    let asked = counter(&site.gate, "redirected")?;
    ensure!(asked >= 150, "{asked}");
    // One key has moved, another not: a node says so, and the client reads it.
    let tryagain = client.ask(&format!("MGET {key} {}", tagged[0]))?;
    ensure!(tryagain.starts_with("-TRYAGAIN "), "{tryagain}");
    // What needs a connection of its own is told to try again, not where the node is.
    let moved = client.ask(&format!("BLPOP {{{key}}}:none 1"))?;
    ensure!(moved.starts_with("-TRYAGAIN"), "{moved}");

    let node = site.cluster.nodes[1].address;
    let mut old = site.cluster.client(0)?;
    old.check(&format!("MIGRATE {} {} {key} 0 5000", node.ip(), node.port()), "+OK\r\n")?;
    site.cluster.give(key, 1, &[1, 0, 2])?;
    for round in 0..20 {
        let mut lines: Vec<_> = tagged.iter().map(|other| format!("INCR {other}:{round}")).collect();
        lines.push(format!("GET {key}"));
        client.send(&lines)?;
        for _ in &tagged {
            ensure!(client.reply()? == ":1\r\n");
        }
        ensure!(client.reply()? == bulk("old"));
    }
    let values = site.values(key)?;
    ensure!(values[0].starts_with("-MOVED ") && values[1] == bulk("old"), "{values:?}");
    ensure!(counter(&site.gate, "slots-changed")? >= 1);
    wait_until("the map is not right again", || {
        let before = counter(&site.gate, "redirected")?;
        client.check(&format!("GET {key}"), &bulk("old"))?;
        Ok(counter(&site.gate, "redirected")? == before)
    })?;
    Ok(())
}

#[test]
fn redirections_in_circles_end_with_a_stated_error() -> Result<()> {
    let site = Site::new("max_redirects = \"5\"")?;
    let [key, other, _] = &site.keys()[..] else { unreachable!() };
    // The old node says the new one, and that the old one.
    site.cluster.give(key, 1, &[0])?;
    let mut client = site.client()?;
    let said = client.ask(&format!("SET {key} v"))?;
    ensure!(said.starts_with("-ERR the cluster's nodes send this on to each other"), "{said}");
    ensure!(counter(&site.gate, "redirected")? >= 6 && counter(&site.gate, "redirect-failed")? >= 1);
    client.check(&format!("SET {other} v"), "+OK\r\n")?;
    // A long request is sent once: its client is told to try again.
    let long = "x".repeat(100 << 10);
    let said =
        client.ask(&format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{long}", key.len(), long.len()))?;
    ensure!(said.starts_with("-TRYAGAIN "), "{said}");
    client.check(&format!("GET {other}"), &bulk("v"))?;
    Ok(())
}

#[test]
fn clients_see_one_plain_redis_or_one_node_with_all_slots() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let address = site.gate.address;
    let ip = address.ip().to_string();
    let port = address.port();
    let id = client.ask("CLUSTER MYID")?[5..45].to_owned();
    let node = format!("*3\r\n{}:{port}\r\n{}", bulk(&ip), bulk(&id));
    client.check("CLUSTER SLOTS", &format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}"))?;
    let nodes = client.ask("CLUSTER NODES")?;
    ensure!(
        nodes.contains(&format!("{id} {ip}:{port}@0 myself,master - 0 0 1 connected 0-16383")),
        "{nodes}"
    );
    ensure!(client.ask("INFO cluster")?.contains("cluster_enabled:1"));
    for line in ["READONLY", "READWRITE", "ASKING"] {
        client.check(line, "+OK\r\n")?;
    }
    let refused = client.ask("CLUSTER MEET 127.0.0.1 1")?;
    ensure!(
        refused.starts_with("-ERR unknown subcommand or wrong number of arguments for 'MEET'"),
        "{refused}"
    );
    let queues = site.gate.json(&["queues"])?;
    let slots = queues["services"][0]["nodes"].as_array().context("no nodes")?.iter();
    let slots: Vec<_> = slots.filter_map(|node| node["slots"].as_u64()).collect();
    ensure!(slots.len() == 3 && slots.iter().sum::<u64>() == 16_384, "{queues}");
    for key in site.keys() {
        client.check(&format!("SET {key} v"), "+OK\r\n")?;
        let said = client.ask(&format!("CLUSTER KEYSLOT {key}"))?;
        let slot = said.trim().trim_start_matches(':').to_owned();
        client.check(&format!("CLUSTER COUNTKEYSINSLOT {slot}"), ":1\r\n")?;
    }
    // Redis' own client that knows clusters stays with gate.
    let mut cli = Command::new("redis-cli");
    let output = cli.args(["-c", "-h", &ip, "-p", &port.to_string(), "GET", &site.keys()[2]]).output()?;
    ensure!(output.stdout == b"v\n", "{output:?}");
    // On a connection of its own as well.
    client.check("WATCH w", "+OK\r\n")?;
    client.check("CLUSTER SLOTS", &format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}"))?;
    client.check("UNWATCH", "+OK\r\n")?;
    Ok(())
}

#[test]
fn what_belongs_to_a_connection_is_bound_to_its_first_key() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let keys = site.keys();
    for (key, other) in keys.iter().zip(keys.iter().cycle().skip(1)) {
        // One step at a time, and all at once.
        for line in ["MULTI", "SET 1", "APPEND 2", "EXEC"] {
            let (command, value) = line.split_once(' ').unwrap_or((line, ""));
            let (line, expected) = match command {
                "MULTI" => (line.to_owned(), "+OK\r\n"),
                "EXEC" => (line.to_owned(), "*2\r\n+OK\r\n:2\r\n"),
                _ => (format!("{command} {key} {value}"), "+QUEUED\r\n"),
            };
            client.check(&line, expected)?;
        }
        client.send(&[
            "MULTI".to_owned(),
            format!("GET {key}"),
            "EXEC".to_owned(),
            format!("GET {other}"),
        ])?;
        let replies = [client.reply()?, client.reply()?, client.reply()?];
        ensure!(replies == ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$2\r\n12\r\n"], "{replies:?}");
        client.reply()?;
        // Another node's key fails the transaction, and nothing of it is done.
        client.send(&[
            "MULTI".to_owned(),
            format!("SET {key} 3"),
            format!("SET {other} 3"),
            "EXEC".to_owned(),
        ])?;
        let replies = [client.reply()?, client.reply()?, client.reply()?, client.reply()?];
        ensure!(replies[2].contains("CROSSSLOT") && replies[3].starts_with("-EXECABORT"), "{replies:?}");
        client.check(&format!("GET {key}"), &bulk("12"))?;
        client.check(&format!("WATCH {key}"), "+OK\r\n")?;
        client.check(&format!("GET {other}"), CROSSSLOT)?;
        client.check("MULTI", "+OK\r\n")?;
        client.check(&format!("GET {key}"), "+QUEUED\r\n")?;
        client.check("EXEC", "*1\r\n$2\r\n12\r\n")?;
        // What blocks goes to each key's node in turn.
        client.check(&format!("RPUSH {{{key}}}:list a"), ":1\r\n")?;
        client.check(
            &format!("BLPOP {{{key}}}:list 1"),
            &format!("*2\r\n{}$1\r\na\r\n", bulk(&format!("{{{key}}}:list"))),
        )?;
    }
    client.check("MULTI", "+OK\r\n")?;
    client.check("EXEC", "*0\r\n")?;
    client.check("DISCARD", "-ERR DISCARD without MULTI\r\n")?;
    // Messages reach subscribers wherever each is.
    let mut subscriber = site.client()?;
    subscriber.check("SUBSCRIBE news", "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")?;
    client.ask("PUBLISH news hello")?;
    ensure!(subscriber.reply()? == "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
    for channel in &keys {
        let mut sharded = site.client()?;
        sharded.check(
            &format!("SSUBSCRIBE {channel}"),
            &format!("*3\r\n$10\r\nssubscribe\r\n{}:1\r\n", bulk(channel)),
        )?;
        client.check(&format!("SPUBLISH {channel} x"), ":1\r\n")?;
    }
    Ok(())
}

#[test]
fn a_look_at_its_connection_binds_no_client_to_a_node() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    for (look, name) in [("CLIENT ID", None), ("CLIENT GETNAME", Some("")), ("CLIENT GETNAME", Some("me"))] {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            client.check(&format!("CLIENT SETNAME {name}"), "+OK\r\n")?;
        }
        let said = client.ask(look)?;
        let is_it = match name {
            None => said.starts_with(':'),
            Some("") => said == "$-1\r\n",
            Some(name) => said == bulk(name),
        };
        ensure!(is_it, "{look}: {said}");
        for key in site.keys() {
            client.check(&format!("SET {key} v"), "+OK\r\n")?;
        }
        client.check("DBSIZE", ":3\r\n")?;
    }
    Ok(())
}

#[test]
fn no_request_is_lost_or_doubled_while_slots_are_resharded() -> Result<()> {
    let site = Site::new("")?;
    let ends = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| -> Result<Vec<u64>> {
        let clients: Vec<_> = (0..4).map(|_| site.client()).collect::<Result<_>>()?;
        let clients: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, mut client)| {
                let ends = &ends;
                scope.spawn(move || -> Result<u64> {
                    let mut rounds = 0;
                    while !ends.load(Ordering::Relaxed) {
                        rounds += 1;
                        // Twice each, so that their order shows.
                        let lines: Vec<_> =
                            (0..100).map(|key| format!("INCR c{number}:{}", key / 2)).collect();
                        client.send(&lines)?;
                        for key in 0..100 {
                            let said = client.reply()?;
                            let expected = 2 * (rounds - 1) + 1 + key % 2;
                            ensure!(
                                said == format!(":{expected}\r\n"),
                                "{number}:{key} in round {rounds}: {said}"
                            );
                        }
                    }
                    Ok(rounds)
                })
            })
            .collect();
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let output = site.cluster.reshard(from, to, 1_000);
            let is_done = output.as_ref().is_ok_and(|output| output.status.success());
            if !is_done {
                ends.store(true, Ordering::Relaxed);
                anyhow::bail!("{output:?}");
            }
        }
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("it ends")).collect()
    })?;
    let mut client = site.client()?;
    for (number, rounds) in counts.iter().enumerate() {
        ensure!(*rounds > 0);
        for key in 0..50 {
            client.check(&format!("GET c{number}:{key}"), &bulk(&(2 * rounds).to_string()))?;
        }
    }
    ensure!(counter(&site.gate, "redirected")? > 0 && counter(&site.gate, "redirect-failed")? == 0);
    Ok(())
}

#[test]
fn a_dead_primary_costs_its_own_keys_alone() -> Result<()> {
    let site = Site::new("")?;
    let keys = site.keys();
    let mut client = site.client()?;
    for key in &keys {
        client.check(&format!("SET {key} v"), "+OK\r\n")?;
    }
    site.cluster.nodes[2].signal(Signal::SIGKILL)?;
    wait_until("its keys are refused", || Ok(client.ask(&format!("GET {}", keys[2]))?.starts_with('-')))?;
    for _ in 0..200 {
        let said = client.ask(&format!("GET {}", keys[2]))?;
        let is_stated =
            ["-UNAVAILABLE ", "-UNCERTAIN ", "-CLUSTERDOWN "].iter().any(|word| said.starts_with(word));
        ensure!(is_stated, "{said}");
        for key in &keys[..2] {
            client.check(&format!("GET {key}"), &bulk("v"))?;
        }
    }
    client.check("PING", "+PONG\r\n")?;
    Ok(())
}

#[test]
fn a_kept_answer_does_not_outlive_its_slots_node() -> Result<()> {
    let hot = "hot_keys = { cache = \"on\", threshold = \"5\", ttl = \"3s\" }\n";
    let site = Site::new(hot)?;
    let [key, ..] = &site.keys()[..] else { unreachable!() };
    let mut client = site.client()?;
    client.check(&format!("SET {key} old"), "+OK\r\n")?;
    wait_until("it is kept", || {
        client.check(&format!("GET {key}"), &bulk("old"))?;
        Ok(counter(&site.gate, "cache-hits")? > 0)
    })?;
    // Its slot is another node's, which has another value of it.
    site.cluster.client(0)?.check(&format!("DEL {key}"), ":1\r\n")?;
    site.cluster.begin_move(key, 0, 1)?;
    site.cluster.give(key, 1, &[1, 0, 2])?;
    site.cluster.client(1)?.check(&format!("SET {key} new"), "+OK\r\n")?;
    let before = counter(&site.gate, "slots-changed")?;
    client.check(&format!("SET {{{key}}}:other v"), "+OK\r\n")?;
    wait_until("gate knows of it", || Ok(counter(&site.gate, "slots-changed")? > before))?;
    client.check(&format!("GET {key}"), &bulk("new"))
}

#[test]
fn no_request_overtakes_one_whose_slot_moves() -> Result<()> {
    let site = Site::new("connections = \"1\"\nstore_timeout = \"20s\"\nhot_keys = { cache = \"off\" }\n")?;
    let [key, other, ..] = &site.keys()[..] else { unreachable!() };
    let mut client = site.client()?;
    let mut another = site.client()?;
    another.check(&format!("GET {key}"), "$-1\r\n")?;
    // The first write stays at the old node until its slot is the new one's.
    let mut node = site.cluster.client(0)?;
    node.check("CLIENT PAUSE 15000 WRITE", "+OK\r\n")?;
    client.send(&[format!("SET {key} 1")])?;
    wait_until("it is not at the node", || Ok(node.ask("CLIENT LIST")?.contains(" cmd=set ")))?;
    site.cluster.give(key, 1, &[1, 0, 2])?;
    // gate learns of it by another slot.
    let before = counter(&site.gate, "slots-changed")?;
    site.cluster.give(other, 2, &[2, 1, 0])?;
    another.check(&format!("GET {other}"), "$-1\r\n")?;
    wait_until("gate does not know of it", || Ok(counter(&site.gate, "slots-changed")? > before))?;
    client.send(&[format!("SET {key} 2"), format!("GET {key}")])?;
    for _ in 0..100 {
        another.check(&format!("GET {key}"), "$-1\r\n")?;
    }
    node.check("CLIENT UNPAUSE", "+OK\r\n")?;
    ensure!([client.reply()?, client.reply()?, client.reply()?] == ["+OK\r\n", "+OK\r\n", "$1\r\n2\r\n"]);
    Ok(())
}

#[test]
fn long_replies_do_not_hold_up_what_is_sent_on_behind_them() -> Result<()> {
    let site = Site::new("connections = \"1\"\n")?;
    let [key, other, ..] = &site.keys()[..] else { unreachable!() };
    let value = "v".repeat(4 << 20);
    let mut client = site.client()?;
    client.check(&command(&["SET", other, &value]), "+OK\r\n")?;
    client.check(&format!("GET {key}"), "$-1\r\n")?;
    site.cluster.give(key, 1, &[1, 0, 2])?;
    // The first read is sent on to where the next ones wait to be read.
    site.cluster.nodes[0].signal(Signal::SIGSTOP)?;
    client.send(&[format!("GET {key}"), format!("GET {other}"), format!("GET {other}")])?;
    let mut node = site.cluster.client(1)?;
    wait_until("they are not at the node", || Ok(node.ask("CLIENT LIST")?.contains(" cmd=get ")))?;
    wait_until("they are not held up", || {
        let lines = node.ask("CLIENT LIST")?;
        Ok(lines.lines().any(|line| line.contains(" cmd=get ") && !line.contains(" omem=0 ")))
    })?;
    site.cluster.nodes[0].signal(Signal::SIGCONT)?;
    ensure!(client.reply()? == "$-1\r\n");
    ensure!(client.reply()? == bulk(&value) && client.reply()? == bulk(&value));
    Ok(())
}

/// A script's errors are its author's words, not a node's.
#[test]
fn a_scripts_redirection_leads_nobody_elsewhere() -> Result<()> {
    let site = Site::new("")?;
    let keys = site.keys();
    let trap = TcpListener::bind("127.0.0.1:0")?;
    trap.set_nonblocking(true)?;
    let mut client = site.client()?;
    let mut other = site.client()?;
    for key in &keys {
        other.check(&format!("SET {key} own"), "+OK\r\n")?;
    }
    let elsewhere = [trap.local_addr()?, site.gate.address, site.cluster.nodes[2].address];
    for (key, to) in keys[..2].iter().flat_map(|key| elsewhere.map(|to| (key, to))) {
        for kind in ["MOVED", "ASK"] {
            let error = format!("{kind} {} {to}", placement::slot(key.as_bytes()));
            let script = format!("return redis.error_reply('{error}')");
            let said = client.ask(&command(&["EVAL", &script, "1", key]))?;
            ensure!(
                said.starts_with('-') && !said.contains("MOVED") && !said.contains("ASK"),
                "{error}: {said}"
            );
            let before = counter(&site.gate, "redirected")?;
            for key in &keys {
                other.check(&format!("GET {key}"), &bulk("own"))?;
            }
            ensure!(counter(&site.gate, "redirected")? == before, "{error} has changed the slots");
        }
    }
    // It has run each time, and is paid for each time; one about no slot goes nowhere.
    let to = site.cluster.nodes[2].address;
    let slot = placement::slot(keys[0].as_bytes());
    let script =
        format!("redis.call('INCR', KEYS[1]..':runs') return redis.error_reply('MOVED {slot} {to}')");
    let tag = format!("{{{}}}", keys[0]);
    let charged = || {
        let tenants = site.gate.json(&["tenants"])?;
        tenants["tenants"][0]["charged_ru"].as_f64().context("nothing was charged")
    };
    let once = "redis.call('INCR', KEYS[1]..':once') return 1".to_owned();
    let mut costs = [0.0; 2];
    for (script, cost) in [once, script].iter().zip(&mut costs) {
        let before = charged()?;
        client.ask(&command(&["EVAL", script, "1", &tag]))?;
        *cost = charged()? - before;
    }
    let mut node = site.cluster.client(0)?;
    let runs = node.ask(&format!("GET {tag}:runs"))?;
    let runs: f64 = runs.lines().nth(1).context("it has not run")?.parse()?;
    ensure!(runs > 1.0 && costs[1] > 0.9 * runs * costs[0], "{runs} runs for {costs:?} RU");
    let said =
        client.ask(&command(&["EVAL", &format!("return redis.error_reply('MOVED {slot} {to}')"), "0"]))?;
    ensure!(said.starts_with("-ERR "), "{said}");
    let came = trap.accept().map(|(_, from)| from);
    ensure!(came.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "{came:?}");
    Ok(())
}

/// A command in the protocol, but for its last end of line.
fn command(words: &[&str]) -> String {
    let each: String = words.iter().map(|word| format!("\r\n${}\r\n{word}", word.len())).collect();
    format!("*{}{each}", words.len())
}

#[test]
fn a_seed_that_is_no_cluster_is_said_and_refused() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_before_cluster(&[store.address.to_string()], "", EVERYONE)?;
    let mut client = Client::of(&gate)?;
    wait_until("requests are refused", || Ok(client.ask("GET a")?.starts_with("-UNAVAILABLE ")))?;
    for line in ["SCAN 0", "KEYS *", "DBSIZE"] {
        let said = client.ask(line)?;
        ensure!(said.starts_with("-UNAVAILABLE "), "{line}: {said}");
    }
    wait_until("it is counted", || Ok(counter(&gate, "slots-unknown")? > 0))?;
    let rules = client.ask("CLUSTER INFO").context("gate answers for itself")?;
    ensure!(rules.contains("cluster_state:fail"), "{rules}");
    Ok(())
}
