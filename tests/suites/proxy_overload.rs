//! More is asked than the store can do: what is admitted keeps its objective, what is critical is served, and
//! the rest is told at once.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_common::units::Nanos;
use gate_tests::proxy::{Listening, read_until, shown, slow_store};
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

const SERVICE_TIME: Duration = Duration::from_millis(2);
/// What the store does in a second, at most: it sleeps a little longer than it is told.
const CAPACITY: f64 = 500.0;
/// Bouncer needs 1,000 answers of a class before it knows it.
const WARM_UP: Nanos = Nanos::from_secs(3);
const MEASURED: Nanos = Nanos::from_secs(3);

/// A gate before a slow store, two requests at a time; `service` is what else its section says.
fn gate(admission: &str, service: &str) -> Result<Listening> {
    let service = format!(
        "connections = \"2\"\nparallelism = \"2\"\nadmission = \"{admission}\"\n\
         objectives = {{ get = {{ p50 = \"{OBJECTIVE_P50:?}\", p90 = \"{OBJECTIVE_P90:?}\" }} }}\n\
         {service}"
    );
    Listening::gate_with("threads = \"1\"", "memcached", slow_store(SERVICE_TIME)?, &service, TENANTS)
}

/// Without what would refuse as well: only what the admission policy does is to be seen.
const NOTHING_ELSE: &str = "codel = { law = \"off\" }\nshedding.enabled = \"off\"";
const OBJECTIVE_P50: Duration = Duration::from_millis(40);
const OBJECTIVE_P90: Duration = Duration::from_millis(80);

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
    let (timeout, transport) = (Nanos::from_secs(5), Transport::Tcp);
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

/// Whether what was answered was, for the client, within both objectives.
fn keeps_objectives(tenant: &TenantSummary) -> bool {
    let Quantiles { p50, p90, .. } = tenant.latency_ns;
    Duration::from_nanos(p50) <= OBJECTIVE_P50 && Duration::from_nanos(p90) <= OBJECTIVE_P90
}

#[test]
fn what_bouncer_admits_keeps_its_objectives_and_without_it_nothing_does() -> Result<()> {
    for admission in ["off", "bouncer"] {
        let gate = gate(admission, NOTHING_ELSE)?;
        offer(&gate, 0.0, 1.3, WARM_UP)?;
        let batch = &offer(&gate, 0.0, 1.3, MEASURED)?.tenants[0];
        ensure!(keeps_objectives(batch) == (admission == "bouncer"), "{admission}");
        ensure!(batch.answered * 2 > batch.offered && batch.failed + batch.lost == 0, "{admission}");
    }
    Ok(())
}

#[test]
fn what_is_critical_is_served_through_an_overload_and_the_rest_comes_back_after_it() -> Result<()> {
    let gate = gate("bouncer", "")?;
    offer(&gate, 0.9, 0.0, WARM_UP)?;
    let overload = offer(&gate, 0.5, 1.0, MEASURED)?;
    let [critical, batch] = &overload.tenants[..] else { panic!("two tenants") };
    ensure!(keeps_objectives(critical), "critical is late");
    // What comes to the tier above is served first, and was foreseen.
    ensure!(Duration::from_nanos(batch.latency_ns.p50) <= OBJECTIVE_P90, "batch is late");
    ensure!(critical.answered * 100 >= critical.offered * 99, "critical gets less than 99 %");
    ensure!(batch.refused > 0 && batch.answered > 0, "batch is not the one that gives way");
    // Less than the store can do: all of it is done, at the usual prices, within ten seconds.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let calm = offer(&gate, 0.2, 0.2, Nanos::from_secs(1))?;
        let is_served = |tenant: &TenantSummary| tenant.answered * 100 >= tenant.offered * 99;
        let rungs = rungs(&gate)?;
        println!("rungs {rungs:?}");
        if calm.tenants.iter().all(is_served) && rungs.iter().all(|&rung| rung == 0) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "still not back");
    }
}

/// How much dearer each tier's requests are, the most critical first.
fn rungs(gate: &Listening) -> Result<Vec<u64>> {
    let queues = gate.json(&["queues"])?;
    let tiers = queues["services"][0]["tiers"].as_array().context("no tiers")?;
    tiers.iter().map(|tier| tier["rung"].as_u64().context("no rung")).collect()
}

/// A Redis with a list that takes long to sort, and how long.
fn costly_redis() -> Result<(Listening, Duration)> {
    let redis = Listening::redis()?;
    let mut numbers = format!("*{}\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n", 2 + LIST);
    let mut number = 1_u32;
    for _ in 0..LIST {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        numbers.push_str(&format!("$10\r\n{number:010}\r\n"));
    }
    redis.ask(numbers.as_bytes(), format!(":{LIST}\r\n").as_bytes())?;
    let mut stream = redis.connect()?;
    let mut took = Vec::new();
    for _ in 0..100 {
        let asked = Instant::now();
        sort(&mut stream)?;
        took.push(asked.elapsed());
    }
    took.sort_unstable();
    Ok((redis, took[took.len() / 2]))
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

/// What [`SORTERS`] clients see that ask again as soon as they are answered, and a while after a refusal: sorted
/// times of the answered requests.
fn sorted(gate: &Listening, backoff: Duration) -> Result<Vec<Duration>> {
    let began = Instant::now();
    let measured_from = Duration::from(WARM_UP);
    let client = |mut stream: TcpStream| -> Result<Vec<Duration>> {
        let mut answered = Vec::new();
        while began.elapsed() < measured_from + Duration::from(MEASURED) {
            let asked = Instant::now();
            if !sort(&mut stream)? {
                std::thread::sleep(backoff);
            } else if began.elapsed() > measured_from {
                answered.push(asked.elapsed());
            }
        }
        Ok(answered)
    };
    let streams: Vec<_> = (0..SORTERS).map(|_| gate.connect()).collect::<Result<_>>()?;
    let mut answered = std::thread::scope(|scope| -> Result<Vec<Duration>> {
        let clients: Vec<_> = streams.into_iter().map(|stream| scope.spawn(|| client(stream))).collect();
        let answered = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        Ok(answered.collect::<Result<Vec<_>>>()?.concat())
    })?;
    answered.sort_unstable();
    Ok(answered)
}

/// So many wait for each other when all are let in.
const SORTERS: usize = 40;

#[test]
fn costly_commands_that_are_admitted_keep_their_objectives_before_redis() -> Result<()> {
    let (redis, cost) = costly_redis()?;
    let (p50, p90) = (cost * 12, cost * 24);
    for admission in ["off", "bouncer"] {
        let service = format!(
            "connections = \"1\"\nparallelism = \"1\"\nadmission = \"{admission}\"\n\
             objectives = {{ default = {{ p50 = \"{}us\", p90 = \"{}us\" }} }}\n{NOTHING_ELSE}",
            p50.as_micros(),
            p90.as_micros()
        );
        let gate = Listening::gate_with("threads = \"1\"", "resp", redis.address, &service, TENANTS)?;
        let answered = sorted(&gate, cost * 20)?;
        let at = |percent: usize| answered[(answered.len() * percent / 100).min(answered.len() - 1)];
        println!("{admission}: {cost:?} each, p50 {:?} p90 {:?} of {}", at(50), at(90), answered.len());
        ensure!((at(50) <= p50 && at(90) <= p90) == (admission == "bouncer"), "{admission}");
    }
    Ok(())
}
