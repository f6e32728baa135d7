//! Lines for which memcached closes a connection do not reach one that others share.

use std::io::Write as _;

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, read_until, shown};

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";

#[test]
fn memcached_closes_a_connection_for_a_long_line_that_is_no_get() -> Result<()> {
    // What the rest of this module is about: if it holds no more, gate can be less strict.
    let store = Listening::memcached()?;
    let blanks = " ".repeat(20_000);
    for line in [
        format!("touch a{blanks}0\r\n"),
        format!("gat 0{}\r\n", " abcdefghi".repeat(2_000)),
        format!("{blanks}get a\r\n"),
    ] {
        let mut client = store.connect()?;
        client.write_all(line.as_bytes())?;
        ensure!(read_until(&mut client, b"\r\n").is_err(), "{} is served", &line[..10]);
    }
    Ok(())
}

#[test]
fn long_lines_of_one_client_cost_no_other_its_answers() -> Result<()> {
    let store = Listening::memcached()?;
    let one = "connections = \"1\"";
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, one, EVERYONE)?;
    let blanks = " ".repeat(20_000);
    let keys: String = (0..2_000).map(|number| format!(" key-{number:05}")).collect();
    let misses: &[u8] = b"END\r\n";
    let lines: [(String, &[u8]); 9] = [
        (format!("touch a{blanks}0\r\n"), TOO_LONG),
        (format!("incr a {blanks}1\r\n"), TOO_LONG),
        (format!("delete{blanks}a\r\n"), TOO_LONG),
        (format!("set a 0 0{blanks}5\r\nhello\r\n"), TOO_LONG),
        (format!("mg a v{blanks}t\r\n"), TOO_LONG),
        (format!("gat {blanks}0 a\r\n"), TOO_LONG),
        (format!("gat 0{keys}\r\n"), misses),
        (format!("{blanks}get{keys}\r\n"), misses),
        (format!("bget{keys}\r\n"), misses),
    ];
    let mut polite = gate.connect()?;
    let mut hostile = gate.connect()?;
    polite.write_all(b"set mine 0 0 1\r\n1\r\n")?;
    read_until(&mut polite, b"STORED\r\n")?;
    for (line, expected) in lines {
        for _ in 0..5 {
            hostile.write_all(line.as_bytes())?;
            polite.write_all(b"get mine\r\n")?;
            let said = read_until(&mut polite, b"\r\nEND\r\n")?;
            ensure!(said == b"VALUE mine 0 1\r\n1\r\nEND\r\n", "{}: {}", &line[..10], shown(&said));
            let said = read_until(&mut hostile, expected)?;
            ensure!(said == expected, "{}: {}", &line[..10], shown(&said));
        }
    }
    ensure!(counter(&gate, "store-failed")? == 0, "the store has closed a connection");
    Ok(())
}

#[test]
fn a_long_gat_finds_all_its_values_and_has_one_end() -> Result<()> {
    const MANY: usize = 3_000;
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", EVERYONE)?;
    let mut client = gate.connect()?;
    let mut keys = String::new();
    let mut values = String::new();
    for number in 0..MANY {
        let key = format!("key-{number:05}");
        keys += &format!(" {key}");
        if number % 7 == 0 {
            client.write_all(format!("set {key} 0 0 5 noreply\r\n{number:05}\r\n").as_bytes())?;
            values += &format!("VALUE {key} 0 5\r\n{number:05}\r\n");
        }
    }
    // A later request finds its answer behind it.
    client.write_all(format!("gat 100{keys}\r\nget key-00007\r\n").as_bytes())?;
    let expected = format!("{values}END\r\nVALUE key-00007 0 5\r\n00007\r\nEND\r\n");
    let mut said = Vec::new();
    while said.len() < expected.len() {
        said.extend(read_until(&mut client, b"END\r\n")?);
    }
    ensure!(said == expected.as_bytes(), "{}", shown(&said));
    // What is wrong with it is told once.
    client.write_all(format!("gat never{keys}\r\nget none\r\n").as_bytes())?;
    let said = read_until(&mut client, b"END\r\n")?;
    ensure!(said == b"CLIENT_ERROR invalid exptime argument\r\nEND\r\n", "{}", shown(&said));
    Ok(())
}
