//! One gate at several interfaces.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::{ATTACHED, PATIENCE, Site};
use gate_tests::http::curl_socket;
use gate_tests::memcached::{Datagrams, Memcached, PORT};
use gate_tests::net::{SERVER_INTERFACE, SERVER_V4};
use gate_tests::packet::Packet;
use gate_tests::privilege;
use gate_tests::wait::wait_until;
use gate_userspace::admin::default_path;
use gate_userspace::kernel::{Loaded, Maps, PinDir, Sizes};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use xtask::lab::process::ChildProcess;
use xtask::{paths, sh};

/// The second pair's end at the server, and its addresses.
const SECOND: &str = "gate1";
const SECOND_V4: &str = "198.19.7.1";
const SECOND_CLIENT: &str = "198.19.7.2";
/// The burst of the tenant at both pairs, in requests of one request unit. It is refilled in hours.
const BURST: u64 = 36;
const BOTH: &str = r#"["gate0", "gate1"]"#;

/// A tenant at both pairs, and what [`SERVICE`] or another service is.
fn config(interfaces: &str, service: &str) -> String {
    format!(
        "[gate]\ninterface = {interfaces}\n{service}\n\
         price = {{ base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }}\n\
         [[tenant]]\nname = \"both\"\nsources = [\"198.18.0.2\", \"{SECOND_CLIENT}\"]\n\
         quota = \"0.01 RU/s\"\nburst = \"3600s\"\n"
    )
}

/// A guarded service at both pairs.
const SERVICE: &str = "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nunknown_syn = \"drop\"\n\
                       listen = [\"198.18.0.1:11211\", \"198.19.7.1:11211\"]";

/// A network with a second pair.
fn site(test: &str, config: &str) -> Result<Option<Site>> {
    if !privilege::root(&format!("interfaces::{test}")) {
        return Ok(None);
    }
    let site = Site::new(config)?;
    add_second(&site)?;
    Ok(Some(site))
}

fn add_second(site: &Site) -> Result<()> {
    let peer = site.net.client.name();
    ip(
        site.net.server.command("ip"),
        &format!("link add {SECOND} type veth peer name client1 netns {peer}"),
    )?;
    for (namespace, interface, address) in
        [(&site.net.server, SECOND, SECOND_V4), (&site.net.client, "client1", SECOND_CLIENT)]
    {
        ip(namespace.command("ip"), &format!("link set {interface} addrgenmode none up"))?;
        ip(namespace.command("ip"), &format!("addr add {address}/24 dev {interface}"))?;
    }
    Ok(())
}

fn ip(mut ip: Command, arguments: &str) -> Result<()> {
    sh::run(ip.args(arguments.split_whitespace()))
}

/// `gate run` at the interfaces of the configuration.
fn command(site: &Site, arguments: &[&str]) -> Command {
    let mut command = site.net.server.command(paths::gate());
    command.arg("run").arg("--config").arg(site.config()).arg("--pin-dir").arg(site.pins()).args(arguments);
    command
}

/// Starts a gate, and waits until it is attached to so many interfaces.
fn start(site: &Site, arguments: &[&str], interfaces: usize) -> Result<ChildProcess> {
    let mut gate = ChildProcess::start("gate", command(site, arguments))?;
    for _ in 0..interfaces {
        gate.wait_for(ATTACHED, PATIENCE)?;
    }
    Ok(gate)
}

/// Reads another list of interfaces, and returns the line that contains `said`.
fn reload(site: &Site, gate: &mut ChildProcess, interfaces: &str, said: &str) -> Result<String> {
    site.configure(&config(interfaces, SERVICE))?;
    gate.signal(Signal::SIGHUP)?;
    gate.wait_for(said, PATIENCE)
}

const RELOADED: &str = "configuration read again";

/// A client at each pair, and the socket where what passes arrives.
struct Clients {
    pairs: [UdpSocket; 2],
    server: UdpSocket,
}

impl Clients {
    fn new(site: &Site) -> Result<Self> {
        let client = |source: &str, server: &str| -> Result<UdpSocket> {
            let source: SocketAddr = source.parse()?;
            let socket = site.net.client.enter(|| UdpSocket::bind(source))??;
            socket.connect(server.parse::<SocketAddr>()?)?;
            Ok(socket)
        };
        let server = site.net.server.enter(|| UdpSocket::bind("0.0.0.0:11211"))??;
        server.set_read_timeout(Some(PATIENCE))?;
        let pairs =
            [client("198.18.0.2:0", "198.18.0.1:11211")?, client("198.19.7.2:0", "198.19.7.1:11211")?];
        Ok(Self { pairs, server })
    }

    /// Sends requests from both at the same time.
    fn send(&self, each: usize) -> Result<()> {
        std::thread::scope(|scope| {
            let flows = self
                .pairs
                .each_ref()
                .map(|client| scope.spawn(move || (0..each).try_for_each(|_| client.send(GET).map(|_| ()))));
            flows.into_iter().try_for_each(|flow| Ok(flow.join().expect("no panic")?))
        })
    }

    /// Sends one request by a pair, and waits until it arrives.
    fn passes(&self, pair: usize) -> Result<()> {
        self.pairs[pair].send(GET)?;
        self.arrive(1).map(|_| ())
    }

    /// Waits for so many requests; how many came by each pair.
    fn arrive(&self, count: u64) -> Result<[u64; 2]> {
        let second: std::net::IpAddr = SECOND_CLIENT.parse()?;
        let mut arrived = [0; 2];
        for _ in 0..count {
            let (_, source) = self.server.recv_from(&mut [0; 64]).context("what passed does not arrive")?;
            arrived[usize::from(source.ip() == second)] += 1;
        }
        Ok(arrived)
    }

    /// True if nothing else has arrived.
    fn nothing_arrives(&self) -> Result<bool> {
        self.server.set_nonblocking(true)?;
        let more = self.server.recv(&mut [0; 64]);
        self.server.set_nonblocking(false)?;
        Ok(more.is_err())
    }
}

const GET: &[u8] = b"\0\x07\0\0\0\x01\0\0get key\r\n";

/// The counts of the tenant: passed, charged, and refused for its quota.
fn counted(site: &Site) -> Result<(u64, f64, u64)> {
    let tenant = &site.json(&["tenants"])?["tenants"][0];
    let refused = tenant["refused"]["quota"].as_u64().unwrap_or(0);
    Ok((tenant["passed"].as_u64().unwrap_or(0), tenant["charged_ru"].as_f64().unwrap_or(0.0), refused))
}

/// The XDP program at an interface, by its id.
fn program(site: &Site, interface: &str) -> Result<Option<String>> {
    let mut ip = site.net.server.command("ip");
    let shown = sh::output(ip.args(["link", "show", "dev", interface]))?;
    Ok(shown.split_once("prog/xdp ").map(|(_, program)| program.lines().next().unwrap_or("").to_owned()))
}

fn nothing_is_left(site: &Site) -> Result<()> {
    ensure!(site.anything_left()?.is_none() && program(site, SECOND)?.is_none());
    Ok(())
}

#[test]
fn a_tenant_at_two_interfaces_has_one_quota_to_the_ru() -> Result<()> {
    const EACH: usize = 40;
    let test = "a_tenant_at_two_interfaces_has_one_quota_to_the_ru";
    let Some(site) = site(test, &config(BOTH, SERVICE))? else { return Ok(()) };
    let gate = start(&site, &[], 2)?;
    let status = site.json(&["status"])?;
    ensure!(status["interface"] == "gate0, gate1" && status["mode"] == "native", "{status}");
    let names: Vec<_> =
        status["interfaces"].as_array().context("a list")?.iter().map(|one| &one["name"]).collect();
    ensure!(names == ["gate0", "gate1"], "{status}");
    let said = String::from_utf8(site.gate(&["status"])?.stdout)?;
    ensure!(said.contains("attached to gate0 in native mode, gate1 in native mode"), "{said}");

    let clients = Clients::new(&site)?;
    // First by either pair alone, so that both are seen to spend.
    clients.passes(0)?;
    clients.passes(1)?;
    clients.send(EACH)?;
    let sent = 2 + 2 * EACH as u64;
    wait_until("all are judged", || counted(&site).map(|(passed, _, refused)| passed + refused == sent))?;
    let all = counted(&site)?;
    ensure!(all == (BURST, BURST as f64, sent - BURST), "{all:?}");
    let by_pair = clients.arrive(BURST - 2)?;
    ensure!(clients.nothing_arrives()?);
    println!("{test}: {BURST} of {sent} passed, after the first two {by_pair:?} by each");
    gate.end()?;
    nothing_is_left(&site)
}

#[test]
fn a_reload_adds_and_removes_interfaces() -> Result<()> {
    let configuration = config("\"gate0\"", SERVICE);
    let Some(site) = site("a_reload_adds_and_removes_interfaces", &configuration)? else { return Ok(()) };
    let mut gate = start(&site, &[], 1)?;
    let clients = Clients::new(&site)?;
    let first = program(&site, SERVER_INTERFACE)?;
    clients.passes(0)?;
    clients.passes(1)?;
    ensure!(counted(&site)?.0 == 1, "the second interface is not attached to yet");

    reload(&site, &mut gate, BOTH, RELOADED)?;
    ensure!(program(&site, SECOND)?.is_some() && program(&site, SERVER_INTERFACE)? == first);
    clients.passes(1)?;
    wait_until("the second interface is judged", || Ok(counted(&site)?.0 == 2))?;

    // All or nothing; what is wrong is named with its place.
    let both = [first.clone(), program(&site, SECOND)?];
    for (interfaces, wrong) in [
        (r#"["gate0", "gate9"]"#, "2: gate.interface[1] = \"gate9\": there is no interface \"gate9\""),
        (r#"["gate0", "gate0"]"#, "2: gate.interface[1] = \"gate0\": is listed already, on line 2"),
    ] {
        reload(&site, &mut gate, interfaces, wrong)?;
        ensure!([program(&site, SERVER_INTERFACE)?, program(&site, SECOND)?] == both, "{interfaces}");
    }

    // The first in its own slot goes, and the second stays in its own.
    reload(&site, &mut gate, "\"gate1\"", RELOADED)?;
    ensure!(program(&site, SERVER_INTERFACE)?.is_none() && program(&site, SECOND)? == both[1]);
    ensure!(site.json(&["status"])?["interface"] == SECOND);
    clients.passes(0)?;
    clients.passes(1)?;
    wait_until("only the second interface is judged", || Ok(counted(&site)?.0 == 3))?;

    // What was spent at one interface is spent at the other.
    reload(&site, &mut gate, r#"["gate1", "gate0"]"#, RELOADED)?;
    clients.send(40)?;
    wait_until("all are judged", || counted(&site).map(|(passed, _, refused)| passed + refused == 83))?;
    let all = counted(&site)?;
    ensure!(all == (BURST, BURST as f64, 83 - BURST), "{all:?}");
    gate.end()?;
    nothing_is_left(&site)
}

#[test]
fn a_takeover_may_have_other_interfaces() -> Result<()> {
    let configuration = config("\"gate0\"", SERVICE);
    let Some(site) = site("a_takeover_may_have_other_interfaces", &configuration)? else { return Ok(()) };
    let clients = Clients::new(&site)?;
    let first = start(&site, &[], 1)?;
    clients.passes(0)?;

    // Another one is added, and an order is no matter.
    site.configure(&config(r#"["gate1", "gate0"]"#, SERVICE))?;
    let second = start(&site, &["--takeover"], 2)?;
    first.finish(PATIENCE)?;
    clients.passes(1)?;
    let third = start(&site, &["--takeover"], 2)?;
    second.finish(PATIENCE)?;
    clients.passes(0)?;
    clients.passes(1)?;
    wait_until("both are judged", || Ok(counted(&site)?.0 == 4))?;

    // What cannot be has no effect: the gate that runs goes on.
    site.configure(&config(r#"["gate0", "gate9"]"#, SERVICE))?;
    let refusal = site.refusal(command(&site, &["--takeover"]))?;
    ensure!(refusal.contains("2: gate.interface[1] = \"gate9\": there is no interface"), "{refusal}");
    ensure!(site.json(&["status"])?["daemon"] == third.id());

    // One that was killed leaves both, and the next has only one of them.
    third.signal(Signal::SIGKILL)?;
    ensure!(third.finish(PATIENCE).is_err() && program(&site, SECOND)?.is_some());
    site.configure(&config("\"gate1\"", SERVICE))?;
    let last = start(&site, &[], 1)?;
    ensure!(program(&site, SERVER_INTERFACE)?.is_none() && program(&site, SECOND)?.is_some());
    clients.passes(1)?;
    wait_until("the second is judged", || Ok(counted(&site)?.0 == 5))?;

    // `gate detach` leaves nothing, of two interfaces as of one.
    site.configure(&config(BOTH, SERVICE))?;
    let both = start(&site, &["--takeover"], 2)?;
    last.finish(PATIENCE)?;
    both.signal(Signal::SIGKILL)?;
    ensure!(both.finish(PATIENCE).is_err());
    ensure!(site.gate(&["detach"])?.status.success());
    nothing_is_left(&site)
}

#[test]
fn of_two_interfaces_one_may_vanish_and_come_back() -> Result<()> {
    let test = "of_two_interfaces_one_may_vanish_and_come_back";
    let Some(site) = site(test, &config(BOTH, SERVICE))? else { return Ok(()) };
    let mut gate = start(&site, &[], 2)?;
    let first = program(&site, SERVER_INTERFACE)?;
    ip(site.net.server.command("ip"), "link del gate1")?;
    gate.wait_for("has vanished", PATIENCE)?;
    let status = || site.json(&["status"]);
    wait_until("the status says so", || Ok(status()?["vanished"] == json!([SECOND])))?;
    let shown = status()?;
    ensure!(
        shown["interface"] == SERVER_INTERFACE && shown["interfaces"][1]["name"] == Value::Null,
        "{shown}"
    );
    let said = String::from_utf8(site.gate(&["status"])?.stdout)?;
    ensure!(
        said.contains("attached to gate0 in native mode")
            && said.contains("vanished, and the program with it: gate1"),
        "{said}"
    );

    // The other goes on, and a reload that has nothing to do with it changes nothing.
    gate.signal(Signal::SIGHUP)?;
    gate.wait_for(RELOADED, PATIENCE)?;
    ensure!(program(&site, SERVER_INTERFACE)? == first);
    add_second(&site)?;
    gate.wait_for("attached again", PATIENCE)?;
    wait_until("the status says so", || Ok(status()?["vanished"] == json!([])))?;
    ensure!(status()?["interface"] == "gate0, gate1");
    let clients = Clients::new(&site)?;
    clients.passes(0)?;
    clients.passes(1)?;
    wait_until("both are judged", || Ok(counted(&site)?.0 == 2))?;
    ensure!(program(&site, SERVER_INTERFACE)? == first);
    gate.end()?;
    nothing_is_left(&site)
}

#[test]
fn where_the_program_is_gone_it_is_said_and_attached_again() -> Result<()> {
    let test = "where_the_program_is_gone_it_is_said_and_attached_again";
    let Some(site) = site(test, &config(BOTH, SERVICE))? else { return Ok(()) };
    let mut gate = start(&site, &[], 2)?;
    let first = program(&site, SERVER_INTERFACE)?;
    // A link without its pin is detached. What the maps say stays.
    std::fs::remove_file(site.pins().join("link-1"))?;
    let status = || site.json(&["status"]);
    gate.wait_for("the program is no longer at the interface", PATIENCE)?;
    gate.wait_for("attached again", PATIENCE)?;
    ensure!(program(&site, SECOND)?.is_some());

    // Another interface has the index of one that is gone.
    let index = site.net.server.enter(|| if_nametoindex(SECOND))??;
    ip(site.net.server.command("ip"), "link del gate1")?;
    let again = format!(
        "link add name gate1 index {index} type veth peer name client1 netns {}",
        site.net.client.name()
    );
    ip(site.net.server.command("ip"), &again)?;
    gate.wait_for("attached again", PATIENCE)?;
    ensure!(program(&site, SECOND)?.is_some() && program(&site, SERVER_INTERFACE)? == first);
    wait_until("the status says so", || {
        let shown = status()?;
        Ok(shown["interface"] == "gate0, gate1" && shown["vanished"] == json!([]))
    })?;

    // Without a daemon the kernel is asked as well.
    gate.signal(Signal::SIGKILL)?;
    ensure!(gate.finish(PATIENCE).is_err());
    std::fs::remove_file(site.pins().join("link-1"))?;
    wait_until("the program is gone", || Ok(program(&site, SECOND)?.is_none()))?;
    let shown = status()?;
    ensure!(shown["interface"] == "gate0" && shown["interfaces"][1]["name"] == Value::Null, "{shown}");
    ensure!(site.gate(&["detach"])?.status.success());
    nothing_is_left(&site)
}

#[test]
fn a_gate_whose_link_is_detached_is_not_ready() -> Result<()> {
    let test = "a_gate_whose_link_is_detached_is_not_ready";
    let Some(site) = site(test, &config(BOTH, SERVICE))? else { return Ok(()) };
    let mut gate = start(&site, &[], 2)?;
    let ready = || {
        let answer = curl_socket(&default_path(site.pins()), "/ready", &[])?;
        let document = answer.json()?;
        ensure!((answer.status == 200) == (document["ready"] == true), "{} {document}", answer.status);
        ensure!(document["plan"] == true && document["listening"] == true, "{document}");
        Ok(document["attached"] == true && document["ready"] == true)
    };
    wait_until("it is ready", ready)?;
    // While gate stands still another program takes the place, so that its own cannot be attached again.
    gate.signal(Signal::SIGSTOP)?;
    std::fs::remove_file(site.pins().join("link-1"))?;
    wait_until("the program is gone", || Ok(program(&site, SECOND)?.is_none()))?;
    let mut other = site.net.server.command(paths::gate());
    other.args(["peer", "--interface", SECOND]);
    let mut other = ChildProcess::start("gate peer", other)?;
    other.wait_for("everything passes", PATIENCE)?;
    gate.signal(Signal::SIGCONT)?;
    gate.wait_for("the program is no longer at the interface", PATIENCE)?;
    wait_until("it is ready all the same", || Ok(!ready()?))?;
    ensure!(site.json(&["status"])?["vanished"] == json!([SECOND]));
    other.signal(Signal::SIGTERM)?;
    gate.wait_for("attached again", PATIENCE)?;
    wait_until("it is not ready again", ready)?;
    gate.end()?;
    nothing_is_left(&site)
}

#[test]
fn interfaces_on_each_other_and_second_names_are_refused() -> Result<()> {
    let test = "interfaces_on_each_other_and_second_names_are_refused";
    let Some(site) = site(test, &config(BOTH, SERVICE))? else { return Ok(()) };
    let ip = |arguments: &str| ip(site.net.server.command("ip"), arguments);
    ip("link add link gate0 name above0 type macvlan")?;
    ip("link add br0 type bridge")?;
    ip("link set gate1 master br0")?;
    ip("link add link br0 name above1 type macvlan")?;
    ip("link property add dev gate0 altname another-name")?;
    let mut gate = start(&site, &[], 2)?;
    for (interfaces, wrong) in [
        (
            r#"["gate0", "above0"]"#,
            r#"gate.interface[1] = "above0": interface above0 lies on gate0, which is"#,
        ),
        (
            r#"["br0", "gate0", "gate1"]"#,
            r#"gate.interface[0] = "br0": interface br0 lies on gate1, which is"#,
        ),
        (
            r#"["gate1", "above1"]"#,
            r#"gate.interface[1] = "above1": interface above1 lies on gate1, which is"#,
        ),
        (r#"["gate0", "another-name"]"#, r#"gate.interface[1] = "another-name": interface another-name is"#),
    ] {
        // At a reload, at a takeover, and, since the machine may be another one, as a warning of the check.
        reload(&site, &mut gate, interfaces, wrong)?;
        let refusal = site.refusal(command(&site, &["--takeover"]))?;
        ensure!(refusal.contains(&format!("2: {wrong}")), "{refusal}");
        let checked = site.net.server.command(paths::gate()).arg("check").arg(site.config()).output()?;
        let said = String::from_utf8(checked.stdout)?;
        let warned = String::from_utf8(checked.stderr)?;
        ensure!(checked.status.success() && said.contains("interfaces, with one budget: "), "{said}");
        ensure!(warned.contains(&format!("warning: line 2: {wrong}")), "{warned}");
    }
    ensure!(site.json(&["status"])?["interface"] == "gate0, gate1");
    ensure!(site.json(&["status"])?["daemon"] == gate.id());
    let named =
        site.refusal(command(&site, &["--takeover", "--interface", "gate0", "--interface", "above0"]))?;
    ensure!(named.contains("interface above0 lies on gate0") && named.contains("keep gate0"), "{named}");
    gate.end()?;

    // What lies beside each other does not, nor do the two ends of a pair.
    ip("link add end0 type veth peer name end1")?;
    site.configure(&config(r#"["end0", "end1", "above0", "above1"]"#, SERVICE))?;
    start(&site, &[], 4)?.end()?;
    nothing_is_left(&site)
}

/// A proxied service at every address, and its store.
fn proxied(test: &str, gate: &str) -> Result<Option<(Site, Memcached)>> {
    let service = format!(
        "{gate}[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"0.0.0.0:{PROXIED}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\ntransports = [\"udp\"]"
    );
    let later = format!(
        "[[tenant]]\nname = \"later\"\nsources = [\"{LATER}\"]\nquota = \"0.01 RU/s\"\nburst = \"3600s\"\n"
    );
    let Some(site) = site(test, &(config(BOTH, &service) + &later))? else { return Ok(None) };
    let store = Memcached::start(&site.net)?;
    Ok(Some((site, store)))
}

const PROXIED: u16 = 21_211;
/// An address that the server has only later.
const LATER: &str = "198.18.0.9";
const XDP_PASS: u32 = 2;

/// Asks by both pairs in turn until the quota is spent: what XDP has charged at either is not charged again.
fn charged_once(site: &Site) -> Result<()> {
    let mut peers = Vec::new();
    for interface in ["client0", "client1"] {
        let mut command = site.net.client.command(paths::gate());
        command.args(["peer", "--interface", interface]);
        let mut peer = ChildProcess::start("gate peer", command)?;
        peer.wait_for("everything passes", PATIENCE)?;
        peers.push(peer);
    }
    let client = |source: &str, server: &str| -> Result<Datagrams> {
        let source = source.parse()?;
        let server = SocketAddr::new(server.parse()?, PROXIED);
        site.net.client.enter(|| Datagrams::to(source, server))?
    };
    let mut clients = [client("198.18.0.2", SERVER_V4)?, client(SECOND_CLIENT, SECOND_V4)?];
    for asked in 0..BURST {
        let answer = clients[asked as usize % 2].ask("get key\r\n")?;
        ensure!(answer == "END\r\n", "request {asked}: {answer}");
    }
    for client in &mut clients {
        let answer = client.ask("get key\r\n")?;
        ensure!(answer == "SERVER_ERROR throttled\r\n", "{answer}");
    }
    Ok(())
}

#[test]
fn datagrams_marked_at_either_interface_are_charged_once() -> Result<()> {
    let test = "datagrams_marked_at_either_interface_are_charged_once";
    let Some((site, _store)) = proxied(test, "")? else { return Ok(()) };
    let gate = start(&site, &[], 2)?;
    let marks = ["mark-link", "mark-link-1"].map(|name| site.pins().join(name));
    ensure!(marks.iter().all(|mark| mark.exists()), "nothing is marked");
    charged_once(&site)?;
    gate.end()?;
    nothing_is_left(&site)
}

/// A driver without metadata is one run of the program on a packet of that interface with as much metadata as there may be:
/// every driver here has room for more.
#[test]
fn an_interface_without_metadata_leaves_the_others_marks() -> Result<()> {
    let test = "an_interface_without_metadata_leaves_the_others_marks";
    let Some((site, _store)) = proxied(test, "")? else { return Ok(()) };
    let mut gate = start(&site, &[], 2)?;
    let marks = || Ok::<_, anyhow::Error>(site.json(&["status"])?["interfaces"].clone());
    let marked = |interfaces: &Value| [0, 1].map(|at| interfaces[at]["marks"].clone());
    ensure!(marked(&marks()?) == [json!(true), json!(true)], "{}", marks()?);

    let sizes = Sizes { samples: 1 << 12, ..Maps::pinned(site.pins(), false)?.sizes() };
    let loaded = Loaded::new(&sizes, Some(&PinDir::make(site.pins())?))?;
    let datagram = Packet::memcached(LATER, SECOND_V4, PROXIED, 7, b"get key\r\n");
    site.net.server.enter(|| -> Result<()> {
        let run = loaded.runner()?.run_without_metadata(&datagram.bytes(), if_nametoindex(SECOND)?)?;
        ensure!(run.action == XDP_PASS, "{run:?}");
        Ok(())
    })??;
    gate.wait_for("the driver has no metadata", PATIENCE)?;
    let interfaces = marks()?;
    ensure!(marked(&interfaces) == [json!(true), json!(false)], "{interfaces}");
    let said = String::from_utf8(site.gate(&["status"])?.stdout)?;
    ensure!(said.contains("charged datagrams are not marked at gate1"), "{said}");

    // What XDP has charged at either is not charged again.
    charged_once(&site)?;
    // At the first the mark still decides: the machine's own datagrams are charged from the first on, although gate does
    // not know yet that their source is its own.
    site.net.add_server_address(LATER.parse()?)?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let mut later = site.net.server.enter(|| Datagrams::to(LATER.parse()?, server))??;
    let mut passed = 0;
    while passed < 10 * BURST && later.ask("get key\r\n")? == "END\r\n" {
        passed += 1;
    }
    ensure!((BURST - 1..BURST + 2).contains(&passed), "{passed} passed of a burst of {BURST}, less one");
    gate.end()?;
    nothing_is_left(&site)
}

/// A process that may set marks sets gate's on what the machine sends to itself.
#[test]
fn a_mark_of_the_machines_own_processes_pays_nothing() -> Result<()> {
    let test = "a_mark_of_the_machines_own_processes_pays_nothing";
    let Some((site, _store)) = proxied(test, "")? else { return Ok(()) };
    site.net.add_server_address(LATER.parse()?)?;
    let gate = start(&site, &[], 2)?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let mut local = site.net.server.enter(|| Datagrams::to(LATER.parse()?, server))??;
    setsockopt(local.socket(), sockopt::Mark, &0x1000)?;
    let mut passed = 0;
    while passed < 10 * BURST && local.ask("get key\r\n")? == "END\r\n" {
        passed += 1;
    }
    ensure!(passed <= BURST, "{passed} passed of a burst of {BURST}");
    gate.end()?;
    nothing_is_left(&site)
}

#[test]
fn without_a_mark_either_interface_says_what_was_charged() -> Result<()> {
    let test = "without_a_mark_either_interface_says_what_was_charged";
    let Some((site, _store)) = proxied(test, "charged_mark = \"off\"\n")? else { return Ok(()) };
    let gate = start(&site, &[], 2)?;
    charged_once(&site)?;
    gate.end()?;
    nothing_is_left(&site)
}
