//! Clients that do not read: what a socket takes for them is no progress.

use std::io::{Read as _, Write as _};

use anyhow::{Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::nginx::Nginx;
use gate_tests::wait::wait_until;

use super::cache::{Directory, FRESH, Origin, wait_open};
use super::hostile::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use super::{client, gate};

/// Answers that are each given at once, and more than sockets take of them.
const LEN: usize = 60_000;
const MANY: usize = 400;

#[test]
fn short_answers_that_are_not_read_end_their_connection() -> Result<()> {
    let store = Nginx::start(&[LEN])?;
    let origin = Origin::start()?;
    origin.put(&format!("/{LEN}"), FRESH, &"x".repeat(LEN));
    let directory = Directory::new("unread-short");
    let kept = format!("client_timeout = \"500ms\"\n{}", directory.cache(""));
    for (address, service) in [(store.address, "client_timeout = \"500ms\""), (origin.address, &kept)] {
        let gate = gate(address, service)?;
        if service == kept {
            wait_open(&gate)?;
        }
        let request = format!("GET /{LEN} HTTP/1.1\r\nhost: test\r\n\r\n");
        let mut unread = client(&gate)?;
        unread.send(request.repeat(MANY).as_bytes())?;
        wait_until("it keeps its answers", || Ok(counter(&gate, "slow-reader")? == 1))?;
        // Who reads them has as long as it takes.
        let mut reader = client(&gate)?;
        reader.send(request.repeat(MANY).as_bytes())?;
        for _ in 0..MANY {
            ensure!(reader.reply(false)?.body.len() == LEN);
        }
        ensure!(counter(&gate, "slow-reader")? == 1);
    }
    Ok(())
}

#[test]
fn http2_streams_without_a_window_end_their_connection() -> Result<()> {
    let store = Nginx::start(&[LEN])?;
    let gate = gate(store.address, "client_timeout = \"500ms\"")?;
    let path = format!("/{LEN}");
    let head = [&b"\x82\x86\x41\x01a"[..], &[0x04, path.len() as u8], path.as_bytes()].concat();
    // No stream may send a byte.
    let no_window = frame(SETTINGS, 0, 0, &[&4_u16.to_be_bytes()[..], &0_u32.to_be_bytes()].concat());
    let mut stream = gate.connect()?;
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
    stream.write_all(&[PREFACE, &no_window, &request].concat())?;
    let mut said = Vec::new();
    // Its end may be a reset.
    let _ = stream.read_to_end(&mut said);
    ensure!(said.len() < LEN, "{} bytes", said.len());
    wait_until("it is counted", || Ok(counter(&gate, "slow-reader")? == 1))?;
    Ok(())
}
