//! Clients that come by a proxy which says whose their connections are.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;

const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const DIRECT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 8);

const SERVICE: &str = "proxy_protocol = \"on\"\ntrusted = [\"127.0.0.9\"]";

const TENANTS: &str = r#"
[[tenant]]
name = "v4"
sources = ["198.18.0.0/16"]
quota = "unlimited"
max_connections = "2"
[[tenant]]
name = "v6"
sources = ["fd00::/8"]
quota = "unlimited"
[[tenant]]
name = "proxy"
sources = ["127.0.0.9"]
quota = "unlimited"
[[tenant]]
name = "direct"
sources = ["127.0.0.8"]
quota = "unlimited"
"#;

fn header(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    [b"\r\n\r\n\0\r\nQUIT\n", &[version, family][..], &(rest.len() as u16).to_be_bytes(), rest].concat()
}

/// The header of a connection of this client's.
fn header_of(client: IpAddr) -> Vec<u8> {
    match client {
        IpAddr::V4(client) => header(0x21, 0x11, &[&client.octets()[..], &[0; 8]].concat()),
        IpAddr::V6(client) => header(0x21, 0x21, &[&client.octets()[..], &[0; 20]].concat()),
    }
}

fn passed(gate: &Listening, name: &str) -> Result<u64> {
    gate.json(&["tenants", name])?["tenants"][0]["passed"].as_u64().context("no such tenant")
}

/// True if a connection is closed without a reply.
fn is_closed(mut client: TcpStream) -> Result<bool> {
    let mut said = Vec::new();
    // What it has sent and nobody has read may come back as a reset.
    let ended = client.read_to_end(&mut said);
    ensure!(said.is_empty(), "{}", shown(&said));
    Ok(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset))
}

#[test]
fn a_client_is_whoever_a_trusted_proxy_says() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate_with("tick = \"10ms\"", "memcached", store.address, SERVICE, TENANTS)?;
    let v4 = header_of("198.18.7.1".parse()?);
    let with_extensions = header(0x21, 0x11, &[&v4[16..], &[4, 0x0f, 0][..], &[0; 3_840]].concat());
    for (header, tenant) in [
        (v4.clone(), "v4"),
        (with_extensions, "v4"),
        (header_of("::ffff:198.18.7.1".parse()?), "v4"),
        (header_of("fd00::7".parse()?), "v6"),
        (header(0x20, 0x00, b""), "proxy"),
        (header(0x20, 0x11, &v4[16..]), "proxy"),
        (header(0x21, 0x00, b""), "proxy"),
    ] {
        let before = passed(&gate, tenant)?;
        // In one piece with a request, and byte by byte.
        for piece in [usize::MAX, 1] {
            let mut client = gate.connect_from(PROXY)?;
            let bytes = [&header[..], b"get a\r\n"].concat();
            bytes.chunks(piece.min(bytes.len())).try_for_each(|piece| client.write_all(piece))?;
            ensure!(read_until(&mut client, b"\r\n")? == b"END\r\n", "{tenant}");
            client.write_all(b"get a\r\n")?;
            ensure!(read_until(&mut client, b"\r\n")? == b"END\r\n", "{tenant}");
        }
        wait_until(tenant, || Ok(passed(&gate, tenant)? == before + 4))?;
    }
    // A tenant may have two; whatever address they come by.
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut client = gate.connect_from(PROXY)?;
        client.write_all(&[&v4[..], b"get a\r\n"].concat())?;
        let said = read_until(&mut client, b"\r\n")?;
        ensure!((said == b"END\r\n") == (number < 2), "{number}: {}", shown(&said));
        clients.push(client);
    }
    let mut unknown = gate.connect_from(PROXY)?;
    unknown.write_all(&[&header_of("127.9.9.9".parse()?)[..], b"get a\r\n"].concat())?;
    ensure!(read_until(&mut unknown, b"\r\n")?.ends_with(b"reason=unknown-source\r\n"));
    ensure!(counter(&gate, "header-rejected")? == 0);
    Ok(())
}

#[test]
fn what_is_no_header_of_a_trusted_proxy_is_closed() -> Result<()> {
    let store = Listening::memcached()?;
    let mut gate = Listening::gate_with("tick = \"10ms\"", "memcached", store.address, SERVICE, TENANTS)?;
    let v4 = header_of("198.18.7.1".parse()?);
    let of_proxy = [
        b"get a\r\n".to_vec(),
        b"\r\n\r\n\0\r\nQUIT\r".to_vec(),
        b"PROXY TCP4 198.18.7.1 127.0.0.1 1 2\r\nget a\r\n".to_vec(),
        header(0x11, 0x11, &v4[16..]),
        header(0x22, 0x11, &v4[16..]),
        // A datagram's, a Unix socket's, one that is not known.
        header(0x21, 0x12, &v4[16..]),
        header(0x21, 0x31, &[0; 216]),
        header(0x21, 0x51, &v4[16..]),
        header(0x21, 0x11, &v4[16..27]),
        header(0x21, 0x11, &[0; 4_097]),
        header(0x21, 0x21, &[0; 65_535]),
    ];
    let mut rejected = 0;
    for bytes in &of_proxy {
        let mut client = gate.connect_from(PROXY)?;
        // It may be closed before it has sent all.
        let _ = client.write_all(bytes);
        ensure!(is_closed(client)?, "{}", shown(&bytes[..bytes.len().min(40)]));
        rejected += 1;
    }
    for len in [1, 12, 16, 27] {
        let mut client = gate.connect_from(PROXY)?;
        client.write_all(&v4[..len])?;
        client.shutdown(std::net::Shutdown::Write)?;
        ensure!(is_closed(client)?, "{len} bytes");
        rejected += 1;
    }
    // Whoever is not trusted is itself, and may not say otherwise.
    let mut client = gate.connect_from(DIRECT)?;
    client.write_all(&[&v4[..], b"get a\r\n"].concat())?;
    ensure!(is_closed(client)?, "an untrusted header");
    rejected += 1;
    let mut direct = gate.connect_from(DIRECT)?;
    direct.write_all(b"get a\r\n")?;
    ensure!(read_until(&mut direct, b"\r\n")? == b"END\r\n");
    // Nobody minds a connection that says nothing.
    drop(gate.connect_from(PROXY)?);
    wait_until("they are not counted", || Ok(counter(&gate, "header-rejected")? == rejected))?;
    ensure!(passed(&gate, "v4")? == 0 && passed(&gate, "direct")? == 1);
    // All are counted, and one is told of.
    let line = "closed a connection";
    gate.program().wait_for(line, PATIENCE)?;
    ensure!(gate.program().wait_for(line, Duration::from_millis(100)).is_err(), "it is said again");
    Ok(())
}

#[test]
fn headers_that_do_not_come_are_not_waited_for() -> Result<()> {
    let store = Listening::memcached()?;
    let service = format!("{SERVICE}\nmax_clients = \"4\"\nmax_unknown_clients = \"0\"");
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, &service, TENANTS)?;
    let v4 = header_of("198.18.7.1".parse()?);
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut client = gate.connect_from(PROXY)?;
        client.write_all(&v4[..20])?;
        slow.push(client);
    }
    // They take the place of clients, as long as they are waited for.
    ensure!(is_closed(gate.connect_from(PROXY)?)?, "a fifth is taken in");
    wait_until("one more is not turned away", || Ok(counter(&gate, "turned-away")? >= 1))?;
    for client in slow {
        ensure!(is_closed(client)?);
    }
    ensure!(counter(&gate, "header-rejected")? == 4);
    let mut client = gate.connect_from(PROXY)?;
    client.write_all(&[&v4[..], b"get a\r\n"].concat())?;
    ensure!(read_until(&mut client, b"\r\n")? == b"END\r\n");
    Ok(())
}

#[test]
fn clients_of_redis_are_whoever_the_proxy_says_too() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate_with("tick = \"10ms\"", "resp", store.address, SERVICE, TENANTS)?;
    let mut client = gate.connect_from(PROXY)?;
    client.write_all(
        &[&header_of("fd00::7".parse()?)[..], b"SET a 1\r\nMULTI\r\nGET a\r\nEXEC\r\n"].concat(),
    )?;
    read_until(&mut client, b"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n")?;
    wait_until("it is not charged", || Ok(passed(&gate, "v6")? == 4))?;
    ensure!(passed(&gate, "proxy")? == 0);
    Ok(())
}
