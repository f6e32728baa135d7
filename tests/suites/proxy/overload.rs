//! More is asked than the store can do: what is admitted keeps its objective, what is critical is served, and
//! the rest is told at once.
//!
//! How fast the store is depends on what else the machine does. So times are counted in what the store needed for an
//! answer meanwhile: how long a queue is does not depend on that.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::{Listening, keys, read_until, shown, slow_store_at};
use gate_tests::wait::within;
use gate_userspace::load::{self, Plan, Protocol, Quantiles, Summary, TenantSummary, Transport};

const TENANTS: &str = r#"
[[tenant]]
name = "critical"
sources = ["127.0.0.2"]
quota = "unlimited"
tier = "critical"
[[tenant]]
name = "batch"
sources = ["127.0.0.0/8"]
quota = "unlimited"
tier = "batch"
"#;

/// Long beside what a busy machine adds to a sleep.
const SERVICE_TIME: Duration = Duration::from_millis(5);
/// The most requests that the store serves in a second: it sleeps a little longer than it is told.
const CAPACITY: f64 = 200.0;
/// Bouncer needs `histogram_values` answers of a class, 1,000 here, before it knows it.
const KNOWN: usize = 1_200;
const MEASURED: Nanos = Nanos::from_secs(3);
/// For what takes as long as the machine lets it.
const LONGEST: Duration = Duration::from_secs(90);

/// A store that takes its time, one request after the other, and notes by how much it overslept.
fn store() -> Result<SocketAddr> {
    slow_store_at("127.0.0.1:0", |command| {
        let began = Instant::now();
        let time = SERVICE_TIME * keys(command);
        std::thread::sleep(time);
        OVERSLEPT_US.fetch_max((began.elapsed() - time).as_micros() as u64, Ordering::Relaxed);
        Duration::ZERO
    })
}

static OVERSLEPT_US: AtomicU64 = AtomicU64::new(0);

/// A gate before a slow store, two requests at a time; `service` is what else its section says.
fn gate(admission: &str, service: &str) -> Result<Listening> {
    let service = format!(
        "connections = \"2\"\nparallelism = \"2\"\n{}\n\
         objectives = {{ get = {{ p50 = \"{OBJECTIVE_P50:?}\", p90 = \"{OBJECTIVE_P90:?}\" }} }}\n\
         {service}",
        policy(admission)
    );
    Listening::gate_with("threads = \"1\"", "memcached", store()?, &service, TENANTS)
}

/// The policy, and with Bouncer that it knows a class after a short while.
fn policy(admission: &str) -> String {
    let values = if admission == "bouncer" { "histogram_values = \"1000\"" } else { "" };
    format!("admission = \"{admission}\"\n{values}")
}

/// Without what would refuse as well: only what the admission policy does is to be seen.
const NOTHING_ELSE: &str = "codel = { law = \"off\" }\nshedding.enabled = \"off\"";
const OBJECTIVE_P50: Duration = Duration::from_millis(100);
const OBJECTIVE_P90: Duration = Duration::from_millis(200);

/// Asks for so much of the store's capacity, as critical and as batch, open loop, on many connections.
fn offer(gate: &Listening, critical: f64, batch: f64, lasting: Nanos) -> Result<Summary> {
    let tenant = |name: &str, source: &str, share: f64| {
        let rate = (share * CAPACITY) as u64;
        let tenant = format!("name={name},source={source},rate={rate}/s,connections=64");
        tenant.parse().with_context(|| tenant.clone())
    };
    let mut tenants = Vec::new();
    for (name, source, share) in [("critical", "127.0.0.2", critical), ("batch", "127.0.0.3", batch)] {
        if share > 0.0 {
            tenants.push(tenant(name, source, share)?);
        }
    }
    let timeout = Nanos::from_secs(5);
    let transport = Transport::Tcp;
    let target = gate.address;
    let plan = Plan {
        target,
        transport,
        protocol: Protocol::Memcached,
        tenants,
        duration: lasting,
        count: None,
        timeout,
        seed: 1,
    };
    let summary = load::start(&plan)?.finish();
    summary.tenants.iter().for_each(print);
    Ok(summary)
}

fn print(tenant: &TenantSummary) {
    let times = |times: &Quantiles| [times.p50, times.p90, times.p99].map(Duration::from_nanos);
    println!(
        "{}: offered {}, answered {} in {:?}, refused {:?} in {:?}, lost {}",
        tenant.name,
        tenant.offered,
        tenant.answered,
        times(&tenant.latency_ns),
        tenant.refused_by_reason,
        times(&tenant.refusal_latency_ns),
        tenant.lost + tenant.failed + tenant.unsent
    );
}

/// Asks until Bouncer knows what a request takes.
fn warm_up(gate: &Listening, critical: f64, batch: f64) -> Result<()> {
    within("the store is not known", LONGEST, || {
        offer(gate, critical, batch, Nanos::from_secs(1))?;
        let queues = gate.json(&["queues"])?;
        let answered = queues["services"][0]["types"][0]["answered"].as_u64().context("no count")?;
        Ok(answered >= KNOWN as u64)
    })
    .map(|_| ())
}

/// How long the store took for an answer while more was asked than it could do.
fn pace(overload: &Summary) -> f64 {
    let answered: u64 = overload.tenants.iter().map(|tenant| tenant.answered).sum();
    MEASURED.0 as f64 / answered as f64
}

/// For how many answers of the store's half of the answered requests waited at most, and 90 %.
fn waited(tenant: &TenantSummary, pace: f64) -> [f64; 2] {
    [tenant.latency_ns.p50, tenant.latency_ns.p90].map(|ns| ns as f64 / pace)
}

/// How many answers the objectives leave time for.
fn objectives() -> [f64; 2] {
    [OBJECTIVE_P50, OBJECTIVE_P90].map(|time| time.as_secs_f64() / SERVICE_TIME.as_secs_f64())
}

/// True if the answers were, for the client, within both objectives.
fn keeps_objectives(tenant: &TenantSummary, pace: f64) -> bool {
    waited(tenant, pace).iter().zip(objectives()).all(|(waited, objective)| *waited <= objective)
}

#[test]
fn objectives_hold_with_bouncer_and_not_without() -> Result<()> {
    for admission in ["off", "bouncer"] {
        let gate = gate(admission, NOTHING_ELSE)?;
        warm_up(&gate, 0.0, 1.3)?;
        let overload = undisturbed(&gate, || offer(&gate, 0.0, 1.5, MEASURED))?;
        let batch = &overload.tenants[0];
        let pace = pace(&overload);
        let waited = waited(batch, pace);
        ensure!(keeps_objectives(batch, pace) == (admission == "bouncer"), "{admission}: {waited:?}");
        // Nor is more refused than has to be: there is a queue.
        ensure!(waited[0] > objectives()[0] / 5.0, "{admission}: {waited:?}");
        ensure!(batch.failed + batch.lost == 0, "{admission}");
    }
    Ok(())
}

#[test]
fn critical_is_served_in_an_overload_and_the_rest_after_it() -> Result<()> {
    let gate = gate("bouncer", "")?;
    warm_up(&gate, 0.6, 0.0)?;
    let overload = undisturbed(&gate, || offer(&gate, 0.4, 1.1, MEASURED))?;
    let pace = pace(&overload);
    let [critical, batch] = &overload.tenants[..] else { panic!("two tenants") };
    ensure!(keeps_objectives(critical, pace), "critical is late");
    // What comes to the tier above is served first, and was foreseen.
    ensure!(waited(batch, pace)[0] <= objectives()[1], "batch is late");
    ensure!(critical.answered * 100 >= critical.offered * 99, "critical gets less than 99 %");
    ensure!(batch.refused > 0 && batch.answered > 0, "batch is not the one that gives way");
    // Less than the store can do: all of it is done, at the usual prices, within ten seconds.
    for _ in 0..10 {
        let calm = undisturbed(&gate, || offer(&gate, 0.2, 0.2, Nanos::from_secs(1)))?;
        let is_served = |tenant: &TenantSummary| tenant.answered * 100 >= tenant.offered * 99;
        let rungs = rungs(&gate)?;
        println!("rungs {rungs:?}");
        if calm.tenants.iter().all(is_served) && rungs.iter().all(|&rung| rung == 0) {
            return Ok(());
        }
    }
    bail!("still not back")
}

/// Measures anew for as long as the machine, meanwhile, kept a thread of the store's or of gate's waiting for half an
/// objective: nobody could have kept it. That is said, and does not depend on what was measured.
fn undisturbed<T>(gate: &Listening, mut measure: impl FnMut() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        OVERSLEPT_US.store(0, Ordering::Relaxed);
        let over = AtomicBool::new(false);
        let mut client = gate.connect()?;
        let (measured, late) = std::thread::scope(|scope| {
            // gate answers this by itself, at once, whatever waits for the store.
            let watch = scope.spawn(|| -> Result<Duration> {
                let mut late = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    client.write_all(b"nonsense\r\n")?;
                    read_until(&mut client, b"ERROR\r\n")?;
                    late = late.max(asked.elapsed());
                    std::thread::sleep(NAP);
                }
                Ok(late)
            });
            let measured = measure();
            over.store(true, Ordering::Relaxed);
            (measured, watch.join().expect("it does not panic"))
        });
        let late = late?.max(Duration::from_micros(OVERSLEPT_US.load(Ordering::Relaxed)));
        if late <= OBJECTIVE_P50 / 2 {
            return measured;
        }
        println!("the machine stood still for {late:?}: once more");
        ensure!(began.elapsed() < LONGEST, "the machine stands still again and again, last for {late:?}");
    }
}

const NAP: Duration = Duration::from_millis(5);

/// How much dearer each tier's requests are, the most critical first.
fn rungs(gate: &Listening) -> Result<Vec<u64>> {
    let queues = gate.json(&["queues"])?;
    let tiers = queues["services"][0]["tiers"].as_array().context("no tiers")?;
    tiers.iter().map(|tier| tier["rung"].as_u64().context("no rung")).collect()
}

/// A Redis with a list that takes long to sort, and how long by its own account when nothing comes between.
fn costly_redis() -> Result<(Listening, Duration)> {
    let redis = Listening::redis_with(&["--slowlog-log-slower-than", "0"])?;
    let mut numbers = format!("*{}\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n", 2 + LIST);
    let mut number = 1_u32;
    for _ in 0..LIST {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        numbers.push_str(&format!("$10\r\n{number:010}\r\n"));
    }
    redis.ask(numbers.as_bytes(), format!(":{LIST}\r\n").as_bytes())?;
    let mut stream = redis.connect()?;
    redis.ask(b"SLOWLOG RESET\r\n", b"+OK\r\n")?;
    (0..100).try_for_each(|_| sort(&mut stream).map(drop))?;
    let log = String::from_utf8(redis.ask(b"SLOWLOG GET 100\r\nPING\r\n", b"+PONG\r\n")?)?;
    // Each entry's number, its time, and how many microseconds it took.
    let numbers = log.lines().filter_map(|line| line.strip_prefix(':'));
    let took: Vec<u64> = numbers.skip(2).step_by(3).map(str::parse).collect::<Result<_, _>>()?;
    Ok((redis, Duration::from_micros(took.into_iter().min().context("nothing was slow")?)))
}

const LIST: usize = 4_000;

/// Has the list sorted; false if that is refused.
fn sort(stream: &mut TcpStream) -> Result<bool> {
    stream.write_all(b"SORT list LIMIT 0 1\r\n")?;
    let said = read_until(stream, b"\r\n")?;
    if said.starts_with(b"*1\r\n") {
        if said == b"*1\r\n" {
            read_until(stream, b"\r\n")?;
        }
        return Ok(true);
    }
    ensure!(said.ends_with(b"reason=slo\r\n"), "{}", shown(&said));
    Ok(false)
}

/// For how many others' answers each answered request of [`SORTERS`] clients waited, sorted, once Bouncer knows what a
/// request takes. They ask again as soon as they are answered, and a while after a refusal.
fn sorted(gate: &Listening, backoff: Duration) -> Result<Vec<usize>> {
    let began = Instant::now();
    let done = AtomicUsize::new(0);
    let client = |mut stream: TcpStream| -> Result<Vec<usize>> {
        let mut waited = Vec::new();
        loop {
            let before = done.load(Ordering::Relaxed);
            if before >= KNOWN + SORTED {
                return Ok(waited);
            }
            ensure!(began.elapsed() < LONGEST, "{before} answers");
            if !sort(&mut stream)? {
                std::thread::sleep(backoff);
                continue;
            }
            let meanwhile = done.fetch_add(1, Ordering::Relaxed) - before;
            waited.extend((before >= KNOWN).then_some(meanwhile));
        }
    };
    let streams: Vec<_> = (0..SORTERS).map(|_| gate.connect()).collect::<Result<_>>()?;
    let mut waited = std::thread::scope(|scope| -> Result<Vec<usize>> {
        let clients: Vec<_> = streams.into_iter().map(|stream| scope.spawn(|| client(stream))).collect();
        let waited = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        Ok(waited.collect::<Result<Vec<_>>>()?.concat())
    })?;
    waited.sort_unstable();
    Ok(waited)
}

/// So many wait for each other when all are let in.
const SORTERS: usize = 64;
/// Answers that are looked at.
const SORTED: usize = 1_000;
/// For how many there is time within the objective, if nothing comes between.
const TIME_FOR: u32 = 16;

#[test]
fn admitted_costly_redis_commands_keep_their_objectives() -> Result<()> {
    let (redis, cost) = costly_redis()?;
    for admission in ["off", "bouncer"] {
        let service = format!(
            "connections = \"1\"\nparallelism = \"1\"\n{}\n\
             objectives = {{ default = {{ p50 = \"{}us\", p90 = \"{}us\" }} }}\n{NOTHING_ELSE}",
            policy(admission),
            (cost * TIME_FOR).as_micros(),
            (cost * TIME_FOR * 6).as_micros()
        );
        let gate = Listening::gate_with("threads = \"1\"", "resp", redis.address, &service, TENANTS)?;
        let waited = sorted(&gate, cost * 20)?;
        let [p50, p90] = [50, 90].map(|percent| waited[(waited.len() - 1) * percent / 100]);
        println!("{admission}: {cost:?} each, waited for {p50}, {p90} of {} at p90", waited.len());
        // None takes less than `cost`, so that for more there is no time.
        ensure!((p50 <= TIME_FOR as usize) == (admission == "bouncer"), "{admission}: {p50}");
    }
    Ok(())
}
