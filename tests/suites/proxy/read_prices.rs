//! Prices by what requests read: as dear as the last ones of their tenant and class, whatever they look like.

use std::io::Write as _;
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;

/// A row costs half a request unit, a KiB nothing to speak of but where it is a reply's.
const SERVICE: &str = "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"1 RU\" }\n";
const ELEMENTS: usize = 1_000;

/// Tenants with this quota, one for each of these addresses: `127.0.0.N` is `tN`.
fn tenants(numbers: &[u8], quota: &str) -> String {
    let tenant = |number: &u8| {
        format!("[[tenant]]\nname = \"t{number}\"\nsources = [\"127.0.0.{number}\"]\n{quota}\n")
    };
    numbers.iter().map(tenant).collect()
}

const RICH: &str = "quota = \"1000000 RU/s\"\nburst = \"10s\"";

/// A client of one tenant.
struct Client<'g> {
    gate: &'g Listening,
    tenant: u8,
    stream: TcpStream,
}

impl<'g> Client<'g> {
    fn new(gate: &'g Listening, tenant: u8) -> Result<Self> {
        Ok(Self { gate, tenant, stream: gate.connect_from([127, 0, 0, tenant].into())? })
    }

    fn ask(&mut self, request: &str, end: &str) -> Result<String> {
        self.stream.write_all(request.as_bytes())?;
        let reply = read_until(&mut self.stream, end.as_bytes())?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// The charge of its tenant so far.
    fn charged(&self) -> Result<f64> {
        self.gate.charged(&format!("t{}", self.tenant))
    }

    /// The price of a request.
    fn price(&mut self, request: &str, end: &str) -> Result<f64> {
        let before = self.charged()?;
        self.ask(request, end)?;
        Ok(self.charged()? - before)
    }

    /// True if a request costs about so much.
    fn costs(&mut self, request: &str, end: &str, ru: f64) -> Result<()> {
        let price = self.price(request, end)?;
        ensure!((price - ru).abs() < 0.02 * ru + 0.1, "t{}: {request:?} cost {price}, not {ru}", self.tenant);
        Ok(())
    }
}

/// A Redis with keys of [`ELEMENTS`] elements, and with small ones.
fn filled_redis() -> Result<Listening> {
    let store = Listening::redis()?;
    let mut stream = store.connect()?;
    let mut fill = |command: &str| -> Result<()> {
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        read_until(&mut stream, b"\r\n").map(|_| ())
    };
    for member in 0..ELEMENTS {
        fill(&format!("RPUSH large-list x{member}"))?;
        fill(&format!("SADD large-set x{member}"))?;
        fill(&format!("HSET large-hash x{member} v"))?;
    }
    fill("RPUSH small-list a b c")?;
    fill("SADD small-set y z")?;
    fill("SET small v")?;
    fill("SETRANGE large 102399 x")?;
    Ok(store)
}

#[test]
fn redis_reads_cost_what_the_last_ones_of_their_tenant_returned() -> Result<()> {
    let store = filled_redis()?;
    let numbers = [2, 3, 4, 5, 6, 7, 8];
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants(&numbers, RICH))?;
    let last = format!("$4\r\nx{}\r\n", ELEMENTS - 1);
    let guess = 0.5 + 100.0 * 0.5;

    // An open range costs the guess at first, and then what it returned.
    let mut ranges = Client::new(&gate, 2)?;
    ranges.costs("LRANGE large-list 0 -1\r\n", &last, guess)?;
    ranges.costs("LRANGE large-list 0 -1\r\n", &last, 0.5 + 500.0)?;
    // What says how much it reads costs that, and the commands of other classes what they did.
    ranges.costs("LRANGE large-list 0 9\r\n", "x9\r\n", 5.5)?;
    ranges.costs("GET small\r\n", "v\r\n", 1.0)?;

    // Another tenant pays for its own.
    let mut small = Client::new(&gate, 3)?;
    small.costs("LRANGE small-list 0 -1\r\n", "c\r\n", guess)?;
    small.costs("LRANGE small-list 0 -1\r\n", "c\r\n", 0.5 + 1.5)?;
    ranges.costs("LRANGE large-list 0 -1\r\n", &last, 0.5 + 500.0)?;

    // A hash has two rows to the field; a stored union says how many it has written.
    let mut hashes = Client::new(&gate, 4)?;
    hashes.ask("HGETALL large-hash\r\nPING\r\n", "+PONG\r\n")?;
    hashes.costs("HGETALL large-hash\r\nPING\r\n", "+PONG\r\n", 1_000.5 + 1.0)?;
    let mut unions = Client::new(&gate, 5)?;
    let union = "SUNIONSTORE d large-set small-set\r\n";
    unions.costs(union, ":1002\r\n", guess)?;
    unions.costs(union, ":1002\r\n", 0.5 + 501.0)?;
    // Little came back, and that says nothing of how much was read.
    let mut intersections = Client::new(&gate, 6)?;
    let intersection = "SINTERSTORE d large-set small-set\r\n";
    intersections.costs(intersection, ":0\r\n", guess)?;
    intersections.costs(intersection, ":0\r\n", guess)?;

    // A long value costs its length, less the KiB that a row may have.
    let mut values = Client::new(&gate, 7)?;
    values.costs("GET large\r\nPING\r\n", "+PONG\r\n", 2.0)?;
    values.costs("GET large\r\nPING\r\n", "+PONG\r\n", 2.0 + 99.0)?;

    // On a connection of its own, too: a watched key keeps it.
    let mut dedicated = Client::new(&gate, 8)?;
    dedicated.ask("WATCH a\r\n", "+OK\r\n")?;
    dedicated.costs("LRANGE large-list 0 -1\r\n", &last, guess)?;
    dedicated.costs("LRANGE large-list 0 -1\r\n", &last, 0.5 + 500.0)?;

    let queues = gate.json(&["queues"])?;
    let range = &queues["services"][0]["read_prices"]["range"];
    let [by_class, learned] = ["class_ru", "learned_ru"].map(|price| range[price].as_f64().unwrap_or(0.0));
    ensure!(by_class > 50.0 && by_class < 51.0 && learned > 2.0 * by_class, "{queues}");
    let shown = String::from_utf8(gate.command(&["queues"])?.stdout)?;
    ensure!(shown.contains("by what they read, in RU: ") && shown.contains("range "), "{shown}");
    Ok(())
}

#[test]
fn nothing_is_learned_from_reads_where_that_is_off() -> Result<()> {
    let store = filled_redis()?;
    let gate = Listening::gate("resp", store.address, SERVICE, &tenants(&[2], RICH))?;
    let mut client = Client::new(&gate, 2)?;
    let last = format!("$4\r\nx{}\r\n", ELEMENTS - 1);
    let range = "LRANGE large-list 0 -1\r\n";
    client.costs(range, &last, 50.5)?;
    client.costs(range, &last, 500.5)?;
    let off = gate.command(&["set", "service.store.price.learn", "off"])?;
    ensure!(off.status.success(), "{}", String::from_utf8_lossy(&off.stderr));
    wait_until("prices are of classes again", || Ok(client.price(range, &last)? < 51.0))?;
    client.costs(range, &last, 50.5)
}

/// A memcached with a long value and a short one.
fn filled_memcached(bytes: usize) -> Result<Listening> {
    let store = Listening::memcached()?;
    let value = "v".repeat(bytes);
    store.ask(format!("set large 0 0 {bytes}\r\n{value}\r\n").as_bytes(), b"STORED\r\n")?;
    store.ask(b"set small 0 0 1\r\nv\r\n", b"STORED\r\n")?;
    Ok(store)
}

#[test]
fn long_values_cost_their_length_also_among_short_ones() -> Result<()> {
    let store = filled_memcached(101 * 1_024)?;
    let gate = Listening::gate("memcached", store.address, SERVICE, &tenants(&[2, 3, 4], RICH))?;
    let large = "get large\r\n";
    let small = "get small\r\n";
    let mut polite = Client::new(&gate, 2)?;
    polite.costs(small, "END\r\n", 1.0)?;
    let mut values = Client::new(&gate, 3)?;
    values.costs(large, "END\r\n", 1.0)?;
    values.costs(large, "END\r\n", 101.0)?;

    // Whoever hides long values among short ones pays for them with those.
    let mut alternating = Client::new(&gate, 4)?;
    let before = alternating.charged()?;
    for _ in 0..50 {
        alternating.ask(large, "END\r\n")?;
        alternating.ask(small, "END\r\n")?;
    }
    let charged = alternating.charged()? - before;
    let read = 50.0 * (101.0 + 1.0);
    ensure!(charged > 0.8 * read && charged < 1.2 * read, "{charged} for {read}");
    // And nobody else does.
    (0..10).try_for_each(|_| polite.costs(small, "END\r\n", 1.0))
}

#[test]
fn a_learned_price_is_never_beyond_what_its_bucket_admits() -> Result<()> {
    let store = filled_memcached(900 * 1_024)?;
    // At most 30 request units at once.
    let poor = "quota = \"100 RU/s\"\nburst = \"100ms\"";
    let gate = Listening::gate("memcached", store.address, SERVICE, &tenants(&[2], poor))?;
    let mut client = Client::new(&gate, 2)?;
    client.costs("get large\r\n", "END\r\n", 1.0)?;
    for _ in 0..3 {
        let before = client.charged()?;
        // Refused for its quota while there is a debt, and never for good.
        wait_until("the bucket admits it", || {
            let reply = client.ask("get large\r\n", "\r\n")?;
            if reply.starts_with("VALUE") {
                return Ok(reply.ends_with("END\r\n") || !client.ask("", "END\r\n")?.is_empty());
            }
            ensure!(
                reply.contains(" reason=quota ") || reply.ends_with("reason=rejected-until\r\n"),
                "{reply}"
            );
            Ok(false)
        })?;
        let price = client.charged()? - before;
        ensure!((price - 30.0).abs() < 0.1, "{price}");
    }
    Ok(())
}

#[test]
fn settlement_charges_what_was_read_beyond_the_price() -> Result<()> {
    let store = filled_memcached(900 * 1_024)?;
    let quota = "quota = \"100 RU/s\"\nburst = \"1s\"\nmax_debt = \"1h\"";
    let service = "price = { settle = \"debt\" }\n";
    let gate = Listening::gate("memcached", store.address, service, &tenants(&[2, 3], quota))?;
    let mut client = Client::new(&gate, 2)?;
    client.costs("get large\r\n", "END\r\n", 900.0)?;
    let refused = client.ask("get small\r\n", "\r\n")?;
    ensure!(refused.contains("reason=quota") || refused.contains("reason=rejected-until"), "{refused}");
    let queues = gate.json(&["queues"])?;
    let settled = queues["services"][0]["settled_ru"].as_f64().context("nothing was settled")?;
    ensure!((settled - 899.0).abs() < 1.0, "{settled}");
    let mut polite = Client::new(&gate, 3)?;
    (0..20).try_for_each(|_| polite.costs("get small\r\n", "END\r\n", 1.0))?;
    ensure!(gate.json(&["queues"])?["services"][0]["settled_ru"] == settled, "{queues}");
    Ok(())
}
