//! A transaction that gate refuses is refused as a whole: none of its commands runs.

use std::io::Write as _;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};

const NO_MULTI: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n\
                        deny = [\"MULTI\"]";
const REFUSED: &str = "-DENIED reason=unsupported rule=deny\r\n";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";

#[test]
fn what_is_sent_behind_a_refused_multi_does_not_run() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", NO_MULTI)?;
    let mut client = gate.connect()?;
    for (asked, refusals, end, answer) in [
        ("MULTI\r\nSET a 1\r\nINCR b\r\nEXEC\r\n", 3, "ECHO exec\r\n", ABORTED),
        ("MULTI\r\nSET a 1\r\nMULTI\r\nWATCH x\r\nDISCARD\r\n", 4, "ECHO discard\r\n", "+OK\r\n"),
        ("MULTI\r\nSET a 1\r\nRESET\r\n", 2, "ECHO reset\r\n", "+RESET\r\n"),
    ] {
        client.write_all(asked.as_bytes())?;
        client.write_all(end.as_bytes())?;
        let word = end.trim_end().trim_start_matches("ECHO ");
        let echoed = format!("${}\r\n{word}\r\n", word.len());
        let said = String::from_utf8(read_until(&mut client, echoed.as_bytes())?)?;
        let expected = REFUSED.repeat(refusals) + answer + &echoed;
        ensure!(said == expected, "{asked:?}: {said:?}");
    }
    // A value that is passed on as it comes is a part of it as well.
    let long = [&b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n"[..], &[b'v'; 100_000], b"\r\n"].concat();
    client.write_all(&[b"MULTI\r\n", &long[..], b"EXEC\r\n"].concat())?;
    let said = read_until(&mut client, ABORTED.as_bytes())?;
    ensure!(said == (REFUSED.repeat(2) + ABORTED).as_bytes(), "{}", shown(&said));
    let said = store.ask(b"EXISTS a b\r\n", b"\r\n")?;
    ensure!(said == b":0\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn nor_does_it_on_a_dedicated_connection() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", NO_MULTI)?;
    for end in ["EXEC", "DISCARD"] {
        let mut client = gate.connect()?;
        client.write_all(b"WATCH unused\r\n")?;
        read_until(&mut client, b"+OK\r\n")?;
        client.write_all(format!("MULTI\r\nSET a 1\r\nINCR b\r\n{end}\r\nSET c 1\r\n").as_bytes())?;
        let said = String::from_utf8(read_until(&mut client, b"+OK\r\n")?)?;
        let lines: Vec<&str> = said.split_terminator("\r\n").collect();
        ensure!(lines.len() == 5 && lines[..4].iter().all(|line| line.starts_with("-ERR ")), "{said}");
        // The store is not asked to end a transaction that it does not know.
        ensure!(lines[3].contains(if end == "EXEC" { "EXECABORT" } else { "DENIED" }), "{said}");
        let said = store.ask(b"EXISTS a b\r\n", b"\r\n")?;
        ensure!(said == b":0\r\n", "{}", shown(&said));
    }
    Ok(())
}
