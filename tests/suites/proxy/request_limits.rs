//! Limits by what is asked: by query type and by command, beside the quota.

use std::io::Write as _;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;

/// Two tenants; the first has limits that take minutes to refill.
fn tenants(limits: &str) -> String {
    let tenant = |number: u8, limits: &str| {
        format!(
            "[[tenant]]\nname = \"t{number}\"\nsources = [\"127.0.0.{number}\"]\nquota = \"1000000 RU/s\"\n{limits}\n"
        )
    };
    tenant(2, limits) + &tenant(3, "")
}

/// The lines that a client of a tenant reads, one for each request.
fn ask(gate: &Listening, tenant: u8, requests: &[&str]) -> Result<Vec<String>> {
    let mut stream = gate.connect_from([127, 0, 0, tenant].into())?;
    let mut replies = Vec::new();
    for request in requests {
        stream.write_all(format!("{request}\r\n").as_bytes())?;
        replies.push(String::from_utf8(read_until(&mut stream, b"\r\n")?)?);
    }
    Ok(replies)
}

/// True if a reply is the refusal of this limit.
fn is_refused_by(reply: &str, limit: &str) -> bool {
    let is_refusal = reply.starts_with("-THROTTLED ") || reply.starts_with("SERVER_ERROR throttled ");
    is_refusal && reply.ends_with(&format!(" reason=quota limit={limit}\r\n"))
}

#[test]
fn redis_commands_and_query_types_are_limited_beside_the_quota() -> Result<()> {
    let store = Listening::redis()?;
    let limits = "limits = { counter = \"0.01/s\", HGET = \"0.02/s\", \"CONFIG GET\" = \"0.01/s\" }";
    let gate = Listening::gate("resp", store.address, "", &tenants(limits))?;
    // One of the type, whichever command; what is not limited passes.
    let replies = ask(&gate, 2, &["INCR a", "DECR a", "INCRBY a 2", "SET b 1", "GET b"])?;
    ensure!(replies[0] == ":1\r\n" && replies[3] == "+OK\r\n" && replies[4].starts_with('$'), "{replies:?}");
    ensure!(replies[1..3].iter().all(|reply| is_refused_by(reply, "counter")), "{replies:?}");
    // A command, and not the others of its type.
    let replies = ask(&gate, 2, &["HGET h f", "HGET h f", "HLEN h", "HLEN h"])?;
    ensure!(replies[0] == "$-1\r\n" && is_refused_by(&replies[1], "hget"), "{replies:?}");
    ensure!(replies[2..] == [":0\r\n", ":0\r\n"], "{replies:?}");
    // A subcommand, in any case.
    let replies = ask(&gate, 2, &["PING", "config get nothing", "Config Get nothing", "CONFIG RESETSTAT"])?;
    ensure!(replies[1].starts_with('*') && is_refused_by(&replies[2], "config|get"), "{replies:?}");
    ensure!(replies[3] == "+OK\r\n", "{replies:?}");
    // Another tenant has none of these, and refusals are counted as the quota's.
    let replies = ask(&gate, 3, &["INCR c", "INCR c", "HGET h f", "HGET h f"])?;
    ensure!(replies.iter().all(|reply| !reply.starts_with('-')), "{replies:?}");
    let tenants = gate.json(&["tenants"])?["tenants"].take();
    ensure!(
        tenants[0]["refused"]["quota"] == 4
            && tenants[1]["refused"].as_object().is_some_and(|by| by.is_empty()),
        "{tenants}"
    );
    Ok(())
}

#[test]
fn a_limit_in_request_units_goes_by_prices() -> Result<()> {
    let store = Listening::memcached()?;
    // 4 request units, and each key costs one at least.
    let service = "price = { base = \"0 RU\", row = \"1 RU\", kib = \"0 RU\", learn = \"off\" }";
    let gate = Listening::gate(
        "memcached",
        store.address,
        service,
        &tenants("limits = { mget = \"4 RU/s\", GET = \"1000/s\" }"),
    )?;
    let replies = ask(&gate, 2, &["get a b c", "get a b c", "get a"])?;
    ensure!(
        replies[0] == "END\r\n" && is_refused_by(&replies[1], "mget") && replies[2] == "END\r\n",
        "{replies:?}"
    );
    wait_until("it refills", || Ok(ask(&gate, 2, &["get a b c"])?[0] == "END\r\n"))
}
