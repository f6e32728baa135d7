//! A polite tenant at half of its fair share beside greedy ones of its tier, by default configuration, before gate's own store, a Redis with
//! heavy commands, and an nginx.
//!
//! Counts alone: refusals of the polite one, the answers of all beside what the store does by itself, and how even the greedy ones are
//! served. Times are printed, as a row of a table. `GATE_LONG=1` plays one, ten and a hundred greedy tenants at all loads.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use gate_common::units::Nanos;
use gate_tests::nginx::Nginx;
use gate_tests::proxy::{Listening, read_until};
use gate_tests::wait::wait_until;
use gate_userspace::load::{self, Plan, Protocol, Running, TenantSummary, Transport};

/// A store, and requests for it.
struct Site {
    name: &'static str,
    /// As a service's section says it.
    protocol: &'static str,
    store: SocketAddr,
    /// About as many requests as it does in a second.
    about: f64,
    /// The part of a tenant of the load generator that is about its requests.
    requests: String,
    /// The least of what the store does by itself that it does behind gate.
    least_used: f64,
}

/// So many greedy tenants, who ask for so many times what the store can do.
#[derive(Clone, Copy, Debug)]
struct Row {
    greedy: usize,
    times: f64,
}

impl Site {
    /// Plays a row, or all where that is wanted.
    fn play(&self, short: Row) -> Result<()> {
        let capacity = self.capacity()?;
        if std::env::var_os("GATE_LONG").is_none() {
            return self.check(short, capacity, Nanos::from_secs(6));
        }
        for greedy in [1, 10, 100] {
            for times in [1.5, 3.0, 7.0] {
                self.check(Row { greedy, times }, capacity, Nanos::from_secs(20))?;
            }
        }
        Ok(())
    }

    /// The requests that the store does in a second without gate, when it is asked for more.
    fn capacity(&self) -> Result<f64> {
        let run = self.start(self.store, &[(0, 1.5 * self.about)], Nanos::from_secs(2))?.finish();
        let of = &run.tenants[0];
        ensure!(of.answered == of.offered, "{of:?}");
        Ok(of.answered as f64 / run.seconds)
    }

    /// The requests that it does in a second behind a gate, which may need the processor that the store would have.
    fn capacity_behind(&self, gate: &Listening, capacity: f64) -> Result<f64> {
        let crowd = self.start(gate.address, &[(0, 1.5 * capacity)], Nanos::from_secs(60))?;
        let answered = |at_least: u64| {
            let mut progress = crowd.progress();
            wait_until("it is answered", || {
                progress = crowd.progress();
                Ok(progress.tenants[0].answered >= at_least)
            })?;
            Ok::<_, anyhow::Error>((progress.tenants[0].answered, progress.seconds))
        };
        let (before, from) = answered(capacity as u64)?;
        let (after, to) = answered(before + 2 * capacity as u64)?;
        Ok(((after - before) as f64 / (to - from)).min(capacity))
    }

    /// Starts tenants with these numbers, each with its rate.
    fn start(&self, target: SocketAddr, tenants: &[(usize, f64)], lasting: Nanos) -> Result<Running> {
        let connections = (64 / tenants.len()).max(4);
        let tenant = |&(number, rate): &(usize, f64)| {
            let source = source(number);
            let requests = &self.requests;
            let tenant = format!(
                "name=t{number},source={source},rate={rate:.3}/s,connections={connections},{requests}"
            );
            tenant.parse().with_context(|| tenant.clone())
        };
        let plan = Plan {
            target,
            transport: Transport::Tcp,
            protocol: match self.protocol {
                "memcached" => Protocol::Memcached,
                "resp" => Protocol::Resp,
                _ => Protocol::Http,
            },
            tenants: tenants.iter().map(tenant).collect::<Result<_>>()?,
            duration: lasting,
            count: None,
            timeout: Nanos::from_secs(20),
            seed: 1,
        };
        Ok(load::start(&plan)?)
    }

    /// Plays a row until it is one: a machine that gives the store half as much processor as when that was measured makes a whole share
    /// of half of one.
    fn check(&self, row: Row, capacity: f64, counted: Nanos) -> Result<()> {
        for _ in 0..3 {
            if self.is_played(row, capacity, counted)? {
                return Ok(());
            }
        }
        bail!("{}: three times it did far less than what had been measured", self.name)
    }

    /// False if the store did so little that the polite tenant asked for nearly its share.
    fn is_played(&self, row: Row, capacity: f64, counted: Nanos) -> Result<bool> {
        let Row { greedy, times } = row;
        let mut tenants = String::new();
        for number in 0..=greedy {
            let source = source(number);
            writeln!(
                tenants,
                "[[tenant]]\nname = \"t{number}\"\nsources = [\"{source}\"]\nquota = \"100000 RU/s\""
            )?;
        }
        // The default, which tests are otherwise without.
        let service = "shedding.enabled = \"on\"";
        let gate = Listening::gate_with("", self.protocol, self.store, service, &tenants)?;
        let possible = {
            let measured = Listening::gate_with("", self.protocol, self.store, service, &tenants)?;
            self.capacity_behind(&measured, capacity)?
        };
        let polite = (0, possible / (greedy + 1) as f64 / 2.0);
        let ask = |lasting| -> Result<TenantSummary> {
            Ok(self.start(gate.address, &[polite], lasting)?.finish().tenants.remove(0))
        };
        let alone = ask(counted)?;
        let each = (capacity * times - polite.1) / greedy as f64;
        let rates: Vec<_> = (1..=greedy).map(|number| (number, each)).collect();
        let crowd = self.start(gate.address, &rates, Nanos::from_secs(60))?;
        let first = ask(Nanos::from_secs(2))?;
        let before = crowd.progress();
        let beside = ask(counted)?;
        let after = crowd.progress();
        drop(crowd);
        // The machine may have become slower.
        let capacity = capacity.min(self.capacity()?);
        let answers: Vec<f64> = (after.tenants.iter().zip(&before.tenants))
            .map(|(after, before)| (after.answered - before.answered) as f64)
            .collect();
        let sum: f64 = answers.iter().sum();
        let answered = (sum + beside.answered as f64) / (after.seconds - before.seconds);
        let used = answered / capacity;
        let squares: f64 = answers.iter().map(|answers| answers * answers).sum();
        let jain = sum * sum / (greedy as f64 * squares);
        let refused = first.refused + beside.refused;
        let [alone, first, late] = [&alone, &first, &beside].map(|of| of.latency_ns.p99 as f64 / 1e6);
        let row = format!(
            "| {} | {greedy} | {times} | {refused} refused | {alone:.1} ms alone | {first:.1} at first | {late:.1} beside | \
             {used:.3} of {capacity:.0}, {possible:.0} behind gate | Jain {jain:.4} |",
            self.name
        );
        println!("{row}");
        if polite.1 > MOST_OF_SHARE * answered / (greedy + 1) as f64 {
            return Ok(false);
        }
        ensure!(refused == 0 && beside.answered == beside.offered, "{row}: {beside:?}");
        ensure!(used >= self.least_used, "{row}");
        // Few answers of each are uneven by chance.
        let by_chance = answers.len() as f64 / sum.max(1.0);
        ensure!(jain >= 0.98 - by_chance, "{row}: {answers:?}");
        Ok(true)
    }
}

/// The polite tenant may have asked for so much of its share of what the store did: half, and what a machine's moods make of it.
const MOST_OF_SHARE: f64 = 0.7;

/// The address of a tenant's clients.
fn source(number: usize) -> String {
    format!("127.0.7.{}", number + 1)
}

/// A file that goes with its owner.
struct Mix(PathBuf);

impl Mix {
    fn new(name: &str, requests: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("fair-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, requests)?;
        Ok(Self(path))
    }

    fn requests(&self) -> String {
        format!("mix={}", self.0.display())
    }
}

impl Drop for Mix {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn half_of_a_share_is_not_refused_before_gates_own_store() -> Result<()> {
    // A key takes as long in a get of several, which gate makes of many clients' gets.
    let store = ["--service-time", "2500us", "--row-time", "2500us", "--concurrency", "1"];
    let store = Listening::embedded_with("memcached", &store)?;
    let requests = "reads=100%".to_owned();
    let site = Site {
        name: "gate store",
        protocol: "memcached",
        store: store.address,
        about: 400.0,
        requests,
        least_used: 0.95,
    };
    site.play(Row { greedy: 10, times: 3.0 })
}

#[test]
fn half_of_a_share_is_not_refused_before_a_busy_redis() -> Result<()> {
    let redis = Listening::redis_with(&["--protected-mode", "no"])?;
    let mut direct = TcpStream::connect(redis.address)?;
    direct.write_all(b"SETRANGE big 8388607 x\r\n")?;
    read_until(&mut direct, b":8388608\r\n")?;
    let mix = Mix::new(
        "redis",
        "[[request]]\ncommand = \"get\"\nweight = 3\n[[request]]\ncommand = [\"BITCOUNT\", \"big\"]\n",
    )?;
    let site = Site {
        name: "Redis",
        protocol: "resp",
        store: redis.address,
        about: 1_200.0,
        requests: mix.requests(),
        // It takes as long as the machine lets it.
        least_used: 0.5,
    };
    site.play(Row { greedy: 1, times: 1.5 })
}

#[test]
fn half_of_a_share_is_not_refused_before_nginx() -> Result<()> {
    let nginx = Nginx::start(&[100])?;
    let mix = Mix::new("nginx", "[[request]]\ncommand = [\"GET\", \"/limited\"]\n")?;
    let site = Site {
        name: "nginx",
        protocol: "http",
        store: nginx.address,
        about: 400.0,
        requests: mix.requests(),
        least_used: 0.95,
    };
    site.play(Row { greedy: 10, times: 3.0 })
}
