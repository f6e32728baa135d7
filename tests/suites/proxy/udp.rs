//! memcached over UDP behind gate: what it answers is what it answers by itself, and what it costs is paid once.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::fake_store::counter;
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;

const BOTH: &str = "transports = [\"udp\", \"tcp\"]";
const KNOWN: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn everyone(quota: &str) -> String {
    format!("[[tenant]]\nname = \"all\"\nsources = [\"{KNOWN}\"]\nquota = \"{quota}\"\nburst = \"20s\"")
}

/// The price of a request of one key: one request unit, whatever its length.
const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
/// Requests of [`ONE_RU`] that a tenant of `1 RU/s` may ask at once.
const BURST: usize = 20;

#[test]
fn datagrams_are_answered_as_by_the_store_itself() -> Result<()> {
    let direct = Listening::memcached()?;
    let behind = Listening::memcached()?;
    let gate = Listening::gate("memcached", behind.address, BOTH, &everyone("unlimited"))?;
    let large = [&b"set large 7 0 20000\r\n"[..], &[b'v'; 20_000], b"\r\n"].concat();
    direct.ask(&large, b"STORED\r\n")?;
    gate.ask(&large, b"STORED\r\n")?;
    let mut sides = [Datagrams::to(KNOWN, direct.address)?, Datagrams::to(KNOWN, gate.address)?];
    for request in [
        "get nothing\r\n",
        "set a 5 0 3\r\nabc\r\n",
        "get a\r\nget b\r\nget a\r\n",
        "set b 0 0 1\r\n1\r\nincr b 41\r\nget a b\r\n",
        "nonsense\r\nget a\r\n\r\ntouch a 0\r\n",
        "set c 0 0 1 noreply\r\nc\r\nget c\r\ndelete c noreply\r\nget c\r\n",
        "mg a v f\r\nmg none v q\r\nmn\r\n",
        "get large\r\n",
        "get a\r\nget large\r\nget a large b\r\nversion\r\n",
        "append a 0 0 2\r\n\r\n\r\ngets none\r\nget a\r\n",
    ] {
        let [direct, gate] = &mut sides;
        let id = gate.send(request.as_bytes())?;
        let (answer, datagrams) = gate.answer(id).with_context(|| format!("{request:?}"))?;
        ensure!(datagrams == answer.len().div_ceil(1_392), "{datagrams} of {} bytes", answer.len());
        // memcached says the same, each value and each line as an answer of its own.
        let id = direct.send(request.as_bytes())?;
        let mut expected = Vec::new();
        while expected.len() < answer.len() {
            expected.extend(direct.answer(id).with_context(|| format!("{request:?}: {}", shown(&answer)))?.0);
        }
        ensure!(answer == expected, "{request:?}: {} through gate {}", shown(&expected), shown(&answer));
    }
    ensure!(sides.iter().all(|side| side.is_silent().unwrap_or(false)), "there was more to say");
    Ok(())
}

#[test]
fn what_memcached_ignores_and_what_wants_no_answer_gets_none() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, BOTH, &everyone("unlimited"))?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    client.send_raw(b"")?;
    client.send_raw(b"get")?;
    client.send_raw(b"\0\x01\0\0\0\x01\0\0")?;
    client.send_raw(b"\0\x02\0\0\0\x02\0\0get a\r\n")?;
    for request in ["get a", "set a 0 0 9\r\nabc\r\n", "set a 0 0 1 noreply\r\n1\r\n", "mg a v q"] {
        client.send(request.as_bytes())?;
    }
    // Whatever would have been said to these would have been said before.
    ensure!(client.ask("get a\r\n")? == "VALUE a 0 1\r\n1\r\nEND\r\n");
    ensure!(client.is_silent()?);
    let received = [counter(&gate, "datagrams")?, counter(&gate, "requests")?];
    ensure!(received == [9, 2], "{received:?}");
    Ok(())
}

#[test]
fn unknown_sources_get_no_answer_and_named_tenants_refusals() -> Result<()> {
    let store = Listening::memcached()?;
    let one_thread = "threads = \"1\"";
    let service = format!("{BOTH}\n{ONE_RU}");
    let gate = Listening::gate_with(one_thread, "memcached", store.address, &service, &everyone("1 RU/s"))?;
    let mut stranger = Datagrams::to(STRANGER, gate.address)?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    stranger.send(b"get a\r\n")?;
    let answers = asked_until_refused(&mut client, "get a\r\n")?;
    ensure!((BURST..BURST + 3).contains(&answers.0), "{} passed", answers.0);
    ensure!(answers.1.starts_with("SERVER_ERROR throttled retry_after_ms="), "{}", answers.1);
    ensure!(counter(&gate, "datagrams")? == answers.0 as u64 + 2);
    let queues = gate.json(&["queues"])?;
    let refusals = &queues["services"][0]["refusals"];
    ensure!(refusals["written"] == 1 && refusals["held_back"] == 0, "{refusals}");
    ensure!(stranger.is_silent()?, "a stranger was answered");

    // Served by default, but never told anything of gate's own.
    let service = format!("{service}\ndefault = \"all\"");
    let gate = Listening::gate("memcached", store.address, &service, &everyone("1 RU/s"))?;
    let mut stranger = Datagrams::to(STRANGER, gate.address)?;
    for _ in 0..BURST {
        ensure!(stranger.ask("get a\r\n")? == "END\r\n");
    }
    for request in [&b"get a\r\n"[..], b"nonsense\r\n", b"stats gate\r\n"] {
        for _ in 0..BURST {
            stranger.send(request)?;
        }
    }
    wait_until("not all has come", || Ok(counter(&gate, "datagrams")? == 4 * BURST as u64))?;
    ensure!(stranger.is_silent()?, "a refusal went to whom no rule names");
    Ok(())
}

#[test]
fn a_refusal_is_sent_within_the_budget_for_replies() -> Result<()> {
    let store = Listening::memcached()?;
    let service = format!("{BOTH}\n{ONE_RU}");
    let tenants = format!("{}\nreply_budget = \"0B/s\"", everyone("1 RU/s"));
    let gate = Listening::gate("memcached", store.address, &service, &tenants)?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    for _ in 0..BURST {
        ensure!(client.ask("get a\r\n")? == "END\r\n");
    }
    for _ in 0..BURST {
        client.send(b"get a\r\n")?;
    }
    wait_until("not all has come", || Ok(counter(&gate, "datagrams")? == 2 * BURST as u64))?;
    ensure!(client.is_silent()?);
    Ok(())
}

#[test]
fn a_dead_store_and_a_slow_store_are_reported() -> Result<()> {
    let store = Listening::memcached()?;
    let service = format!("{BOTH}\nmax_datagrams = \"1\"\nstore_timeout = \"200ms\"");
    let one_thread = "threads = \"1\"";
    let everyone = everyone("unlimited");
    let gate = Listening::gate_with(one_thread, "memcached", store.address, &service, &everyone)?;
    let mut client = Datagrams::to(KNOWN, gate.address)?;
    ensure!(client.ask("get a\r\n")? == "END\r\n");
    store.stall()?;
    let waits = client.send(b"get a\r\nset b 0 0 1 noreply\r\n1\r\nget b\r\n")?;
    let full = client.send(b"get a\r\n")?;
    let (answer, _) = client.answer(full)?;
    ensure!(answer == b"SERVER_ERROR throttled retry_after_ms=10 reason=limit\r\n", "{}", shown(&answer));
    let (answer, _) = client.answer(waits)?;
    let answer = String::from_utf8(answer)?;
    ensure!(answer.matches("SERVER_ERROR").count() == 2 && answer.contains("reason=store-down"), "{answer}");
    store.signal(nix::sys::signal::Signal::SIGCONT)?;
    Ok(())
}

#[test]
fn a_real_client_of_datagrams_is_served() -> Result<()> {
    let store = Listening::memcached()?;
    // It asks for more than the default budget for replies over UDP, and waits for what is dropped.
    let tenants = format!("{}\nreply_budget = \"1GiB/s\"", everyone("unlimited"));
    let gate = Listening::gate("memcached", store.address, BOTH, &tenants)?;
    let mut command = Command::new("memcaslap");
    command.args(["-s", &gate.address.to_string(), "-U", "-T", "1", "-c", "8", "-x", "2000"]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let number = |name: &str| -> Option<u64> {
        said.lines().find_map(|line| line.strip_prefix(name)?.trim_start_matches(':').trim().parse().ok())
    };
    ensure!(output.status.success(), "{said}");
    ensure!(number("cmd_get").is_some_and(|gets| gets > 1_000), "{said}");
    ensure!(number("get_misses") == Some(0) && number("udp_timeout").unwrap_or(0) == 0, "{said}");
    Ok(())
}

#[test]
fn hot_keys_are_cached_for_datagrams_until_any_write() -> Result<()> {
    let store = Listening::memcached()?;
    // Every request is looked at, and a key that is asked for twice is hot.
    let eager = "threads = \"2\"\nsample = \"1/1\"\ntick = \"10ms\"";
    let service = format!("{BOTH}\nhot_keys = {{ threshold = \"1\" }}\nshedding.enabled = \"off\"");
    let everyone = everyone("unlimited");
    let gate = Listening::gate_with(eager, "memcached", store.address, &service, &everyone)?;
    // Enough for either thread to have some of each.
    let mut streams = (0..READERS).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
    let mut datagrams =
        (0..READERS).map(|_| Datagrams::to(KNOWN, gate.address)).collect::<Result<Vec<_>>>()?;
    let kept = |value: &str| format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len());
    ensure!(datagrams[0].ask("set k 0 0 3\r\nold\r\n")? == "STORED\r\n");
    // Nobody else asks: what is kept are answers to datagrams.
    wait_until("it does not become hot", || {
        for client in &mut datagrams {
            ensure!(client.ask("get k\r\n")? == kept("old"));
        }
        Ok(counter(&gate, "cache-hits")? >= 10 * READERS as u64)
    })?;
    let hits = counter(&gate, "cache-hits")?;
    let invalidated = counter(&gate, "invalidated")?;
    for round in 0..ROUNDS {
        let value = format!("{round:08}");
        let writer = round % READERS;
        let set = format!("set k 0 0 8\r\n{value}\r\n");
        if round % 2 == 0 {
            streams[writer].write_all(set.as_bytes())?;
            ensure!(read_until(&mut streams[writer], b"\r\n")? == b"STORED\r\n");
        } else {
            ensure!(datagrams[writer].ask(&set)? == "STORED\r\n");
        }
        for (stream, client) in streams.iter_mut().zip(&mut datagrams) {
            let said = client.ask("get k\r\n")?;
            ensure!(said == kept(&value), "round {round}, by datagram: {said}");
            stream.write_all(b"get k\r\n")?;
            let said = read_until(stream, b"END\r\n")?;
            ensure!(said == kept(&value).as_bytes(), "round {round}, by stream: {}", shown(&said));
        }
    }
    // Some of what was read came from what was kept, and some of that had to be thrown away.
    ensure!(counter(&gate, "cache-hits")? > hits && counter(&gate, "invalidated")? > invalidated);
    // A datagram of several requests has hits, misses and writes in their order.
    let said = datagrams[0].ask("get k\r\nget none\r\ndelete k\r\nget none\r\n")?;
    let last = kept(&format!("{:08}", ROUNDS - 1));
    ensure!(said == format!("{last}END\r\nDELETED\r\nEND\r\n"), "{said}");
    for client in &mut datagrams {
        ensure!(client.ask("get k\r\n")? == "END\r\n");
    }
    Ok(())
}

const READERS: usize = 8;
const ROUNDS: usize = 300;

/// A second site for the kernel: a veth pair, and the XDP program at the server's end.
fn site(gate: &str) -> Result<Option<(Site, Memcached)>> {
    if !privilege::root("proxy_udp") {
        return Ok(None);
    }
    let tenant = |name: &str, sources: &str| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nsources = [\"{sources}\"]\nquota = \"1 RU/s\"\nburst = \"{BURST}s\"\n"
        )
    };
    let tenants = [
        tenant("remote", "198.18.1.1"),
        tenant("pieces", "198.18.1.2"),
        tenant("local", "127.0.0.0/8"),
        tenant("own", SERVER_V4),
        tenant("later", LATER),
    ];
    let site = Site::new(&format!(
        "[gate]\n{gate}\n[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"0.0.0.0:{PROXIED}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\n{BOTH}\n{ONE_RU}\n{}",
        tenants.concat()
    ))?;
    for address in ["198.18.1.1", "198.18.1.2"] {
        site.net.add_client_address(address.parse()?)?;
    }
    let store = Memcached::start(&site.net)?;
    Ok(Some((site, store)))
}

/// An address that the server has only later.
const LATER: &str = "198.18.0.9";
/// Where gate listens there.
const PROXIED: u16 = 21_211;

#[test]
fn datagrams_that_xdp_charged_are_not_charged_again() -> Result<()> {
    let Some((site, _store)) = site("")? else { return Ok(()) };
    let _gate = site.start(&[])?;
    charged_once(&site)?;
    // A mark is no matter of addresses: the first datagram from a new one is charged.
    site.net.add_server_address(LATER.parse()?)?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let mut later = site.net.server.enter(|| Datagrams::to(LATER.parse()?, server))??;
    let (passed, refusal) = asked_until_refused(&mut later, "get a\r\n")?;
    ensure!((BURST..BURST + 3).contains(&passed), "{passed} passed of a burst of {BURST}");
    ensure!(refusal.contains("reason=quota"), "{refusal}");
    Ok(())
}

#[test]
fn without_a_mark_the_interface_says_what_was_charged() -> Result<()> {
    let Some((site, _store)) = site("charged_mark = \"off\"")? else { return Ok(()) };
    let _gate = site.start(&[])?;
    charged_once(&site)?;
    // An address that it has not had for long is soon known as well.
    site.net.add_server_address(LATER.parse()?)?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let mut later = site.net.server.enter(|| Datagrams::to(LATER.parse()?, server))??;
    wait_until("it is never charged", || Ok(later.ask("get a\r\n")?.contains("reason=quota")))
}

/// A takeover replaces the program that marks, and a detach takes it away.
#[test]
fn a_takeover_keeps_the_mark_and_a_detach_removes_it() -> Result<()> {
    let Some((site, _store)) = site("")? else { return Ok(()) };
    let first = site.start(&[])?;
    let mark_link = site.pins().join("mark-link");
    ensure!(mark_link.exists(), "nothing is marked");
    let second = site.start(&["--takeover"])?;
    drop(first);
    charged_once(&site)?;
    drop(second);
    ensure!(site.gate(&["detach"])?.status.success());
    ensure!(!mark_link.exists() && site.anything_left()?.is_none(), "something is left");
    Ok(())
}

/// Asks by each way that a datagram can come, until the quota is spent: it is spent once.
fn charged_once(site: &Site) -> Result<()> {
    let _peer = site.peer()?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let client = |source: &str| site.net.client.enter(|| Datagrams::to(source.parse()?, server))?;
    let key = format!("get {}\r\n", "k".repeat(200));

    // The kernel's own words: it has judged.
    let (passed, refusal) = asked_until_refused(&mut client("198.18.1.1")?, &key)?;
    ensure!((BURST..BURST + 3).contains(&passed), "{passed} passed of a burst of {BURST}");
    ensure!(refusal == "SERVER_ERROR throttled\r\n", "{refusal}");

    // Fragments pass the kernel unread, so the daemon judges what they make.
    let (passed, refusal) = asked_until_refused(&mut client("198.18.1.2")?, &key.repeat(10))?;
    ensure!(passed == BURST / 10 || passed == BURST / 10 + 1, "{passed} passed of {}", BURST / 10);
    ensure!(refusal.contains("reason=quota"), "{refusal}");

    // So it does with what comes in by another interface; the answer comes from where it was asked.
    let here = |from: &str, to: &str| {
        let from = from.parse()?;
        let to = SocketAddr::new(to.parse()?, PROXIED);
        site.net.server.enter(|| Datagrams::to(from, to))?
    };
    let (passed, refusal) = asked_until_refused(&mut here("127.0.0.1", "127.0.0.5")?, &key)?;
    ensure!((BURST..BURST + 3).contains(&passed), "{passed} passed of a burst of {BURST}");
    ensure!(refusal.contains("reason=quota"), "{refusal}");

    // And with what the machine sends to itself, though the kernel says that it came in by the interface.
    let (passed, refusal) = asked_until_refused(&mut here(SERVER_V4, SERVER_V4)?, &key)?;
    ensure!((BURST..BURST + 3).contains(&passed), "{passed} passed of a burst of {BURST}");
    ensure!(refusal.contains("reason=quota"), "{refusal}");
    let (passed, _) = asked_until_refused(&mut here("127.0.0.1", SERVER_V4)?, &key)?;
    ensure!(passed < 3, "{passed} passed of what was left");

    let counted = site.json(&["tenants"])?["tenants"].take();
    let charged = |name: &str| {
        let tenants = counted.as_array().into_iter().flatten();
        tenants.filter(|tenant| tenant["name"] == name).find_map(|tenant| tenant["charged_ru"].as_f64())
    };
    for name in ["remote", "local", "own"] {
        let charged = charged(name).unwrap_or(0.0);
        ensure!((BURST as f64..BURST as f64 + 3.0).contains(&charged), "{name}: {counted}");
    }
    Ok(())
}

#[test]
fn the_quota_is_one_for_datagrams_and_connections() -> Result<()> {
    let Some((site, _store)) = site("")? else { return Ok(()) };
    let _gate = site.start(&[])?;
    let _peer = site.peer()?;
    let source: IpAddr = "198.18.1.1".parse()?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let mut connection = Connection::to(&site.net, source, server)?;
    for _ in 0..BURST / 2 {
        ensure!(connection.ask("get a\r\n")? == "END");
    }
    let mut datagrams = site.net.client.enter(|| Datagrams::to(source, server))??;
    let (passed, _) = asked_until_refused(&mut datagrams, "get a\r\n")?;
    let counted = site.json(&["tenants"])?["tenants"].take();
    // One less when the kernel's tick is late: its clock is then behind the daemon's, which has charged first.
    let expected = BURST / 2 - 1..BURST / 2 + 3;
    ensure!(expected.contains(&passed), "{passed} passed of what was left: {counted}");
    Ok(())
}

/// Asks until a refusal: how many passed before it, and what it says.
fn asked_until_refused(client: &mut Datagrams, request: &str) -> Result<(usize, String)> {
    for passed in 0..10 * BURST {
        let answer = client.ask(request)?;
        if let Some(at) = answer.find("SERVER_ERROR") {
            return Ok((passed, answer[at..].lines().next().unwrap_or_default().to_owned() + "\r\n"));
        }
    }
    anyhow::bail!("nothing was refused")
}
