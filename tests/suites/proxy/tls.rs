//! TLS: real clients and real stores, and what does not speak it as it should.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::counter;
use gate_tests::proxy::{Listening, PATIENCE, address, read_until, shown};
use gate_tests::tls::{Authority, Issued, TlsClient};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use xtask::paths;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/9\"]\nquota = \"unlimited\"\n";
const NAME: &str = "cache.example";
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 8);
/// Of no tenant.
const UNKNOWN: Ipv4Addr = Ipv4Addr::new(127, 200, 0, 1);

/// The certificate that a service shows its clients.
pub(crate) fn tls(shown: &Issued) -> String {
    format!("tls = {{ certificate = {:?}, key = {:?} }}\n", shown.certificate, shown.key)
}

/// The authority and the name of its store's certificate.
pub(crate) fn backend_tls(ca: &Path, name: &str) -> String {
    format!("backend_tls = {{ ca = {ca:?}, name = \"{name}\" }}\n")
}

/// A Redis that speaks TLS alone.
fn redis(shown: &Issued, ca: &Path) -> Result<Listening> {
    let at = address();
    let [certificate, key, ca] =
        [&*shown.certificate, &*shown.key, ca].map(|path| path.display().to_string());
    let port = at.port().to_string();
    // The last one counts.
    let plain = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"];
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    Listening::redis_at(at, &[&plain[..], &files].concat())
}

fn redis_cli(gate: &Listening, ca: &Path, input: &[u8], arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("redis-cli");
    command.args(["-h", &gate.address.ip().to_string(), "-p", &gate.address.port().to_string()]);
    command.args(["--tls", "--sni", NAME, "--cacert"]).arg(ca).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("its input")?.write_all(input)?;
    Ok(child.wait_with_output()?)
}

#[test]
fn redis_clients_and_a_redis_speak_tls_with_gate() -> Result<()> {
    let authority = Authority::new()?;
    let of_store = authority.issue("store", "DNS:store.example", 30)?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME},IP:127.0.0.1"), 30)?;
    let store = redis(&of_store, &authority.ca())?;
    let service = format!(
        "{}{}hot_keys.threshold = \"1\"",
        tls(&of_gate),
        backend_tls(&authority.ca(), "store.example")
    );
    let gate = Listening::gate("resp", store.address, &service, EVERYONE)?;
    let commands = b"SET a 1\nGET a\nMULTI\nINCR a\nGET a\nEXEC\nPING\nCLIENT SETNAME x\nCONFIG GET port\n";
    let output = redis_cli(&gate, &authority.ca(), commands, &["--no-raw"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected =
        "OK\n\"1\"\nOK\nQUEUED\nQUEUED\n1) (integer) 2\n2) \"2\"\nPONG\nOK\n1) \"port\"\n2) \"0\"\n";
    ensure!(said == expected, "{said} {}", String::from_utf8_lossy(&output.stderr));
    // Longer than what is gathered, and than a record, in both directions.
    let large = vec![b'v'; 300_000];
    let said = redis_cli(&gate, &authority.ca(), &large, &["-x", "SET", "large"])?;
    ensure!(said.stdout == b"OK\n", "{}", shown(&said.stdout));
    let said = redis_cli(&gate, &authority.ca(), b"", &["GET", "large"])?;
    ensure!(said.stdout == [&large[..], b"\n"].concat(), "{} bytes", said.stdout.len());
    // A message that another client publishes.
    let mut subscriber = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
    subscriber.ask(b"SUBSCRIBE news\r\n", b":1\r\n")?;
    ensure!(redis_cli(&gate, &authority.ca(), b"", &["PUBLISH", "news", "x"])?.stdout == b"1\n");
    subscriber.read_until(b"$1\r\nx\r\n")?;
    ensure!(counter(&gate, "tls-failed")? == 0 && counter(&gate, "dedicated-connection")? >= 2);
    Ok(())
}

#[test]
fn memcached_is_spoken_over_tls_by_openssl() -> Result<()> {
    let authority = Authority::new()?;
    let shown_by_gate = authority.issue("gate", "IP:127.0.0.1", 30)?;
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, &tls(&shown_by_gate), EVERYONE)?;
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", version]);
        command.args(["-connect", &gate.address.to_string(), "-CAfile"]).arg(authority.ca());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        child.stdin.take().context("its input")?.write_all(b"set a 0 0 1\r\n1\r\nget a\r\nquit\r\n")?;
        let said = child.wait_with_output()?.stdout;
        ensure!(said == b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n", "{version}: {}", shown(&said));
    }
    // What is older is refused.
    let old = Command::new("openssl")
        .args(["s_client", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0", "-connect", &gate.address.to_string()])
        .stdin(Stdio::null())
        .output()?;
    ensure!(!old.status.success());
    wait_until("it is not counted", || Ok(counter(&gate, "tls-failed")? == 1))
}

#[test]
fn a_client_that_reads_late_gets_every_byte_over_tls() -> Result<()> {
    const VALUES: usize = 400;
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, &tls(&of_gate), EVERYONE)?;
    let mut client = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
    let mut expected = Vec::new();
    for number in 0..4 {
        let value = vec![b'a' + number; 50_000];
        let head = format!("set {number} 0 0 {}\r\n", value.len());
        ensure!(client.ask(&[head.as_bytes(), &value, b"\r\n"].concat(), b"\r\n")? == b"STORED\r\n");
        let head = format!("VALUE {number} 0 {}\r\n", value.len());
        expected.extend_from_slice(&[head.as_bytes(), &value, b"\r\nEND\r\n"].concat());
    }
    // 20 MB of answers, far more than sockets and gate's limits hold before it reads.
    let requests = b"get 0\r\nget 1\r\nget 2\r\nget 3\r\n".repeat(VALUES / 4);
    client.send(&requests)?;
    client.send(b"mn\r\n")?;
    wait_until("gate waits for the client", || Ok(counter(&gate, "requests")? > 20))?;
    gate.rests()?;
    let said = client.read_until(b"MN\r\n")?;
    ensure!(said == [expected.repeat(VALUES / 4), b"MN\r\n".to_vec()].concat(), "{} bytes", said.len());
    Ok(())
}

#[test]
fn a_store_that_shows_another_certificate_is_not_spoken_to() -> Result<()> {
    let authority = Authority::new()?;
    let foreign = Authority::new()?;
    let right = authority.issue("right", "DNS:store.example", 30)?;
    let of_another = authority.issue("other", "DNS:other.example", 30)?;
    let expired = authority.issue("expired", "DNS:store.example", -1)?;
    let of_stranger = foreign.issue("stranger", "DNS:store.example", 30)?;
    for (what, shown, ca, says) in [
        ("another name", &of_another, authority.ca(), "not valid for name"),
        ("an expired one", &expired, authority.ca(), "Expired"),
        ("a stranger's", &of_stranger, authority.ca(), "invalid peer certificate"),
    ] {
        let store = redis(shown, &ca)?;
        let service = backend_tls(&authority.ca(), "store.example");
        let mut gate = Listening::gate("resp", store.address, &service, EVERYONE)?;
        let line = gate.program().wait_for("no TLS with the store", PATIENCE)?;
        ensure!(line.contains(says), "{what}: {line}");
        wait_until("it is asked all the same", || {
            Ok(gate.ask(b"GET a\r\n", b"\r\n")?.ends_with(b"reason=store-down\r\n"))
        })?;
    }
    // A store that speaks plainly, and one to which gate speaks plainly.
    let plain = Listening::redis()?;
    let service = backend_tls(&authority.ca(), "store.example");
    let mut gate = Listening::gate("resp", plain.address, &service, EVERYONE)?;
    // It takes the handshake for an error, or for a line that goes on.
    gate.program().wait_for("the store is down", PATIENCE)?;
    let secure = redis(&right, &authority.ca())?;
    let gate = Listening::gate("resp", secure.address, "store_timeout = \"200ms\"", EVERYONE)?;
    wait_until("it is asked plainly", || {
        Ok(gate.ask(b"GET a\r\n", b"\r\n")?.ends_with(b"reason=store-down\r\n"))
    })
}

#[test]
fn certificates_are_read_again_and_bad_ones_are_not_taken() -> Result<()> {
    let authority = Authority::new()?;
    let foreign = Authority::new()?;
    let old = authority.issue("old", &format!("DNS:{NAME}"), 30)?;
    let new = authority.issue("new", &format!("DNS:{NAME}"), 30)?;
    let of_store = foreign.issue("store", "DNS:store.example", 30)?;
    let used = authority.issue("used", &format!("DNS:{NAME}"), 30)?;
    let take = |issued: &Issued| -> Result<()> {
        std::fs::copy(&issued.certificate, &used.certificate)?;
        std::fs::copy(&issued.key, &used.key)?;
        Ok(())
    };
    let trusted = used.certificate.with_file_name("trusted.pem");
    std::fs::copy(authority.ca(), &trusted)?;
    take(&old)?;
    let store = redis(&of_store, &foreign.ca())?;
    let service = tls(&used) + &backend_tls(&trusted, "store.example");
    let mut gate = Listening::gate("resp", store.address, &service, EVERYONE)?;
    let connect = |gate: &Listening| TlsClient::connect(gate, CLIENT, &authority.ca(), NAME);
    let mut first = connect(&gate)?;
    wait_until("a stranger is asked", || {
        Ok(first.ask(b"PING\r\n", b"\r\n")?.ends_with(b"reason=store-down\r\n"))
    })?;
    ensure!(first.shown() == Some(old.der()?));

    take(&new)?;
    std::fs::copy(foreign.ca(), &trusted)?;
    gate.signal(Signal::SIGHUP)?;
    wait_until("the new certificate is not shown", || {
        let mut client = connect(&gate)?;
        client.ask(b"PING\r\n", b"\r\n")?;
        Ok(client.shown() == Some(new.der()?))
    })?;
    wait_until("the store is not trusted", || Ok(first.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n"))?;

    // A key that is not that of the certificate, and none at all.
    std::fs::copy(&old.key, &used.key)?;
    gate.signal(Signal::SIGHUP)?;
    let line = gate.program().wait_for("the certificate in use stays", PATIENCE)?;
    ensure!(line.contains("tls.key") && line.contains("of another certificate"), "{line}");
    std::fs::write(&used.key, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n")?;
    gate.signal(Signal::SIGHUP)?;
    let line = gate.program().wait_for("the certificate in use stays", PATIENCE)?;
    ensure!(line.contains("no PEM file") && !line.contains("c2VjcmV0"), "{line}");
    let mut client = connect(&gate)?;
    ensure!(client.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n" && client.shown() == Some(new.der()?));
    ensure!(first.ask(b"PING\r\n", b"\r\n")? == b"+PONG\r\n", "a connection keeps its certificate");
    Ok(())
}

#[test]
fn certificates_that_cannot_be_used_are_refused_by_check() -> Result<()> {
    let authority = Authority::new()?;
    let one = authority.issue("one", "DNS:a.example", 30)?;
    let two = authority.issue("two", "DNS:a.example", 30)?;
    let config = one.certificate.with_file_name("gate.toml");
    let check = |tls: &str| -> Result<String> {
        let text = format!(
            "[gate]\nxdp = \"off\"\n[[service]]\nname = \"a\"\nprotocol = \"resp\"\nlisten = \"127.0.0.1:1\"\n\
             backend = \"127.0.0.1:2\"\n{tls}{EVERYONE}"
        );
        std::fs::write(&config, text)?;
        let output = Command::new(paths::gate()).arg("check").arg(&config).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success() != said.contains("service[0]."), "{said}");
        Ok(said)
    };
    let said = check(&(tls(&one) + &backend_tls(&authority.ca(), "a.example")))?;
    ensure!(!said.contains("service[0]."), "{said}");
    let mixed = Issued { certificate: one.certificate.clone(), key: two.key.clone() };
    let swapped = Issued { certificate: one.key.clone(), key: one.certificate.clone() };
    let gone = Issued { certificate: "/nowhere/gate.pem".into(), key: one.key.clone() };
    for (text, says) in [
        (tls(&mixed), "8: service[0].tls.key = "),
        (tls(&mixed), "holds the key of another certificate"),
        (tls(&swapped), "8: service[0].tls.certificate = "),
        (tls(&swapped), "holds no certificate; a PEM file has"),
        (tls(&gone), "tls.certificate = \"/nowhere/gate.pem\": cannot be read by gate: No such file"),
        (backend_tls(&one.key, "a.example"), "8: service[0].backend_tls.ca = "),
    ] {
        let said = check(&text)?;
        ensure!(said.contains(says), "{text}: {said}");
    }
    // It does not start either, and says the same.
    check(&tls(&mixed))?;
    let output = Command::new(paths::gate()).arg("run").arg("--config").arg(&config).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && said.contains("8: service[0].tls.key"), "{said}");
    Ok(())
}

#[test]
fn whoever_mistakes_plain_for_tls_gets_a_clear_end() -> Result<()> {
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    for (protocol, request, refusal) in
        [("memcached", &b"get a\r\n"[..], &b"SERVER_ERROR denied "[..]), ("resp", b"PING\r\n", b"-DENIED ")]
    {
        let store = Listening::embedded(protocol)?;
        let mut gate = Listening::gate(protocol, store.address, &tls(&of_gate), EVERYONE)?;
        let mut plain = gate.connect()?;
        plain.write_all(request)?;
        let said = read_until(&mut plain, b"reason=unsupported\r\n")?;
        ensure!(said.starts_with(refusal), "{}", shown(&said));
        ensure!(is_closed(plain), "it is not closed");
        wait_until("it is not counted", || Ok(counter(&gate, "tls-failed")? == 1))?;
        gate.program().wait_for("it does not speak TLS", PATIENCE)?;
        // Whoever only looks whether gate is there is not counted.
        drop(gate.connect()?);
        let mut client = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
        client.ask(request, b"\r\n")?;
        ensure!(counter(&gate, "tls-failed")? == 1);

        let gate = Listening::gate(protocol, store.address, "", EVERYONE)?;
        let mut client = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
        ensure!(client.ask(request, b"\r\n").is_err());
        wait_until("it is not counted", || Ok(counter(&gate, "tls")? == 1))?;
    }
    Ok(())
}

/// True if nothing more comes, and the connection ends.
fn is_closed(mut client: TcpStream) -> bool {
    let mut rest = Vec::new();
    // What it has sent and nobody has read may come back as a reset.
    let ended = client.read_to_end(&mut rest);
    rest.is_empty() && ended.err().is_none_or(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[test]
fn half_open_handshakes_take_no_more_than_their_slots() -> Result<()> {
    const HALF_OPEN: usize = 1_000;
    const SLOTS: u64 = 100;
    let authority = Authority::new()?;
    let of_gate = authority.issue("gate", &format!("DNS:{NAME}"), 30)?;
    let store = Listening::embedded("memcached")?;
    let plain = address();
    let service = format!(
        "max_clients = \"2000\"\nmax_unknown_clients = \"{SLOTS}\"\nunknown_timeout = \"10s\"\n{}\
         [[service]]\nname = \"plain\"\nprotocol = \"memcached\"\nlisten = \"{plain}\"\nbackend = \"{}\"\nmax_clients = \"2000\"\n",
        tls(&of_gate),
        store.address
    );
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, &service, EVERYONE)?;
    let before = gate.memory()?;
    let mut polite = TcpStream::connect(plain)?;
    polite.set_read_timeout(Some(PATIENCE))?;
    let mut ask = || -> Result<()> {
        polite.write_all(b"get a\r\n")?;
        ensure!(read_until(&mut polite, b"\r\n")? == b"END\r\n");
        Ok(())
    };
    ask()?;
    let mut half_open = Vec::new();
    for number in 0..HALF_OPEN {
        let mut client = gate.connect_from(UNKNOWN)?;
        // The head of a record, and nothing of it.
        let _ = client.write_all(&[22, 3, 1, 2, 0, 1]);
        half_open.push(client);
        if number % 10 == 0 {
            ask()?;
        }
    }
    wait_until("more than there are slots are taken in", || {
        Ok(counter(&gate, "turned-away")? == HALF_OPEN as u64 - SLOTS)
    })?;
    let grown = gate.memory()?.saturating_sub(before);
    ensure!(grown < 16 << 20, "{grown} bytes more");
    // A tenant's client is served meanwhile, of either kind.
    let mut client = TlsClient::connect(&gate, CLIENT, &authority.ca(), NAME)?;
    ensure!(client.ask(b"get a\r\n", b"\r\n")? == b"END\r\n");
    ask()?;
    // They end in time, whatever a tenant's client does.
    wait_until(
        "they are not ended",
        || Ok(counter(&gate, "tls-failed")? + counter(&gate, "idle")? == SLOTS),
    )?;
    ensure!(client.ask(b"get a\r\n", b"\r\n")? == b"END\r\n");
    // One of a tenant's is not waited for either.
    let failed = counter(&gate, "tls-failed")?;
    let mut slow = gate.connect_from(CLIENT)?;
    slow.write_all(&[22])?;
    ensure!(is_closed(slow), "it is not closed");
    ensure!(counter(&gate, "tls-failed")? == failed + 1);
    Ok(())
}
