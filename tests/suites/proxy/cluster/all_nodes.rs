//! Commands about the keys, scripts and functions of all nodes: scans with a cursor that names a node, and answers of all primaries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::redis_cluster::{Client, RedisCluster};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{EVERYONE, Site, bulk, command};

const KEYS: usize = 10_000;

/// A site with so many strings, and a list for each hundred of them.
fn filled(keys: usize) -> Result<Site> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    for first in (0..keys).step_by(500) {
        let of = |key: usize| match key % 100 {
            0 => format!("RPUSH list:{key} v"),
            // So long that all keys are more than gate holds back before a reply begins.
            _ => format!("SET key:{key:0>40} v"),
        };
        client.send(&(first..first + 500).map(of).collect::<Vec<_>>())?;
        for _ in 0..500 {
            ensure!(!client.reply()?.starts_with('-'));
        }
    }
    Ok(site)
}

/// The cursor and the keys of a reply to `SCAN`.
pub(super) fn scanned(reply: &str) -> Result<(u64, Vec<String>)> {
    let mut lines = reply.lines();
    ensure!(lines.next() == Some("*2") && lines.next().is_some_and(|line| line.starts_with('$')), "{reply}");
    let cursor = lines.next().context("no cursor")?.parse()?;
    let count: usize = lines.next().context("no keys")?.trim_start_matches('*').parse()?;
    let keys: Vec<_> = lines.skip(1).step_by(2).map(str::to_owned).collect();
    ensure!(keys.len() == count, "{} of {count} keys", keys.len());
    Ok((cursor, keys))
}

/// How often a whole scan says each key, and how many requests it takes.
fn scan(client: &mut Client, options: &str, from: u64) -> Result<(BTreeMap<String, usize>, usize)> {
    let mut keys = BTreeMap::new();
    let mut cursor = from;
    let mut requests = 0;
    loop {
        let (next, found) = scanned(&client.ask(&format!("SCAN {cursor} {options}"))?)?;
        requests += 1;
        found.into_iter().for_each(|key| *keys.entry(key).or_default() += 1);
        if next == 0 {
            return Ok((keys, requests));
        }
        cursor = next;
    }
}

/// The keys of a pattern that redis-cli scans at each node.
fn scanned_past_gate(site: &Site, pattern: &str) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for node in &site.cluster.nodes {
        let ip = node.address.ip().to_string();
        let port = node.address.port().to_string();
        let mut cli = Command::new("redis-cli");
        let output = cli.args(["-h", &ip, "-p", &port, "--scan", "--pattern", pattern]).output()?;
        ensure!(output.status.success(), "{output:?}");
        keys.extend(String::from_utf8(output.stdout)?.lines().map(str::to_owned));
    }
    Ok(keys)
}

#[test]
fn a_scan_finds_what_redis_cli_finds_at_each_node() -> Result<()> {
    let site = filled(KEYS)?;
    let mut client = site.client()?;
    client.check("DBSIZE", &format!(":{KEYS}\r\n"))?;
    for (options, pattern) in [
        ("", "*"),
        ("COUNT 1000", "*"),
        ("MATCH key:*7", "key:*7"),
        ("TYPE list COUNT 500", "list:*"),
        ("COUNT 500 MATCH *7 TYPE string", "key:*7"),
        ("TYPE zset", "nothing"),
    ] {
        let (keys, requests) = scan(&mut client, options, 0)?;
        let expected = scanned_past_gate(&site, pattern)?;
        ensure!(keys.keys().eq(expected.iter()), "{options}: {} of {} keys", keys.len(), expected.len());
        ensure!(keys.values().all(|times| *times == 1), "{options}: some come twice");
        ensure!(!options.is_empty() || (900..1_200).contains(&requests), "{requests} requests");
    }
    let said = client.ask("KEYS *")?;
    let found: BTreeSet<_> = said.lines().skip(2).step_by(2).map(str::to_owned).collect();
    ensure!(said.starts_with(&format!("*{KEYS}\r\n")) && found == scanned_past_gate(&site, "*")?);
    // Whoever goes through the nodes by themselves finds all of them behind gate.
    let ip = site.gate.address.ip().to_string();
    let port = site.gate.address.port().to_string();
    let output = Command::new("redis-cli").args(["-c", "-h", &ip, "-p", &port, "--scan"]).output()?;
    let found: BTreeSet<_> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(found.len() == KEYS, "{}", found.len());
    Ok(())
}

#[test]
fn a_cursor_from_elsewhere_begins_its_slots_node_anew() -> Result<()> {
    let site = filled(1_000)?;
    let mut client = site.client()?;
    // Another gate before the same cluster goes on where this one has stopped.
    let other = Listening::gate_before_cluster(&site.cluster.addresses()[2..], "", EVERYONE)?;
    let mut at_other = Client::of(&other)?;
    wait_until("it knows the slots", || Ok(!at_other.ask("SCAN 0")?.starts_with('-')))?;
    let mut keys = BTreeMap::<String, usize>::new();
    let mut cursor = 0;
    for turn in 0.. {
        let client = if turn % 2 == 0 { &mut client } else { &mut at_other };
        let (next, found) = scanned(&client.ask(&format!("SCAN {cursor}"))?)?;
        found.into_iter().for_each(|key| *keys.entry(key).or_default() += 1);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    ensure!(keys.len() == 1_000 && keys.values().all(|times| *times == 1));
    // What a client makes up ends; that of a slot finds all of its node's keys and of those behind it.
    for made_up in [1, 5_000, 16_383, 1 << 30, (1 << 63) - 1] {
        let (keys, requests) = scan(&mut client, "COUNT 100", made_up)?;
        let slot = made_up & 16_383;
        let first = (slot * 3 / 16_384) as usize;
        let size = |place: usize| -> Result<usize> {
            Ok(site.cluster.client(place)?.ask("DBSIZE")?.trim().trim_start_matches(':').parse()?)
        };
        let expected = (first..3).map(size).sum::<Result<usize>>()?;
        ensure!(keys.len() == expected && requests < 40, "{made_up}: {} in {requests}", keys.len());
    }
    let mut node = site.cluster.client(0)?;
    for line in
        ["SCAN", "SCAN x", "SCAN -1 COUNT 5", "SCAN 0 COUNT x", "SCAN 0 NO option", "KEYS", "RANDOMKEY x"]
    {
        let mut expected = node.ask(line)?;
        if line.contains("-1") {
            expected = "-ERR invalid cursor\r\n".to_owned();
        }
        ensure!(expected.starts_with("-ERR "), "{line}: {expected}");
        client.check(line, &expected)?;
    }
    client.check("SCAN 9223372036854775808", "-ERR invalid cursor\r\n")?;
    Ok(())
}

#[test]
fn all_primaries_answer_as_one() -> Result<()> {
    let site = filled(1_000)?;
    let mut client = site.client()?;
    let listed =
        |reply: &str| -> BTreeSet<String> { reply.lines().skip(2).step_by(2).map(str::to_owned).collect() };
    for protocol in ["2", "3"] {
        client.ask(&format!("HELLO {protocol}"))?;
        for pattern in ["*", "key:*1", "nothing"] {
            let said = client.ask(&format!("KEYS {pattern}"))?;
            let expected = scanned_past_gate(&site, pattern)?;
            ensure!(
                said.starts_with(&format!("*{}\r\n", expected.len())) && listed(&said) == expected,
                "{said}"
            );
        }
        // One of each node's keys, sooner or later.
        let mut left: BTreeSet<_> = (0..3).collect();
        wait_until("each node has been asked", || {
            let said = client.ask("RANDOMKEY")?;
            left.remove(&site.cluster.place(said.lines().nth(1).context("no key")?));
            Ok(left.is_empty())
        })?;
        let script = client.ask(&command(&["SCRIPT", "LOAD", "return 1"]))?;
        let sha = script.lines().nth(1).context("no digest")?.to_owned();
        client.check(&format!("SCRIPT EXISTS {sha} {}", "0".repeat(40)), "*2\r\n:1\r\n:0\r\n")?;
        // One that a node has lost cannot be relied on.
        site.cluster.client(1)?.check("SCRIPT FLUSH", "+OK\r\n")?;
        client.check(&format!("SCRIPT EXISTS {sha}"), "*1\r\n:0\r\n")?;
        let library = "#!lua name=lib\nredis.register_function('f', function(keys) return redis.call('TYPE', keys[1]) end)";
        client.check(&command(&["FUNCTION", "LOAD", library]), &bulk("lib"))?;
        for key in site.keys() {
            client.check(&format!("FCALL f 1 {key}"), "+none\r\n")?;
        }
        let again = client.ask(&command(&["FUNCTION", "LOAD", library]))?;
        ensure!(again == "-ERR Library 'lib' already exists\r\n", "{again}");
        ensure!(client.ask("FUNCTION LIST")?.contains("lib"));
        client.check("FUNCTION DELETE lib", "+OK\r\n")?;
        client.check(&command(&["FUNCTION", "LOAD", library]), &bulk("lib"))?;
        client.check("FUNCTION FLUSH", "+OK\r\n")?;
        for place in 0..3 {
            site.cluster.client(place)?.check("FUNCTION LIST", "*0\r\n")?;
        }
    }
    client.check("BGSAVE", "+Background saving started\r\n")?;
    wait_until("all nodes have saved", || {
        (0..3).try_fold(true, |all, place| {
            let info = site.cluster.client(place)?.ask("INFO persistence")?;
            Ok(all && info.contains("rdb_saves:1\r"))
        })
    })?;
    // What has no meaning in a cluster is refused as by a node.
    let mut node = site.cluster.client(0)?;
    for line in ["SWAPDB 0 1", "SELECT 1", "REPLICAOF NO ONE", "FAILOVER"] {
        let expected = node.ask(line)?;
        ensure!(expected.contains("not allowed in cluster mode"), "{expected}");
        client.check(line, &expected)?;
    }
    client.check("FLUSHALL", "+OK\r\n")?;
    ensure!(["$-1\r\n", "_\r\n"].contains(&client.ask("RANDOMKEY")?.as_str()));
    client.check("KEYS *", "*0\r\n")?;
    client.check("SET {a}only v", "+OK\r\n")?;
    for _ in 0..20 {
        client.check("RANDOMKEY", &bulk("{a}only"))?;
    }
    ensure!(scan(&mut client, "", 0)?.0.into_keys().eq(["{a}only".to_owned()]));
    Ok(())
}

#[test]
fn a_dead_node_stops_a_scan_where_its_keys_begin() -> Result<()> {
    let site = filled(1_000)?;
    let mut client = site.client()?;
    let (keys, _) = scan(&mut client, "COUNT 100", 0)?;
    site.cluster.nodes[2].signal(Signal::SIGKILL)?;
    let is_refused = |said: &str| ["-UNAVAILABLE ", "-UNCERTAIN "].iter().any(|word| said.starts_with(word));
    wait_until("its keys are refused", || Ok(is_refused(&client.ask("KEYS *")?)))?;
    let mut found = BTreeSet::new();
    let mut cursor = 0;
    let stopped = loop {
        let said = client.ask(&format!("SCAN {cursor} COUNT 100"))?;
        if said.starts_with('-') {
            break said;
        }
        let (next, keys) = scanned(&said)?;
        found.extend(keys);
        cursor = next;
        ensure!(cursor != 0, "its keys are missing");
    };
    ensure!(is_refused(&stopped), "{stopped}");
    let of_others: BTreeSet<_> = keys.into_keys().filter(|key| site.cluster.place(key) != 2).collect();
    ensure!(found == of_others, "{} of {}", found.len(), of_others.len());
    Ok(())
}

#[test]
fn what_asks_all_nodes_costs_and_is_checked_as_at_one_store() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"bound\"\nsources = [\"127.0.0.5\"]\nquota = \"unlimited\"\nkeys = \"own\"\n\
                   key_prefixes = [\"a:\"]\n[[tenant]]\nname = \"free\"\nsources = [\"127.0.0.1\"]\nquota = \"unlimited\"\n";
    let service = "price = { base = \"4 RU\", row = \"1 RU\", kib = \"0 RU\", learn = \"off\" }\n";
    let cluster = RedisCluster::start(3)?;
    let gate = Listening::gate_before_cluster(&cluster.addresses()[..1], service, tenants)?;
    let site = Site { cluster, gate };
    site.knows_slots()?;
    let store = Listening::redis()?;
    let one = Listening::gate("resp", store.address, service, tenants)?;
    let price = |gate: &Listening, line: &str| -> Result<f64> {
        let charged = || {
            let tenants = gate.json(&["tenants"])?;
            let free =
                tenants["tenants"].as_array().context("none")?.iter().find(|tenant| tenant["name"] == "free");
            free.and_then(|free| free["charged_ru"].as_f64()).context("no charge")
        };
        let before = charged()?;
        let said = Client::of(gate)?.ask(line)?;
        ensure!(!said.starts_with('-'), "{line}: {said}");
        Ok(charged()? - before)
    };
    for line in ["SCAN 0", "SCAN 0 COUNT 500", "KEYS *", "RANDOMKEY", "SCRIPT EXISTS x", "FUNCTION FLUSH"] {
        let all = price(&site.gate, line)?;
        let single = price(&one, line)?;
        ensure!(single > 0.0 && (all - single).abs() < 0.01, "{line}: {all} rather than {single}");
    }
    let mut bound = Client::from(&site.gate, Ipv4Addr::new(127, 0, 0, 5))?;
    for line in
        ["SCAN 0", "SCAN 0 MATCH a:*", "KEYS a:*", "RANDOMKEY", "SCRIPT EXISTS x", "FUNCTION LIST", "DBSIZE"]
    {
        bound.check(line, "-DENIED reason=unsupported rule=keys\r\n")?;
    }
    bound.check("SET a:1 v", "+OK\r\n")?;
    // A connection of the client's own leads to one node.
    let mut client = site.client()?;
    client.check("WATCH k", "+OK\r\n")?;
    for line in ["SCAN 0", "KEYS *", "RANDOMKEY"] {
        client.check(line, "-DENIED reason=unsupported rule=cluster\r\n")?;
    }
    Ok(())
}
