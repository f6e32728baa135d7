//! A store that accepts connections and says nothing: how many it is burdened with.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const CLIENTS: usize = 300;
/// Two threads with three shared connections, and 16 that may be made at a time, each.
const MOST: usize = 2 * (3 + 16) + 4;

/// Connections to an address that are established, or about to be, as the kernel sees the end that made them.
fn connections_to(address: SocketAddr) -> Result<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let SocketAddr::V4(address) = address else { return Ok(0) };
    let ip = u32::from_ne_bytes(address.ip().octets());
    let remote = format!("{ip:08X}:{:04X}", address.port());
    let is_ours = |line: &&str| {
        let mut words = line.split_ascii_whitespace().skip(2);
        words.next() == Some(&remote) && matches!(words.next(), Some("01" | "02"))
    };
    Ok(table.lines().filter(is_ours).count())
}

#[test]
fn logins_dedicated_and_large_requests_do_not_pile_up() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("threads = \"2\"", "resp", store.address, "", EVERYONE)?;
    let large = [&b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n"[..], &[b'v'; 1_000]].concat();
    let asked: [&[u8]; 4] = [b"AUTH wrong\r\n", b"SELECT 1\r\n", b"SUBSCRIBE c\r\n", &large];
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| gate.connect()).collect::<Result<_>>()?;
    store.stall()?;
    let before = connections_to(store.address)?;
    let mut most = before;
    for (client, asked) in clients.iter_mut().zip(asked.iter().cycle()) {
        // It may be told before it has sent all.
        let _ = client.write_all(asked);
        most = most.max(connections_to(store.address)?);
    }
    for client in &mut clients {
        let mut said = [0; 200];
        let len = client.read(&mut said)?;
        let said = &said[..len];
        ensure!(said.starts_with(b"-") && shown(said).contains("reason=store-down"), "{}", shown(said));
        most = most.max(connections_to(store.address)?);
    }
    ensure!(most <= MOST, "{most} connections, {before} before");
    // It goes on, and so does everything.
    store.signal(Signal::SIGCONT)?;
    wait_until("nobody is let in any more", || {
        let mut client = gate.connect()?;
        client.write_all(b"SELECT 1\r\n")?;
        Ok(read_until(&mut client, b"\r\n")? == b"+OK\r\n")
    })
}
