//! Prices that follow what requests take: what only looks cheap becomes dear, for the daemon and for the kernel.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::memcached::{Datagrams, PORT};
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::slow_store::{keys, slow_store_at};
use gate_tests::wait::{wait_until, within};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Much longer than it takes to wake a reader: replies that are read together have one time for all.
const READ: Duration = Duration::from_millis(1);
/// So much longer takes a deletion, which looks like a read.
const DEARER: u32 = 10;
/// A request for one key costs one request unit, whatever its length. No ratio, or a busy machine would look like an
/// overload, which is not recorded.
const SERVICE: &str = "connections = \"1\"\nshedding.floor = \"1h\"\n\
    price = { base = \"0.9 RU\", row = \"0.1 RU\", kib = \"0 RU\", learn = \"on\", range = \"100\" }\n";
/// Requests whose price is looked at. Too few to learn from.
const LOOKED_AT: u32 = 5;
const LEARNED_WITHIN: Duration = Duration::from_secs(60);

/// The time that commands take at the store.
fn cost(command: &[u8]) -> Duration {
    if command.starts_with(b"delete") { READ * DEARER } else { READ * keys(command) }
}

fn tenants(reads: &str, deletes: &str) -> String {
    let tenant = |name: &str, source: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsources = [\"{source}\"]\nquota = \"1000000 RU/s\"\n")
    };
    tenant("reads", reads) + &tenant("deletes", deletes)
}

/// Asks once.
type Ask = Box<dyn FnMut() -> Result<()> + Send>;

/// A gate whose clients read and delete.
struct Watched<'w> {
    json: &'w dyn Fn(&[&str]) -> Result<Value>,
    /// A new client, of the tenant that deletes or of the other.
    client: &'w dyn Fn(bool) -> Result<Ask>,
}

impl Watched<'_> {
    fn price(&self) -> Result<Value> {
        Ok((self.json)(&["queues"])?["services"][0]["price"].clone())
    }

    /// The prices of a read and of a deletion, as gate shows them.
    fn shown(&self) -> Result<[f64; 2]> {
        let price = self.price()?;
        let part = |name: &str| price[name].as_f64().with_context(|| format!("{name} of {price}"));
        let command = part("base")? + part("row")?;
        Ok(["get", "delete"].map(|class| command + price["latency"][class].as_f64().unwrap_or(0.0)))
    }

    /// The charge of a read, and of a deletion.
    fn charged(&self) -> Result<[f64; 2]> {
        let before = self.charged_so_far()?;
        for deletes in [false, true] {
            let mut ask = (self.client)(deletes)?;
            (0..LOOKED_AT).try_for_each(|_| ask())?;
        }
        let after = self.charged_so_far()?;
        Ok([0, 1].map(|tenant| (after[tenant] - before[tenant]) / f64::from(LOOKED_AT)))
    }

    fn charged_so_far(&self) -> Result<[f64; 2]> {
        let tenants = (self.json)(&["tenants"])?["tenants"].take();
        let charged = |name: &str| {
            let mut tenants = tenants.as_array().into_iter().flatten();
            let tenant = tenants.find(|tenant| tenant["name"] == name).context("no such tenant")?;
            tenant["charged_ru"].as_f64().context("it was not charged")
        };
        Ok([charged("reads")?, charged("deletes")?])
    }

    /// Has clients read and delete until gate says that a deletion costs what it takes, by half of that.
    fn learn(&self) -> Result<()> {
        let stop = AtomicBool::new(false);
        let work = |mut ask: Ask| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                ask()?;
            }
            Ok(())
        };
        let clients: Vec<Ask> =
            [true, false, false, false, false].into_iter().map(self.client).collect::<Result<_>>()?;
        std::thread::scope(|scope| {
            let clients: Vec<_> = clients.into_iter().map(|ask| scope.spawn(|| work(ask))).collect();
            let learned = within("a deletion costs more than a read", LEARNED_WITHIN, || {
                let [read, deletion] = self.shown()?;
                ensure!(!clients.iter().any(|client| client.is_finished()), "a client has ended");
                Ok(deletion > read * f64::from(DEARER) / 2.0)
            });
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().expect("it does not panic")?;
            }
            let price = self.price()?;
            println!("learned in {:?}: {price}", learned.with_context(|| price.to_string())?);
            Ok(())
        })
    }

    /// Before, a deletion costs what a read costs; then what it takes, and that is what is charged.
    fn becomes_dear(&self) -> Result<()> {
        let charged = self.charged()?;
        ensure!(charged == [1.0, 1.0], "{charged:?}");
        self.learn()?;
        let [read, deletion] = self.charged()?;
        let shown = self.shown()?;
        println!("charged {read} and {deletion}, told {shown:?}");
        for (charged, shown) in [(read, shown[0]), (deletion, shown[1])] {
            // What the clients did last may still have moved it.
            ensure!((charged - shown).abs() < 0.15 * shown, "charged {charged}, told {shown}");
        }
        ensure!(deletion > read * f64::from(DEARER) / 2.5, "{deletion} beside {read}");
        Ok(())
    }
}

#[test]
fn what_takes_long_becomes_dear_and_a_reload_does_not_forget_it() -> Result<()> {
    let store = slow_store_at("127.0.0.1:0", cost)?;
    let tenants = tenants("127.0.0.2", "127.0.0.3");
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store, SERVICE, &tenants)?;
    let client = |deletes: bool| -> Result<Ask> {
        let source = if deletes { [127, 0, 0, 3] } else { [127, 0, 0, 2] };
        let mut stream = gate.connect_from(source.into())?;
        Ok(Box::new(move || {
            let (request, end): (&[u8], &[u8]) =
                if deletes { (b"delete a\r\n", b"DELETED\r\n") } else { (b"get a\r\n", b"END\r\n") };
            std::io::Write::write_all(&mut stream, request)?;
            read_until(&mut stream, end).map(|_| ())
        }))
    };
    let json = |arguments: &[&str]| gate.json(arguments);
    let watched = Watched { json: &json, client: &client };
    watched.becomes_dear()?;

    // Nothing is learned while nobody asks.
    let generation = || gate.json(&["status"])?["generation"].as_u64().context("no generation");
    let ticks = |count: u64| {
        let before = generation()?;
        wait_until("ticks go on", || Ok(generation()? > before + count))
    };
    let mut price = watched.price()?;
    wait_until("prices rest", || {
        ticks(5)?;
        let before = std::mem::replace(&mut price, watched.price()?);
        Ok(before == price)
    })?;
    let status = gate.json(&["status"])?;
    ensure!(status["services"][0]["price"] == price, "{status} beside {price}");
    ensure!(price["learned"]["reference_ms"].as_f64().is_some_and(|ms| ms > 0.3), "{price}");
    for command in ["status", "queues"] {
        let shown = String::from_utf8(gate.command(&[command])?.stdout)?;
        ensure!(shown.contains("learned"), "{shown}");
    }
    gate.signal(Signal::SIGHUP)?;
    ticks(10)?;
    ensure!(watched.price()? == price, "{} was {price}", watched.price()?);

    let off = gate.command(&["set", "service.store.price.learn", "off"])?;
    ensure!(off.status.success(), "{}", String::from_utf8_lossy(&off.stderr));
    wait_until("prices are as configured", || Ok(watched.price()?["learned"].is_null()))?;
    ensure!(watched.shown()? == [1.0, 1.0] && watched.price()?["base"] == 0.9, "{}", watched.price()?);
    wait_until("and charged", || Ok(watched.charged()? == [1.0, 1.0]))
}

/// A bucket that holds a hundred request units, and takes too long to refill to matter.
const POOR: &str = "quota = \"1 RU/s\"\nburst = \"100s\"\n";

#[test]
fn price_settlement_refuses_underpriced_requests_sooner() -> Result<()> {
    let cost = |command: &[u8]| READ * if command.starts_with(b"delete") { 50 } else { 1 };
    let store = slow_store_at("127.0.0.1:0", cost)?;
    let poor = ["next", "debt"].into_iter().zip(["127.0.0.4", "127.0.0.5"]);
    let poor =
        poor.map(|(name, source)| format!("[[tenant]]\nname = \"{name}\"\nsources = [\"{source}\"]\n{POOR}"));
    let tenants = tenants("127.0.0.2", "127.0.0.3") + &poor.collect::<String>();
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store, SERVICE, &tenants)?;
    let client = |source: u8| -> Result<_> {
        let mut stream = gate.connect_from([127, 0, 0, source].into())?;
        Ok(move |request: &str| -> Result<String> {
            std::io::Write::write_all(&mut stream, request.as_bytes())?;
            Ok(String::from_utf8(read_until(&mut stream, b"\r\n")?)?)
        })
    };
    let queues = || Ok::<_, anyhow::Error>(gate.json(&["queues"])?["services"][0].clone());
    let mut reads = client(2)?;
    let mut deletes = client(3)?;
    let mut read = || {
        let said = (0..50).map(|_| reads("get a\r\n")).collect::<Result<Vec<_>>>()?;
        ensure!(said.iter().all(|said| said == "END\r\n"), "{said:?}");
        Ok(())
    };
    // How many deletions a tenant gets done before it is refused, and what it was charged for each.
    let spend = |name: &str, source: u8| -> Result<(u32, f64)> {
        let mut ask = client(source)?;
        let mut done = 0;
        let refused = loop {
            match ask("delete a\r\n")? {
                said if said == "DELETED\r\n" => done += 1,
                said => break said,
            }
        };
        let for_quota = [" reason=quota ", " reason=rejected-until\r\n"];
        ensure!(for_quota.iter().any(|reason| refused.contains(reason)), "{refused}");
        let tenants = gate.json(&["tenants"])?["tenants"].take();
        let tenant = tenants.as_array().into_iter().flatten().find(|tenant| tenant["name"] == name);
        let charged =
            tenant.and_then(|tenant| tenant["charged_ru"].as_f64()).context("it was not charged")?;
        Ok((done, charged / f64::from(done)))
    };

    wait_until("it is known what a read takes", || {
        read()?;
        Ok(queues()?["price"]["learned"]["reference_ms"].is_f64())
    })?;
    let (by_next, price) = spend("next", 4)?;
    ensure!(queues()?["settled_ru"].is_null(), "{}", queues()?);

    let set = gate.command(&["set", "service.store.price.settle", "debt"])?;
    ensure!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let settled = || Ok::<_, anyhow::Error>(queues()?["settled_ru"].as_f64().unwrap_or(0.0));
    wait_until("a deletion is settled", || {
        read()?;
        ensure!(deletes("delete a\r\n")? == "DELETED\r\n", "it has quota enough");
        Ok(settled()? > 0.0)
    })?;
    let before = settled()?;
    let (by_debt, cost) = spend("debt", 5)?;
    println!("{by_next} deletions at {price} RU, {by_debt} at {cost}");
    ensure!(by_next > 4 * by_debt && cost > 4.0 * price, "{by_next} at {price}, {by_debt} at {cost}");
    // All but the price, which cannot have changed by much.
    let more = settled()? - before;
    let all = cost * f64::from(by_debt);
    ensure!(more < all && more > 0.7 * all, "{more} of {all}");
    let shown = String::from_utf8(gate.command(&["queues"])?.stdout)?;
    ensure!(shown.contains("charged afterwards"), "{shown}");
    Ok(())
}

#[test]
fn redis_commands_are_priced_by_their_class() -> Result<()> {
    let store = Listening::redis_with(&["--enable-debug-command", "local"])?;
    let tenants = tenants("127.0.0.0/8", "127.0.0.3");
    let gate = Listening::gate_with("threads = \"1\"", "resp", store.address, SERVICE, &tenants)?;
    let mut client = gate.connect()?;
    let mut ask = |request: &str, end: &str| -> Result<()> {
        std::io::Write::write_all(&mut client, request.as_bytes())?;
        read_until(&mut client, end.as_bytes()).map(|_| ())
    };
    ask("SET a 1\r\n", "+OK\r\n")?;
    let mut price = Value::Null;
    let learned = within("what sleeps costs more than what writes a field", LEARNED_WITHIN, || {
        for _ in 0..5 {
            for _ in 0..20 {
                ask("GET a\r\n", "$1\r\n1\r\n")?;
                (0..3).try_for_each(|_| ask("HSET h f v\r\n", "\r\n"))?;
            }
            // So rare that it is not seen in the p95 of what has a class with writes.
            ask("DEBUG SLEEP 0.03\r\n", "+OK\r\n")?;
        }
        price = gate.json(&["queues"])?["services"][0]["price"].clone();
        let [other, write] = ["other", "write"].map(|class| price["latency"][class].as_f64());
        Ok(other.zip(write).is_some_and(|(other, write)| other > 5.0 * write.max(1.0)))
    });
    println!("{price}");
    learned?;
    let status = gate.json(&["status"])?;
    ensure!(status["services"][0]["price"]["latency"]["write"].is_f64(), "{status}");
    Ok(())
}

#[test]
fn the_kernel_charges_what_the_proxy_has_learned() -> Result<()> {
    if !privilege::root("proxy_prices") {
        return Ok(());
    }
    const PROXIED: u16 = 21_211;
    let sources = ["198.18.1.1", "198.18.1.2"];
    let site = Site::new(&format!(
        "[gate]\nthreads = \"1\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"0.0.0.0:{PROXIED}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\ntransports = [\"udp\", \"tcp\"]\n{SERVICE}{}",
        tenants(sources[0], sources[1])
    ))?;
    for address in sources {
        site.net.add_client_address(address.parse()?)?;
    }
    site.net.server.enter(|| slow_store_at(&format!("{SERVER_V4}:{PORT}"), cost))??;
    let _gate = site.start(&[])?;
    let _peer = site.peer()?;
    let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
    let client = |deletes: bool| -> Result<Ask> {
        let source: IpAddr = sources[usize::from(deletes)].parse()?;
        let mut datagrams = site.net.client.enter(|| Datagrams::to(source, server))??;
        Ok(Box::new(move || {
            let (request, answer) =
                if deletes { ("delete a\r\n", "DELETED\r\n") } else { ("get a\r\n", "END\r\n") };
            let said = datagrams.ask(request)?;
            ensure!(said == answer, "{said:?}");
            Ok(())
        }))
    };
    let json = |arguments: &[&str]| site.json(arguments);
    Watched { json: &json, client: &client }.becomes_dear()?;
    // The maps know the price, and the daemon what it goes by.
    let status = site.json(&["status"])?;
    let price = &status["services"][0]["price"];
    ensure!(price["latency"]["delete"].is_f64() && price["learned"].is_object(), "{status}");
    Ok(())
}
