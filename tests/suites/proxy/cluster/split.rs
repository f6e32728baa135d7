//! Commands about keys in several slots: sent by slot, and answered by one reply, as one Redis with all keys answers them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::Listening;
use gate_tests::redis_cluster::{Client, RedisCluster};
use gate_tests::rng::Rng;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

use super::{CROSSSLOT, Site, bulk, command};

const SPLIT_WRITES: &str = "split_writes = \"on\"\n";

/// A random command about up to `most` of a hundred keys, which may be twice in it; some of one slot, if `tags`.
fn random(rng: &mut Rng, most: u64, tags: bool) -> String {
    let key = |rng: &mut Rng| match rng.below(4) {
        0 if tags => format!("{{tag}}:{}", rng.below(5)),
        _ => format!("key:{}", rng.below(100)),
    };
    let keys = |rng: &mut Rng| (0..=rng.below(most)).map(|_| key(rng)).collect::<Vec<_>>();
    match rng.below(12) {
        0..=2 => format!("MGET {}", keys(rng).join(" ")),
        3 => format!("EXISTS {}", keys(rng).join(" ")),
        4 => format!("TOUCH {}", keys(rng).join(" ")),
        5 => format!("DEL {}", keys(rng).join(" ")),
        6 => format!("UNLINK {}", keys(rng).join(" ")),
        7 => format!("SADD {} member", key(rng)),
        8 => format!("INCR {}", key(rng)),
        9 => format!("SET {} {}", key(rng), rng.below(1_000)),
        _ => {
            let pairs: Vec<_> = keys(rng).iter().map(|key| format!("{key} {}", rng.below(1_000))).collect();
            format!("MSET {}", pairs.join(" "))
        }
    }
}

#[test]
fn several_slots_answer_as_one_redis_does() -> Result<()> {
    // Few permits, so that parts wait in the queue as well.
    let site = Site::new(&format!(
        "{SPLIT_WRITES}parallelism = \"2\"\nadmission = \"off\"\ncodel = {{ law = \"off\" }}\n"
    ))?;
    let plain = Listening::redis()?;
    let mut rng = Rng::new(11);
    let mut one = site.client()?;
    let mut other = Client::of(&plain)?;
    for protocol in ["2", "3"] {
        if protocol == "3" {
            ensure!(one.ask("HELLO 3")?.starts_with('%') && other.ask("HELLO 3")?.starts_with('%'));
        }
        for _ in 0..40 {
            let lines: Vec<_> = (0..50).map(|_| random(&mut rng, 30, true)).collect();
            one.send(&lines)?;
            other.send(&lines)?;
            for line in &lines {
                let expected = other.reply()?;
                let said = one.reply()?;
                ensure!(said == expected, "{line}: {said:?} rather than {expected:?}");
            }
        }
    }
    ensure!(counter(&site.gate, "part-failed")? == 0);
    Ok(())
}

#[test]
fn parts_follow_their_slots_and_keep_their_order() -> Result<()> {
    let site = Site::new(SPLIT_WRITES)?;
    let plain = Listening::redis()?;
    let mut rng = Rng::new(12);
    let mut one = site.client()?;
    let mut other = Client::of(&plain)?;
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| -> Result<()> {
            while !ends.load(Ordering::Relaxed) {
                let lines: Vec<_> = (0..30).map(|_| random(&mut rng, 20, false)).collect();
                one.send(&lines)?;
                for (place, line) in lines.iter().enumerate() {
                    let said = one.reply()?;
                    let expected = other.ask(line)?;
                    let behind = &lines[..place];
                    ensure!(
                        said == expected,
                        "{line}: {said:?} rather than {expected:?}, behind {behind:#?}"
                    );
                }
            }
            Ok(())
        });
        let moves = [(0, 1), (1, 2), (2, 0)].map(|(from, to)| site.cluster.reshard(from, to, 700));
        ends.store(true, Ordering::Relaxed);
        for output in moves {
            let output = output?;
            ensure!(output.status.success(), "{output:?}");
        }
        client.join().expect("it ends")
    })?;
    ensure!(counter(&site.gate, "redirected")? > 0 && counter(&site.gate, "redirect-failed")? == 0);
    Ok(())
}

#[test]
fn a_request_in_parts_is_one_request() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let tenant = || Ok::<_, anyhow::Error>(site.gate.json(&["tenants"])?["tenants"][0].clone());
    let cost = |client: &mut Client, line: &str| -> Result<(f64, u64)> {
        let before = tenant()?;
        client.ask(line)?;
        let after = tenant()?;
        let charged = |tenant: &serde_json::Value| tenant["charged_ru"].as_f64().context("no charge");
        let passed = |tenant: &serde_json::Value| tenant["passed"].as_u64().context("nothing passed");
        Ok((charged(&after)? - charged(&before)?, passed(&after)? - passed(&before)?))
    };
    for name in ["MGET", "DEL", "EXISTS"] {
        let whole = cost(&mut client, &format!("{name} {{a}}1 {{a}}2 {{a}}3 {{a}}4"))?;
        let parts = cost(&mut client, &format!("{name} b1 b22 b33 b44"))?;
        ensure!(
            whole.1 == 1 && parts.1 == 1 && (whole.0 - parts.0).abs() < 0.01,
            "{name} {whole:?} {parts:?}"
        );
    }
    let queues = site.gate.json(&["queues"])?;
    let under_way = queues["services"][0]["in_flight"].as_u64();
    ensure!(under_way.is_none_or(|under_way| under_way == 0), "{queues}");
    Ok(())
}

/// One node takes its part, and those of the others wait for the only permit longer than they may.
#[test]
fn what_runs_in_part_is_paid_for_in_part() -> Result<()> {
    let tenants = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n\
                   limits = { delete = \"0.01/s\" }";
    let service = "parallelism = \"1\"\nadmission = \"off\"\ndeadline = \"100ms\"\nstore_timeout = \"20s\"\n\
                   price = { base = \"4 RU\", row = \"1 RU\", kib = \"0 RU\", learn = \"off\" }\n";
    let cluster = RedisCluster::start(3)?;
    let gate = Listening::gate_before_cluster(&cluster.addresses()[..1], service, tenants)?;
    let site = Site { cluster, gate };
    site.knows_slots()?;
    let mut client = site.client()?;
    let charged = || {
        let tenant = site.gate.json(&["tenants"])?["tenants"][0].clone();
        tenant["charged_ru"].as_f64().context("no charge")
    };
    let delete = format!("DEL {}", site.keys().join(" "));
    for (line, third, refusal) in [("DBSIZE", 5.0 / 3.0, "-OVERLOADED "), (&delete, 7.0 / 3.0, "-UNCERTAIN ")]
    {
        let before = charged()?;
        let failed = counter(&site.gate, "part-failed")?;
        site.cluster.nodes[0].signal(Signal::SIGSTOP)?;
        client.send(&[line])?;
        let refused =
            wait_until("the others are refused", || Ok(counter(&site.gate, "part-failed")? == failed + 2));
        site.cluster.nodes[0].signal(Signal::SIGCONT)?;
        refused?;
        let said = client.reply()?;
        ensure!(said.starts_with(refusal), "{line}: {said}");
        let paid = charged()? - before;
        ensure!((paid - third).abs() < 0.01, "{line}: {paid} RU");
    }
    // A limit by requests counts it as one.
    let said = client.ask(&delete)?;
    ensure!(said.contains("limit=delete"), "{said}");
    Ok(())
}

/// In one round of 10 ms the refusals of a tenant may take a twentieth of it: of requests with so many parts, one.
#[test]
fn refused_requests_are_paced_by_their_parts() -> Result<()> {
    let small = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"1 RU/s\"\nburst = \"4s\"";
    let cluster = RedisCluster::start(3)?;
    let gate = Listening::gate_before_cluster(&cluster.addresses()[..1], "", small)?;
    let site = Site { cluster, gate };
    site.knows_slots()?;
    let keys: Vec<_> = (0..1_000).map(|number| format!("k{number}")).collect();
    let read = command(&[&["EXISTS"], &keys.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    let mut client = site.client()?;
    wait_until("the client waits for the next round", || {
        let before = counter(&site.gate, "reads-paused")?;
        client.send(&[&read; 20])?;
        for _ in 0..20 {
            let said = client.reply()?;
            ensure!(said.starts_with("-THROTTLED ") || said.starts_with("-DENIED "), "{said}");
        }
        Ok(counter(&site.gate, "reads-paused")? >= before + 5)
    })
}

#[test]
fn what_is_not_split_is_refused_as_by_a_node() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let [one, other, ..] = &site.keys()[..] else { unreachable!() };
    client.check(&format!("MSET {one} 1 {other} 2"), CROSSSLOT)?;
    client.check(&format!("MSETNX {one} 1 {other} 2"), CROSSSLOT)?;
    client.check(&format!("MGET {one} {other}"), "*2\r\n$-1\r\n$-1\r\n")?;
    // A transaction, and a connection of a client's own, are at one node.
    client.check("MULTI", "+OK\r\n")?;
    ensure!(client.ask(&format!("DEL {one} {other}"))?.contains("CROSSSLOT"));
    ensure!(client.ask("EXEC")?.starts_with("-EXECABORT"));
    client.check(&format!("WATCH {one}"), "+OK\r\n")?;
    client.check(&format!("MGET {one} {other}"), CROSSSLOT)?;
    client.check("UNWATCH", "+OK\r\n")?;
    // As many parts as may be, one more, and what is too long to be gathered.
    let keys: Vec<_> = (0..16_384).map(|number| format!("k{number}")).collect();
    let all = |count: usize| {
        let words: Vec<_> =
            std::iter::once("DEL").chain(keys.iter().map(String::as_str)).take(count + 1).collect();
        command(&words)
    };
    client.check(&all(1_024), ":0\r\n")?;
    client.check(&all(1_030), CROSSSLOT)?;
    let refused = client.ask(&all(16_384))?;
    ensure!(refused == CROSSSLOT, "{refused}");
    client.check(&format!("EXISTS {one} {other}"), ":0\r\n")?;
    // However many are sent at once.
    client.send(&(0..200).map(|_| all(1_000)).collect::<Vec<_>>())?;
    for _ in 0..200 {
        ensure!(client.reply()? == ":0\r\n");
    }
    Ok(())
}

#[test]
fn one_part_that_fails_fails_the_command() -> Result<()> {
    let site = Site::new("")?;
    let [one, other, lost] = &site.keys()[..] else { unreachable!() };
    let mut client = site.client()?;
    for key in [one, other, lost] {
        client.check(&format!("SET {key} v"), "+OK\r\n")?;
    }
    // A node that has lost the slot says so; the others have done their parts of a write.
    let slot = gate_userspace::policy::placement::slot(lost.as_bytes());
    site.cluster.client(2)?.check(&format!("CLUSTER DELSLOTS {slot}"), "+OK\r\n")?;
    client.send(&[
        format!("MGET {one} {lost} {other}"),
        format!("GET {one}"),
        format!("DEL {one} {lost}"),
    ])?;
    client.send(&[format!("EXISTS {one} {lost}"), format!("MGET {one} {other}")])?;
    let replies = (0..5).map(|_| client.reply()).collect::<Result<Vec<_>>>()?;
    ensure!(replies[0].starts_with("-CLUSTERDOWN "), "{replies:?}");
    ensure!(replies[1] == bulk("v"), "{replies:?}");
    ensure!(replies[2].starts_with("-UNCERTAIN "), "{replies:?}");
    ensure!(replies[3].starts_with("-CLUSTERDOWN "), "{replies:?}");
    ensure!(replies[4] == format!("*2\r\n$-1\r\n{}", bulk("v")), "{replies:?}");
    // A node that is down: nothing is written where not all can be.
    client.check(&format!("SET {one} v"), "+OK\r\n")?;
    let dead = &site.cluster.keys_at(2, 5)[4];
    site.cluster.nodes[2].signal(Signal::SIGKILL)?;
    wait_until("it is down", || Ok(client.ask(&format!("GET {dead}"))?.starts_with("-UNAVAILABLE ")))?;
    let mut unavailable = 0;
    for _ in 0..50 {
        let said = client.ask(&format!("DEL {one} {other} {dead}"))?;
        ensure!(said.starts_with("-UNAVAILABLE ") || said.starts_with("-CLUSTERDOWN "), "{said}");
        unavailable += u32::from(said.starts_with("-UNAVAILABLE "));
        client.check(&format!("MGET {one} {other}"), &format!("*2\r\n{}{}", bulk("v"), bulk("v")))?;
    }
    ensure!(unavailable > 0 && counter(&site.gate, "part-failed")? >= 3);
    Ok(())
}

#[test]
fn long_values_of_several_nodes_are_one_reply() -> Result<()> {
    let site = Site::new("")?;
    let mut client = site.client()?;
    let mut expected = "*30\r\n".to_owned();
    let keys: Vec<_> = (0..30).map(|number| format!("long:{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let value = format!("{number}").repeat(100_000);
        let set = command(&["SET", key, &value]);
        client.check(&set, "+OK\r\n")?;
        expected.push_str(&bulk(&value));
    }
    let all = format!("MGET {}", keys.join(" "));
    // Several at once, which the client does not read yet.
    client.send(&[all.as_str(), all.as_str(), "PING", all.as_str()])?;
    let mut other = site.client()?;
    for _ in 0..100 {
        other.check("MGET a b c", "*3\r\n$-1\r\n$-1\r\n$-1\r\n")?;
    }
    for _ in 0..2 {
        ensure!(client.reply()? == expected, "not the values");
    }
    ensure!(client.reply()? == "+PONG\r\n" && client.reply()? == expected);
    Ok(())
}

#[test]
fn kept_answers_do_not_outlive_writes_in_parts() -> Result<()> {
    let hot = format!("{SPLIT_WRITES}hot_keys = {{ cache = \"on\", threshold = \"5\", ttl = \"3s\" }}\n");
    let site = Site::new(&hot)?;
    let keys = site.keys();
    let mut client = site.client()?;
    let mut writer = site.client()?;
    let all = keys.join(" ");
    let mut values = BTreeMap::new();
    for round in 0..20 {
        let hits = counter(&site.gate, "cache-hits")?;
        wait_until("they are kept", || {
            for key in &keys {
                client.check(&format!("GET {key}"), values.get(key).map_or("$-1\r\n", String::as_str))?;
            }
            Ok(counter(&site.gate, "cache-hits")? > hits + 3)
        })?;
        if round % 2 == 0 {
            let pairs: Vec<_> = keys.iter().map(|key| format!("{key} {round}")).collect();
            writer.check(&format!("MSET {}", pairs.join(" ")), "+OK\r\n")?;
            values = keys.iter().map(|key| (key.clone(), bulk(&round.to_string()))).collect();
        } else {
            writer.check(&format!("DEL {all}"), ":3\r\n")?;
            values.clear();
        }
    }
    Ok(())
}

#[test]
fn no_answer_is_kept_while_parts_write() -> Result<()> {
    let hot = format!("{SPLIT_WRITES}hot_keys = {{ cache = \"on\", threshold = \"5\", ttl = \"3s\" }}\n");
    let site = Site::new(&hot)?;
    let keys = site.keys();
    let pairs = |value: &str| keys.iter().map(|key| format!(" {key} {value}")).collect::<String>();
    let mut client = site.client()?;
    let mut writer = site.client()?;
    writer.check(&format!("MSET{}", pairs("old")), "+OK\r\n")?;
    wait_until("they are kept", || {
        for key in &keys {
            client.check(&format!("GET {key}"), &bulk("old"))?;
        }
        Ok(counter(&site.gate, "cache-hits")? > 10)
    })?;
    // The nodes take their time to write, and are read meanwhile.
    let mut nodes = (0..3).map(|place| site.cluster.client(place)).collect::<Result<Vec<_>>>()?;
    for node in &mut nodes {
        node.check("CLIENT PAUSE 15000 WRITE", "+OK\r\n")?;
    }
    writer.send(&[format!("MSET{}", pairs("new"))])?;
    for node in &mut nodes {
        // A read within a millisecond of it may go behind it on its connection, and wait for it.
        wait_until("it does not wait at its nodes", || {
            let clients = node.ask("CLIENT LIST")?;
            Ok(clients.lines().any(|line| line.contains(" cmd=mset ") && !line.contains(" idle=0 ")))
        })?;
    }
    for key in keys.iter().cycle().take(100) {
        client.check(&format!("GET {key}"), &bulk("old"))?;
    }
    for node in &mut nodes {
        node.check("CLIENT UNPAUSE", "+OK\r\n")?;
    }
    ensure!(writer.reply()? == "+OK\r\n");
    for key in keys.iter().cycle().take(100) {
        client.check(&format!("GET {key}"), &bulk("new"))?;
    }
    Ok(())
}

#[test]
fn nothing_is_kept_while_a_lost_part_may_be_done_yet() -> Result<()> {
    let site = Site::new(&format!(
        "{SPLIT_WRITES}store_timeout = \"20s\"\nhot_keys = {{ cache = \"on\", threshold = \"5\", ttl = \"3s\" }}\n"
    ))?;
    let keys = site.keys();
    let mut client = site.client()?;
    let mut writer = site.client()?;
    wait_until("they are kept", || {
        for key in &keys {
            client.check(&format!("GET {key}"), "$-1\r\n")?;
        }
        Ok(counter(&site.gate, "cache-hits")? > 10)
    })?;
    // A node loses gate's connection with its part of a write, which it has not done.
    let mut node = site.cluster.client(0)?;
    node.check("CLIENT PAUSE 60000 WRITE", "+OK\r\n")?;
    writer.send(&[format!("MSET {} v {} v", keys[0], keys[1])])?;
    wait_until("the part is at its node", || Ok(node.ask("CLIENT LIST")?.contains(" cmd=mset ")))?;
    node.ask("CLIENT KILL TYPE normal SKIPME yes")?;
    ensure!(writer.reply()?.starts_with("-UNCERTAIN "));
    node.check("CLIENT UNPAUSE", "+OK\r\n")?;
    for (place, key) in keys[..2].iter().enumerate() {
        wait_until("its node answers", || Ok(client.ask(&format!("GET {key}"))?.starts_with('$')))?;
        (0..50).try_for_each(|_| client.ask(&format!("GET {key}")).map(drop))?;
        // What a store does late comes past gate as well.
        site.cluster.client(place)?.check(&format!("SET {key} late"), "+OK\r\n")?;
        client.check(&format!("GET {key}"), &bulk("late"))?;
    }
    Ok(())
}

#[test]
fn what_all_nodes_have_is_one_answer() -> Result<()> {
    let site = Site::new("")?;
    let plain = Listening::redis()?;
    let mut one = site.client()?;
    let mut other = Client::of(&plain)?;
    for number in 0..300 {
        let line = format!("SET key:{number} v");
        ensure!(one.ask(&line)? == other.ask(&line)?);
    }
    let script = "return redis.call('GET', KEYS[1])";
    let load = command(&["SCRIPT", "LOAD", script]);
    let sha = other.ask(&load)?;
    let run = |key: &str| command(&["EVALSHA", sha.lines().nth(1).unwrap_or_default(), "1", key]);
    for line in [
        "DBSIZE",
        &load,
        &run("key:1"),
        &run("key:2"),
        &run("key:3"),
        &run("key:4"),
        "SCRIPT FLUSH",
        &run("key:5"),
        "SCRIPT LOAD",
        "FLUSHDB ASYNC",
        "DBSIZE",
        "SET a b",
        "FLUSHALL nonsense",
        "DBSIZE",
        "FLUSHALL",
        "DBSIZE",
    ] {
        let expected = other.ask(line)?;
        one.check(line, &expected)?;
    }
    for place in 0..3 {
        site.cluster.client(place)?.check("DBSIZE", ":0\r\n")?;
    }
    // In a transaction they are refused, and where a node is down.
    one.check("MULTI", "+OK\r\n")?;
    ensure!(one.ask("DBSIZE")?.contains("rule=cluster"));
    ensure!(one.ask("EXEC")?.starts_with("-EXECABORT"));
    let [kept, _, lost] = &site.keys()[..] else { unreachable!() };
    one.check(&format!("SET {kept} v"), "+OK\r\n")?;
    site.cluster.nodes[2].signal(Signal::SIGKILL)?;
    wait_until("it is down", || Ok(one.ask(&format!("GET {lost}"))?.starts_with("-UNAVAILABLE ")))?;
    let mut refused = 0;
    for _ in 0..20 {
        let said = one.ask("FLUSHALL")?;
        if said.starts_with("-UNAVAILABLE ") {
            refused += 1;
            one.check(&format!("GET {kept}"), &bulk("v"))?;
        } else {
            // While gate tries the node again it takes a request: the others have done their part of it.
            ensure!(said.starts_with("-UNCERTAIN "), "{said}");
            one.check(&format!("SET {kept} v"), "+OK\r\n")?;
        }
        let said = one.ask("DBSIZE")?;
        ensure!(said.starts_with("-UNAVAILABLE ") || said.starts_with("-UNCERTAIN "), "{said}");
    }
    ensure!(refused > 0, "it was tried although a node was down");
    Ok(())
}
