//! HTTP: nginx asked directly, through gate, and through another nginx (`proxy_pass`); refusals by gate for a tenant's quota beside
//! those of nginx's `limit_req`; and answers that gate has in memory beside those of nginx's `proxy_cache` on a file system in memory.
//!
//! Every load runs against every target in turn, round by round; the medians are shown. CPU time is the scheduler's own
//! accounting of the proxy, which has a CPU to itself; client and origin share another, with and without a proxy.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::Args;
use super::cores::Dealt;
use super::load::{Answer, Load, NUMBERS};
use super::machine::Machine;
use super::proxy::{at, start};
use crate::lab::process::ChildProcess;
use crate::setup::{self, Purpose};
use crate::{paths, run};

/// Measures, and prints a table.
pub(super) fn run(args: &Args) -> Result<()> {
    setup::setup(Purpose::Bench)?;
    let gate = match &args.gate {
        Some(gate) => gate.clone(),
        None => {
            run::build_gate()?;
            paths::gate()
        }
    };
    let machine = Machine::now()?;
    println!("{}, {}, kernel {}{}", machine.date, machine.state(), machine.kernel, Machine::build());
    let field = Field::set_up(args.cores.deal()?, &gate)?;
    let mut rows = Vec::new();
    let only = args.only.as_deref().unwrap_or_default();
    for load in LOADS.iter().filter(|load| load.name.contains(only)) {
        let asked = field.targets.iter().filter(|target| target.kind == load.kind);
        let mut measured: Vec<Vec<Row>> = asked.clone().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for (target, rounds) in asked.clone().zip(&mut measured) {
                rounds.push(measure(load, target, args.each())?);
            }
        }
        let medians: Vec<Row> = measured.into_iter().map(median).collect();
        medians.iter().for_each(|row| println!("{}", row.line()));
        let of = |name: &str| medians.iter().find(|row| row.target == name);
        if let (Some(gate), Some(nginx)) = (of(GATE), of(NGINX)) {
            println!(
                "{:<16} gate takes {:.2} times nginx' CPU time, {:.2} beyond idle",
                load.name,
                gate.cpu_us / nginx.cpu_us,
                gate.beyond_idle_us / nginx.beyond_idle_us
            );
        }
        rows.extend(medians);
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_string_pretty(&rows)?).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// A load, and which targets it is for.
struct Named {
    name: &'static str,
    request: &'static str,
    kind: Kind,
    /// As of [`Load`].
    pause: Duration,
}

/// A target, by what it does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Passing,
    Refusing,
    /// One that answers from its cache.
    Caching,
}

const LOADS: [Named; 7] = [
    named("GET 100 B", "GET /100 HTTP/1.1\r\nHost: bench\r\n\r\n", Kind::Passing),
    named("GET 16 KiB", "GET /16384 HTTP/1.1\r\nHost: bench\r\n\r\n", Kind::Passing),
    named(
        "GET as browsers",
        "GET /100?a=b HTTP/1.1\r\nHost: bench\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 \
         Firefox/128.0\r\nAccept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en\r\n\
         Accept-Encoding: gzip, deflate, br\r\nCookie: session=0123456789abcdef0123456789abcdef\r\n\r\n",
        Kind::Passing,
    ),
    named("429", REFUSED, Kind::Refusing),
    // As many as gate answers a tenant in a second, of either.
    Named { pause: Duration::from_millis(32), ..named("429, 2,000/s", REFUSED, Kind::Refusing) },
    named("hit 100 B", "GET /kept/100 HTTP/1.1\r\nHost: bench\r\n\r\n", Kind::Caching),
    named("hit 16 KiB", "GET /kept/16384 HTTP/1.1\r\nHost: bench\r\n\r\n", Kind::Caching),
];
const REFUSED: &str = "GET /100 HTTP/1.1\r\nHost: bench\r\n\r\n";

/// A load that keeps every connection busy.
const fn named(name: &'static str, request: &'static str, kind: Kind) -> Named {
    Named { name, request, kind, pause: Duration::ZERO }
}

const CONNECTIONS: usize = 64;
const GATE: &str = "gate";
const NGINX: &str = "nginx";

/// One load at one target.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: &'static str,
    target: &'static str,
    per_sec: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of the proxy, for each request.
    cpu_us: f64,
    /// The same without what the proxy takes while nobody asks.
    beyond_idle_us: f64,
    /// The share of refusals.
    refused: f64,
}

impl Row {
    fn line(&self) -> String {
        format!(
            "{:<16} {:<7} {:>9.0}/s  p50 {:>6.0} us  p99 {:>6.0} us  proxy CPU {:>6.2} us each, {:>6.2} beyond idle  refused {:.1} %",
            self.load,
            self.target,
            self.per_sec,
            self.p50_us,
            self.p99_us,
            self.cpu_us,
            self.beyond_idle_us,
            100.0 * self.refused
        )
    }
}

fn median(mut rounds: Vec<Row>) -> Row {
    rounds.sort_by(|one, other| one.cpu_us.total_cmp(&other.cpu_us));
    rounds.swap_remove(rounds.len() / 2)
}

fn measure(named: &Named, target: &Target, lasts: Duration) -> Result<Row> {
    let load = Load {
        connections: CONNECTIONS,
        pipelined: 1,
        request: named.request.to_owned(),
        numbers: NUMBERS,
        every_other: None,
        answer: Answer::Http,
        pause: named.pause,
    };
    let started = target.ran_micros()?;
    std::thread::sleep(lasts);
    let before = target.ran_micros()?;
    let outcome =
        load.run(target.address, lasts).with_context(|| format!("{} {}", named.name, target.name))?;
    let ran = target.ran_micros()? - before;
    let idle = before - started;
    let refused = outcome.refused as f64 / outcome.requests as f64;
    ensure!(
        (named.kind == Kind::Refusing) == (refused > 0.9),
        "{} {}: refused {refused}",
        named.name,
        target.name
    );
    let [p50_us, p99_us, _] = outcome.micros;
    Ok(Row {
        load: named.name,
        target: target.name,
        per_sec: outcome.per_sec,
        p50_us,
        p99_us,
        cpu_us: ran / outcome.requests as f64,
        beyond_idle_us: (ran - idle).max(0.0) / outcome.requests as f64,
        refused,
    })
}

/// A server that is asked; that of which the CPU time is measured.
struct Target {
    name: &'static str,
    address: SocketAddr,
    server: ChildProcess,
    kind: Kind,
}

impl Target {
    /// The CPU time that its threads have had.
    fn ran_micros(&self) -> Result<f64> {
        let mut ns = 0.0;
        for task in fs::read_dir(format!("/proc/{}/task", self.server.id()))? {
            let said = fs::read_to_string(task?.path().join("schedstat"))?;
            ns += said.split(' ').next().context("no time")?.parse::<f64>()?;
        }
        Ok(ns / 1e3)
    }
}

/// All that runs, with its files.
struct Field {
    targets: Vec<Target>,
    directory: PathBuf,
    /// Files of caches, in memory.
    kept: PathBuf,
}

impl Drop for Field {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir_all(&self.kept);
    }
}

impl Field {
    fn set_up(cores: Dealt, gate: &Path) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("gate-bench-http-{}", std::process::id()));
        fs::create_dir_all(directory.join("www"))?;
        let kept = PathBuf::from(format!("/dev/shm/gate-bench-http-{}", std::process::id()));
        fs::create_dir_all(&kept)?;
        let mut field = Self { targets: Vec::new(), directory, kept };
        for size in [100, 16_384] {
            fs::write(field.directory.join("www").join(size.to_string()), vec![b'v'; size])?;
        }
        let [origin, passing, refusing, caching, pass_nginx, refuse_nginx, cache_nginx] =
            [1, 2, 3, 4, 5, 6, 7].map(at);
        cores.bind_others()?;
        field.nginx("direct", origin, &serving(&field.directory), Kind::Passing)?;
        let limiting = limiting(&field.directory);
        let kept_by_nginx = field.kept.join("nginx");
        cores.bind_proxy()?;
        let started = field
            .gate(gate, passing, origin, "quota = \"unlimited\"", Kind::Passing)
            .and_then(|()| {
                field.gate(gate, refusing, origin, "quota = \"1 RU/s\"\nburst = \"10s\"", Kind::Refusing)
            })
            .and_then(|()| field.gate(gate, caching, origin, "quota = \"unlimited\"", Kind::Caching))
            .and_then(|()| field.nginx(NGINX, pass_nginx, &passing_to(origin), Kind::Passing))
            .and_then(|()| field.nginx(NGINX, refuse_nginx, &limiting, Kind::Refusing))
            .and_then(|()| field.nginx(NGINX, cache_nginx, &keeping(origin, &kept_by_nginx), Kind::Caching));
        cores.bind_others()?;
        started?;
        Ok(field)
    }

    fn nginx(&mut self, name: &'static str, address: SocketAddr, server: &str, kind: Kind) -> Result<()> {
        let directory = self.directory.join(format!("nginx-{}", self.targets.len()));
        fs::create_dir_all(&directory)?;
        let config = directory.join("nginx.conf");
        fs::write(&config, nginx_config(&directory, address, server))?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&config).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
        let server = start("nginx", command, &[address])?;
        self.targets.push(Target { name, address, server, kind });
        Ok(())
    }

    fn gate(
        &mut self,
        program: &Path,
        address: SocketAddr,
        origin: SocketAddr,
        quota: &str,
        kind: Kind,
    ) -> Result<()> {
        let config = self.directory.join(format!("gate-{}.toml", self.targets.len()));
        let cache = match kind {
            Kind::Caching => format!("cache = {{ dir = {:?} }}\n", self.kept.join("gate")),
            Kind::Passing | Kind::Refusing => String::new(),
        };
        // A machine that the load keeps busy is no reason to shed.
        let text = format!(
            "[gate]\nxdp = \"off\"\nadmin = \"off\"\nthreads = \"1\"\n[[service]]\nname = \"http\"\nprotocol = \"http\"\n\
             listen = \"{address}\"\nbackend = \"{origin}\"\nshedding.enabled = \"off\"\n{cache}\
             [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\n{quota}\n"
        );
        fs::write(&config, text)?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(config);
        let server = start("gate", command, &[address])?;
        self.targets.push(Target { name: GATE, address, server, kind });
        Ok(())
    }
}

/// One process, without logs, as gate writes none.
fn nginx_config(directory: &Path, address: SocketAddr, server: &str) -> String {
    let directory = directory.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {directory}/{name};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log /dev/null crit;\n\
         events {{ worker_connections 2048; }}\nhttp {{\n{temporary}access_log off;\nkeepalive_requests 1000000000;\n\
         default_type text/plain;\n{}\n}}\n",
        server.replace("LISTEN", &format!("listen {address} backlog=2048;"))
    )
}

fn serving(directory: &Path) -> String {
    format!(
        "open_file_cache max=10;\nserver {{ LISTEN root {0}/www; location / {{ }} location /kept/ {{ alias {0}/www/; expires 1h; }} }}",
        directory.display()
    )
}

/// With the fields that gate writes as well.
fn passing_to(origin: SocketAddr) -> String {
    format!(
        "upstream origin {{ server {origin}; keepalive 128; keepalive_requests 1000000000; }}\nserver {{ LISTEN location / {{\n\
         proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
         proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;\n\
         proxy_set_header X-Forwarded-Host $host; }} }}"
    )
}

/// [`passing_to`], with a cache in this directory and open files of it.
fn keeping(origin: SocketAddr, directory: &Path) -> String {
    let path = format!(
        "proxy_cache_path {} keys_zone=all:1m use_temp_path=off;\nproxy_cache all;\nopen_file_cache max=10;\n",
        directory.display()
    );
    path + &passing_to(origin)
}

fn limiting(directory: &Path) -> String {
    format!(
        "limit_req_zone $binary_remote_addr zone=all:1m rate=1r/s;\nlimit_req_status 429;\n\
         server {{ LISTEN root {}/www; location / {{ limit_req zone=all; }} }}",
        directory.display()
    )
}
