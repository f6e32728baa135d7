//! A hot key of an unmodified memcached over UDP, limited at the interface.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::flood::Flood;
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;
use gate_tests::wait::{wait_until, within};
use serde_json::Value;

const SOURCE: &str = "198.18.1.1";
/// Another tenant's.
const NEIGHBOUR: &str = "198.18.2.1";
/// Requests a second for one key, and as many as of 100 ms at once.
const LIMIT: u64 = 500;
const BURST: u64 = LIMIT / 10;
/// Requests of the flood for the key `key`, a second: six times as many.
const FLOOD: u32 = 3_000;
/// Requests that a tick of the kernel's clock more or less lets through.
const SLACK: u64 = 10;
const VALUE: &str = "VALUE other 0 5\r\nvalue\r\nEND\r\n";
const OTHERS: usize = 50;
/// Counts halve every 10 s.
const UNTIL_COOL: Duration = Duration::from_secs(60);

fn config() -> String {
    format!(
        r#"
        [gate]
        sample = "1/1"
        [[service]]
        name = "cache"
        protocol = "memcached"
        listen = "{SERVER_V4}:{PORT}"
        transports = ["udp"]
        hot_key_limit = "{LIMIT}/s"
        price = {{ base = "0.5 RU", row = "0.5 RU", kib = "0 RU" }}
        [[tenant]]
        name = "all"
        sources = ["{SOURCE}"]
        quota = "100000 RU/s"
        reply_budget = "1GiB/s"
        [[tenant]]
        name = "neighbour"
        sources = ["{NEIGHBOUR}"]
        quota = "100000 RU/s"
        "#
    )
}

fn tenant(site: &Site) -> Result<Value> {
    Ok(site.json(&["tenants"])?["tenants"][0].clone())
}

fn neighbour(site: &Site) -> Result<Value> {
    Ok(site.json(&["tenants", "neighbour"])?["tenants"][0].clone())
}

fn passed(tenant: &Value) -> Result<u64> {
    tenant["passed"].as_u64().with_context(|| format!("{tenant}"))
}

fn is_limited(site: &Site) -> Result<bool> {
    let keys = site.json(&["hotkeys"])?["keys"].take();
    Ok(keys.as_array().into_iter().flatten().any(|key| key["key"] == "key" && key["limited"] == true))
}

/// How many gets found no value: those of the flood that arrived.
fn arrived(stats: &mut Connection) -> Result<u64> {
    let mut line = stats.ask("stats\r\n")?;
    let mut misses = None;
    while line != "END" {
        misses = misses.or_else(|| line.strip_prefix("STAT get_misses ")?.parse().ok());
        line = stats.ask("")?;
    }
    misses.context("get_misses among the statistics")
}

#[test]
fn a_flooded_key_is_limited_and_other_keys_are_not() -> Result<()> {
    if !privilege::root("key_limits::a_flooded_key_is_limited_and_other_keys_are_not") {
        return Ok(());
    }
    let site = Site::new(&config())?;
    let source: IpAddr = SOURCE.parse()?;
    let _server = Memcached::start(&site.net)?;
    let gate = site.start(&[])?;
    let _peer = site.peer()?;
    // TCP is not protected.
    let mut stats = Connection::open(&site.net, "198.18.0.2".parse()?)?;
    ensure!(stats.ask("set other 0 0 5\r\nvalue\r\n")? == "STORED");

    let flood = Flood::start(&site.net, &[source], format!("{SERVER_V4}:{PORT}").parse()?, FLOOD)?;
    wait_until("the flooded key is limited", || is_limited(&site))?;
    let started = Instant::now();
    let before = passed(&tenant(&site)?)?;
    let sent = flood.sent();
    let mut others = Datagrams::open(&site.net, source)?;
    for _ in 0..OTHERS {
        let answer = others.ask("get other\r\n")?;
        ensure!(answer == VALUE, "{answer}");
    }
    wait_until("a second of the flood", || Ok(flood.sent() > sent + u64::from(FLOOD)))?;
    let more = passed(&tenant(&site)?)? - before - OTHERS as u64;
    let most = (started.elapsed().as_secs_f64() * LIMIT as f64) as u64 + BURST + SLACK;
    ensure!(more <= most, "{more} passed in {:?}, at most {most} may", started.elapsed());
    ensure!(more >= LIMIT / 2, "{more} passed");
    a_neighbour_shares_the_bucket(&site)?;
    let sent = flood.stop();

    let judged = || {
        let tenant = tenant(&site)?;
        let refused = tenant["refused"]["hot-key"].as_u64().unwrap_or(0);
        Ok::<_, anyhow::Error>((passed(&tenant)?, refused, tenant))
    };
    let all = sent + OTHERS as u64;
    wait_until("every request is judged", || judged().map(|(passed, refused, _)| passed + refused == all))?;
    let (passed, refused, tenant) = judged()?;
    ensure!(tenant["refused"].as_object().is_some_and(|reasons| reasons.len() == 1), "{tenant}");
    ensure!(tenant["charged_ru"].as_f64() == Some(passed as f64), "a refusal was charged: {tenant}");
    let arrived = arrived(&mut stats)?;
    let passed = passed + self::passed(&neighbour(&site)?)?;
    ensure!(arrived + OTHERS as u64 <= passed, "{arrived} arrived, {passed} passed");
    println!("{sent} requests for one key: {refused} refused, {arrived} arrived");

    within("the key is released", UNTIL_COOL, || Ok(!is_limited(&site)?))?;
    gate.end()?;
    ensure!(site.anything_left()?.is_none());
    Ok(())
}

/// Requests for a key by one tenant are missing to another, and only the first key of a datagram counts.
fn a_neighbour_shares_the_bucket(site: &Site) -> Result<()> {
    let source: IpAddr = NEIGHBOUR.parse()?;
    site.net.add_client_address(source)?;
    let mut neighbour = Datagrams::open(&site.net, source)?;
    wait_until("the neighbour is refused the key", || {
        Ok(neighbour.ask("get key\r\n")?.starts_with("SERVER_ERROR"))
    })?;
    for _ in 0..OTHERS {
        // The end of such an answer comes in a datagram of its own.
        let answer = Datagrams::open(&site.net, source)?.ask("get other key\r\n")?;
        ensure!(answer.starts_with("VALUE other"), "{answer}");
    }
    Ok(())
}

/// Detection may name a key that needs no limit: its bucket then refuses nothing.
#[test]
fn a_key_that_is_found_hot_below_its_limit_loses_nothing() -> Result<()> {
    if !privilege::root("key_limits::a_key_that_is_found_hot_below_its_limit_loses_nothing") {
        return Ok(());
    }
    let site = Site::new(&config())?;
    let source: IpAddr = SOURCE.parse()?;
    site.net.add_client_address(source)?;
    let _server = Memcached::start(&site.net)?;
    let gate = site.start(&[])?;
    let mut client = Datagrams::open(&site.net, source)?;
    let mut ask = || -> Result<()> {
        let due = Instant::now() + SPACING;
        let answer = client.ask("get key\r\n")?;
        ensure!(answer == "END\r\n", "{answer}");
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        Ok(())
    };
    wait_until("the key is found hot", || {
        (0..20).try_for_each(|_| ask())?;
        is_limited(&site)
    })?;
    (0..LIMIT).try_for_each(|_| ask())?;
    let tenant = tenant(&site)?;
    ensure!(tenant["refused"].as_object().is_some_and(serde_json::Map::is_empty), "{tenant}");
    gate.end()?;
    Ok(())
}

/// Between two requests: four fifths of the limit, of which a quarter makes a key hot.
const SPACING: Duration = Duration::from_micros(2_500);
