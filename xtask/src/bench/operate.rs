//! The cost of looking at a gate: a scrape of `/metrics`, `gate top`, and viewers of the page.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::json;

use super::machine::Machine;
use crate::lab::process::ChildProcess;
use crate::{paths, run};

const TENANTS: [usize; 2] = [100, 10_000];
const SCRAPES: usize = 30;
const VIEWERS: usize = 16;

/// Measures, for `each` as long, and prints a table.
///
/// # Errors
///
/// If a part cannot be had or fails.
pub(super) fn run(gate: Option<&Path>, each: Duration, json: Option<&Path>) -> Result<()> {
    let gate = if let Some(gate) = gate {
        gate.to_owned()
    } else {
        run::build_gate()?;
        paths::gate()
    };
    let machine = Machine::now()?;
    println!("{}, {}, kernel {}{}", machine.date, machine.state(), machine.kernel, Machine::build());
    let mut rows = Vec::new();
    for tenants in TENANTS {
        let row = measure(&gate, tenants, each)?;
        println!(
            "{tenants} tenants: a scrape of /metrics takes {:.1} ms (median of {SCRAPES})",
            row.scrape_ms
        );
        for (what, share) in &row.cores {
            println!(
                "  {what}: {:.2} % of a core, {:+.2} %",
                share * 100.0,
                (share - row.cores[0].1) * 100.0
            );
        }
        rows.push(json!({ "tenants": tenants, "scrape_ms": row.scrape_ms, "cores": row.cores }));
    }
    if let Some(file) = json {
        fs::write(file, format!("{:#}\n", json!(rows))).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// The cost with so many tenants.
struct Row {
    scrape_ms: f64,
    /// The share of a core that gate takes while somebody looks; first while nobody does.
    cores: [(&'static str, f64); 4],
}

fn measure(gate: &Path, tenants: usize, each: Duration) -> Result<Row> {
    let site = Site::start(gate, tenants)?;
    (0..tenants).try_for_each(|tenant| site.ask(tenant))?;
    let scrape_ms = site.scrape()?.as_secs_f64() * 1e3;
    let closed = site.core_share(each)?;
    let mut top = site.top(gate)?;
    let with_top = site.core_share(each)?;
    ensure!(top.is_running()?, "gate top has ended");
    drop(top);
    let cores = [
        ("nobody looks", closed),
        ("gate top", with_top),
        ("one viewer of the page", site.with_viewers(1, each)?),
        ("16 viewers", site.with_viewers(VIEWERS, each)?),
    ];
    Ok(Row { scrape_ms, cores })
}

/// A gate before a store, both on loopback.
struct Site {
    gate: ChildProcess,
    _store: ChildProcess,
    service: SocketAddr,
    admin: SocketAddr,
    socket: PathBuf,
    config: PathBuf,
}

impl Site {
    fn start(gate: &Path, tenants: usize) -> Result<Self> {
        let [service, store, admin] = free_addresses()?;
        let name = std::env::temp_dir().join(format!("gate-operate-{}", std::process::id()));
        let socket = name.with_extension("sock");
        let config = name.with_extension("toml");
        let mut text = format!(
            "[gate]\nxdp = \"off\"\nadmin = {socket:?}\nadmin_http = \"{admin}\"\n[[service]]\nname = \"store\"\n\
             protocol = \"memcached\"\nlisten = \"{service}\"\nbackend = \"{store}\"\n"
        );
        for tenant in 0..tenants {
            let source = source(tenant);
            writeln!(
                text,
                "[[tenant]]\nname = \"t{tenant}\"\nsources = \"{source}\"\nquota = \"5000 RU/s\""
            )?;
        }
        fs::write(&config, text)?;
        let mut command = Command::new(gate);
        command.args(["store", "--protocol", "memcached", "--listen", &store.to_string()]);
        let store = ChildProcess::start("gate store", command)?;
        let mut command = Command::new(gate);
        command.arg("run").arg("--config").arg(&config);
        let gate = ChildProcess::start("gate", command)?;
        let site = Self { gate, _store: store, service, admin, socket, config };
        let started = Instant::now();
        while site.ask(0).is_err() {
            ensure!(started.elapsed() < PATIENCE, "gate does not answer");
            thread::sleep(LOOK_EVERY);
        }
        Ok(site)
    }

    /// Has a tenant ask for a key.
    fn ask(&self, tenant: usize) -> Result<()> {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source(tenant), 0)))?;
        let SocketAddr::V4(service) = self.service else { anyhow::bail!("an address of IPv4") };
        connect(fd.as_raw_fd(), &SockaddrIn::from(service))?;
        let mut client = TcpStream::from(fd);
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"get a\r\n")?;
        let mut answer = [0; 5];
        client.read_exact(&mut answer)?;
        ensure!(answer == *b"END\r\n", "{}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// The median time of a scrape.
    fn scrape(&self) -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..SCRAPES {
            let started = Instant::now();
            let mut stream = self.get("/metrics")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            times.push(started.elapsed());
            ensure!(text.contains("gate_tenant_passed_requests_total"), "{text}");
        }
        times.sort();
        Ok(times[SCRAPES / 2])
    }

    fn get(&self, path: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.admin)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        Ok(stream)
    }

    /// `gate top`, in a terminal of its own.
    fn top(&self, gate: &Path) -> Result<ChildProcess> {
        let mut command = Command::new("script");
        let top =
            format!("stty cols 160 rows 50; exec {} top --socket {}", gate.display(), self.socket.display());
        command.args(["--quiet", "--return", "--command", &top, "/dev/null"]).stdin(Stdio::null());
        let top = ChildProcess::start("gate top", command)?;
        thread::sleep(SETTLED);
        Ok(top)
    }

    /// [`Site::core_share`] while so many browsers have the page open.
    fn with_viewers(&self, viewers: usize, each: Duration) -> Result<f64> {
        let streams = (0..viewers).map(|_| self.get("/v1/events")).collect::<Result<Vec<_>>>()?;
        thread::scope(|scope| {
            for mut stream in &streams {
                scope.spawn(move || {
                    // Until it is shut down.
                    let mut buffer = vec![0; 1 << 16];
                    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
                });
            }
            thread::sleep(SETTLED);
            let share = self.core_share(each);
            streams.iter().try_for_each(|stream| stream.shutdown(Shutdown::Both))?;
            share
        })
    }

    /// The share of a core that gate takes, for so long.
    fn core_share(&self, each: Duration) -> Result<f64> {
        let before = self.ran()?;
        let started = Instant::now();
        thread::sleep(each);
        Ok((self.ran()? - before).as_secs_f64() / started.elapsed().as_secs_f64())
    }

    /// How long gate's threads have run.
    fn ran(&self) -> Result<Duration> {
        let mut ns = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.gate.id()))? {
            let said = fs::read_to_string(task?.path().join("schedstat"))?;
            ns += said.split(' ').next().context("no time")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(ns))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = fs::remove_file(&self.config);
    }
}

/// The address of a tenant.
fn source(tenant: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1 + (tenant / 200) as u8, 1 + (tenant % 200) as u8, 1)
}

fn free_addresses() -> Result<[SocketAddr; 3]> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are held until each is known, so that they differ.
    let held = [listen()?, listen()?, listen()?];
    Ok([held[0].local_addr()?, held[1].local_addr()?, held[2].local_addr()?])
}

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Until what has just begun goes on as it will.
const SETTLED: Duration = Duration::from_secs(2);
