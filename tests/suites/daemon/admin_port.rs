//! The TCP port of the admin interface: who is shown what, and what is refused.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::{Answer, curl, parse, say};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::schema;
use gate_tests::wait::{wait_until, within};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const TENANT: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"5000 RU/s\"\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A gate with a port, a host and a token, before a store.
struct Site {
    gate: Listening,
    store: Option<Listening>,
    port: SocketAddr,
    token: PathBuf,
}

impl Site {
    fn new() -> Result<Self> {
        Self::with(TENANT)
    }

    fn with(tenants: &str) -> Result<Self> {
        let port = address();
        let token = std::env::temp_dir().join(format!("gate-token-{}-{}", std::process::id(), port.ip()));
        std::fs::write(&token, format!("{TOKEN}\n"))?;
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
        let store = Listening::embedded("memcached")?;
        let section = format!(
            "threads = \"1\"\nadmin_http = \"{port}\"\nadmin_hosts = [\"gate.example\"]\nadmin_token_file = {token:?}"
        );
        let gate = Listening::gate_with(&section, "memcached", store.address, "", tenants)?;
        Ok(Self { gate, store: Some(store), port, token })
    }

    fn curl(&self, path: &str, arguments: &[&str]) -> Result<Answer> {
        curl(&[&[format!("http://{}{path}", self.port).as_str()], arguments].concat())
    }

    /// An answer to bytes that curl would not send.
    fn say(&self, bytes: &[u8]) -> Result<Answer> {
        let stream = TcpStream::connect(self.port)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let said = say(stream, bytes)?;
        parse(&said)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.token);
    }
}

#[test]
fn the_port_shows_documents_and_keys_against_a_token_alone() -> Result<()> {
    let site = Site::new()?;
    for path in ["/live", "/ready", "/v1/status", "/v1/tenants", "/v1/queues"] {
        wait_until(path, || Ok(site.curl(path, &[])?.status == 200))?;
        let answer = site.curl(path, &[])?;
        for header in ["content-security-policy: default-src 'none'", "x-content-type-options: nosniff"] {
            ensure!(answer.head.contains(header), "{path}: {answer:?}");
        }
        ensure!(!answer.head.contains("access-control"), "{path}: {answer:?}");
        let name = path.rsplit('/').next().context("no name")?;
        let printed = Command::new(paths::gate()).args(["schema", name]).output()?;
        schema::check(&serde_json::from_slice(&printed.stdout)?, &answer.json()?).context(path)?;
        let head = site.curl(path, &["--head"])?;
        ensure!(head.status == 200 && head.body.is_empty(), "{path}: {head:?}");
    }
    let right = format!("Authorization: Bearer {TOKEN}");
    let wrong = format!("Authorization: Bearer {}", TOKEN.replace('f', "e"));
    let basic = format!("Authorization: Basic {TOKEN}");
    for (arguments, status) in [
        (&[][..], 401),
        (&["--header", &wrong][..], 401),
        (&["--header", &basic], 401),
        (&["--header", "Authorization: Bearer "], 401),
        (&["--header", &right], 200),
    ] {
        let answer = site.curl("/v1/hotkeys", arguments)?;
        ensure!(answer.status == status, "{arguments:?}: {answer:?}");
        ensure!(status == 200 || answer.head.contains("www-authenticate: bearer"), "{answer:?}");
    }
    Ok(())
}

#[test]
fn other_hosts_and_methods_are_refused_whatever_the_path() -> Result<()> {
    let site = Site::new()?;
    for path in ["/v1/tenants", "/v1/hotkeys", "/v1/set", "/live", "/money"] {
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9911", ""] {
            let answer = site.curl(path, &["--header", &format!("Host: {host}")])?;
            // curl leaves an empty header out.
            ensure!(answer.status == 421 && answer.error()?.contains("Host header"), "{host}: {answer:?}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let answer = site.curl(path, &["--request", method, "--data", "{}"])?;
            ensure!(answer.status == 405 && answer.head.contains("allow: get, head"), "{method}: {answer:?}");
        }
    }
    for host in ["localhost", "LOCALHOST:1", "gate.example", "[::1]:9911", "198.18.0.1"] {
        let answer = site.curl("/v1/tenants", &["--header", &format!("Host: {host}")])?;
        ensure!(answer.status == 200, "{host}: {answer:?}");
    }
    let twice = "GET /v1/tenants HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n";
    let absolute = "GET http://evil.example/v1/tenants HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let none = "GET /v1/tenants HTTP/1.0\r\n\r\n";
    for request in [twice, absolute, none] {
        let answer = site.say(request.as_bytes())?;
        ensure!(answer.status == 421, "{request}: {answer:?}");
    }
    ensure!(site.gate.json(&["set", "--list"])?["overrides"] == Value::Array(Vec::new()));
    Ok(())
}

#[test]
fn it_is_ready_with_a_dead_store_and_not_while_it_drains() -> Result<()> {
    let mut site = Site::new()?;
    let ready = |site: &Site| site.curl("/ready", &[])?.json();
    wait_until("it is ready", || Ok(ready(&site)?["stores_down"] == Value::Array(Vec::new())))?;
    drop(site.store.take());
    wait_until("it says that the store is down", || {
        let now = ready(&site)?;
        Ok(now["stores_down"][0] == "store" && now["ready"] == true)
    })?;
    // A client that stays has it drain.
    let client = site.gate.connect()?;
    wait_until("it has a client", || {
        Ok(site.gate.json(&["queues"])?["services"][0]["events"]["accepted"].as_u64() > Some(0))
    })?;
    site.gate.signal(Signal::SIGTERM)?;
    wait_until("it drains", || {
        let answer = site.curl("/ready", &[])?;
        Ok(answer.status == 503 && answer.json()?["listening"] == false)
    })?;
    ensure!(site.curl("/live", &[])?.status == 200);
    drop(client);
    wait_until("it ends", || Ok(!site.gate.program().is_running()?))
}

#[test]
fn a_gate_whose_ticks_have_stopped_says_that_it_does_not_live() -> Result<()> {
    let site = Site::new()?;
    wait_until("it lives", || Ok(site.curl("/live", &[])?.status == 200))?;
    // The thread that ticks waits for a configuration that nobody writes.
    let config = site.gate.files()?.0.to_owned();
    let text = std::fs::read(&config)?;
    std::fs::remove_file(&config)?;
    mkfifo(&config, Mode::S_IRWXU)?;
    site.gate.signal(Signal::SIGHUP)?;
    let health = |path: &str| {
        let answer = site.curl(path, &[])?;
        anyhow::Ok((answer.status, answer.json()?))
    };
    wait_until("it does not live", || {
        let (status, live) = health("/live")?;
        ensure!((status == 200) == (live["live"] == true), "{status} {live}");
        Ok(status == 503 && live["tick_age_ms"].as_u64() >= Some(3 * live["tick_ms"].as_u64().unwrap_or(0)))
    })?;
    let (status, ready) = health("/ready")?;
    ensure!(status == 503 && ready["plan"] == false, "{ready}");
    std::fs::write(&config, text)?;
    wait_until("it lives again", || Ok(health("/live")?.0 == 200 && health("/ready")?.0 == 200))
}

/// The last words of a gate that cannot start with this in its section `[gate]`.
fn fails(section: &str) -> Result<String> {
    fails_as(&["run", "--config"], section)
}

/// The last words of a command whose last argument is this configuration, and which fails.
fn fails_as(arguments: &[&str], section: &str) -> Result<String> {
    let place = std::env::temp_dir().join(format!("gate-port-{}-{}", std::process::id(), address().ip()));
    let text = format!(
        "[gate]\nxdp = \"off\"\nadmin = \"off\"\n{section}\n[[service]]\nname = \"store\"\nprotocol = \"memcached\"\n\
         listen = \"{}\"\nbackend = \"127.0.0.1:1\"\n{TENANT}",
        address()
    );
    std::fs::write(&place, text)?;
    let mut command = Command::new(paths::gate());
    command.args(arguments).arg(&place);
    let said = ChildProcess::start("gate", command)?.finish(PATIENCE).err().map(|error| error.to_string());
    std::fs::remove_file(&place)?;
    said.context("it did not fail")
}

#[test]
fn ports_in_use_and_useless_tokens_end_the_start() -> Result<()> {
    let taken = TcpListener::bind(address())?;
    let at = taken.local_addr()?;
    let said = fails(&format!("admin_http = \"{at}\""))?;
    ensure!(
        said.contains(&format!("cannot listen at {at} (`admin_http`"))
            && said.contains("another program listens there"),
        "{said}"
    );
    let site = Site::new()?;
    let said = fails(&format!("admin_http = \"{}\"", site.port))?;
    ensure!(said.contains("cannot listen at"), "another gate's: {said}");
    for (text, mode, why) in
        [("short", 0o600, "16 to 1,024"), (TOKEN, 0o604, "everyone may open it (mode 604)")]
    {
        std::fs::write(&site.token, text)?;
        std::fs::set_permissions(&site.token, std::fs::Permissions::from_mode(mode))?;
        let section = format!("admin_http = \"{}\"\nadmin_token_file = {:?}", address(), site.token);
        for command in [["run", "--config"].as_slice(), &["check"]] {
            let said = fails_as(command, &section)?;
            ensure!(said.contains(why), "{said}");
        }
    }
    Ok(())
}

#[test]
fn a_reload_says_that_the_port_counts_from_the_next_start() -> Result<()> {
    let mut site = Site::new()?;
    let (config, _) = site.gate.files()?;
    let text = std::fs::read_to_string(config)?;
    std::fs::write(config, text.replace("gate.example", "other.example"))?;
    site.gate.signal(Signal::SIGHUP)?;
    site.gate.program().wait_for("gate.admin_hosts counts from the next start only", PATIENCE)?;
    let (_, socket) = site.gate.files()?;
    let status = String::from_utf8(site.gate.command(&["status"])?.stdout)?;
    ensure!(status.contains("\ncounts from the next start only: gate.admin_hosts\n"), "{status}");
    let listens = format!("\nlistens at {} (admin), {} (admin_http)\n", socket.display(), site.port);
    ensure!(status.contains(&listens), "{status}");
    Ok(())
}

#[test]
fn a_takeover_refuses_no_connection_to_the_port() -> Result<()> {
    let mut site = Site::new()?;
    wait_until("it lives", || Ok(site.curl("/live", &[])?.status == 200))?;
    let over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let port = site.port;
    let (config, _) = site.gate.files()?;
    let config = config.to_owned();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while !over.load(Ordering::Relaxed) {
                        let mut stream = TcpStream::connect(port).context("refused")?;
                        stream.set_read_timeout(Some(PATIENCE))?;
                        stream.write_all(b"GET /v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
                        let answer = parse(&say(stream, b"")?)?;
                        ensure!(answer.status == 200, "{answer:?}");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let taken_over = (|| {
            let mut command = Command::new(paths::gate());
            command.args(["run", "--takeover", "--config"]).arg(&config);
            let mut next = ChildProcess::start("gate", command)?;
            next.wait_for("running without XDP", PATIENCE)?;
            let before = answered.load(Ordering::Relaxed);
            wait_until("the old one ends", || Ok(!site.gate.program().is_running()?))?;
            wait_until("the next one answers", || Ok(answered.load(Ordering::Relaxed) > before + 200))?;
            anyhow::Ok(next)
        })();
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        taken_over?.end()
    })?;
    Ok(())
}

#[test]
fn floods_of_the_port_leave_the_tick_and_readers_alone() -> Result<()> {
    let site = Site::new()?;
    wait_until("it lives", || Ok(site.curl("/live", &[])?.status == 200))?;
    let before = site.gate.memory()?;
    let idle: Vec<_> = (0..1_000).map(|_| TcpStream::connect(site.port)).collect::<Result<_, _>>()?;
    let head = b"GET /v1/tenants HTTP/1.1\r\nhost: localhost\r\n".to_vec();
    let endless: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(site.port)?;
            stream.write_all(&head)?;
            // Whoever is cut off may say no more.
            let _ = stream.write_all(&b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(1_000));
            Ok(stream)
        })
        .collect::<Result<_>>()?;
    let took = within("a reader is answered", PATIENCE, || Ok(site.curl("/live", &[])?.status == 200))?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    let grown = site.gate.memory()?.saturating_sub(before);
    ensure!(grown < 32 << 20, "{grown} bytes");
    drop((idle, endless));
    Ok(())
}

#[test]
fn who_reads_nothing_keeps_nobody_from_hearing_that_gate_lives() -> Result<()> {
    let tenants = (0..3_000).map(|number| {
        let source = format!("10.{}.{}.0/24", number / 256, number % 256);
        format!("[[tenant]]\nname = \"tenant-{number}\"\nsources = [\"{source}\"]\nquota = \"5000 RU/s\"\n")
    });
    let site = Site::with(&tenants.collect::<String>())?;
    wait_until("it lives", || Ok(site.curl("/live", &[])?.status == 200))?;
    let whole = site.curl("/v1/tenants", &[])?;
    ensure!(whole.body.len() > 512 << 10, "{} bytes are read by the kernel", whole.body.len());
    // Three times as many as are answered at once.
    let silent: Vec<_> = (0..48)
        .map(|_| {
            let mut stream = TcpStream::connect(site.port)?;
            stream.write_all(b"GET /v1/tenants HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
            Ok(stream)
        })
        .collect::<Result<_>>()?;
    for path in ["/live", "/ready"] {
        // That its ticks are late, as on a busy machine, is an answer as well.
        let mut longest = Duration::ZERO;
        wait_until("it is well", || {
            let asked = Instant::now();
            let status = site.curl(path, &[])?.status;
            longest = longest.max(asked.elapsed());
            Ok(status == 200)
        })?;
        // One that reads nothing is closed after 5 s.
        ensure!(longest < Duration::from_secs(4), "{path}: {longest:?}");
    }
    drop(silent);
    Ok(())
}
