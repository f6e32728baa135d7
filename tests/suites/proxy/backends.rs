//! Several memcacheds behind one service: each key at its own, and what is about several of them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::http::curl_socket;
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::rng::Rng;
use gate_tests::unix_store::{UnixStore, socket_path};
use gate_tests::wait::wait_until;
use gate_userspace::policy::peers::ENOUGH;
use gate_userspace::policy::placement::{Node, Placement, Scheme};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::paths;

mod whole;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const REFUSED: &[u8] = b"SERVER_ERROR denied reason=unsupported rule=backends\r\n";

/// Three memcacheds and a gate before them.
struct Site {
    stores: Vec<Listening>,
    gate: Listening,
    placement: Placement,
}

impl Site {
    fn new(gate: &str, service: &str) -> Result<Self> {
        Self::with_tenants(gate, service, EVERYONE)
    }

    fn with_tenants(gate: &str, service: &str, tenants: &str) -> Result<Self> {
        let stores = (0..3).map(|_| Listening::memcached()).collect::<Result<_>>()?;
        Self::before(stores, gate, service, tenants)
    }

    fn before(stores: Vec<Listening>, gate: &str, service: &str, tenants: &str) -> Result<Self> {
        let backends: Vec<_> = stores.iter().map(|store| store.address.to_string()).collect();
        let gate = Listening::gate_before_pool(gate, &backends, service, tenants)?;
        let nodes: Vec<_> = backends.iter().map(|name| Node { name: name.clone(), weight: 1 }).collect();
        Ok(Self { stores, gate, placement: Placement::new(Scheme::Ketama, &nodes) })
    }

    /// The first keys of a name that are at this store.
    fn keys_at(&self, store: usize, count: usize) -> Vec<String> {
        let keys = (0..).map(|number| format!("k{number}"));
        keys.filter(|key| self.placement.node(key.as_bytes()) == store).take(count).collect()
    }

    fn check(&self, asked: &str, expected: &[u8]) -> Result<()> {
        let said = self.gate.ask(asked.as_bytes(), b"\r\n")?;
        ensure!(said == expected, "{asked:?}: {}", shown(&said));
        Ok(())
    }
}

/// The values that a reply to `get` shows.
fn values(reply: &[u8]) -> Result<BTreeMap<String, String>> {
    let text = std::str::from_utf8(reply)?;
    let lines: Vec<_> = text.strip_suffix("END\r\n").context("it has no end")?.lines().collect();
    let pairs = lines.chunks(2).map(|pair| {
        let key = pair[0].strip_prefix("VALUE ").and_then(|line| line.split(' ').next());
        Ok((key.context("no value")?.to_owned(), pair.get(1).context("no data")?.to_string()))
    });
    let found: BTreeMap<_, _> = pairs.collect::<Result<_>>()?;
    ensure!(found.len() == lines.len() / 2, "a key is twice in {text}");
    Ok(found)
}

/// The reply to a `get`, on a connection that is used for more.
fn get(client: &mut TcpStream, keys: &[String]) -> Result<BTreeMap<String, String>> {
    client.write_all(format!("get {}\r\n", keys.join(" ")).as_bytes())?;
    values(&read_until(client, b"END\r\n")?)
}

#[test]
fn each_key_is_at_its_store_and_at_no_other() -> Result<()> {
    let site = Site::new("", "")?;
    let keys: Vec<_> = (0..300).map(|number| format!("k{number}")).collect();
    let mut client = site.gate.connect()?;
    for key in &keys {
        client.write_all(format!("set {key} 0 0 {}\r\n{key}\r\n", key.len()).as_bytes())?;
        ensure!(read_until(&mut client, b"\r\n")? == b"STORED\r\n");
    }
    let mut counts = [0; 3];
    for (place, store) in site.stores.iter().enumerate() {
        let there = get(&mut store.connect()?, &keys)?;
        let expected = keys.iter().filter(|key| site.placement.node(key.as_bytes()) == place);
        ensure!(there.keys().eq(expected.collect::<std::collections::BTreeSet<_>>()), "{place}");
        counts[place] = there.len();
    }
    ensure!(counts.iter().all(|&count| count > 30) && counts.iter().sum::<usize>() == 300, "{counts:?}");
    Ok(())
}

#[test]
fn a_get_of_many_keys_is_one_reply_in_its_place() -> Result<()> {
    let site = Site::new("", "")?;
    let mut client = site.gate.connect()?;
    // Short values and long ones, in one reply; and keys that are not there.
    let value = |number: usize| format!("{number}-").repeat(1 + number % 7 * 2_000);
    let mut asked = String::new();
    for number in (0..100).filter(|number| number % 3 > 0) {
        let value = value(number);
        asked.push_str(&format!("set k{number} 0 0 {} noreply\r\n{value}\r\n", value.len()));
    }
    client.write_all(format!("{asked}mn\r\n").as_bytes())?;
    read_until(&mut client, b"MN\r\n")?;
    let keys: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
    wait_until("a value is missing", || Ok(get(&mut client, &keys)?.len() == 66))?;
    for _ in 0..20 {
        // Requests behind it wait for their turn.
        let asked = format!("get {}\r\nget none\r\nversion\r\nget k1\r\nmn\r\n", keys.join(" "));
        client.write_all(asked.as_bytes())?;
        let said = String::from_utf8(read_until(&mut client, b"MN\r\n")?)?;
        let (first, rest) = said.split_once("END\r\n").context("no end")?;
        let found = values(format!("{first}END\r\n").as_bytes())?;
        let is_right = |(key, found): (&String, &String)| *found == value(key[1..].parse().unwrap());
        ensure!(found.len() == 66 && found.iter().all(is_right));
        let last = format!("VALUE k1 0 4002\r\n{}\r\nEND\r\nMN\r\n", value(1));
        ensure!(rest.starts_with("END\r\nVERSION ") && rest.ends_with(&last), "{}", shown(rest.as_bytes()));
    }
    ensure!(counter(&site.gate, "part-failed")? == 0);
    Ok(())
}

#[test]
fn each_store_of_a_pool_is_shown_by_itself() -> Result<()> {
    let site = Site::new("", "connections = \"1\"")?;
    let addresses: Vec<_> = site.stores.iter().map(|store| store.address.to_string()).collect();
    let states = || -> Result<Vec<(String, Option<bool>)>> {
        let queues = site.gate.json(&["queues"])?;
        let nodes = queues["services"][0]["nodes"].as_array().context("no nodes")?;
        let state = |node: &Value| Some((node["address"].as_str()?.to_owned(), node["up"].as_bool()));
        nodes.iter().map(|node| state(node).context("no address")).collect()
    };
    let with = |up: [bool; 3]| addresses.iter().cloned().zip(up.map(Some)).collect::<Vec<_>>();
    wait_until("all stores are up", || Ok(states()? == with([true; 3])))?;
    site.stores[1].signal(Signal::SIGKILL)?;
    wait_until("one is down", || Ok(states()? == with([true, false, true])))?;
    let shown =
        |arguments: &[&str]| Ok::<_, anyhow::Error>(String::from_utf8(site.gate.command(arguments)?.stdout)?);
    let by_node = shown(&["queues", "--by", "node"])?;
    for (address, state) in addresses.iter().zip(["up for", "down for", "up for"]) {
        ensure!(by_node.lines().any(|line| line.contains(address) && line.contains(state)), "{by_node}");
    }
    let whole = shown(&["queues"])?;
    ensure!(whole.contains(&format!("\n1 of 3 nodes is down: {}\n", addresses[1])), "{whole}");
    let metrics = curl_socket(&site.gate.files()?.1, "/metrics", &[])?.body;
    for (address, up) in addresses.iter().zip([1, 0, 1]) {
        let series = format!("gate_store_node_up{{service=\"store\",node=\"{address}\"}} {up}\n");
        ensure!(metrics.contains(&series), "{series}{metrics}");
    }
    Ok(())
}

#[test]
fn a_store_that_is_slower_than_its_peers_is_named() -> Result<()> {
    let store = |time| Listening::embedded_with("memcached", &["--service-time", time]);
    let stores = ["0s", "50ms", "0s"].map(store).into_iter().collect::<Result<_>>()?;
    let site = Site::before(stores, "", "connections = \"1\"", EVERYONE)?;
    let mut client = site.gate.connect()?;
    let asked: Vec<String> = (0..3)
        .flat_map(|store| site.keys_at(store, ENOUGH as usize))
        .map(|key| format!("get {key}\r\n"))
        .collect();
    let nodes = || -> Result<Vec<Value>> {
        let queues = site.gate.json(&["queues"])?;
        Ok(queues["services"][0]["nodes"].as_array().context("no nodes")?.clone())
    };
    ensure!(nodes()?.iter().all(|node| node["times_peers"].is_null() && node["store_ms"].is_null()));
    // The peers have to wait for a busy machine as well.
    wait_until("the slow one is not named", || {
        client.write_all(format!("{}nonsense\r\n", asked.concat()).as_bytes())?;
        read_until(&mut client, b"ERROR\r\n")?;
        let is_slow: Vec<_> = nodes()?.iter().map(|node| node["is_slow"] == true).collect();
        Ok(is_slow == [false, true, false])
    })?;
    for (node, least_ms) in nodes()?.iter().zip([0.0, 50.0, 0.0]) {
        let p50 = node["store_ms"]["p50"].as_f64().context("no times")?;
        ensure!(node["answered"].as_u64() >= Some(ENOUGH) && p50 >= least_ms, "{node}");
    }
    let shown = String::from_utf8(site.gate.command(&["queues"])?.stdout)?;
    let line = format!("\n1 of 3 nodes is slow: {} (p90 ", site.stores[1].address);
    ensure!(shown.contains(&line), "{shown}");
    Ok(())
}

#[test]
fn a_dead_store_fails_its_own_keys_alone() -> Result<()> {
    let mut site = Site::new("", "connections = \"1\"")?;
    let keys: Vec<_> = (0..3).flat_map(|store| site.keys_at(store, 5)).collect();
    let mut client = site.gate.connect()?;
    for key in &keys {
        client.write_all(format!("set {key} 0 0 1\r\n1\r\n").as_bytes())?;
        ensure!(read_until(&mut client, b"\r\n")? == b"STORED\r\n");
    }
    let address = site.stores[0].address;
    site.stores[0].signal(Signal::SIGKILL)?;
    site.gate.program().wait_for(&format!("store={address}"), PATIENCE)?;
    for key in &keys {
        let said = site.gate.ask(format!("get {key}\r\n").as_bytes(), b"\r\n")?;
        let is_dead = site.placement.node(key.as_bytes()) == 0;
        ensure!(said.ends_with(b"reason=store-down\r\n") == is_dead, "{key}: {}", shown(&said));
    }
    // Its keys are missing from the reply to many, and everything that any store can answer goes on.
    let found = get(&mut client, &keys)?;
    ensure!(
        found.keys().all(|key| site.placement.node(key.as_bytes()) > 0) && found.len() == 10,
        "{found:?}"
    );
    ensure!(counter(&site.gate, "part-failed")? > 0);
    site.check("mn\r\n", b"MN\r\n")?;
    ensure!(site.gate.ask(b"version\r\n", b"\r\n")?.starts_with(b"VERSION "));
    ensure!(site.gate.json(&["queues"])?["services"][0]["store"]["up"] == false);
    site.stores[0] = Listening::memcached_at(address)?;
    wait_until("it is not found again", || {
        site.gate
            .ask(format!("set {} 0 0 1\r\n2\r\n", keys[0]).as_bytes(), b"\r\n")
            .map(|said| said == b"STORED\r\n")
    })?;
    wait_until("its keys are still missing", || Ok(get(&mut client, &keys)?.len() == 11))
}

#[test]
fn a_store_that_hangs_holds_up_its_own_keys_alone() -> Result<()> {
    let site =
        Site::new("", "connections = \"1\"\nstore_timeout = \"200ms\"\nhot_keys = { cache = \"off\" }")?;
    let [hung, fine] = [1, 2].map(|store| site.keys_at(store, 1).remove(0));
    site.check(&format!("set {fine} 0 0 1\r\n1\r\n"), b"STORED\r\n")?;
    site.check(&format!("set {hung} 0 0 1\r\n1\r\n"), b"STORED\r\n")?;
    site.stores[1].stall()?;
    // A reply that is under way when its store falls silent ends without that store's keys.
    let mut client = site.gate.connect()?;
    let found = get(&mut client, &[fine.clone(), hung.clone()])?;
    ensure!(found.keys().eq([&fine]), "{found:?}");
    for _ in 0..50 {
        let said = site.gate.ask(format!("get {fine}\r\n").as_bytes(), b"END\r\n")?;
        ensure!(said.starts_with(b"VALUE "), "{}", shown(&said));
    }
    site.stores[1].signal(Signal::SIGCONT)?;
    wait_until("it is not found again", || Ok(get(&mut client, &[fine.clone(), hung.clone()])?.len() == 2))
}

#[test]
fn what_no_store_alone_can_answer_is_refused() -> Result<()> {
    let site = Site::new("", "")?;
    let [one, other] = [0, 1].map(|store| site.keys_at(store, 2));
    for command in [
        "flush_all",
        "stats",
        "stats items",
        "verbosity 1",
        "cache_memlimit 64",
        "lru_crawler crawl all",
        "mg a2V5 b v",
        &format!("gat 0 {} {}", one[0], other[0]),
    ] {
        site.check(&format!("{command}\r\n"), REFUSED)?;
    }
    site.check(&format!("gat 0 {} {}\r\n", one[0], one[1]), b"END\r\n")?;
    ensure!(site.gate.ask(b"stats gate\r\n", b"END\r\n")?.starts_with(b"STAT "));
    let (_, socket) = site.gate.files()?;
    let explain = |words: &[&str]| -> Result<String> {
        let mut command = Command::new(paths::gate());
        command.args(["explain", "--service", "store", "--tenant", "all", "--socket"]).arg(&socket);
        Ok(String::from_utf8(command.arg("--").args(words).output()?.stdout)?)
    };
    let said = explain(&["get", &other[0]])?;
    ensure!(said.contains(&format!("it goes to {}", site.stores[1].address)), "{said}");
    let said = explain(&["get", &one[0], &other[0]])?;
    ensure!(said.contains("its keys are at several stores"), "{said}");
    let said = explain(&["flush_all"])?;
    ensure!(said.contains("backends"), "{said}");
    Ok(())
}

#[test]
fn long_values_and_quiet_requests_reach_their_stores() -> Result<()> {
    let site = Site::new("", "")?;
    let mut client = site.gate.connect()?;
    let long = "x".repeat(600_000);
    let mut all = Vec::new();
    for store in 0..3 {
        let keys = site.keys_at(store, 6);
        for key in &keys[2..] {
            client.write_all(format!("set {key} 0 0 600000\r\n{long}\r\n").as_bytes())?;
            ensure!(read_until(&mut client, b"\r\n")? == b"STORED\r\n");
        }
        let [quiet, none, ..] = &keys[..] else { unreachable!("there are six") };
        client.write_all(
            format!("ms {quiet} 1 q\r\n1\r\nmg {none} v q\r\nmg {quiet} v q\r\nmn\r\n").as_bytes(),
        )?;
        let said = read_until(&mut client, b"MN\r\n")?;
        ensure!(said == b"VA 1\r\n1\r\nMN\r\n", "{}", shown(&said));
        ensure!(get(&mut site.stores[store].connect()?, &keys)?.len() == 5);
        all.extend_from_slice(&keys[2..]);
    }
    // More than gate holds for a client that does not read: each store waits until its turn has come.
    for _ in 0..5 {
        let found = get(&mut client, &all)?;
        ensure!(found.len() == 12 && found.values().all(|value| *value == long));
    }
    Ok(())
}

#[test]
fn datagrams_read_from_several_stores() -> Result<()> {
    let site = Site::new("", "transports = [\"udp\", \"tcp\"]")?;
    let keys: Vec<_> = (0..3).map(|store| site.keys_at(store, 1).remove(0)).collect();
    for key in &keys {
        site.check(&format!("set {key} 0 0 1\r\n1\r\n"), b"STORED\r\n")?;
    }
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket
        .send_to(format!("\0\x07\0\0\0\x01\0\0get {}\r\n", keys.join(" ")).as_bytes(), site.gate.address)?;
    let mut answer = [0; 1_400];
    let len = socket.recv(&mut answer)?;
    ensure!(answer[..8] == *b"\0\x07\0\0\0\x01\0\0", "{}", shown(&answer[..len]));
    ensure!(values(&answer[8..len])?.len() == 3, "{}", shown(&answer[..len]));
    Ok(())
}

#[test]
fn hot_keys_of_a_pool_are_never_older_than_a_write() -> Result<()> {
    let eager = "threads = \"2\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let site = Site::new(eager, "hot_keys = { threshold = \"1\" }\nshedding.enabled = \"off\"")?;
    let keys: Vec<_> = (0..3).map(|store| site.keys_at(store, 1).remove(0)).collect();
    let mut clients = (0..8).map(|_| site.gate.connect()).collect::<Result<Vec<_>>>()?;
    let mut round = 0_u32;
    wait_until("no read is answered from memory", || {
        round += 1;
        for key in &keys {
            let value = format!("{round:06}");
            clients[0].write_all(format!("set {key} 0 0 6\r\n{value}\r\n").as_bytes())?;
            read_until(&mut clients[0], b"STORED\r\n")?;
            for client in &mut clients {
                for _ in 0..3 {
                    let found = get(client, std::slice::from_ref(key))?;
                    ensure!(found[key] == value, "{found:?}");
                }
                ensure!(get(client, &keys)?[key] == value);
            }
        }
        Ok(counter(&site.gate, "cache-hits")? > 30)
    })
}

#[test]
fn random_commands_are_answered_as_by_one_memcached() -> Result<()> {
    let site = Site::new("", "")?;
    let direct = Listening::memcached()?;
    let mut clients = [site.gate.connect()?, direct.connect()?];
    let mut rng = Rng::new(35);
    for _ in 0..200 {
        let mut asked = String::new();
        for _ in 0..rng.below(20) + 1 {
            let key = format!("k{}", rng.below(30));
            asked.push_str(&match rng.below(7) {
                0 => format!("set {key} 0 0 1\r\n{}\r\n", rng.below(10)),
                1 => format!("prepend {key} 0 0 1\r\n7\r\n"),
                2 => format!("append {key} 0 0 1\r\n1\r\n"),
                3 => format!("delete {key}\r\n"),
                4 => format!("add {key} 0 0 1\r\n5\r\n"),
                5 => format!("mg {key} v k\r\n"),
                _ => format!("get {key}\r\n"),
            });
        }
        let [ours, theirs] = &mut clients;
        let mut said = Vec::new();
        for client in [ours, theirs] {
            client.write_all(format!("{asked}mn\r\n").as_bytes())?;
            said.push(read_until(client, b"MN\r\n")?);
        }
        ensure!(said[0] == said[1], "{asked}\n{}\n{}", shown(&said[0]), shown(&said[1]));
        let keys: Vec<_> = (0..30).map(|number| format!("k{number}")).collect();
        let [ours, theirs] = &mut clients;
        let ours = get(ours, &keys)?;
        let theirs = get(theirs, &keys)?;
        ensure!(ours == theirs, "{asked}{ours:?}\n{theirs:?}");
    }
    Ok(())
}

#[test]
fn sockets_weights_and_names_make_a_pool() -> Result<()> {
    let socket = UnixStore::memcached(socket_path("pool"))?;
    let store = Listening::memcached()?;
    let backends = [format!("{} weight=3", socket.backend()), format!("{} name=old-1", store.address)];
    let service = "hash = \"twemproxy\"\nhash_tag = \"{}\"";
    let gate = Listening::gate_before_pool("", &backends, service, EVERYONE)?;
    let scheme = Scheme::Twemproxy {
        key_hash: gate_userspace::policy::placement::KeyHash::Fnv1aOf64,
        tag: Some(gate_userspace::policy::placement::HashTag { open: b'{', close: b'}' }),
    };
    let nodes = [
        Node { name: format!("{}:", socket.path.display()), weight: 3 },
        Node { name: "old-1".to_owned(), weight: 1 },
    ];
    let placement = Placement::new(scheme, &nodes);
    let keys: Vec<_> =
        (0..100_u64).map(|number| format!("user{{{}}}:{number}", number / 4 * 987_654_321)).collect();
    let mut client = gate.connect()?;
    for key in &keys {
        client.write_all(format!("set {key} 0 0 1\r\n1\r\n").as_bytes())?;
        ensure!(read_until(&mut client, b"\r\n")? == b"STORED\r\n");
    }
    let there = get(&mut store.connect()?, &keys)?;
    let expected = keys.iter().filter(|key| placement.node(key.as_bytes()) == 1);
    ensure!(there.keys().eq(expected.collect::<std::collections::BTreeSet<_>>()), "{there:?}");
    ensure!((1..99).contains(&there.len()), "{}", there.len());
    let found = get(&mut client, &keys)?.len();
    ensure!(found == 100, "{found}");
    Ok(())
}
