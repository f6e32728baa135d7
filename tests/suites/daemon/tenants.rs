//! `gate tenants`: what is counted of real TCP and UDP.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
const PROXIED: u16 = 11_311;

/// One tenant of `gate tenants --json`.
fn tenant(site: &Site, name: &str) -> Result<Value> {
    let document = site.json(&["tenants", name])?;
    document["tenants"].get(0).cloned().with_context(|| format!("no {name}"))
}

#[test]
fn tenants_count_segments_apart_from_requests() -> Result<()> {
    if !privilege::root("tenants::tenants_count_segments_apart_from_requests") {
        return Ok(());
    }
    let site = Site::new(&format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\n\
         [[service]]\nname = \"proxied\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PROXIED}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\nshedding = {{ enabled = \"off\" }}\n\
         [[tenant]]\nname = \"guarded\"\nsources = \"198.18.1.1\"\nquota = \"1000 RU/s\"\n\
         [[tenant]]\nname = \"proxied\"\nsources = \"198.18.1.2\"\nquota = \"1000 RU/s\"\n"
    ))?;
    let sources: [IpAddr; 2] = [[198, 18, 1, 1], [198, 18, 1, 2]].map(IpAddr::from);
    sources.iter().try_for_each(|&source| site.net.add_client_address(source))?;
    let _store = Memcached::start(&site.net)?;
    let _gate = site.start(&[])?;
    let _peer = site.peer()?;

    let mut datagrams = Datagrams::open(&site.net, sources[0])?;
    let mut guarded = Connection::open(&site.net, sources[0])?;
    let mut proxied = Connection::to(&site.net, sources[1], SocketAddr::new(SERVER_V4.parse()?, PROXIED))?;
    for _ in 0..7 {
        ensure!(datagrams.ask("get a\r\n")? == "END\r\n");
    }
    // One request a segment, since each waits for its answer.
    for _ in 0..5 {
        ensure!(guarded.ask("get a\r\n")? == "END");
        ensure!(proxied.ask("get a\r\n")? == "END");
    }
    // One segment, three requests.
    proxied.send(b"get a\r\nget a\r\nget a\r\n")?;
    (0..3).try_for_each(|_| {
        let line = proxied.ask("")?;
        ensure!(line == "END", "{line}");
        Ok(())
    })?;

    wait_until("all requests are counted", || Ok(tenant(&site, "proxied")?["passed"] == 8))?;
    let of_guarded = tenant(&site, "guarded")?;
    ensure!(of_guarded["passed"] == 7, "datagrams alone are requests: {of_guarded}");
    let of_proxied = tenant(&site, "proxied")?;
    // Some may be sent again.
    let segments = |of: &Value| of["segments"].as_u64().unwrap_or(0);
    ensure!(segments(&of_guarded) >= 5 && segments(&of_proxied) >= 6, "{of_guarded} {of_proxied}");
    let charged = of_guarded["charged_ru"].as_f64().context("charged_ru")?;
    ensure!(charged == 7.0 + segments(&of_guarded) as f64, "both are charged: {of_guarded}");
    ensure!(of_proxied["charged_ru"] == 8.0, "segments to a proxy are not: {of_proxied}");
    Ok(())
}

/// Buckets of 36 and 72 request units, which are refilled in hours, one that holds them all, and a limit for each hot key.
const BUCKETS: &str = r#"
[[tenant]]
name = "company"
sources = "198.18.7.1"
quota = "0.02 RU/s"
burst = "3600s"

[[tenant]]
name = "user"
sources = "198.18.1.1"
quota = "0.01 RU/s"
burst = "3600s"
charge = ["company"]

[[tenant]]
name = "peer"
sources = "198.18.1.2"
quota = "unlimited"
charge = ["company"]

[[tenant]]
name = "fan"
sources = "198.18.1.3"
quota = "unlimited"

[[tenant]]
name = "large"
sources = "198.18.7.2"
quota = "1000 RU/s"

[[tenant]]
name = "division"
sources = "198.18.7.3"
quota = "0.02 RU/s"
burst = "3600s"

[[tenant]]
name = "guest"
sources = "198.18.1.4"
quota = "1000 RU/s"
charge = ["large", "division"]
"#;

#[test]
fn buckets_that_refuse_at_the_interface_are_told_apart() -> Result<()> {
    if !privilege::root("tenants::buckets_that_refuse_at_the_interface_are_told_apart") {
        return Ok(());
    }
    let site = Site::new(&format!(
        "[gate]\nsample = \"1/1\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\n\
         hot_key_limit = \"100/s\"\n{BUCKETS}"
    ))?;
    let sources: [IpAddr; 4] = [1, 2, 3, 4].map(|last| [198, 18, 1, last]).map(IpAddr::from);
    sources.iter().try_for_each(|&source| site.net.add_client_address(source))?;
    let _store = Memcached::start(&site.net)?;
    let _gate = site.start(&[])?;
    let judged = |name: &str| -> Result<u64> {
        let tenant = tenant(&site, name)?;
        let refused = tenant["refused"].as_object().context("refused")?.values().filter_map(Value::as_u64);
        Ok(tenant["passed"].as_u64().context("passed")? + refused.sum::<u64>())
    };
    // First the user's own bucket is empty, then the company's; of the guest's the second that it shares.
    for (name, source, times) in
        [("user", sources[0], 60), ("peer", sources[1], 60), ("guest", sources[3], 96)]
    {
        let mut datagrams = Datagrams::open(&site.net, source)?;
        for number in 0..times {
            datagrams.send(format!("get {name}-{number}\r\n").as_bytes())?;
        }
        wait_until("all datagrams are judged", || Ok(judged(name)? == times))?;
    }
    let refused = |name: &str, kind: &str, bucket: &str| -> Result<()> {
        let tenant = tenant(&site, name)?;
        let count = tenant["refused"]["quota"].as_u64().context("quota")?;
        // A refill of two at most.
        ensure!((22..=24).contains(&count) && tenant["refused"] == json!({ "quota": count }), "{tenant}");
        let expected = json!([{ "kind": kind, "name": bucket, "count": count }]);
        ensure!(tenant["quota_refused"] == expected, "{tenant}");
        Ok(())
    };
    refused("user", "quota", "user")?;
    refused("peer", "charge", "company")?;
    refused("guest", "charge", "division")?;

    let mut datagrams = Datagrams::open(&site.net, sources[2])?;
    wait_until("the hot key is limited", || {
        for _ in 0..100 {
            datagrams.send(b"get hot\r\n")?;
        }
        Ok(tenant(&site, "fan")?["refused"]["hot-key"].as_u64() > Some(50))
    })?;
    let fan = tenant(&site, "fan")?;
    ensure!(fan["quota_refused"] == json!([]) && fan["refused"]["quota"].is_null(), "{fan}");
    Ok(())
}

#[test]
fn refusals_stay_with_their_bucket_when_a_reload_reorders_them() -> Result<()> {
    if !privilege::root("tenants::refusals_stay_with_their_bucket_when_a_reload_reorders_them") {
        return Ok(());
    }
    let config = |charge: &str| {
        format!(
            "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\n\
             [[tenant]]\nname = \"firm\"\nsources = \"198.18.7.1\"\nquota = \"1000 RU/s\"\n\
             [[tenant]]\nname = \"team\"\nsources = \"198.18.7.2\"\nquota = \"0.001 RU/s\"\nburst = \"3600s\"\n\
             [[tenant]]\nname = \"user\"\nsources = \"198.18.1.1\"\nquota = \"unlimited\"\ncharge = {charge}\n"
        )
    };
    let site = Site::new(&config("[\"firm\", \"team\"]"))?;
    let source = IpAddr::from([198, 18, 1, 1]);
    site.net.add_client_address(source)?;
    let _store = Memcached::start(&site.net)?;
    let mut gate = site.start(&[])?;
    let mut datagrams = Datagrams::open(&site.net, source)?;
    let mut sent = 0;
    for charge in ["[\"firm\", \"team\"]", "[\"team\", \"firm\"]", "[\"firm\", \"team\"]"] {
        site.configure(&config(charge))?;
        gate.signal(Signal::SIGHUP)?;
        gate.wait_for("configuration read again", PATIENCE)?;
        for _ in 0..10 {
            datagrams.send(b"get a\r\n")?;
        }
        sent += 10;
        // Three fit the bucket.
        let expected = json!([{ "kind": "charge", "name": "team", "count": sent - 3 }]);
        wait_until(&format!("{expected} with {charge}"), || {
            Ok(tenant(&site, "user")?["quota_refused"] == expected)
        })?;
    }
    Ok(())
}
