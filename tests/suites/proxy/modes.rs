//! Every mode, quota algorithm and admission policy, started through the daemon, with traffic that it has to act on.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, read_until, shown};
use gate_tests::slow_store::slow_store_at;
use gate_tests::wait::wait_until;
use serde_json::Value;

/// Requests of one request unit each that a source asks for, and how many its burst pays. It is refilled in hours.
const ASKED: u64 = 60;
const BURST: u64 = 20;
const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }\nparallelism = \"off\"";

/// A tenant for everyone with this quota; `more` stands in its section as well.
fn tenant(rate: &str, more: &str) -> String {
    format!("[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"{rate}\"\n{more}")
}

fn small() -> String {
    tenant("0.01 RU/s", &format!("burst = \"{}s\"", 100 * BURST))
}

/// The number of requests from a source that were answered; each other is refused for the quota.
fn answered(gate: &Listening, source: Ipv4Addr) -> Result<u64> {
    let mut client = gate.connect_from(source)?;
    let mut answered = 0;
    for _ in 0..ASKED {
        client.write_all(b"get a\r\n")?;
        let said = read_until(&mut client, b"\r\n")?;
        let is_answered = said == b"END\r\n";
        ensure!(is_answered || said.ends_with(b"reason=quota bucket=all\r\n"), "{}", shown(&said));
        answered += u64::from(is_answered);
    }
    Ok(answered)
}

/// The counters of the only tenant.
fn counted(gate: &Listening) -> Result<Value> {
    Ok(gate.json(&["tenants"])?["tenants"][0].clone())
}

#[test]
fn each_mode_refuses_shadows_or_only_counts() -> Result<()> {
    let store = Listening::memcached()?;
    let candidate = tenant("unlimited", &format!("candidate = \"0.01 RU/s\"\nburst = \"{}s\"", 100 * BURST));
    let over = ASKED - BURST;
    for (name, mode, tenant, refused, shadowed, candidate) in [
        ("enforce", "", small(), over, 0, 0),
        ("shadow", "mode = \"shadow\"", small(), 0, over, 0),
        ("nobody enforced", "enforce = \"0%\"", small(), 0, over, 0),
        ("a candidate", "", candidate, 0, 0, over),
    ] {
        let gate = Listening::gate_with(mode, "memcached", store.address, ONE_RU, &tenant)?;
        let answered = answered(&gate, Ipv4Addr::LOCALHOST)?;
        let counted = counted(&gate)?;
        ensure!(answered == ASKED - refused, "{name}: {answered} answered: {counted}");
        let of = |counts: &Value| counts["quota"].as_u64().unwrap_or(0);
        let seen = (of(&counted["refused"]), of(&counted["shadowed"]), counted["candidate_refused"].as_u64());
        ensure!(seen == (refused, shadowed, Some(candidate)), "{name}: {counted}");
    }
    Ok(())
}

/// A source is enforced or shadowed as a whole.
#[test]
fn a_share_of_sources_is_enforced_and_the_rest_shadowed() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate_with("enforce = \"50%\"", "memcached", store.address, ONE_RU, &small())?;
    // The bucket is one for all: whoever comes later has nothing left.
    let spender = Ipv4Addr::new(127, 0, 0, 1);
    ensure!(answered(&gate, spender)? >= BURST);
    let answers: Vec<u64> =
        (0..SOURCES).map(|last| answered(&gate, Ipv4Addr::new(127, 0, 9, last))).collect::<Result<_>>()?;
    ensure!(answers.iter().all(|answers| [0, ASKED].contains(answers)), "{answers:?}");
    let enforced = answers.iter().filter(|&&answers| answers == 0).count();
    // Six standard deviations of so many throws of a coin.
    ensure!((8..=56).contains(&enforced), "{enforced} of {SOURCES} are enforced");
    Ok(())
}

const SOURCES: u8 = 64;

/// A tenant that asks for more than its quota is refused at random, before its bucket is spent.
#[test]
fn a_rejection_rate_refuses_what_is_asked_beyond_the_quota() -> Result<()> {
    let store = Listening::memcached()?;
    let tenant = tenant("200 RU/s", "burst = \"30s\"");
    let algorithm = "algorithm = \"rejection-rate\"\ntick = \"20ms\"";
    let gate = Listening::gate_with(algorithm, "memcached", store.address, ONE_RU, &tenant)?;
    let mut client = gate.connect()?;
    wait_until("nothing is refused at random", || {
        client.write_all(&b"get a\r\n".repeat(100))?;
        let mut said = Vec::new();
        while said.iter().filter(|&&byte| byte == b'\n').count() < 100 {
            said.extend(read_until(&mut client, b"\r\n")?);
        }
        let counted = counted(&gate)?;
        let refused = counted["refused"]["rejection-rate"].as_u64().unwrap_or(0);
        let passed = counted["passed"].as_u64().unwrap_or(0);
        Ok(refused > 100 && passed > 0 && counted["rejection_rate"].as_f64() > Some(0.0))
    })
    .map(|_| ())
}

/// An admission policy, and what it does with so many more clients than the store has time for.
struct Policy {
    name: &'static str,
    service: &'static str,
    /// Refused for the objective, of gets and of deletes; nothing where either may be.
    refuses: [Option<bool>; 2],
}

/// The store takes this long for a request, one after the other.
const SERVICE_TIME: Duration = Duration::from_millis(2);
const GET: &[u8] = b"get a\r\n";
const SLOW_GET: &[u8] = b"get slow\r\n";
const DELETE: &[u8] = b"delete a\r\n";
/// Clients that ask for gets, and as many for deletes. With all of them waiting the last waits for 48 ms and more.
const CLIENTS: usize = 12;
const POLICIES: &[Policy] = &[
    Policy { name: "none", service: "admission = \"off\"", refuses: [Some(false); 2] },
    Policy {
        name: "bouncer, unfair",
        service: "admission = \"bouncer\"\nhistogram_values = \"50\"\nfairness = \"none\"\n\
                  objectives = { get = { p50 = \"10ms\" }, default = { p50 = \"60s\" } }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "bouncer with an allowance of everything",
        service: "admission = \"bouncer\"\nhistogram_values = \"50\"\nfairness = \"acceptance-allowance\"\n\
                  allowance = \"1\"\nobjectives = { get = { p50 = \"10ms\" }, default = { p50 = \"60s\" } }",
        refuses: [Some(false); 2],
    },
    Policy {
        name: "bouncer with an allowance",
        service: "admission = \"bouncer\"\nhistogram_values = \"50\"\nfairness = \"acceptance-allowance\"\n\
                  objectives = { get = { p50 = \"10ms\" }, default = { p50 = \"60s\" } }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "bouncer that helps the underserved",
        service: "admission = \"bouncer\"\nhistogram_values = \"50\"\nfairness = \"helping-the-underserved\"\n\
                  alpha = \"0.5\"\nobjectives = { get = { p50 = \"10ms\" }, default = { p50 = \"60s\" } }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "bouncer with a sliding window",
        service: "admission = \"bouncer\"\nhistogram = \"sliding\"\nhistogram_values = \"50\"\n\
                  objectives = { get = { p50 = \"10ms\" }, default = { p50 = \"60s\" } }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "max-queue-length",
        service: "admission = \"max-queue-length\"\nmax_queue_length = \"4\"",
        refuses: [Some(true); 2],
    },
    Policy {
        name: "max-queue-wait",
        service: "admission = \"max-queue-wait\"\nmax_queue_wait = \"10ms\"",
        refuses: [Some(true); 2],
    },
    Policy {
        name: "max-queue-wait by query type",
        service: "admission = \"max-queue-wait\"\nmax_queue_wait = { get = \"10ms\", default = \"60s\" }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "accept-fraction",
        service: "admission = \"accept-fraction\"\naccept_fraction = \"50%\"",
        refuses: [None; 2],
    },
    Policy {
        name: "two, neither of which is missed",
        service: "admission = [\"max-queue-length\", \"max-queue-wait\"]\nmax_queue_length = \"1000\"\n\
                  max_queue_wait = \"60s\"",
        refuses: [Some(false); 2],
    },
    Policy {
        name: "two, the first of which refuses gets",
        service: "admission = [\"max-queue-wait\", \"max-queue-length\"]\nmax_queue_length = \"1000\"\n\
                  max_queue_wait = { get = \"10ms\", default = \"60s\" }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "two, the second of which refuses gets",
        service: "admission = [\"max-queue-length\", \"max-queue-wait\"]\nmax_queue_length = \"1000\"\n\
                  max_queue_wait = { get = \"10ms\", default = \"60s\" }",
        refuses: [Some(true), Some(false)],
    },
    Policy {
        name: "bouncer and accept-fraction",
        service: "admission = [\"bouncer\", \"accept-fraction\"]\nhistogram_values = \"50\"\naccept_fraction = \"50%\"\n\
                  objectives = { default = { p50 = \"60s\" } }",
        refuses: [None; 2],
    },
];

#[test]
fn each_admission_policy_refuses_what_it_should() -> Result<()> {
    let mut wrong = Vec::new();
    for policy in POLICIES {
        let load = Load { clients: CLIENTS, slow: SERVICE_TIME, decided: 900 };
        let seen = overload(policy.service, &load).context(policy.name)?;
        println!("{}: answered {:?}, refused {:?}", policy.name, seen.answered, seen.refused);
        let refused = seen.refused.map(|refused| refused > 0);
        let is_right = policy
            .refuses
            .iter()
            .zip(refused)
            .all(|(expected, refused)| expected.is_none_or(|expected| expected == refused));
        // Of accept-fraction either type may be refused, but something has to be.
        let is_idle = policy.refuses == [None; 2] && refused == [false; 2];
        if !is_right || is_idle || seen.answered.contains(&0) {
            wrong.push(format!("{}: answered {:?}, refused {:?}", policy.name, seen.answered, seen.refused));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A fifth of the gets takes longer than the objective at p90, with nothing else in the queue but one delete.
#[test]
fn bouncer_refuses_for_the_ninetieth_percentile_alone() -> Result<()> {
    for (objective, is_refused) in [
        ("p50 = \"100ms\"", false),
        ("p50 = \"100ms\", p90 = \"10s\"", false),
        ("p50 = \"100ms\", p90 = \"150ms\"", true),
    ] {
        let service = format!(
            "admission = \"bouncer\"\nhistogram_values = \"20\"\nfairness = \"none\"\n\
             objectives = {{ get = {{ {objective} }}, default = {{ p50 = \"60s\" }} }}"
        );
        let load = Load { clients: 1, slow: Duration::from_millis(200), decided: 200 };
        let seen = overload(&service, &load)?;
        println!("{objective}: answered {:?}, refused {:?}", seen.answered, seen.refused);
        ensure!((seen.refused[0] > 0) == is_refused, "{objective}: refused {:?}", seen.refused);
        ensure!(seen.refused[1] == 0, "{objective}: refused {:?}", seen.refused);
    }
    Ok(())
}

/// The load that a gate gets.
struct Load {
    /// Clients that ask for gets, and as many for deletes.
    clients: usize,
    /// How long the store takes for every fifth get.
    slow: Duration,
    /// How many requests are answered or refused; half of them are answered at least.
    decided: u64,
}

/// Answers and refusals, of gets and of deletes.
struct Seen {
    answered: [u64; 2],
    refused: [u64; 2],
}

/// Asks a gate before a slow store from all clients at once.
fn overload(service: &str, load: &Load) -> Result<Seen> {
    let service = format!(
        "connections = \"1\"\nparallelism = \"1\"\ncodel = {{ law = \"off\" }}\nshedding.enabled = \"off\"\n{service}"
    );
    let everyone = tenant("unlimited", "");
    let slow = load.slow;
    let store =
        slow_store_at(
            "127.0.0.1:0",
            move |command| {
                if command.starts_with(SLOW_GET) { slow } else { SERVICE_TIME }
            },
        )?;
    let gate = Listening::gate_with("threads = \"1\"", "memcached", store, &service, &everyone)?;
    let answered = [0, 0].map(AtomicU64::new);
    let refused = [0, 0].map(AtomicU64::new);
    let over = AtomicBool::new(false);
    let ask = |mut client: TcpStream, place: usize| -> Result<()> {
        let (requests, answer): ([&[u8]; 5], &[u8]) = match place {
            0 => ([GET, GET, GET, GET, SLOW_GET], b"END\r\n"),
            _ => ([DELETE; 5], b"DELETED\r\n"),
        };
        for request in requests.into_iter().cycle() {
            if over.load(Ordering::Relaxed) {
                break;
            }
            client.write_all(request)?;
            let said = read_until(&mut client, b"\r\n")?;
            let count = if said == answer { &answered[place] } else { &refused[place] };
            ensure!(said == answer || said.ends_with(b"reason=slo\r\n"), "{}", shown(&said));
            count.fetch_add(1, Ordering::Relaxed);
            let decided: u64 =
                answered.iter().chain(&refused).map(|count| count.load(Ordering::Relaxed)).sum();
            // Enough for each type to have been known for a while.
            let known =
                answered.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() >= load.decided / 2;
            if decided >= load.decided && known {
                over.store(true, Ordering::Relaxed);
            }
            if said != answer {
                // A client that is refused comes back when others have been answered.
                std::thread::sleep(SERVICE_TIME);
            }
        }
        Ok(())
    };
    let clients: Vec<_> = (0..2 * load.clients).map(|_| gate.connect()).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let asking = clients.into_iter().enumerate();
        let asking: Vec<_> = asking
            .map(|(place, client)| {
                scope.spawn({
                    let ask = &ask;
                    move || ask(client, place % 2)
                })
            })
            .collect();
        asking.into_iter().try_for_each(|asking| asking.join().expect("it does not panic"))
    })?;
    let counts = |counts: &[AtomicU64; 2]| [0, 1].map(|place| counts[place].load(Ordering::Relaxed));
    Ok(Seen { answered: counts(&answered), refused: counts(&refused) })
}
