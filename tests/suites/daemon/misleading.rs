//! Measurements that mislead: a store that answers at once with errors, and a probe that lies. What follows is bounded:
//! `critical` is never refused, and what has lasted for `learn_after` is taken for usual.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_common::abi::Reason;
use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::flood::{Flood, Sink};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::wait::{until, wait_until};
use gate_userspace::kernel::Maps;

/// Far above what a busy machine makes of an answer that is given at once, and below [`FLOOR`] nothing counts.
const SLOW: Duration = Duration::from_millis(200);
const FLOOR: &str = "floor = \"20ms\"";
/// Short, so that the tests need not wait for minutes. But the long window has all that was before, and the store is taken for usual
/// long after a tier is refused, which is a rung a tick.
const WINDOWS: &str = "short = \"500ms\", long = \"20s\", learn_after = \"10s\"";
/// Datagrams that pass until what is usual is known. They take 8 s, so that a tick sees the first slow answers long before those are 5 % of
/// the long window and count as usual.
const ENOUGH: u64 = 2_000;
/// Errors to each tenant until that is known: of a second at least, in which there are thirty times as many as slow answers.
const ENOUGH_ERRORS: u64 = 2_000;

/// A store that says what the test wants, as fast as it wants.
struct FickleStore {
    address: SocketAddr,
    mood: &'static AtomicU8,
}

/// Every answer is an error, at once.
const ERRORS: u8 = 0;
/// Every answer takes [`SLOW`].
const USUAL: u8 = 1;
/// Every answer is a line that means nothing, at once.
const NONSENSE: u8 = 2;

impl FickleStore {
    /// Starts one at `address`, in this thread's network.
    fn start(address: &str, mood: &'static AtomicU8) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || serve(stream, mood));
            }
        });
        Ok(Self { address, mood })
    }

    fn turn(&self, mood: u8) {
        self.mood.store(mood, Ordering::Relaxed);
    }
}

fn serve(mut stream: TcpStream, mood: &AtomicU8) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut read = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        let len = stream.read(&mut piece).ok().filter(|&len| len > 0)?;
        read.extend_from_slice(&piece[..len]);
        let mut answers = Vec::new();
        while let Some(end) = read.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = read.drain(..=end).collect();
            let mood = mood.load(Ordering::Relaxed);
            let is_version = line == b"version\r\n";
            answers.extend_from_slice(match mood {
                ERRORS if !is_version => b"SERVER_ERROR out of memory\r\n",
                NONSENSE => b"~~~\r\n",
                _ if is_version => b"VERSION fickle\r\n",
                _ => b"END\r\n",
            });
        }
        if mood.load(Ordering::Relaxed) == USUAL {
            std::thread::sleep(SLOW);
        }
        stream.write_all(&answers).ok()?;
    }
}

const TENANTS: &str = r#"
[[tenant]]
name = "vital"
sources = ["127.0.0.1", "198.18.1.0/24"]
quota = "unlimited"
tier = "critical"

[[tenant]]
name = "cheap"
sources = ["127.0.0.2", "198.18.2.0/24"]
quota = "unlimited"
tier = "best-effort"
"#;

/// The replies to a client that asks again as soon as it has been answered.
#[derive(Default)]
struct Replies {
    answers: AtomicU64,
    errors: AtomicU64,
    penalties: AtomicU64,
}

impl Replies {
    fn ask_on(&self, mut client: TcpStream, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            client.write_all(b"get a\r\n")?;
            let said = read_until(&mut client, b"\r\n")?;
            let count = match &said[..] {
                b"END\r\n" => &self.answers,
                b"SERVER_ERROR out of memory\r\n" => &self.errors,
                said if said.ends_with(b"reason=penalty\r\n") => &self.penalties,
                said => anyhow::bail!("{}", shown(said)),
            };
            count.fetch_add(1, Ordering::Relaxed);
            // A client that is refused comes back later.
            std::thread::park_timeout(Duration::from_millis(2));
        }
        Ok(())
    }
}

fn of(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// When a store that has answered with errors at once answers as usual again, it looks like one that has become slower.
#[test]
fn errors_at_once_cost_the_lowest_tier_alone_and_briefly() -> Result<()> {
    static MOOD: AtomicU8 = AtomicU8::new(ERRORS);
    let store = FickleStore::start("127.0.0.1:0", &MOOD)?;
    let service = format!("parallelism = \"off\"\nshedding = {{ {WINDOWS}, {FLOOR}, min_samples = \"3\" }}");
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store.address, &service, TENANTS)?;
    let vital = Replies::default();
    let cheap = Replies::default();
    let over = AtomicBool::new(false);
    let clients: Vec<_> = [(&vital, 1), (&cheap, 2)]
        .into_iter()
        .flat_map(|(replies, last)| (0..4).map(move |_| (replies, Ipv4Addr::new(127, 0, 0, last))))
        .map(|(replies, source)| Ok((replies, gate.connect_from(source)?)))
        .collect::<Result<_>>()?;
    std::thread::scope(|scope| -> Result<()> {
        let asking: Vec<_> = clients
            .into_iter()
            .map(|(replies, client)| scope.spawn(|| replies.ask_on(client, &over)))
            .collect();
        let seen = (|| -> Result<()> {
            wait_until("errors are passed on", || {
                Ok(of(&vital.errors).min(of(&cheap.errors)) > ENOUGH_ERRORS)
            })?;
            let shown = gate.json(&["queues"])?["services"][0].clone();
            ensure!(shown["store"]["up"] == true, "a store that answers is not down: {shown}");
            ensure!(of(&cheap.penalties) == 0, "errors at once shed something");
            store.turn(USUAL);
            wait_until("it looks slower", || Ok(of(&cheap.penalties) > 20))?;
            let answered = of(&vital.answers);
            wait_until("the highest tier is served", || Ok(of(&vital.answers) > answered + 20))?;
            let answered = of(&cheap.answers);
            wait_until("what lasts is usual", || Ok(of(&cheap.answers) > answered + 50))?;
            ensure!(of(&vital.penalties) == 0, "critical was refused");
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        asking.into_iter().try_for_each(|asking| asking.join().expect("it does not panic"))?;
        seen
    })
}

/// A probe is answered by whatever listens there: at once with nonsense, or late although the service is as fast as ever.
#[test]
fn a_probe_that_lies_costs_the_lowest_tier_alone_and_briefly() -> Result<()> {
    static MOOD: AtomicU8 = AtomicU8::new(NONSENSE);
    if !privilege::root("misleading::a_probe_that_lies_costs_the_lowest_tier_alone_and_briefly") {
        return Ok(());
    }
    let target = "198.18.0.1:11211";
    let site = Site::new(&format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{target}\"\n\
         probe = {{ every = \"5ms\" }}\nshedding = {{ {WINDOWS}, {FLOOR} }}\n{TENANTS}"
    ))?;
    let store = site.net.server.enter(|| FickleStore::start(target, &MOOD))??;
    let sink = Sink::start(&site.net, target.parse()?)?;
    let gate = site.start(&[])?;
    let maps = Maps::pinned(site.pins(), false)?;
    let passed = |tenant| maps.tenant_counters(tenant).passed;
    let penalties = |tenant| maps.tenant_counters(tenant).refused[Reason::Penalty.index()];
    let vital = 1;
    let cheap = 2;
    let sources = ["198.18.1.1".parse()?, "198.18.2.1".parse()?];
    let flood = Flood::start(&site.net, &sources, target.parse()?, 500)?;
    let probed = || -> Result<serde_json::Value> { Ok(site.json(&["queues"])?["probed"][0].clone()) };
    wait_until("the probe is answered", || Ok(probed()?["up"] == true))?;
    let before = passed(cheap);
    until("nonsense at once is an answer", PATIENCE, || passed(cheap) > before + ENOUGH);
    ensure!(penalties(cheap) == 0, "nonsense at once shed something: {}", probed()?);

    store.turn(USUAL);
    wait_until("the probe says that it is slower", || Ok(penalties(cheap) > 50))
        .with_context(|| probed().map_or_else(|error| error.to_string(), |probed| probed.to_string()))?;
    let before = passed(vital);
    until("the highest tier passes", PATIENCE, || passed(vital) > before + 100);
    let before = passed(cheap);
    until("what lasts is usual", PATIENCE, || passed(cheap) > before + 100);
    ensure!(penalties(vital) == 0, "critical was refused");
    flood.stop();
    let all = passed(vital) + passed(cheap);
    wait_until("what passed arrives", || Ok(sink.received() >= all)).context("the service was not slower")?;
    drop(maps);
    gate.end()?;
    Ok(())
}
