//! Primaries that are killed, paused or told to go, under load: their replicas take over, and no client loses or doubles a write but
//! by what Redis itself loses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::redis_cluster::{Client, RedisCluster};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::all_nodes::scanned;
use super::{EVERYONE, Site, bulk};

/// A node that is silent for so long is down; one that has to wait for a processor is not. What waits for it waits with it, not in a
/// queue of all nodes: nobody is refused for that.
const SOON: &str = "store_timeout = \"3s\"\nparallelism = \"off\"";
const NEVER: &str = "store_timeout = \"20s\"\nparallelism = \"off\"";
const CLIENTS: usize = 3;
/// Keys of each client at each node.
const KEYS: usize = 10;

/// The answers to the writes of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    answered: u64,
    /// Of those, answered while Redis may lose them.
    at_risk: u64,
    uncertain: u64,
}

/// A moment of the test, as its clients see it.
#[derive(Debug, Default)]
struct Load {
    ends: AtomicBool,
    /// True while a primary is lost: what it answered last may not have reached its replica.
    is_at_risk: AtomicBool,
    rounds: [AtomicU64; CLIENTS],
    /// Refusals, by their first word.
    refused: Mutex<BTreeMap<String, u64>>,
    /// Refusals of keys whose node is up.
    others_refused: AtomicU64,
}

impl Load {
    /// Waits until each client has been answered several times.
    fn goes_on(&self) -> Result<()> {
        let rounds = || self.rounds.each_ref().map(|rounds| rounds.load(Ordering::SeqCst));
        let before = rounds();
        wait_until("the clients go on", || {
            Ok(rounds().iter().zip(before).all(|(now, before)| *now > before + 3))
        })
    }

    /// One client: counts up its keys, each twice, and reads their names between, over and over, while the next requests are on their way.
    fn client(
        &self,
        number: usize,
        mut client: Client,
        keys: &[(String, bool)],
    ) -> Result<BTreeMap<String, Count>> {
        let mut counts = BTreeMap::<String, Count>::new();
        let mut last = BTreeMap::<String, u64>::new();
        for (key, _) in keys {
            client.check(&format!("SET {{{key}}}:name {key}"), "+OK\r\n")?;
        }
        let each = || keys.iter().flat_map(|key| [(key, true), (key, false), (key, true)]);
        let line = |((key, _), adds): (&(String, bool), bool)| match adds {
            true => format!("INCR {key}"),
            false => format!("GET {{{key}}}:name"),
        };
        let lines: Vec<_> = each().map(line).collect();
        client.send(&lines)?;
        let mut is_last = false;
        while !is_last {
            is_last = self.ends.load(Ordering::SeqCst);
            if !is_last {
                client.send(&lines)?;
            }
            for ((key, is_lost), adds) in each() {
                let said = client.reply()?;
                if !adds && !said.starts_with('-') {
                    ensure!(said == bulk(key), "{key}: {said}");
                    continue;
                }
                let count = counts.entry(key.clone()).or_default();
                let is_at_risk = self.is_at_risk.load(Ordering::SeqCst);
                if let Some(value) = said.strip_prefix(':') {
                    let value: u64 = value.trim().parse()?;
                    let most = count.answered + count.uncertain + 1;
                    ensure!(value <= most, "{key}: {value} of {most} writes");
                    // Only what Redis loses goes back.
                    let before = last.insert(key.clone(), value).unwrap_or_default();
                    ensure!(value > before || is_at_risk && *is_lost, "{key}: {value} behind {before}");
                    count.answered += 1;
                    count.at_risk += u64::from(is_at_risk && *is_lost);
                    continue;
                }
                let is_refused = ["-UNAVAILABLE ", "-UNCERTAIN ", "-CLUSTERDOWN ", "-TRYAGAIN "];
                ensure!(is_refused.iter().any(|word| said.starts_with(word)), "{key}: {said}");
                count.uncertain += u64::from(adds && said.starts_with("-UNCERTAIN "));
                let word = said.split(' ').next().unwrap_or_default().to_owned();
                *self.refused.lock().expect("nobody has failed").entry(word).or_default() += 1;
                if !*is_lost {
                    self.others_refused.fetch_add(1, Ordering::SeqCst);
                }
            }
            self.rounds[number].fetch_add(1, Ordering::SeqCst);
        }
        Ok(counts)
    }
}

/// Has clients write while `fails` does something to the first primary; then all keys are served, and count what was written. Returns
/// the refusals.
fn fail_over(service: &str, fails: impl FnOnce(&Site, &Load) -> Result<()>) -> Result<BTreeMap<String, u64>> {
    let cluster = RedisCluster::with_replicas(3)?;
    let gate = Listening::gate_before_cluster(&cluster.addresses(), service, EVERYONE)?;
    let site = Site { cluster, gate };
    site.knows_slots()?;
    let load = Load::default();
    let keys: Vec<Vec<_>> = (0..CLIENTS)
        .map(|client| {
            let of_node = |place| {
                let names = site.cluster.keys_at(place, KEYS * CLIENTS);
                names[client * KEYS..][..KEYS]
                    .iter()
                    .map(move |key| (key.clone(), place == 0))
                    .collect::<Vec<_>>()
            };
            (0..3).flat_map(of_node).collect()
        })
        .collect();
    let counts = std::thread::scope(|scope| -> Result<Vec<_>> {
        let clients = (0..CLIENTS).map(|_| site.client()).collect::<Result<Vec<_>>>()?;
        let running: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| {
                let load = &load;
                let keys = &keys[number];
                scope.spawn(move || load.client(number, client, keys))
            })
            .collect();
        let failed = load.goes_on().and_then(|()| {
            load.is_at_risk.store(true, Ordering::SeqCst);
            load.goes_on()?;
            fails(&site, &load)?;
            load.is_at_risk.store(false, Ordering::SeqCst);
            load.goes_on()
        });
        load.ends.store(true, Ordering::SeqCst);
        let counts =
            running.into_iter().map(|client| client.join().expect("it ends")).collect::<Result<Vec<_>>>();
        // A client that has failed is why it did not go on.
        counts.and_then(|counts| failed.map(|()| counts))
    })?;
    let mut client = site.client()?;
    for (key, count) in counts.iter().flatten() {
        let said = client.ask(&format!("GET {key}"))?;
        let value: u64 = said.lines().nth(1).with_context(|| format!("{key}: {said}"))?.parse()?;
        let Count { answered, at_risk, uncertain } = *count;
        let is_kept = (answered - at_risk..=answered + uncertain).contains(&value);
        ensure!(is_kept && answered > 0, "{key}: {value} of {count:?}");
    }
    let others = load.others_refused.load(Ordering::SeqCst);
    ensure!(others == 0, "{others} requests to other nodes were refused");
    Ok(load.refused.into_inner().expect("nobody has failed"))
}

/// Waits until a key of the first primary is served by its replica.
fn is_served(site: &Site) -> Result<()> {
    let key = &site.cluster.keys_at(0, KEYS * CLIENTS + 1)[KEYS * CLIENTS];
    let mut client = site.client()?;
    let mut replica = Client::of(&site.cluster.replicas[0])?;
    wait_until("its replica is no primary", || Ok(replica.ask("ROLE")?.contains("master")))?;
    wait_until("it is not served", || Ok(client.ask(&format!("SET {key} new"))? == "+OK\r\n"))?;
    replica.check(&format!("GET {key}"), &bulk("new"))
}

#[test]
fn a_killed_primarys_writes_are_neither_lost_nor_doubled() -> Result<()> {
    let refused = fail_over(NEVER, |site, load| {
        site.cluster.nodes[0].signal(Signal::SIGKILL)?;
        is_served(site)?;
        load.goes_on()
    })?;
    ensure!(!refused.is_empty(), "nothing was noticed");
    Ok(())
}

#[test]
fn a_paused_primarys_writes_are_neither_lost_nor_doubled() -> Result<()> {
    let refused = fail_over(SOON, |site, load| {
        site.cluster.nodes[0].stall()?;
        is_served(site)?;
        load.goes_on()?;
        // It comes back, and learns that it is a replica.
        site.cluster.nodes[0].signal(Signal::SIGCONT)?;
        wait_until("it is still a primary", || Ok(site.cluster.client(0)?.ask("ROLE")?.contains("slave")))?;
        load.goes_on()
    })?;
    ensure!(!refused.is_empty(), "nothing was noticed");
    Ok(())
}

#[test]
fn a_failover_by_hand_is_not_noticed() -> Result<()> {
    let refused = fail_over(NEVER, |site, load| {
        load.is_at_risk.store(false, Ordering::SeqCst);
        for place in [site.cluster.replicas.first(), site.cluster.nodes.first()] {
            site.cluster.take_over(place.context("there is one")?)?;
            load.goes_on()?;
        }
        Ok(())
    })?;
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

/// The replica has another order of the same keys: a cursor of its primary means nothing to it.
#[test]
fn a_scan_goes_on_over_a_failover_and_misses_no_key() -> Result<()> {
    let cluster = RedisCluster::with_replicas(3)?;
    let gate = Listening::gate_before_cluster(&cluster.addresses(), NEVER, EVERYONE)?;
    let site = Site { cluster, gate };
    site.knows_slots()?;
    let mut client = site.client()?;
    let keys: Vec<_> = (0..3_000).map(|number| format!("key:{number}")).collect();
    client.send(&keys.iter().map(|key| format!("SET {key} v")).collect::<Vec<_>>())?;
    for _ in &keys {
        ensure!(client.reply()? == "+OK\r\n");
    }
    let mut node = site.cluster.client(1)?;
    node.check(&format!("SET {} v", site.cluster.keys_at(1, 1)[0]), "+OK\r\n")?;
    node.check("WAIT 1 20000", ":1\r\n")?;
    let mut found = BTreeSet::new();
    let mut cursor = 0;
    let mut of_second = 0;
    loop {
        let said = client.ask(&format!("SCAN {cursor} COUNT 20"))?;
        let (next, keys) = scanned(&said)?;
        of_second += keys.iter().filter(|key| site.cluster.place(key) == 1).count();
        found.extend(keys);
        cursor = next;
        // In the midst of the second primary's keys.
        if of_second > 300 {
            break;
        }
    }
    site.cluster.nodes[1].signal(Signal::SIGKILL)?;
    let mut replica = Client::of(&site.cluster.replicas[1])?;
    wait_until("its replica is no primary", || Ok(replica.ask("ROLE")?.contains("master")))?;
    while cursor != 0 {
        let mut said = String::new();
        wait_until("the scan does not go on", || {
            said = client.ask(&format!("SCAN {cursor} COUNT 20"))?;
            let is_refused = ["-UNAVAILABLE ", "-UNCERTAIN "].iter().any(|word| said.starts_with(word));
            Ok(!is_refused)
        })?;
        let (next, keys) = scanned(&said)?;
        found.extend(keys);
        cursor = next;
    }
    let missed = keys.iter().filter(|key| !found.contains(*key)).count();
    ensure!(missed == 0, "{missed} keys are missing");
    Ok(())
}

#[test]
fn work_at_one_node_is_no_patience_with_another() -> Result<()> {
    let site = Site::new("store_timeout = \"500ms\"\nslow_timeout = \"60s\"\nhot_keys.cache = \"off\"\n")?;
    let keys = site.keys();
    let mut clients = [site.client()?, site.client()?];
    for (client, key) in clients.iter_mut().zip(&keys) {
        wait_until("it is not served", || Ok(client.ask(&format!("GET {key}"))? == "$-1\r\n"))?;
    }
    site.cluster.nodes[0].stall()?;
    site.cluster.nodes[1].stall()?;
    let [short, slow] = &mut clients;
    slow.send(&[format!("RENAME {0} {0}", keys[1])])?;
    // One that may free what a key held has no patience where others' requests wait for the same permits.
    short.send(&[format!("SET {} x", keys[0])])?;
    let asked = Instant::now();
    let said = short.reply()?;
    ensure!(said.ends_with(" reason=store-down\r\n"), "{said}");
    ensure!(asked.elapsed() < Duration::from_secs(20), "it took {:?}", asked.elapsed());
    for node in &site.cluster.nodes[..2] {
        node.signal(Signal::SIGCONT)?;
    }
    let said = slow.reply()?;
    ensure!(said == "-ERR no such key\r\n", "{said}");
    Ok(())
}
