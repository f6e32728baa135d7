//! Answers of a guarded service, measured as they leave: whose they are, how long they took, and what a hostile store or client
//! can make of them.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::programs::tc::SchedClassifierLink;
use aya::programs::{SchedClassifier, TcAttachType};
use gate_common::abi::{self, Pending};
use gate_common::units::Nanos;
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::memcached::{Datagrams, Memcached, PORT};
use gate_tests::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE, SERVER_V4};
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use gate_userspace::kernel::object;
use gate_userspace::load::store::{Settings, Store};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const CLIENT: &str = "198.18.1.1";
const OTHER: &str = "198.18.1.2";
const CONFIG: &str = r#"
[[service]]
name = "cache"
protocol = "memcached"
listen = "198.18.0.1:11211"

[[tenant]]
name = "team"
sources = "198.18.1.0/24"
quota = "unlimited"
"#;

/// A site whose requests are all noted, as there are few; `None` where the test cannot run.
fn site(test: &str) -> Result<Option<Site>> {
    if !privilege::root(&format!("daemon::in_passing::{test}")) {
        return Ok(None);
    }
    let site = Site::new(CONFIG)?;
    for address in [CLIENT, OTHER] {
        site.net.add_client_address(address.parse()?)?;
    }
    Ok(Some(site))
}

/// The measurements of the service, which are shown from its first tick on.
fn measured(site: &Site) -> Result<Value> {
    let mut shown = Value::Null;
    wait_until("measurements are shown", || {
        shown = site.json(&["queues"])?["in_passing"][0].clone();
        Ok(!shown.is_null())
    })?;
    Ok(shown)
}

fn count(site: &Site, counter: &str) -> Result<u64> {
    measured(site)?[counter].as_u64().with_context(|| format!("no {counter}"))
}

fn all_are_noted(site: &Site) -> Result<()> {
    wait_until("every request is noted", || Ok(measured(site)?["every"] == 1))
}

fn client(site: &Site) -> Result<Datagrams> {
    Datagrams::open(&site.net, CLIENT.parse()?)
}

#[test]
fn a_real_stores_answers_are_all_seen_and_classed() -> Result<()> {
    let Some(site) = site("a_real_stores_answers_are_all_seen_and_classed")? else { return Ok(()) };
    let _server = Memcached::start(&site.net)?;
    let gate = site.start(&[])?;
    all_are_noted(&site)?;
    let mut client = client(&site)?;
    for n in 0..200 {
        ensure!(client.ask(&format!("set key{n} 0 0 5\r\nvalue\r\n"))? == "STORED\r\n");
        ensure!(client.ask(&format!("get key{n}\r\n"))?.starts_with("VALUE"));
        ensure!(client.ask("get absent\r\n")? == "END\r\n");
        // memcached answers each key in a datagram of its own, all of them with number 0.
        let id = client.send(format!("get key{n} key0\r\n").as_bytes())?;
        while !client.answer(id)?.0.ends_with(b"END\r\n") {}
    }
    // Gate notes a part of what comes at once. Each noted request is measured, unless the part was changed before its answer.
    wait_until("what was noted was measured", || {
        let noted = count(&site, "noted")?;
        Ok(noted > 100 && count(&site, "answered")? * 10 >= noted * 9)
    })?;
    all_are_noted(&site)?;
    let before = measured(&site)?;
    let more =
        |counter: &str| anyhow::Ok(count(&site, counter)? - before[counter].as_u64().context("no counter")?);
    // A batch, and what is not answered, is no request.
    let id = client.send(b"get absent\r\nget absent\r\n")?;
    for _ in 0..2 {
        ensure!(client.answer(id)?.0 == b"END\r\n");
    }
    client.send(b"set quiet 0 0 1 noreply\r\nx\r\n")?;
    ensure!(client.ask("get absent\r\n")? == "END\r\n");
    wait_until("the last was measured", || Ok(more("answered")? == 1))?;
    ensure!(more("noted")? == 1 && count(&site, "failed")? == 0, "{}", measured(&site)?);
    // By class while there are enough of a second.
    wait_until("classes are told apart", || {
        for n in 0..100 {
            client.ask(&format!("get key{n}\r\n"))?;
            client.ask(&format!("set key{n} 0 0 5\r\nvalue\r\n"))?;
        }
        let classes = measured(&site)?["classes"].clone();
        Ok(["get", "set"].iter().all(|class| classes[class]["p50_ms"].as_f64().is_some()))
    })?;
    let question = ["explain", "--service", "cache", "--source", CLIENT, "--udp", "--pin-dir"];
    let mut command = site.net.server.command(paths::gate());
    let explained = command.args(question).arg(site.pins()).args(["--", "get", "key"]).output()?;
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    ensure!(explained.contains("measured in passing: lately p50"), "{explained}");
    gate.end()?;
    Ok(())
}

/// The lab's store takes a time that it is told.
#[test]
fn measured_times_are_those_that_clients_see() -> Result<()> {
    let Some(site) = site("measured_times_are_those_that_clients_see")? else { return Ok(()) };
    let address = SocketAddr::new("198.18.0.1".parse()?, PORT);
    let store = site.net.server.enter(|| Store::start(&Settings::new(address)))??;
    let _gate = site.start(&[])?;
    all_are_noted(&site)?;
    let mut client = client(&site)?;
    for service_time in [Nanos::from_millis(2), Nanos::from_millis(5)] {
        store.set_service_time(service_time);
        // A window that holds the times of before is not compared: the client's own window is as long as gate's.
        let mut own = Vec::new();
        let mut found = None;
        wait_until("both medians agree", || {
            let since = Instant::now();
            while since.elapsed().as_millis() < 1_200 {
                let asked = Instant::now();
                client.ask("get key\r\n")?;
                own.push((asked, asked.elapsed().as_secs_f64() * 1e3));
            }
            let seen = measured(&site)?;
            own.retain(|(asked, _)| asked.elapsed().as_millis() < 1_000);
            let mut times: Vec<f64> = own.iter().map(|(_, took)| *took).collect();
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            let p50 = seen["response"]["p50_ms"].as_f64();
            found = p50.map(|p50| (p50, median));
            Ok(p50.is_some_and(|p50| (median * 0.8..median * 1.02).contains(&p50)))
        })
        .with_context(|| format!("gate's median and the client's: {found:?}"))?;
        let (p50, _) = found.context("compared")?;
        ensure!(p50 * 1e6 >= service_time.0 as f64 * 0.5, "{p50} ms of a store that takes {service_time}");
    }
    let seen = measured(&site)?;
    // The share of the last second misses answers that are on their way.
    let most = count(&site, "answered")? * 10 >= count(&site, "noted")? * 9;
    ensure!(most && seen["seen_percent"].as_f64().is_some_and(|seen| seen > 50.0), "{seen}");
    Ok(())
}

/// A store of the test's own, which answers what the test says.
struct FakeStore(UdpSocket);

impl FakeStore {
    fn start(site: &Site, port: u16) -> Result<Self> {
        let socket = site.net.server.enter(|| UdpSocket::bind(("198.18.0.1", port)))??;
        socket.set_read_timeout(Some(gate_tests::proxy::PATIENCE))?;
        Ok(Self(socket))
    }

    /// The next request's id, and its client.
    fn request(&self) -> Result<(u16, SocketAddr)> {
        let mut datagram = [0; 2_048];
        let (_, client) = self.0.recv_from(&mut datagram)?;
        Ok((u16::from_be_bytes([datagram[0], datagram[1]]), client))
    }

    /// Reads all requests that have come, and answers none.
    fn forget_all(&self) -> Result<()> {
        self.0.set_nonblocking(true)?;
        while self.0.recv(&mut [0; 8]).is_ok() {}
        Ok(self.0.set_nonblocking(false)?)
    }

    fn answer(&self, id: u16, sequence: u16, text: &str, client: SocketAddr) -> Result<()> {
        let words = [id, sequence, 1, 0].map(u16::to_be_bytes);
        self.0.send_to(&[words.as_flattened(), text.as_bytes()].concat(), client)?;
        Ok(())
    }
}

#[test]
fn only_the_first_answer_to_its_own_request_counts() -> Result<()> {
    let Some(site) = site("only_the_first_answer_to_its_own_request_counts")? else { return Ok(()) };
    let store = FakeStore::start(&site, PORT)?;
    let other_service = FakeStore::start(&site, PORT + 1)?;
    let _gate = site.start(&[])?;
    all_are_noted(&site)?;
    let mut one = client(&site)?;
    let mut other = Datagrams::open(&site.net, OTHER.parse()?)?;
    let asked = one.send(b"get key\r\n")?;
    let (id, client) = store.request()?;
    ensure!(id == asked);
    other.send(b"get key\r\n")?;
    let (_, other_client) = store.request()?;
    let other_port = SocketAddr::new(client.ip(), client.port() ^ 1);
    // A foreign id, foreign clients, a later datagram, another port of the machine.
    store.answer(id ^ 1, 0, "END\r\n", client)?;
    store.answer(id ^ 0x100, 0, "END\r\n", other_client)?;
    store.answer(id, 0, "END\r\n", other_port)?;
    store.answer(id, 1, "END\r\n", client)?;
    other_service.answer(id, 0, "END\r\n", client)?;
    // Then its own, twice.
    store.answer(id, 0, "END\r\n", client)?;
    store.answer(id, 0, "END\r\n", client)?;
    wait_until("the answer was measured", || Ok(count(&site, "answered")? > 0))?;
    // What comes later was sent later.
    let failing = other.send(b"delete key\r\n")?;
    let (id, other_client) = store.request()?;
    ensure!(id == failing);
    store.answer(id, 0, "SERVER_ERROR out of memory\r\n", other_client)?;
    wait_until("the error was measured", || Ok(count(&site, "failed")? == 1))?;
    let seen = measured(&site)?;
    ensure!(seen["answered"] == 2 && seen["noted"] == 3, "{seen}");
    Ok(())
}

#[test]
fn an_id_that_is_under_way_twice_measures_nothing() -> Result<()> {
    let Some(site) = site("an_id_that_is_under_way_twice_measures_nothing")? else { return Ok(()) };
    let store = FakeStore::start(&site, PORT)?;
    let _gate = site.start(&[])?;
    all_are_noted(&site)?;
    let mut one = client(&site)?;
    let frame = |id: u16, request: &str| {
        let words = [id, 0, 1, 0].map(u16::to_be_bytes);
        [words.as_flattened(), request.as_bytes()].concat()
    };
    let mut ask = |id, request| {
        one.send_raw(&frame(id, request))?;
        store.request()
    };
    // Twice the same: neither answer says which it is for. What follows a batch, or a request without an answer, likewise.
    for (id, second) in [(7, "get key\r\n"), (8, "get a\r\nget b\r\n"), (9, "delete key noreply\r\n")] {
        ask(id, "get key\r\n")?;
        let (_, client) = ask(id, second)?;
        store.answer(id, 0, "END\r\n", client)?;
        store.answer(id, 0, "END\r\n", client)?;
    }
    // The next one of such an id is known again.
    let (id, client) = ask(7, "get key\r\n")?;
    store.answer(id, 0, "END\r\n", client)?;
    wait_until("the last was measured", || Ok(count(&site, "answered")? > 0))?;
    let seen = measured(&site)?;
    ensure!(seen["answered"] == 1 && seen["noted"] == 4, "{seen}");
    Ok(())
}

/// As many requests as there are slots, several times, and no answer to any.
#[test]
fn requests_without_answers_take_no_more_than_the_slots() -> Result<()> {
    let Some(site) = site("requests_without_answers_take_no_more_than_the_slots")? else { return Ok(()) };
    let store = FakeStore::start(&site, PORT)?;
    let _gate = site.start(&[])?;
    all_are_noted(&site)?;
    let mut one = client(&site)?;
    for _ in 0..3 * Pending::SLOTS {
        one.send(b"get key\r\n")?;
    }
    wait_until("fewer are noted", || Ok(measured(&site)?["noted"].as_u64() > Some(1_000)))?;
    all_are_noted(&site)?;
    ensure!(count(&site, "answered")? == 0, "{}", measured(&site)?);
    store.forget_all()?;
    let last = one.send(b"get key\r\n")?;
    let (id, client) = store.request()?;
    ensure!(id == last, "{id} was asked, {last} sent");
    store.answer(last, 0, "END\r\n", client)?;
    wait_until("the answer was measured", || Ok(count(&site, "answered")? == 1))
}

/// Ends a gate that cannot do anything about it.
fn kill(mut gate: ChildProcess) -> Result<()> {
    gate.signal(Signal::SIGKILL)?;
    // Its end by a signal is an error to whoever asks.
    wait_until("it is gone", || Ok(!gate.is_running().unwrap_or(false)))
}

/// The names of the programs at the server's egress.
fn at_egress(site: &Site) -> Result<Vec<String>> {
    let query = || SchedClassifier::query_tcx(SERVER_INTERFACE, TcAttachType::Egress);
    let (_, programs) = site.net.server.enter(query)??;
    Ok(programs.iter().filter_map(|program| Some(program.name_as_str()?.to_owned())).collect())
}

#[test]
fn a_takeover_goes_on_measuring_and_a_detach_ends_it() -> Result<()> {
    let Some(site) = site("a_takeover_goes_on_measuring_and_a_detach_ends_it")? else { return Ok(()) };
    let _server = Memcached::start(&site.net)?;
    // Another one's program, which changes nothing: it stays behind gate's, and when that is gone.
    let foreign = "gate_mark";
    let mut object = Ebpf::load(object::embedded().context("no eBPF object")?)?;
    let program: &mut SchedClassifier = object.program_mut(foreign).context("no program")?.try_into()?;
    program.load()?;
    site.net.server.enter(|| program.attach(SERVER_INTERFACE, TcAttachType::Egress))??;
    let both = [abi::MEASURE_PROGRAM, foreign];
    let first = site.start(&[])?;
    all_are_noted(&site)?;
    ensure!(at_egress(&site)? == both, "{:?}", at_egress(&site)?);
    let (second, _) = site.take_over(&["--takeover"])?;
    drop(first);
    all_are_noted(&site)?;
    let mut client = client(&site)?;
    client.ask("get key\r\n")?;
    wait_until("the successor measures", || Ok(count(&site, "answered")? == 1))?;
    // Killed, its programs stay; the next gate takes them over.
    kill(second)?;
    ensure!(at_egress(&site)? == both, "{:?}", at_egress(&site)?);
    let third = site.start(&[])?;
    all_are_noted(&site)?;
    client.ask("get key\r\n")?;
    wait_until("the third measures", || Ok(count(&site, "answered")? == 1))?;
    ensure!(at_egress(&site)? == both, "{:?}", at_egress(&site)?);
    kill(third)?;
    ensure!(site.gate(&["detach"])?.status.success());
    ensure!(at_egress(&site)? == [foreign], "{:?}", at_egress(&site)?);
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);
    Ok(())
}

/// Makes the pair of interfaces again, which went with one of them.
fn make_again(site: &Site) -> Result<()> {
    let Net { client, server, .. } = &site.net;
    let peer = client.name();
    server.ip(&format!("link add {SERVER_INTERFACE} type veth peer name {CLIENT_INTERFACE} netns {peer}"))?;
    for (namespace, interface, address) in
        [(client, CLIENT_INTERFACE, CLIENT), (server, SERVER_INTERFACE, SERVER_V4)]
    {
        namespace.ip(&format!("link set {interface} addrgenmode none up"))?;
        namespace.add_address(interface, address.parse()?)?;
    }
    Ok(())
}

/// Waits until an answer is measured. Not each is: which requests are noted may change before the answer.
fn is_measured_again(site: &Site) -> Result<()> {
    let before = count(site, "answered")?;
    wait_until("an answer is measured", || {
        client(site)?.ask("get key\r\n")?;
        Ok(count(site, "answered")? > before)
    })
}

#[test]
fn an_interface_that_is_made_again_is_measured_again() -> Result<()> {
    let Some(site) = site("an_interface_that_is_made_again_is_measured_again")? else { return Ok(()) };
    let server = Memcached::start(&site.net)?;
    let mut gate = site.start(&[])?;
    is_measured_again(&site)?;
    drop(server);
    site.net.server.ip(&format!("link del {SERVER_INTERFACE}"))?;
    gate.wait_for("has vanished", PATIENCE)?;
    make_again(&site)?;
    gate.wait_for("attached again", PATIENCE)?;
    wait_until("the program is at its egress", || Ok(at_egress(&site)? == [abi::MEASURE_PROGRAM]))?;
    let _server = Memcached::start(&site.net)?;
    is_measured_again(&site)?;
    gate.end()?;
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);
    Ok(())
}

/// Attaches copies of a program until there is no room for another.
fn fill_egress(program: &mut SchedClassifier) -> Result<Vec<SchedClassifierLink>> {
    let mut links = Vec::new();
    loop {
        program.load()?;
        let attached = program.attach(SERVER_INTERFACE, TcAttachType::Egress);
        let link = attached.map(|id| program.take_link(id));
        program.unload()?;
        match link {
            Ok(link) => links.push(link?),
            Err(_) if links.len() > 1 => return Ok(links),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn where_egress_has_no_room_one_line_says_so() -> Result<()> {
    let Some(site) = site("where_egress_has_no_room_one_line_says_so")? else { return Ok(()) };
    let _server = Memcached::start(&site.net)?;
    // As many programs of others as the kernel lets there be, each of its own.
    let mut object = Ebpf::load(object::embedded().context("no eBPF object")?)?;
    let foreign: &mut SchedClassifier = object.program_mut("gate_mark").context("no program")?.try_into()?;
    let others = site.net.server.enter(|| fill_egress(foreign))??;

    let not_measured = "answers of guarded services are not measured in passing here";
    let mut command = site.net.server.command("sh");
    // The log among what it prints.
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(paths::gate());
    command.args(site.command(SERVER_INTERFACE).get_args());
    let mut gate = ChildProcess::start("gate", command)?;
    gate.wait_for(not_measured, PATIENCE)?;
    // It serves all the same.
    wait_until("the service answers", || Ok(client(&site)?.ask("get key\r\n")? == "END\r\n"))?;
    ensure!(measured(&site)?["every"].is_null(), "{}", measured(&site)?);
    // It tries again with the next attachment, and says nothing new.
    std::fs::remove_file(site.pins().join("link"))?;
    gate.wait_for("attached again", PATIENCE)?;
    // With room it measures, from the next attachment on.
    drop(others);
    std::fs::remove_file(site.pins().join("link"))?;
    wait_until("the program is at its egress", || Ok(at_egress(&site)? == [abi::MEASURE_PROGRAM]))?;
    is_measured_again(&site)?;
    let rest = gate.end()?;
    let again: Vec<_> = rest.iter().filter(|line| line.contains(not_measured)).collect();
    ensure!(again.is_empty(), "{again:?}");
    Ok(())
}
