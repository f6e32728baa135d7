//! `gate explain` of requests over HTTP: each is explained, and then made.

use std::process::Command;

use anyhow::{Error, Result, ensure};
use gate_tests::http_server::{HttpServer, whole};
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, address};
use serde_json::Value;
use xtask::paths;

use super::cache::{Directory, FRESH, Origin, gate, wait_open};
use super::processed::process;
use super::{OPEN, client, client_from};

const TENANTS: &str = r#"
[[tenant]]
name = "direct"
sources = ["127.0.0.8", "198.18.0.8"]
ids = ["org-direct"]
quota = "unlimited"
limits = { query = "1/s" }
[[tenant]]
name = "named"
ids = ["org-1"]
quota = "unlimited"
[[tenant]]
name = "bound"
sources = ["127.0.0.6"]
quota = "unlimited"
keys = "own"
key_prefixes = ["a"]
[[tenant]]
name = "poor"
sources = ["127.0.0.5"]
quota = "1 RU/s"
burst = "1s"
"#;
const SERVICE: &str = "max_request = \"1KiB\"\ntrusted = [\"127.0.0.9\"]\ntenant_header = \"X-Scope-OrgID\"\n\
                       tier_header = \"X-Tier\"\nquery_types = { query = \"GET /echo/q*\" }\nrows = { query = \"7\" }\n\
                       price = { learn = \"off\" }";

/// The output of `gate explain`, or its error's text.
pub(super) fn explain(gate: &Listening, client: [&str; 2], words: &[&str]) -> Result<Result<Value, String>> {
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["explain", "--service", "store", "--json", "--socket"]).arg(socket);
    let output = command.args(client).arg("--").args(words).output()?;
    if !output.status.success() {
        return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(Ok(serde_json::from_slice(&output.stdout)?))
}

#[test]
fn a_request_gets_what_was_explained() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, SERVICE, TENANTS)?;
    for (last, line, fields, tenant, query_type, status) in [
        (8, "GET /echo", &[][..], "direct", "read", 200),
        (8, "POST /echo", &["content-length: 0"], "direct", "write", 200),
        (8, "GET //echo/%71?x", &["x-tier: standard"], "direct", "query", 200),
        // Its limit by query type is used up now.
        (8, "GET /echo/q", &[], "direct", "query", 429),
        (8, "GET /echo", &["x-scope-orgid: org-1"], "direct", "read", 200),
        (9, "GET /echo", &["x-scope-orgid: org-1"], "named", "read", 200),
        (9, "GET /echo", &["x-scope-orgid: org-9"], "", "read", 403),
        (9, "GET /echo", &["x-forwarded-for: 198.18.0.7"], "", "read", 401),
        (9, "GET /echo", &["x-forwarded-for: 198.18.0.8"], "direct", "read", 200),
        (7, "GET /echo", &[], "", "read", 403),
        (6, "GET /echo", &[], "bound", "read", 403),
        (8, "POST /echo", &["content-length: 1025"], "direct", "write", 413),
        (8, "GET /echo", &["upgrade: websocket", "connection: upgrade"], "direct", "", 403),
        (8, "GET /echo", &["upgrade: TLS/1.2", "connection: upgrade"], "direct", "read", 200),
        (8, "GET /echo", &["transfer-encoding: gzip, chunked"], "direct", "", 403),
        (5, "GET /echo", &[], "poor", "read", 200),
        (5, "GET /echo", &[], "poor", "read", 429),
    ] {
        let (method, path) = line.split_once(' ').unwrap_or_default();
        let words = [&[method, path], fields].concat();
        let source = format!("127.0.0.{last}");
        let ask = || explain(&gate, ["--source", &source], &words);
        let explained = ask()?.map_err(anyhow::Error::msg)?;
        ensure!(
            ask()?.as_ref().map(|again| &again["verdict"]) == Ok(&explained["verdict"]),
            "it has an effect"
        );
        let text = |key: &str| explained[key].as_str().unwrap_or_default().to_owned();
        ensure!(
            text("tenant") == tenant && text("query_type") == query_type,
            "{line} {fields:?}: {explained}"
        );
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let reply = client_from(&gate, last)?.ask(line, &fields)?;
        ensure!(reply.status == status, "{line} {fields:?}: {reply:?} {explained}");
        let verdict = if status == 200 { "passes" } else { "refused" };
        ensure!(text("verdict") == verdict, "{line} {fields:?}: {explained}");
        if status != 200 {
            // Once a quota is spent, its refusals are decided ahead, until it is paid back.
            let of_quota = ["quota", "rejected-until"];
            let is_spent = of_quota.contains(&text("reason").as_str()) && of_quota.contains(&reply.reason());
            ensure!(is_spent || text("reason") == reply.reason(), "{line} {fields:?}: {reply:?} {explained}");
        }
    }
    Ok(())
}

#[test]
fn an_explanation_has_rule_price_and_faults_of_words() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, SERVICE, TENANTS)?;
    for (client, words, rule) in [
        (["--source", "127.0.0.8"], &["GET", "/echo/q"][..], "its source, by 127.0.0.8/32 in `sources`"),
        (["--source", "127.0.0.9"], &["GET", "/", "X-Scope-OrgID: org-1"], "the field of a trusted proxy"),
        (["--source", "127.0.0.9"], &["GET", "/", "x-forwarded-for: 198.18.0.8"], "the address 198.18.0.8"),
        (["--tenant", "named"], &["GET", "/"], "the question"),
        (["--source", "127.0.0.7"], &["GET", "/"], "no rule names its source"),
    ] {
        let explained = explain(&gate, client, words)?.map_err(anyhow::Error::msg)?;
        ensure!(explained["rule"] == rule, "{words:?}: {explained}");
    }
    let explained = explain(&gate, ["--source", "127.0.0.8"], &["GET", "/echo/q", "content-length: 1000"])?;
    let price = explained.map_err(anyhow::Error::msg)?["price"].clone();
    ensure!(
        price["rows"] == 7 && price["bytes"].as_u64().is_some_and(|bytes| (1_000..1_100).contains(&bytes)),
        "{price}"
    );
    for (words, says) in [
        (&["GET"][..], "GET /api/v1/query"),
        (&["GET", "/a b"], "GET /a b is no request"),
        (&["GET", "/", "x"], "is no field"),
    ] {
        let fault = explain(&gate, ["--source", "127.0.0.8"], words)?.err().unwrap_or_default();
        ensure!(fault.contains(says), "{words:?}: {fault}");
    }
    let user = explain(&gate, ["--source=127.0.0.8", "--user=a"], &["GET", "/"])?.err().unwrap_or_default();
    ensure!(user.contains("knows no users"), "{user}");
    Ok(())
}

#[test]
fn what_has_been_set_is_explained_before_any_request() -> Result<()> {
    let store = Nginx::start(&[])?;
    let gate = Listening::gate_with("tick = \"10ms\"", "http", store.address, SERVICE, TENANTS)?;
    // The answer to the question before is forgotten.
    let by_tenant = ["--tenant", "poor"];
    for (client, quota) in [(by_tenant, 20.0), (by_tenant, 30.0), (["--source", "127.0.0.5"], 40.0)] {
        gate.json(&["set", "tenant.poor.quota", &format!("{quota} RU/s")])?;
        let explained = explain(&gate, client, &["GET", "/echo"])?.map_err(Error::msg)?;
        let found = explained["buckets"][0]["per_s"].as_f64();
        ensure!(found.is_some_and(|found| (found - quota).abs() < 0.1), "{explained}");
    }
    Ok(())
}

#[test]
fn what_the_cache_may_answer_is_explained() -> Result<()> {
    let origin = HttpServer::start(|_| Some(whole(200, FRESH, b"a")))?;
    let directory = Directory::new("explained");
    let process = process(origin.address, address(), &[origin.address], ", specs = [\"w\"]");
    let service = format!("{}\n{process}", directory.cache(""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let url = format!("/img/w/http://{}/a", origin.address);
    let other_spec = url.replace("/w/", "/v/");
    let other_origin = format!("{url}.example").replace("127.", "128.");
    for (words, status, note) in [
        (&["GET", "/a"][..], 200, "the cache"),
        (&["GET", "/a", "cookie: a=1"], 200, ""),
        (&["POST", "/a", "content-length: 0"], 200, ""),
        (&["GET", &url], 200, "the processor"),
        (&["GET", &other_spec], 403, ""),
        (&["GET", &other_origin], 403, ""),
        (&["GET", "/img/w/no-url"], 400, ""),
        (&["DELETE", &url], 405, ""),
        (&["POST", &url, "transfer-encoding: chunked"], 405, ""),
    ] {
        let explained = explain(&gate, ["--source", "127.0.0.1"], words)?.map_err(anyhow::Error::msg)?;
        let notes = explained["notes"].to_string();
        ensure!(
            if note.is_empty() { !notes.contains("the price of a hit") } else { notes.contains(note) },
            "{words:?}: {explained}"
        );
        let fields: String = words[2..].iter().map(|field| format!("{field}\r\n")).collect();
        let reply = client(&gate)?.ask(&format!("{} {}", words[0], words[1]), &fields)?;
        ensure!(reply.status == status, "{words:?}: {reply:?}");
        let verdict = if status == 200 { "passes" } else { "refused" };
        ensure!(explained["verdict"] == verdict, "{words:?}: {explained}");
        if verdict == "refused" {
            ensure!(explained["reason"] == reply.reason(), "{words:?}: {reply:?} {explained}");
        }
    }
    Ok(())
}

#[test]
fn what_passes_by_the_cache_is_explained() -> Result<()> {
    let directory = Directory::new("explained");
    let origin = Origin::start()?;
    let gate = gate(origin.address, &directory)?;
    wait_open(&gate)?;
    for (words, said) in [
        (&["GET", "/a"][..], "for the price of a hit"),
        (&["GET", "/a", "user-agent: me"], "cache.keep_own is off (user-agent)"),
        (&["GET", "/a", "cookie: a=1"], "Authorization or Cookie"),
        (&["GET", "/a", "cache-control: no-store"], "no-store"),
        (&["GET", "/a", "pragma: no-cache"], "says how fresh"),
        (&["GET", "/a", "cache-control: only-if-cached"], "it is answered 504"),
        (&["HEAD", "/a"], "what its HEAD fetches is not kept"),
        (&["GET", "/a", "if-match: \"1\""], "If-Match or If-Unmodified-Since is not kept"),
        (&["OPTIONS", "/a"], "its method"),
        (&["POST", "/a"], "nothing of its URL is kept any more"),
    ] {
        let explained = explain(&gate, ["--source", "127.0.0.2"], words)?.map_err(anyhow::Error::msg)?;
        ensure!(explained["notes"].to_string().contains(said), "{words:?}: {explained}");
    }
    Ok(())
}
