//! A refusal says whose fault it is, whether the request may have run, and when another try can help.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const SHORT_TIMEOUT: &str = "store_timeout = \"200ms\"\nconnections = \"1\"";

/// The reply to one request.
fn asks(client: &mut TcpStream, request: &[u8]) -> Result<String> {
    client.write_all(request)?;
    Ok(String::from_utf8(read_until(client, b"\r\n")?)?)
}

/// The `retry_after_ms` of a refusal.
fn wait(refusal: &str) -> Result<u64> {
    let wait = refusal.split(' ').find_map(|word| word.strip_prefix("retry_after_ms="));
    Ok(wait.with_context(|| format!("nothing of when in {refusal}"))?.parse()?)
}

#[test]
fn memcached_writes_that_may_have_run_are_uncertain() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, SHORT_TIMEOUT, EVERYONE)?;
    let mut client = gate.connect()?;
    ensure!(asks(&mut client, b"set n 0 0 1\r\n1\r\n")? == "STORED\r\n");
    store.stall()?;
    let sent = asks(&mut client, b"incr n 1\r\n")?;
    ensure!(sent == "SERVER_ERROR uncertain reason=store-down\r\n", "{sent}");
    // From now on nothing is sent.
    let unsent = asks(&mut client, b"incr n 1\r\n")?;
    ensure!(unsent.starts_with("SERVER_ERROR unavailable retry_after_ms="), "{unsent}");
    ensure!(unsent.ends_with(" reason=store-down\r\n") && wait(&unsent)? > 0, "{unsent}");
    store.signal(Signal::SIGCONT)?;
    wait_until("it has not come back", || Ok(asks(&mut client, b"get n\r\n")?.starts_with("VALUE n ")))?;
    // What was uncertain has been done, and what was not sent has not.
    let value = store.ask(b"get n\r\n", b"END\r\n")?;
    ensure!(value == b"VALUE n 0 1\r\n2\r\nEND\r\n", "{}", shown(&value));
    Ok(())
}

#[test]
fn redis_writes_that_may_have_run_are_uncertain() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, SHORT_TIMEOUT, EVERYONE)?;
    let mut client = gate.connect()?;
    ensure!(asks(&mut client, b"SET n 1\r\n")? == "+OK\r\n");
    store.stall()?;
    let sent = asks(&mut client, b"INCR n\r\n")?;
    ensure!(sent == "-UNCERTAIN reason=store-down\r\n", "{sent}");
    let unsent = asks(&mut client, b"INCR n\r\n")?;
    ensure!(unsent.starts_with("-UNAVAILABLE retry_after_ms=") && wait(&unsent)? > 0, "{unsent}");
    store.signal(Signal::SIGCONT)?;
    let mut other = gate.connect()?;
    // Each thread has its own connection to the store, and the clients may be of two.
    for client in [&mut client, &mut other] {
        wait_until("it has not come back", || Ok(asks(client, b"EXISTS n\r\n")? == ":1\r\n"))?;
    }

    // A long one goes out over a connection that has answered, and is uncertain once part of it is with the store.
    let value = vec![b'v'; 200_000];
    let long = [&b"*3\r\n$6\r\nAPPEND\r\n$1\r\nl\r\n$200000\r\n"[..], &value, b"\r\n"].concat();
    let (begin, rest) = long.split_at(100_000);
    other.write_all(begin)?;
    let mut direct = TcpStream::connect(store.address)?;
    wait_until("the store has none of it", || {
        direct.write_all(b"CLIENT LIST\r\n")?;
        let list = String::from_utf8(read_until(&mut direct, b"\n\r\n")?)?;
        let read = list.split(' ').filter_map(|field| field.strip_prefix("qbuf=")?.parse().ok());
        Ok(read.max() > Some(10_000_u32))
    })?;
    store.stall()?;
    let sent = asks(&mut other, rest)?;
    ensure!(sent == "-UNCERTAIN reason=store-down\r\n", "{sent}");
    let unsent = asks(&mut other, &long)?;
    ensure!(unsent.starts_with("-UNAVAILABLE"), "{unsent}");
    Ok(())
}

#[test]
fn forbidden_is_denied_and_excess_is_throttled_with_a_time() -> Result<()> {
    let memcached = Listening::memcached()?;
    let redis = Listening::redis()?;
    let poor = "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.1\"]\nquota = \"0.01 RU/s\"\nburst = \"120s\"\n\
                deny = [\"touch\"]";
    let price = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    for (protocol, store, [denied, throttled], [touch, get]) in [
        (
            "memcached",
            &memcached,
            ["SERVER_ERROR denied ", "SERVER_ERROR throttled "],
            [&b"touch a 0\r\n"[..], b"delete a\r\n"],
        ),
        ("resp", &redis, ["-DENIED ", "-THROTTLED "], [b"TOUCH a\r\n", b"DEL a\r\n"]),
    ] {
        let gate = Listening::gate(protocol, store.address, price, poor)?;
        let mut client = gate.connect()?;
        let said = asks(&mut client, touch)?;
        ensure!(said.starts_with(denied) && said.ends_with("reason=unsupported rule=deny\r\n"), "{said}");
        asks(&mut client, get)?;
        let said = asks(&mut client, get)?;
        ensure!(said.starts_with(throttled) && said.ends_with("reason=quota bucket=poor\r\n"), "{said}");
        ensure!(wait(&said)? > 0, "{said}");
    }
    Ok(())
}

#[test]
fn a_limit_of_gate_s_own_says_when_to_come_again() -> Result<()> {
    let store = Listening::redis()?;
    let tenants = format!("{EVERYONE}\nmax_outstanding = \"1\"");
    let gate = Listening::gate("resp", store.address, "", &tenants)?;
    let mut client = gate.connect()?;
    client.write_all(b"GET a\r\n".repeat(50).as_slice())?;
    let mut said = String::new();
    while said.matches("\r\n").count() < 50 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let refused = said.lines().find(|line| line.ends_with("reason=limit")).context("nothing was refused")?;
    ensure!(refused.starts_with("-THROTTLED ") && wait(refused)? > 0, "{refused}");
    Ok(())
}
