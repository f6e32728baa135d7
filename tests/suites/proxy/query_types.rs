//! Query types that the configuration makes: their rows, their objectives and their tiers, before real stores.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;

const TENANT: &str =
    "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\ntier = \"critical\"";

/// A query type's row; `Null` if it has none.
fn row(queues: &Value, name: &str) -> Value {
    let types = queues["services"][0]["types"].as_array();
    types.into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

/// Asks line by line.
fn ask(stream: &mut TcpStream, lines: &[&str], end: &[u8]) -> Result<()> {
    for line in lines {
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        read_until(stream, end).with_context(|| (*line).to_owned())?;
    }
    Ok(())
}

#[test]
fn query_types_have_rows_with_their_count_and_objective() -> Result<()> {
    let redis = Listening::redis()?;
    let memcached = Listening::memcached()?;
    for (protocol, store, commands, lines, type_counts) in [
        (
            "resp",
            redis.address,
            r#"query_types = { reports = ["ZUNIONSTORE", "sort", "CONFIG GET"], delete = ["HDEL"] }"#,
            &[
                "ZUNIONSTORE a 1 b",
                "SORT a STORE b",
                "config get save",
                "CONFIG RESETSTAT",
                "HDEL a b",
                "DEL a",
            ][..],
            [("reports", 3), ("delete", 2), ("admin", 1)],
        ),
        (
            "memcached",
            memcached.address,
            r#"query_types = { reports = ["GETS", "incr"], delete = ["touch"] }"#,
            &["gets a", "gets a b", "incr a 1", "get a b", "touch a 1", "delete a"],
            [("reports", 3), ("delete", 2), ("mget", 1)],
        ),
    ] {
        let service = format!(
            "parallelism = \"4\"\n{commands}\nobjectives = {{ reports = {{ p50 = \"7ms\" }}, default = {{ p90 = \"9ms\" }} }}"
        );
        let gate = Listening::gate(protocol, store, &service, TENANT)?;
        ask(&mut gate.connect()?, lines, b"\r\n")?;
        // An answer is counted after it has left.
        let answered = |queues: &Value| -> u64 {
            let rows = type_counts.iter().map(|(name, _)| row(queues, name)["answered"].as_u64());
            rows.map(Option::unwrap_or_default).sum()
        };
        wait_until("all are counted", || Ok(answered(&gate.json(&["queues"])?) == lines.len() as u64))?;
        let queues = gate.json(&["queues"])?;
        for (name, count) in type_counts {
            let row = row(&queues, name);
            ensure!(row["offered"] == count && row["answered"] == count, "{protocol} {name}: {row}");
            let own = if name == "reports" { ("p50", 7.0) } else { ("p90", 9.0) };
            ensure!(row["objective_ms"][own.0] == own.1, "{protocol} {name}: {row}");
            ensure!(row["expected_wait_ms"] == 0.0 && row["waiting"] == 0, "{protocol} {name}: {row}");
        }
        ensure!(queues["services"][0]["types"].as_array().map(Vec::len) == Some(3), "{queues}");
    }
    Ok(())
}

#[test]
fn memcached_s_own_statistics_name_the_types() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "query_types = { mine = \"gets\" }", TENANT)?;
    let mut client = gate.connect()?;
    ask(&mut client, &["gets a"], b"END\r\n")?;
    client.write_all(b"stats gate\r\n")?;
    let said = String::from_utf8(read_until(&mut client, b"END\r\n")?)?;
    ensure!(said.contains("STAT mine_p50_us ") && !said.contains("STAT get_p50_us "), "{said}");
    Ok(())
}

#[test]
fn a_type_s_tier_is_obeyed_and_the_expected_wait_is_shown() -> Result<()> {
    let store = Listening::redis_with(&["--enable-debug-command", "local"])?;
    // One place: what is asked first has it, and of those that wait the critical are first.
    let service = "connections = \"1\"\nparallelism = \"1\"\nhistogram_values = \"1000\"\ncodel = { law = \"off\" }\n\
                   query_types = { reports = [\"DEBUG\"] }\ntiers = { reports = \"batch\" }\n\
                   objectives = { default = { p50 = \"10s\" } }";
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, service, TENANT)?;
    let mut low = gate.connect()?;
    let mut high = gate.connect()?;
    // So many answers it takes until the admission policy expects anything.
    high.write_all(&b"GET a\r\n".repeat(LEARNED))?;
    let mut said = 0;
    while said < LEARNED {
        said += read_until(&mut high, b"\r\n")?.len() / b"$-1\r\n".len();
    }
    let queues = || gate.json(&["queues"]);
    low.write_all(&b"DEBUG SLEEP 0.05\r\n".repeat(SLEEPS))?;
    let wait_ms = |row: &Value| row["expected_wait_ms"].as_f64().unwrap_or_default();
    // What has been learned counts from the next tick.
    wait_until("they wait, and one more would", || Ok(wait_ms(&row(&queues()?, "reports")) > 0.0))?;
    ask(&mut high, &["GET a"], b"$-1\r\n")?;
    let queues = queues()?;
    let reports = row(&queues, "reports");
    let get = row(&queues, "get");
    ensure!(reports["waiting"].as_u64() > Some(0), "the critical one was not first: {queues}");
    ensure!(wait_ms(&get) == 0.0 && get["waiting"] == 0, "{queues}");
    Ok(())
}

const LEARNED: usize = 2_000;
const SLEEPS: usize = 40;

#[test]
fn a_reload_moves_commands_between_the_types_that_there_are() -> Result<()> {
    let store = Listening::redis()?;
    let types = |get: &str| format!("query_types = {{ quick = [\"PING\"], mine = [\"{get}\"] }}");
    let gate = Listening::gate("resp", store.address, &types("HGET"), TENANT)?;
    let (config, _) = gate.files()?;
    let mut client = gate.connect()?;
    ask(&mut client, &["GET a"], b"$-1\r\n")?;
    ensure!(row(&gate.json(&["queues"])?, "mine").is_null());
    let text = std::fs::read_to_string(config)?;
    let text = text.replace(&types("HGET"), "query_types = { mine = [\"GET\"], other = [\"DEL\"] }");
    std::fs::write(config, text)?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("it is of its new type", || {
        ask(&mut client, &["GET a"], b"$-1\r\n")?;
        Ok(row(&gate.json(&["queues"])?, "mine")["offered"].as_u64() >= Some(1))
    })?;
    // One type has gone, and another begins at the next start: their commands are of their classes.
    ask(&mut client, &["PING"], b"+PONG\r\n")?;
    ask(&mut client, &["DEL a"], b":0\r\n")?;
    let queues = gate.json(&["queues"])?;
    ensure!(row(&queues, "quick").is_null() && row(&queues, "other").is_null(), "{queues}");
    ensure!(row(&queues, "connection")["offered"] == 1 && row(&queues, "delete")["offered"] == 1, "{queues}");
    Ok(())
}
