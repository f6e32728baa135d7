//! A refusal for the quota names the bucket that lacked it: in the answer, in `gate tenants`, `gate watch` and `/metrics`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::curl_socket;
use gate_tests::metrics::Scrape;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Buckets that hold 36 and 72 request units, and are refilled in hours; one that holds them all; and a limit on deletions.
const TENANTS: &str = r#"
[[tenant]]
name = "company"
sources = ["127.0.7.0/24"]
quota = "0.02 RU/s"
burst = "3600s"

[[tenant]]
name = "user"
sources = ["127.0.1.0/24"]
quota = "0.01 RU/s"
burst = "3600s"
charge = ["company"]
limits = { delete = "0.01/s" }

[[tenant]]
name = "peer"
sources = ["127.0.2.0/24"]
quota = "unlimited"
charge = ["company"]

[[tenant]]
name = "large"
sources = ["127.0.9.0/24"]
quota = "1000 RU/s"

[[tenant]]
name = "division"
sources = ["127.0.8.0/24"]
quota = "0.02 RU/s"
burst = "3600s"

[[tenant]]
name = "guest"
sources = ["127.0.3.0/24"]
quota = "1000 RU/s"
charge = ["large", "division"]
"#;
const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";

/// Asks so often from an address; how often each line was the answer, without the time at which to come again.
fn ask(gate: &Listening, source: Ipv4Addr, request: &str, times: usize) -> Result<BTreeMap<String, u64>> {
    let mut client = gate.connect_from(source)?;
    client.write_all(request.repeat(times).as_bytes())?;
    let mut said = Vec::new();
    while said.iter().filter(|&&byte| byte == b'\n').count() < times {
        said.extend_from_slice(&read_until(&mut client, b"\r\n")?);
    }
    let mut answers = BTreeMap::new();
    for line in String::from_utf8(said)?.lines() {
        let answer = line.split_once("reason=").map_or(line, |(_, reason)| reason);
        *answers.entry(answer.to_owned()).or_default() += 1;
    }
    Ok(answers)
}

fn refusals(gate: &Listening, tenant: &str) -> Result<Value> {
    let document = gate.json(&["tenants", tenant])?;
    let tenant = document["tenants"].get(0).context("no tenant")?;
    Ok(json!([tenant["refused"], tenant["quota_refused"]]))
}

#[test]
fn buckets_emptied_in_turn_are_named_by_every_refusal() -> Result<()> {
    let store = Listening::embedded("memcached")?;
    let section = "threads = \"1\"\nsample = \"1/1\"";
    let gate = Listening::gate_with(section, "memcached", store.address, ONE_RU, TENANTS)?;
    let user = Ipv4Addr::new(127, 0, 1, 1);
    let peer = Ipv4Addr::new(127, 0, 2, 1);
    let guest = Ipv4Addr::new(127, 0, 3, 1);

    // The limit: it admits one request in 100 s. Then the user's own bucket, the company's, and of two that are shared the
    // second.
    let by_limit = ask(&gate, user, "delete a\r\n", 9)?;
    let by_own = ask(&gate, user, "get a\r\n", 60)?;
    let by_whole = ask(&gate, peer, "get a\r\n", 60)?;
    let by_second = ask(&gate, guest, "get a\r\n", 96)?;
    let refused = |answers: &BTreeMap<String, u64>, passed: &str, as_said: &str| -> Result<u64> {
        let expected = [passed, as_said];
        ensure!(answers.keys().all(|answer| expected.contains(&answer.as_str())), "{answers:?}");
        Ok(answers.get(as_said).copied().unwrap_or_default())
    };
    let by_limit = refused(&by_limit, "NOT_FOUND", "quota limit=delete")?;
    let by_own = refused(&by_own, "END", "quota bucket=user")?;
    let by_whole = refused(&by_whole, "END", "quota bucket=company")?;
    let by_second = refused(&by_second, "END", "quota bucket=division")?;
    ensure!(by_limit >= 7 && by_own >= 23, "{by_limit} {by_own}");
    ensure!(by_whole >= 22 && by_second >= 22, "{by_whole} {by_second}");

    let of_user = json!([
        { "quota": by_limit + by_own },
        [
            { "kind": "quota", "name": "user", "count": by_own },
            { "kind": "limit", "name": "delete", "count": by_limit },
        ],
    ]);
    let of_peer =
        json!([{ "quota": by_whole }, [{ "kind": "charge", "name": "company", "count": by_whole }]]);
    let of_guest =
        json!([{ "quota": by_second }, [{ "kind": "charge", "name": "division", "count": by_second }]]);
    ensure!(refusals(&gate, "user")? == of_user, "{} {of_user}", refusals(&gate, "user")?);
    ensure!(refusals(&gate, "peer")? == of_peer, "{} {of_peer}", refusals(&gate, "peer")?);
    ensure!(refusals(&gate, "guest")? == of_guest, "{} {of_guest}", refusals(&gate, "guest")?);
    ensure!(refusals(&gate, "company")? == json!([{}, []]), "what it lacked is refused to others");
    let table = String::from_utf8(gate.command(&["tenants"])?.stdout)?;
    let said = format!("quota {} (user {by_own}, limit delete {by_limit})", by_own + by_limit);
    ensure!(table.contains(&said), "{table}");

    let scraped = Scrape::parse(&curl_socket(&gate.files()?.1, "/metrics", &[])?.body)?;
    for (tenant, bucket, count) in [
        ("user", "own", by_own),
        ("user", "limit", by_limit),
        ("peer", "charge", by_whole),
        ("guest", "charge", by_second),
    ] {
        let labels = [("tenant", tenant), ("layer", "proxy"), ("bucket", bucket)];
        let sum = scraped.sum("gate_tenant_quota_refused_requests_total", &labels);
        ensure!(sum == count as f64, "{tenant} {bucket}: {sum} instead of {count}");
    }
    let watched = || -> Result<BTreeMap<(String, String), u64>> {
        let mut watched = BTreeMap::new();
        let document = gate.json(&["watch", "--refused"])?;
        for verdict in document["verdicts"].as_array().context("verdicts")? {
            let text = |field: &str| verdict[field].as_str().unwrap_or_default().to_owned();
            *watched.entry((text("tenant"), text("bucket"))).or_default() += 1;
        }
        Ok(watched)
    };
    let expected = [
        ("guest", "division", by_second),
        ("peer", "company", by_whole),
        ("user", "delete", by_limit),
        ("user", "user", by_own),
    ];
    let expected = expected.map(|(tenant, bucket, count)| ((tenant.to_owned(), bucket.to_owned()), count));
    wait_until("every refusal is a sample", || Ok(watched()? == BTreeMap::from(expected.clone())))
}

/// A tenant that is charged with two others, of which the first refuses after 36 request units.
const CHARGED: &str = r#"
[[tenant]]
name = "first"
sources = ["127.0.5.0/24"]
quota = "0.01 RU/s"
burst = "3600s"

[[tenant]]
name = "second"
sources = ["127.0.6.0/24"]
quota = "1000 RU/s"

[[tenant]]
name = "late"
sources = ["127.0.7.0/24"]
quota = "0.01 RU/s"
burst = "3600s"

[[tenant]]
name = "user"
sources = ["127.0.1.0/24"]
quota = "unlimited"
charge = ["first", "second"]
"#;

#[test]
fn who_takes_anothers_place_does_not_take_its_refusals() -> Result<()> {
    let store = Listening::embedded("memcached")?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, ONE_RU, CHARGED)?;
    let user = Ipv4Addr::new(127, 0, 1, 9);
    let refused = |answers: BTreeMap<String, u64>, as_said: &str| answers.get(as_said).copied().unwrap_or(0);
    let by_first = refused(ask(&gate, user, "get a\r\n", 60)?, "quota bucket=first");
    ensure!(by_first >= 22, "{by_first}");
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    std::fs::write(config, text.replace("[\"first\", \"second\"]", "[\"late\", \"second\"]"))?;
    gate.signal(Signal::SIGHUP)?;
    let gone = json!([{ "quota": by_first }, [{ "kind": "charge", "name": "", "count": by_first }]]);
    wait_until("its refusals are of somebody else", || Ok(refusals(&gate, "user")? == gone))?;
    let by_late = refused(ask(&gate, user, "get a\r\n", 60)?, "quota bucket=late");
    ensure!(by_late >= 22, "{by_late}");
    let both = json!([
        { "quota": by_first + by_late },
        [
            { "kind": "charge", "name": "late", "count": by_late },
            { "kind": "charge", "name": "", "count": by_first },
        ],
    ]);
    ensure!(refusals(&gate, "user")? == both, "{} {both}", refusals(&gate, "user")?);
    let table = String::from_utf8(gate.command(&["tenants"])?.stdout)?;
    let said = format!("(late {by_late}, no longer there {by_first})");
    ensure!(table.contains(&said), "{table}");
    let scraped = Scrape::parse(&curl_socket(&gate.files()?.1, "/metrics", &[])?.body)?;
    let labels = [("tenant", "user"), ("layer", "proxy"), ("bucket", "charge")];
    let sum = scraped.sum("gate_tenant_quota_refused_requests_total", &labels);
    ensure!(sum == (by_first + by_late) as f64, "{sum}");
    Ok(())
}
