//! gate's own statistics cost what a request costs, and asking for them again and again costs gate nothing.

use std::io::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};

const ASKED: &[u8] = b"stats gate\r\n";

#[test]
fn unknown_sources_do_not_read_own_statistics() -> Result<()> {
    let store = Listening::memcached()?;
    let known = "[[tenant]]\nname = \"known\"\nsources = [\"127.0.0.2\"]\nquota = \"unlimited\"";
    let gate = Listening::gate("memcached", store.address, "", known)?;
    let said = gate.ask(ASKED, b"\r\n")?;
    ensure!(said == b"SERVER_ERROR denied reason=unknown-source\r\n", "{}", shown(&said));
    let mut client = gate.connect_from(Ipv4Addr::new(127, 0, 0, 2))?;
    client.write_all(ASKED)?;
    let said = read_until(&mut client, b"END\r\n")?;
    ensure!(said.starts_with(b"STAT accepted "), "{}", shown(&said));
    Ok(())
}

#[test]
fn gate_s_own_statistics_are_charged_like_a_request() -> Result<()> {
    let store = Listening::memcached()?;
    let poor =
        "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.0/8\"]\nquota = \"0.01 RU/s\"\nburst = \"220s\"";
    let price = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";
    let gate = Listening::gate("memcached", store.address, price, poor)?;
    let mut client = gate.connect()?;
    client.write_all(&ASKED.repeat(3))?;
    let said = String::from_utf8(read_until(&mut client, b"reason=quota bucket=poor\r\n")?)?;
    ensure!(said.matches("END\r\n").count() == 2, "{said}");
    let tenants = gate.json(&["tenants"])?["tenants"].take();
    ensure!(tenants[0]["passed"] == 2, "{tenants}");
    Ok(())
}

#[test]
fn own_statistics_are_not_rendered_for_every_request() -> Result<()> {
    const MANY: usize = 20;
    let store = Listening::memcached()?;
    let all = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
    let gate = Listening::gate("memcached", store.address, "", all)?;
    let mut client = gate.connect()?;
    client.write_all(&[&ASKED.repeat(MANY)[..], b"nonsense\r\n"].concat())?;
    let said = String::from_utf8(read_until(&mut client, b"END\r\nERROR\r\n")?)?;
    // Each of them counts one request more, if it is looked at.
    let counts = said.lines().filter(|line| line.starts_with("STAT requests "));
    let mut counts: Vec<&str> = counts.collect();
    ensure!(counts.len() == MANY, "{said}");
    counts.dedup();
    ensure!(counts.len() <= 2, "{counts:?}");
    Ok(())
}
