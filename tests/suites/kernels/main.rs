//! Properties that must hold on every kernel that gate supports. `cargo xtask test --kernels` boots Debian's and runs this there,
//! beside the fixtures.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::daemon::{ATTACHED, CONFIG, PATIENCE, Site};
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::net::{CLIENT_INTERFACE, SERVER_INTERFACE, SERVER_V4};
use gate_tests::privilege;
use gate_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The kernel gives up at a million; a later kernel may walk more of the same program than an earlier one.
const MOST_INSTRUCTIONS: u32 = 600_000;

#[test]
fn the_verifier_walks_no_more_instructions_than_the_budget() -> Result<()> {
    if !privilege::root("kernels::the_verifier_walks_no_more_instructions_than_the_budget") {
        return Ok(());
    }
    let walked = World::new(8, 64)?.loaded.verified_instructions()?;
    let of_tracing = World::tracing(8, 64)?.loaded.verified_instructions()?;
    // Not println!, which the test harness captures.
    let mut err = std::io::stderr();
    writeln!(err, "instructions walked by the verifier: {walked}")?;
    writeln!(err, "instructions walked of the variant that traces: {of_tracing}")?;
    ensure!(walked <= MOST_INSTRUCTIONS, "the verifier walked {walked} instructions");
    ensure!(of_tracing <= MOST_INSTRUCTIONS, "the verifier walked {of_tracing} instructions");
    Ok(())
}

const POLITE: &str = "198.18.1.1";
const HOSTILE: &str = "198.18.1.2";
/// Its gets cost one RU each: so many at once, then one in ten seconds.
const HOSTILE_BURST: usize = 20;
/// An emulated CPU takes half a minute to verify the program, where others want the machine's CPUs as well.
const UNTIL_LOADED: Duration = Duration::from_secs(120);
const LAB: Duration = Duration::from_secs(3);
const VALUE: &str = "VALUE key 0 5\r\nvalue\r\nEND\r\n";
const THROTTLED: &str = "SERVER_ERROR throttled\r\n";

fn lab_config() -> String {
    format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n\
         transports = [\"udp\"]\nprice = {{ base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }}\n\
         [[tenant]]\nname = \"polite\"\nsources = \"{POLITE}\"\nquota = \"100000 RU/s\"\n\
         [[tenant]]\nname = \"hostile\"\nsources = \"{HOSTILE}\"\nquota = \"0.1 RU/s\"\n\
         burst = \"{HOSTILE_BURST}0s\"\nreply_budget = \"1GiB/s\"\n"
    )
}

#[test]
fn quotas_hold_and_a_takeover_keeps_what_tenants_spent() -> Result<()> {
    if !privilege::root("kernels::quotas_hold_and_a_takeover_keeps_what_tenants_spent") {
        return Ok(());
    }
    let site = Site::new(&lab_config())?;
    let [polite, hostile] = [POLITE, HOSTILE].map(|address| address.parse::<IpAddr>().expect("a constant"));
    for address in [polite, hostile] {
        site.net.add_client_address(address)?;
    }
    let _server = Memcached::start(&site.net)?;
    let mut first = site.launch(&[])?;
    first.wait_for(ATTACHED, UNTIL_LOADED)?;
    let _peer = site.peer()?;
    ensure!(site.json(&["status"])?["mode"] == "native", "not attached in the driver");
    let stored = Connection::open(&site.net, polite)?.ask("set key 0 0 5\r\nvalue\r\n")?;
    ensure!(stored == "STORED", "{stored}");

    let started = Instant::now();
    let mut from_polite = Datagrams::open(&site.net, polite)?;
    let mut from_hostile = Datagrams::open(&site.net, hostile)?;
    let over = AtomicBool::new(false);
    let (served, (passed, refused)) = thread::scope(|scope| {
        let flood = scope.spawn(|| ask_until(&over, &mut from_hostile));
        let served = ask_for(LAB, &mut from_polite);
        over.store(true, Ordering::Relaxed);
        anyhow::Ok((served?, flood.join().expect("no panic")?))
    })?;
    let paid = HOSTILE_BURST + started.elapsed().as_secs() as usize / 10 + 1;
    ensure!((HOSTILE_BURST..=paid).contains(&passed), "{passed} passed, {paid} were paid for");
    ensure!(refused > HOSTILE_BURST, "{refused} refused");

    let measured = site.json(&["queues"])?["in_passing"][0].take();
    ensure!(measured["answered"].as_u64() > Some(0), "no answers were measured in passing: {measured}");

    let before = site.json(&["tenants"])?["tenants"].take();
    ensure!(count(&before, "hostile", "refused") == refused as u64, "{refused} refusals read: {before}");
    ensure!(count(&before, "polite", "passed") == served as u64, "{served} answers read: {before}");
    let mut second = site.launch(&["--takeover"])?;
    second.wait_for(ATTACHED, UNTIL_LOADED)?;
    ensure!(site.json(&["status"])?["daemon"] == second.id(), "the second gate is not in charge");
    // Asked to end, and killed where it took too long, as it may on an emulated CPU.
    drop(first);
    let after = site.json(&["tenants"])?["tenants"].take();
    for (tenant, counter) in [("hostile", "refused"), ("hostile", "passed"), ("polite", "passed")] {
        let [before, after] = [&before, &after].map(|tenants| count(tenants, tenant, counter));
        ensure!(before == after, "{tenant} {counter}: {before} before the takeover, {after} after");
    }
    // A bucket that did not go over would be full.
    let answers = (0..HOSTILE_BURST).map(|_| from_hostile.ask("get key\r\n")).collect::<Result<Vec<_>>>()?;
    let refused = answers.iter().filter(|answer| *answer == THROTTLED).count();
    ensure!(refused > 0, "the hostile tenant has a full bucket after the takeover");
    ensure!(from_polite.ask("get key\r\n")? == VALUE, "the polite tenant is not served after the takeover");
    second.end()?;
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);
    Ok(())
}

#[test]
fn a_store_keeps_its_address_and_is_reached_without_gate() -> Result<()> {
    if !privilege::root("kernels::a_store_keeps_its_address_and_is_reached_without_gate") {
        return Ok(());
    }
    let site = Site::new(&format!(
        "[gate]\nxdp = \"off\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n\
         transports = [\"tcp\"]\nintercept = \"on\"\n\
         [[tenant]]\nname = \"all\"\nsources = [\"198.18.0.0/15\"]\nquota = \"unlimited\"\ndeny = [\"touch\"]\n"
    ))?;
    let _server = Memcached::start(&site.net)?;
    let ask = || Connection::open(&site.net, "198.18.0.2".parse()?)?.ask("touch key 1\r\n");
    ensure!(ask()? == "NOT_FOUND", "it is not the store");
    for ends_by_itself in [true, false] {
        let mut gate = site.launch(&[])?;
        gate.wait_for(" serves cache", UNTIL_LOADED)?;
        let said = ask()?;
        ensure!(said.starts_with("SERVER_ERROR denied"), "{said}");
        if ends_by_itself {
            gate.end()?;
        } else {
            gate.signal(Signal::SIGKILL)?;
            // One that was killed has failed.
            ensure!(gate.finish(PATIENCE).is_err(), "it was not killed");
        }
        let said = ask()?;
        ensure!(said == "NOT_FOUND", "{said}");
    }
    Ok(())
}

/// Asks one request after another, each answered by the value, for so long; how many.
fn ask_for(time: Duration, requests: &mut Datagrams) -> Result<usize> {
    let started = Instant::now();
    let mut served = 0;
    while started.elapsed() < time {
        let answer = requests.ask("get key\r\n")?;
        ensure!(answer == VALUE, "request {served} of the polite tenant: {answer}");
        served += 1;
    }
    Ok(served)
}

/// Asks one request after another until it is `over`; how many were answered by the value, and how many refused.
fn ask_until(over: &AtomicBool, requests: &mut Datagrams) -> Result<(usize, usize)> {
    let mut passed = 0;
    let mut refused = 0;
    while !over.load(Ordering::Relaxed) {
        match requests.ask("get key\r\n")?.as_str() {
            VALUE => passed += 1,
            THROTTLED => refused += 1,
            other => anyhow::bail!("the hostile tenant read {other:?}"),
        }
    }
    Ok((passed, refused))
}

/// The value of a tenant's counter; refusals of all reasons together.
fn count(tenants: &Value, name: &str, counter: &str) -> u64 {
    let named = |tenant: &&Value| tenant["name"] == name;
    let counted =
        tenants.as_array().into_iter().flatten().find(named).map_or(&Value::Null, |of| &of[counter]);
    match counted {
        Value::Object(reasons) => reasons.values().filter_map(Value::as_u64).sum(),
        number => number.as_u64().unwrap_or(0),
    }
}

/// gate's message about the feature that Linux 5.10 lacks.
const LACKS: &str = "lacks xdp.frags, bpf_loop, bpf_xdp_load_bytes, bpf_xdp_get_buff_len";

#[test]
#[ignore = "for Linux 5.10: `cargo xtask test --kernels --long` runs it there"]
fn an_old_kernel_is_reported_before_anything_changes() -> Result<()> {
    let site = Site::new(CONFIG)?;
    let output = site.command(SERVER_INTERFACE).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.lines().count() == 1 && said.contains(LACKS), "{said}");
    ensure!(said.contains("left unprotected"), "{said}");
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);

    let mut peer = site.net.client.command(xtask::paths::gate());
    let output = peer.args(["peer", "--interface", CLIENT_INTERFACE]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.lines().count() == 1 && said.contains(LACKS), "{said}");
    Ok(())
}

#[test]
#[ignore = "for Linux 5.10: `cargo xtask test --kernels --long` runs it there"]
fn on_an_old_kernel_proxied_services_are_served_in_user_space() -> Result<()> {
    const PROXY: u16 = PORT + 1;
    let site = Site::new(&format!(
        "[gate]\nxdp = \"auto\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PROXY}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\ntransports = [\"tcp\"]\n\
         [[tenant]]\nname = \"all\"\nsources = [\"198.18.0.0/15\"]\nquota = \"unlimited\"\n"
    ))?;
    let client = "198.18.0.2".parse()?;
    let _server = Memcached::start(&site.net)?;
    let mut gate = site.launch(&[])?;
    let line = gate.wait_for("continuing without XDP", PATIENCE)?;
    ensure!(line.contains(LACKS), "{line}");
    gate.wait_for("running without XDP", PATIENCE)?;
    let mut connection = Connection::to(&site.net, client, format!("{SERVER_V4}:{PROXY}").parse()?)?;
    let stored = connection.ask("set key 0 0 5\r\nvalue\r\n")?;
    ensure!(stored == "STORED", "{stored}");
    ensure!(site.anything_left()?.is_none(), "{:?}", site.anything_left()?);
    gate.end()?;
    Ok(())
}
