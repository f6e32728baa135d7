//! `gate explain` and `/v1/explain` of a running gate: verdicts that the next request confirms, and bad questions.

use std::io::Write as _;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::curl_socket;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::schema;
use serde_json::Value;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"company\"\nquota = \"100000 RU/s\"\n\
                       [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"100 RU/s\"\nburst = \"30s\"\n\
                       charge = [\"company\"]\nlimits = { incr = \"1/s\" }\ndeny = [\"flush_all\"]\n\
                       [[tenant]]\nname = \"refused\"\nsources = [\"10.0.0.0/8\"]\nquota = \"unlimited\"\nrefuse = \"on\"\n";

/// `gate explain` about a command of a client at the service `store`.
fn explain(gate: &Listening, client: &[&str], words: &[&str]) -> Result<Output> {
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["explain", "--service", "store"]).args(client).arg("--socket").arg(socket);
    Ok(command.arg("--").args(words).output()?)
}

fn explained(gate: &Listening, client: &[&str], words: &[&str]) -> Result<Value> {
    let output = explain(gate, &[client, &["--json"]].concat(), words)?;
    ensure!(output.status.success(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn gate() -> Result<(Listening, Listening)> {
    let store = Listening::embedded("memcached")?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, "", TENANTS)?;
    Ok((gate, store))
}

#[test]
fn an_explanation_names_the_bucket_that_then_refuses() -> Result<()> {
    let (gate, _store) = gate()?;
    let source = ["--source", "127.0.0.1"];
    let passes = explained(&gate, &source, &["incr", "n", "1"])?;
    ensure!(passes["verdict"] == "passes" && passes["tenant"] == "all", "{passes}");
    ensure!(passes["rule"] == "its source, by 127.0.0.0/8 in `sources`", "{passes}");
    let kinds: Vec<_> =
        passes["buckets"].as_array().into_iter().flatten().map(|bucket| &bucket["kind"]).collect();
    ensure!(kinds == ["limit", "quota", "charge"], "{passes}");
    let output = Command::new(paths::gate()).args(["schema", "explain"]).output()?;
    schema::check(&serde_json::from_slice(&output.stdout)?, &passes)?;

    let before = gate.json(&["tenants"])?;
    for _ in 0..20 {
        explained(&gate, &source, &["incr", "n", "1"])?;
    }
    ensure!(gate.json(&["tenants"])?.to_string().contains("\"passed\":0"), "{before}");
    let mut client = gate.connect()?;
    client.write_all(b"incr n 1\r\nincr n 1\r\n")?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"limit=incr\r\n") {
        answer.extend(read_until(&mut client, b"\r\n")?);
    }
    let refused = explained(&gate, &source, &["incr", "n", "1"])?;
    ensure!((&refused["verdict"], &refused["bucket"]) == (&"refused".into(), &"incr".into()), "{refused}");
    ensure!(refused["reason"] == "quota" && refused["retry_after_ms"].as_f64() > Some(0.0), "{refused}");

    let text = String::from_utf8(explain(&gate, &source, &["incr", "n", "1"])?.stdout)?;
    ensure!(text.starts_with("incr n 1 at store: refused: quota of incr, try again in "), "{text}");
    let denied = explained(&gate, &["--tenant", "all"], &["flush_all"])?;
    ensure!(denied["reason"] == "unsupported" && denied["denied_by"] == "deny", "{denied}");
    let text = String::from_utf8(explain(&gate, &["--tenant", "all"], &["flush_all"])?.stdout)?;
    ensure!(text.starts_with("flush_all at store: refused: unsupported, by `deny` of all\n"), "{text}");
    let penalty = explained(&gate, &["--source", "10.1.1.1"], &["get", "a"])?;
    ensure!(penalty["reason"] == "penalty" && penalty["tenant"] == "refused", "{penalty}");
    let unknown = explained(&gate, &["--source", "192.0.2.1"], &["get", "a"])?;
    ensure!(unknown["reason"] == "unknown-source" && unknown["tenant"].is_null(), "{unknown}");
    ensure!(unknown["rule"] == "no rule names its source", "{unknown}");
    Ok(())
}

#[test]
fn bad_questions_get_clear_answers_over_http() -> Result<()> {
    let (gate, _store) = gate()?;
    let (_, socket) = gate.files()?;
    for (query, said) in [
        ("", "name either a source or a tenant"),
        ("service=money&tenant=all&command=get", "there is no service \"money\", but store"),
        (
            "service=store&tenant=money&command=get&command=a",
            "there is no tenant \"money\"; `gate tenants` lists all",
        ),
        ("service=store&source=localhost&command=get", "source=localhost: must be an address, e.g. 10.1.2.3"),
        ("service=store&tenant=all&command=frobnicate&command=a", "is no request that gate forwards"),
        ("service=store&tenant=all&command=get&command=a%0d%0aget&command=b", "that is several lines"),
        (
            "service=store&tenant=all&command=get&command=a&transport=udp",
            "questions are about requests over TCP",
        ),
        ("service=store&tenant=all&user=app&command=get&command=a", "knows no users"),
    ] {
        let answer = curl_socket(&socket, &format!("/v1/explain?{query}"), &[])?;
        ensure!(answer.status == 422 && answer.error()?.contains(said), "{query}: {answer:?}");
    }
    let posted = curl_socket(&socket, "/v1/explain", &["--data", "{}"])?;
    ensure!(posted.status == 405, "{posted:?}");
    let output = explain(&gate, &["--tenant", "money"], &["get", "a"])?;
    let stderr = String::from_utf8(output.stderr).context("its error")?;
    ensure!(output.status.code() == Some(1) && stderr.contains("there is no tenant \"money\""), "{stderr}");
    Ok(())
}
