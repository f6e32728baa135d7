//! docs/gate.toml: gate is run with the whole of it and with each block of it, and what a block is about is asked.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{ATTACHED, PATIENCE, Site};
use gate_tests::http::curl;
use gate_tests::memcached::{Connection, Datagrams, Memcached};
use gate_tests::privilege;
use gate_tests::proxy::PATIENT;
use gate_tests::wait::{until_up, wait_until};
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;
use xtask::{paths, sh};

/// Where the example's services listen.
const SERVICES: [(&str, &str); 9] = [
    ("cache", "198.18.0.1:11211"),
    ("sessions", "198.18.0.1:6379"),
    ("carts", "198.18.0.1:6382"),
    ("metrics", "198.18.0.1:8125"),
    ("pages", "198.18.0.1:11311"),
    ("shards", "198.18.0.1:11511"),
    ("baskets", "198.18.0.1:7000"),
    ("profiles", "198.18.0.1:6380"),
    ("logs", "198.18.0.1:3100"),
];
const READY: &str = "http://127.0.0.1:9911/ready";
/// The load balancer that "profiles" trusts.
const BALANCER: &str = "198.18.3.1";

/// Requests of a source, and what their replies begin with.
struct Traffic {
    /// The tenant that the requests are counted for.
    tenant: &'static str,
    service: &'static str,
    by: By,
    source: &'static str,
    requests: &'static [(&'static str, &'static str)],
}

/// The way that requests are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// A memcached datagram each.
    Datagrams,
    /// Datagrams that nobody answers.
    Silent,
    /// One TCP connection.
    Stream,
    /// One TCP connection by the load balancer, for a client with this address.
    Balancer([u8; 4]),
}

const fn of(
    tenant: &'static str,
    service: &'static str,
    by: By,
    source: &'static str,
    requests: &'static [(&'static str, &'static str)],
) -> Traffic {
    Traffic { tenant, service, by, source, requests }
}

const GET: &[(&str, &str)] = &[("get a\r\n", "END")];
const PING: &[(&str, &str)] = &[("PING\r\n", "+PONG")];
const OF_ORG: &str = "GET / HTTP/1.1\r\nhost: a\r\nx-scope-orgid: org-7\r\n\r\n";
const OF_CUSTOMER: &str = "GET / HTTP/1.1\r\nhost: a\r\nx-scope-orgid: somebody\r\n\r\n";
const TRAFFIC: &[Traffic] = &[
    of("acme-search", "cache", By::Datagrams, "198.18.1.1", GET),
    of("acme-search", "cache", By::Stream, "198.18.1.1", GET),
    of("acme-search", "profiles", By::Balancer([198, 18, 1, 1]), BALANCER, PING),
    of("acme-batch", "sessions", By::Stream, "198.18.2.1", PING),
    of("acme-batch", "carts", By::Stream, "198.18.2.1", PING),
    of("acme-batch", "pages", By::Datagrams, "198.18.2.1", GET),
    of("guest", "metrics", By::Silent, "198.18.1.200", &[("x", "")]),
    of("guest", "profiles", By::Stream, "198.18.1.200", &[("HGETALL a\r\n", "*0")]),
    of("web", "profiles", By::Stream, "198.18.9.1", &[("AUTH bob secret\r\n", "+OK"), ("GET a\r\n", "$-1")]),
    of(
        "web",
        "profiles",
        By::Stream,
        "198.18.9.1",
        &[("AUTH bob secret\r\n", "+OK"), ("KEYS *\r\n", "-DENIED")],
    ),
    of(
        "web-images",
        "profiles",
        By::Stream,
        "198.18.9.1",
        &[("AUTH bob secret\r\n", "+OK"), ("GET img:a\r\n", "$-1")],
    ),
    of(
        "shop",
        "pages",
        By::Stream,
        "198.18.4.1",
        &[("get shop:a\r\n", "END"), ("get acme:a\r\n", "SERVER_ERROR")],
    ),
    of("suspended", "cache", By::Datagrams, "198.18.5.1", &[("get a\r\n", "SERVER_ERROR")]),
    of("suspended", "pages", By::Stream, "198.18.5.1", &[("get a\r\n", "SERVER_ERROR")]),
    // There is no store.
    of("acme-batch", "shards", By::Stream, "198.18.2.1", &[("get a\r\n", "SERVER_ERROR")]),
    of("acme-batch", "baskets", By::Stream, "198.18.2.1", &[("GET a\r\n", "-UNAVAILABLE")]),
    of("org", "logs", By::Stream, BALANCER, &[(OF_ORG, "HTTP/1.1 503")]),
    of("customer/*", "logs", By::Stream, BALANCER, &[(OF_CUSTOMER, "HTTP/1.1 503")]),
    of(
        "acme-search",
        "logs",
        By::Stream,
        "198.18.1.1",
        &[("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "HTTP/1.1 503")],
    ),
    of("balancer", "profiles", By::Balancer([198, 18, 3, 1]), BALANCER, PING),
    of("anonymous", "cache", By::Datagrams, "198.18.9.1", GET),
];

/// A section of the example.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block<'t> {
    head: &'t str,
    name: &'t str,
    text: &'t str,
}

impl<'t> Block<'t> {
    fn new(text: &'t str) -> Self {
        let quoted = text.split_once("\nname = \"").and_then(|(_, rest)| rest.split_once('"'));
        let head = text.lines().next().unwrap_or_default();
        Self { head, name: quoted.map_or("gate", |(name, _)| name), text }
    }

    fn is_service(&self) -> bool {
        self.head == "[[service]]"
    }

    fn is_tenant(&self) -> bool {
        self.head == "[[tenant]]"
    }

    fn has(&self, key: &str) -> bool {
        self.text.contains(&format!("\n{key} = "))
    }

    /// True if another block names this one.
    fn names(&self, other: &Self) -> bool {
        self != other && self.text.contains(&format!("\"{}\"", other.name))
    }
}

/// The sections of the example, each with the comment that follows it.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let is_head = |line: &str| matches!(line.trim_end(), "[gate]" | "[[service]]" | "[[tenant]]");
    let mut starts = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        starts.extend(is_head(line).then_some(at));
        at += line.len();
    }
    let ends = starts.iter().copied().skip(1).chain([text.len()]);
    starts.iter().zip(ends).map(|(&start, end)| Block::new(&text[start..end])).collect()
}

/// The blocks that gate is started with to try one: a service with the tenants that can reach it, or a tenant with all services,
/// those that it names and those that name it.
fn selection<'t>(all: &[Block<'t>], block: &Block<'t>) -> Vec<Block<'t>> {
    let proxied = block.has("backend");
    let redis = proxied && block.text.contains("\"resp\"");
    let http = block.text.contains("\"http\"");
    let reaches = |tenant: &Block<'_>| {
        if tenant.has("users") || tenant.has("part_of") {
            redis
        } else if tenant.has("ids") {
            http
        } else if tenant.has("keys") {
            proxied
        } else {
            tenant.name != "anonymous" || block.names(tenant)
        }
    };
    let belongs = |other: &Block<'_>| {
        let around = all.iter().filter(|near| near.is_tenant() && (*near == block || near.names(block)));
        let is_named = around.clone().any(|near| near == other || near.names(other));
        is_named || other.is_service() || all.iter().any(|near| near.is_service() && near.names(other))
    };
    let is_wanted = |other: &&Block<'t>| match block.head {
        "[gate]" => true,
        _ if other.head == "[gate]" => true,
        "[[service]]" => *other == block || (other.is_tenant() && reaches(other)),
        _ => belongs(other),
    };
    all.iter().filter(is_wanted).copied().collect()
}

/// The network, the stores and the files that the example speaks of.
struct Scene {
    site: Site,
    files: PathBuf,
    _stores: [ChildProcess; 4],
    _guarded: Memcached,
    _peer: ChildProcess,
}

impl Scene {
    fn new() -> Result<Self> {
        let site = Site::new("")?;
        let files = std::env::temp_dir().join(site.net.server.name());
        std::fs::create_dir_all(&files)?;
        for (name, text) in
            [("admin-token", "0123456789abcdef0123456789abcdef"), ("store-password", "gate-secret")]
        {
            std::fs::write(files.join(name), text)?;
            std::fs::set_permissions(files.join(name), std::fs::Permissions::from_mode(0o600))?;
        }
        let users = files.join("users.acl");
        let user = |name: &str, password: &str| format!("user {name} on {password} ~* &* +@all\n");
        let all = [user("default", "nopass"), user("gate", ">gate-secret"), user("bob", ">secret")];
        std::fs::write(&users, all.concat())?;
        let peer = site.net.client.name();
        let link = format!("link add gate1 type veth peer name client1 netns {peer}");
        sh::run(site.net.server.command("ip").args(link.split(' ')))?;
        for source in TRAFFIC.iter().map(|traffic| traffic.source) {
            // Given already, if it stands there twice.
            let _ = site.net.add_client_address(source.parse()?);
        }
        let users = users.display().to_string();
        let keeps_nothing = ["--save", "", "--appendonly", "no"];
        let stores = [
            store(&site, "memcached", &["-u", "root", "-l", "127.0.0.1", "-p", "11411"], "127.0.0.1:11411")?,
            store(
                &site,
                "redis-server",
                &[&["--bind", "198.18.0.1", "fd00::1", "--protected-mode", "no"], &keeps_nothing[..]]
                    .concat(),
                "198.18.0.1:6379",
            )?,
            store(
                &site,
                "redis-server",
                &[&["--bind", "198.18.0.1", "--port", "6382"], &keeps_nothing[..]].concat(),
                "198.18.0.1:6382",
            )?,
            store(
                &site,
                "redis-server",
                &[&["--port", "6480", "--aclfile", &users], &keeps_nothing[..]].concat(),
                "127.0.0.1:6480",
            )?,
        ];
        let guarded = Memcached::start(&site.net)?;
        let peer = site.peer()?;
        Ok(Self { site, files, _stores: stores, _guarded: guarded, _peer: peer })
    }

    /// Runs gate with what belongs to a block, and asks what there is traffic for; returns how many rows that were. A gate
    /// that has all services is left `running`: the next tenant is tried by a reload.
    fn run(&self, running: &mut Option<ChildProcess>, all: &[Block<'_>], block: &Block<'_>) -> Result<usize> {
        let blocks = selection(all, block);
        let mut gate = match running.take() {
            None => self.start(&blocks)?,
            Some(mut gate) => {
                self.reload(&mut gate, &blocks)?;
                gate
            }
        };
        let asked = self.ask_all(&blocks)?;
        ensure!(gate.is_running()?, "it has ended");
        if block.is_tenant() {
            *running = Some(gate);
        } else {
            self.end(gate)?;
        }
        Ok(asked)
    }

    /// Starts gate with these blocks.
    fn start(&self, blocks: &[Block<'_>]) -> Result<ChildProcess> {
        self.configure(blocks)?;
        let mut command = self.site.net.server.command(paths::gate());
        command.arg("run").arg("--config").arg(self.site.config());
        let mut gate = ChildProcess::start("gate", command)?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        wait_until("it is ready", || {
            // Nobody listens at first.
            Ok(self.site.net.server.enter(|| curl(&[READY]))?.is_ok_and(|answer| answer.status == 200))
        })?;
        Ok(gate)
    }

    /// Has a gate with the same services read these blocks in place of its own.
    fn reload(&self, gate: &mut ChildProcess, blocks: &[Block<'_>]) -> Result<()> {
        self.configure(blocks)?;
        gate.signal(Signal::SIGHUP)?;
        gate.wait_for("read again", PATIENCE)?;
        Ok(())
    }

    /// Ends a gate, which leaves nothing behind.
    fn end(&self, gate: ChildProcess) -> Result<()> {
        gate.end()?;
        ensure!(self.site.anything_left()?.is_none());
        Ok(())
    }

    fn configure(&self, blocks: &[Block<'_>]) -> Result<()> {
        self.site.configure(&self.adapted(&blocks.iter().map(|block| block.text).collect::<String>())?)
    }

    /// Asks a gate with these blocks what they have traffic for; returns how many rows that were.
    fn ask_all(&self, blocks: &[Block<'_>]) -> Result<usize> {
        wait_until("the blocks are shown, and no other", || self.is_shown(blocks))?;
        let has = |name: &str| blocks.iter().any(|block| block.name == name);
        let rows = TRAFFIC.iter().filter(|row| {
            // The balancer's packets are its own, whoever its client is.
            has(row.tenant) && has(row.service) && (row.source != BALANCER || has("balancer"))
        });
        let mut count = 0;
        for row in rows {
            self.ask(row).with_context(|| {
                let shown = self.site.json(&["tenants", row.tenant]);
                format!("{} asks {}, of which gate says {shown:?}", row.tenant, row.service)
            })?;
            count += 1;
        }
        Ok(count)
    }

    /// The example with this network's interfaces and files.
    fn adapted(&self, text: &str) -> Result<String> {
        let files = self.files.display();
        let mut text = text.to_owned();
        for (from, to) in [
            ("\"eth1\", \"eth2\"", "\"gate0\", \"gate1\"".to_owned()),
            ("/sys/fs/bpf/gate", self.site.pins().display().to_string()),
            ("/run/gate/", format!("{files}/")),
            ("/run/gate-read/", format!("{files}/read/")),
        ] {
            ensure!(text.contains(from), "{from} is not in the example");
            text = text.replace(from, &to);
        }
        // Not each block has one of these.
        let text = ["/etc/gate/", "/var/log/gate/", "/var/cache/gate/"]
            .iter()
            .fold(text, |text, from| text.replace(from, &format!("{files}/")));
        // Its stores wait for a busy machine, whose slow answers shed no tier.
        let text = text.replace("store_timeout = \"1s\"\n", "").replace("floor = \"1ms\"", "floor = \"1s\"");
        let with_patience = |key| format!("\n{PATIENT}\n{key} = ");
        Ok(["backend", "backends"]
            .iter()
            .fold(text, |text, key| text.replace(&format!("\n{key} = "), &with_patience(key))))
    }

    /// True if the services and tenants that are shown are those of these blocks.
    fn is_shown(&self, blocks: &[Block<'_>]) -> Result<bool> {
        let names = |shown: &serde_json::Value| -> Result<BTreeSet<String>> {
            let shown = shown.as_array().context("no list")?.iter();
            shown.map(|shown| Ok(shown["name"].as_str().context("no name")?.to_owned())).collect()
        };
        let services = names(&self.site.json(&["status"])?["services"])?;
        let tenants = names(&self.site.json(&["tenants"])?["tenants"])?;
        let expected = |head: &str| -> BTreeSet<String> {
            blocks.iter().filter(|block| block.head == head).map(|block| block.name.to_owned()).collect()
        };
        Ok(services == expected("[[service]]") && tenants == expected("[[tenant]]"))
    }

    /// How many requests and segments of a tenant were judged.
    fn judged(&self, tenant: &str) -> Result<u64> {
        let shown = self.site.json(&["tenants", tenant])?["tenants"][0].clone();
        let refused = shown["refused"].as_object().context("refusals by reason")?.values();
        let refused: u64 = refused.filter_map(serde_json::Value::as_u64).sum();
        let segments = shown["segments"].as_u64().context("segments")?;
        Ok(shown["passed"].as_u64().context("passed")? + segments + refused)
    }

    fn ask(&self, row: &Traffic) -> Result<()> {
        let before = self.judged(row.tenant)?;
        let address = SERVICES.iter().find(|(name, _)| *name == row.service).context("no address")?.1;
        let address: SocketAddr = address.parse()?;
        let source: IpAddr = row.source.parse()?;
        let net = &self.site.net;
        match row.by {
            By::Datagrams => {
                let mut client = net.client.enter(|| Datagrams::to(source, address))??;
                replies(row, |request| client.ask(request))?;
            }
            By::Silent => {
                let client = net.client.enter(|| UdpSocket::bind((source, 0)))??;
                for (request, _) in row.requests {
                    client.send_to(request.as_bytes(), address)?;
                }
            }
            By::Stream => {
                let mut client = Connection::to(net, source, address)?;
                replies(row, |request| client.ask(request))?;
            }
            By::Balancer(of) => {
                let mut client = Connection::to(net, source, address)?;
                client.send(&header(of))?;
                replies(row, |request| client.ask(request))?;
            }
        }
        wait_until("its requests are counted", || Ok(self.judged(row.tenant)? > before))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

fn replies(row: &Traffic, mut ask: impl FnMut(&str) -> Result<String>) -> Result<()> {
    for (request, expected) in row.requests {
        let reply = ask(request)?;
        ensure!(reply.starts_with(expected), "{request:?}: {reply:?}");
    }
    Ok(())
}

/// The header of the PROXY protocol, version 2, for a connection of this client.
fn header(client: [u8; 4]) -> Vec<u8> {
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &client[..], &[0; 8]].concat()
}

/// A store at the server's end.
fn store(site: &Site, name: &'static str, arguments: &[&str], address: &str) -> Result<ChildProcess> {
    let mut command = site.net.server.command(name);
    command.args(arguments);
    let mut store = ChildProcess::start(name, command)?;
    let address: SocketAddr = address.parse()?;
    until_up(&mut store, name, || Ok(site.net.server.enter(|| TcpStream::connect(address))?.is_ok()))?;
    Ok(store)
}

fn example() -> Result<String> {
    Ok(std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gate.toml"))?)
}

#[test]
fn the_documented_example_runs_whole_and_block_by_block() -> Result<()> {
    if !privilege::root("example::the_documented_example_runs_whole_and_block_by_block") {
        return Ok(());
    }
    let text = example()?;
    let all = blocks(&text);
    let scene = Scene::new()?;
    let mut running = None;
    for block in &all {
        let name = format!("{} {}", block.head, block.name);
        let asked = scene.run(&mut running, &all, block).with_context(|| name.clone())?;
        println!("{name}: {asked} clients");
        let whole = block.head == "[gate]";
        ensure!(asked > 0 && (!whole || asked == TRAFFIC.len()), "{name} was asked for by {asked} clients");
    }
    running.map_or(Ok(()), |gate| scene.end(gate))
}

/// A block that nobody asks for would pass unseen.
#[test]
fn each_block_of_the_documented_example_has_traffic() -> Result<()> {
    let text = example()?;
    let all = blocks(&text);
    ensure!(all.iter().filter(|block| block.head == "[gate]").count() == 1);
    for block in &all {
        let asks = |row: &Traffic| block.name == row.service || block.name == row.tenant;
        // A tenant without clients is charged for others.
        let is_charged = all.iter().any(|other| other.names(block)) && !block.has("sources");
        ensure!(
            block.head == "[gate]" || is_charged || TRAFFIC.iter().any(asks),
            "nobody asks for {}",
            block.name
        );
    }
    Ok(())
}
