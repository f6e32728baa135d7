//! An owner's connections: how many there may be, and how long they may be of no use.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use gate_tests::fleet::{LIMIT, Owner, Peer, TENANTS, section};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::tls::{Authority, TlsClient};
use gate_tests::wait::wait_until;

/// A connection that says this and nothing more.
fn silent(owner: SocketAddr, word: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(owner)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word)?;
    Ok(stream)
}

/// True if the owner has closed a connection, which may have said something before.
fn is_closed(mut stream: &TcpStream) -> bool {
    let mut bytes = [0; 1_024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
            }
        }
    }
}

#[test]
fn silent_connections_keep_no_gate_out_and_are_closed() -> Result<()> {
    let authority = Authority::new()?;
    let store = Listening::memcached()?;
    let bounds = "max_connections_per_source = \"8\"\n";
    let at = address();
    let host = at.ip().to_string();
    let shown = Peer::new(&authority, "owner", &format!("IP:{host}"))?;
    let of_gate = Peer::new(&authority, "gate-1", "DNS:gate-1")?;
    let hello = TlsClient::hello(&authority.ca(), &host)?;
    let words: [&[u8]; 3] = [b"", &hello[..hello.len() / 2], &hello];
    for (owner, tls, words) in [
        (
            Owner::start_with(address(), bounds, LIMIT)?,
            String::new(),
            [&b""[..], b"PRI", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        ),
        (Owner::start_tls(at, &shown, bounds, LIMIT)?, of_gate.tls(), words),
    ] {
        let silent: Vec<_> =
            (0..24).map(|place| silent(owner.address, words[place % 3])).collect::<Result<_>>()?;
        let fleet = section(&[&owner], "gate-1") + &tls;
        let gate = Listening::gate_with(&fleet, "memcached", store.address, "", TENANTS)?;
        wait_until("the gate reports", || Ok(owner.gates()? == 1))?;
        ensure!(owner.count("gave-way")? >= 17, "{}", owner.show()?);
        ensure!(silent.iter().all(is_closed), "a silent connection goes on");
        ensure!(owner.count("silent")? > 0, "{}", owner.show()?);
        ensure!(owner.gates()? == 1);
        drop(gate);
    }
    Ok(())
}

#[test]
fn gates_that_report_give_way_to_nobody() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start_with(address(), "max_connections = \"2\"\n", LIMIT)?;
    let gate = |name: &str| {
        let gate = Listening::gate_with(&section(&[&owner], name), "memcached", store.address, "", TENANTS)?;
        gate.ask(b"get k\r\n", b"\r\n")?;
        anyhow::Ok(gate)
    };
    let first = gate("gate-1")?;
    wait_until("the first reports", || Ok(owner.gates()? == 1))?;
    let mut second = gate("gate-2")?;
    second.program().wait_for("reporting to an owner", PATIENCE)?;
    let mut third = gate("gate-3")?;
    third.program().wait_for("cannot report to an owner", PATIENCE)?;
    ensure!(owner.show().is_err(), "there is no room for people either");
    drop(second);
    third.program().wait_for("reporting to an owner", PATIENCE)?;
    drop(first);
    wait_until("the third reports", || Ok(owner.show().is_ok() && owner.gates()? == 1))?;
    ensure!(owner.count("no-room")? > 0, "{}", owner.show()?);
    Ok(())
}
