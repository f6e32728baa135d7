//! Two Envoys that ask two gates of one fleet. Their own answers are the judge.

use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::envoy::{Envoy, Filter};
use gate_tests::fleet::{Owner, section};
use gate_tests::http_client::HttpClient;
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;

const LIMIT: f64 = 200.0;
/// The time between two reports of an Envoy's that has shares.
const REPORT: Duration = Duration::from_secs(5);
/// The owner's, for each user.
const LIMITS: &str = "[[limit]]\nname = \"shop/user=*\"\nquota = \"200 RU/s\"\n";
/// Gate's own ceiling, which is never reached here.
const OWN: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n\
                   [[limit]]\nname = \"shop/user=*\"\nquota = \"5000 RU/s\"\nburst = \"1s\"\n";

/// A gate that Envoys ask, and an Envoy that does.
fn gate(store: &Listening, owner: &Owner, name: &str, filter: Filter) -> Result<(Listening, Envoy)> {
    let envoys = address();
    let sections = format!("{OWN}[envoy]\nlisten = \"{envoys}\"\n");
    let gate = Listening::gate_with(&section(&[owner], name), "memcached", store.address, "", &sections)?;
    let envoy = Envoy::start(&envoys.to_string(), filter)?;
    Ok((gate, envoy))
}

/// Asks for so many requests a second for so long, as one user. Returns when requests passed.
fn ask(envoy: SocketAddr, user: &str, per_sec: f64, time: Duration) -> JoinHandle<Result<Vec<Instant>>> {
    let field = format!("x-user: {user}\r\n");
    std::thread::spawn(move || {
        let stream = TcpStream::connect(envoy)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = HttpClient::new(stream);
        let begun = Instant::now();
        let mut passed = Vec::new();
        for turn in 0.. {
            let due = begun + Duration::from_secs_f64(f64::from(turn) / per_sec);
            if due >= begun + time {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let answer = client.ask("GET /", &field)?;
            ensure!([200, 429].contains(&answer.status), "{answer:?}");
            if answer.status == 200 {
                passed.push(Instant::now());
            }
        }
        Ok(passed)
    })
}

#[test]
fn two_envoys_at_two_gates_give_out_one_limit() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMITS)?;
    let filter = Filter::EachRequest { failure_mode_deny: true };
    let gates = [gate(&store, &owner, "one", filter)?, gate(&store, &owner, "two", filter)?];
    wait_until("both gates report", || Ok(owner.gates()? == 2))?;
    // Three times the limit, unevenly; and another user, who is below it.
    let time = Duration::from_secs(15);
    let greedy = [400.0, 200.0].into_iter().zip(&gates);
    let greedy: Vec<_> =
        greedy.map(|(per_sec, (_, envoy))| ask(envoy.address, "greedy", per_sec, time)).collect();
    let polite: Vec<_> = gates.iter().map(|(_, envoy)| ask(envoy.address, "polite", 40.0, time)).collect();
    let from = Instant::now() + Duration::from_secs(4);
    let mut passed = Vec::new();
    for asked in greedy {
        passed.extend(asked.join().expect("a client does not panic")?);
    }
    let window = from..from + Duration::from_secs(10);
    let per_sec = passed.iter().filter(|at| window.contains(*at)).count() as f64 / 10.0;
    println!("{per_sec} a second of {LIMIT}");
    ensure!((0.95 * LIMIT..1.05 * LIMIT).contains(&per_sec), "{per_sec} a second");
    for asked in polite {
        let passed = asked.join().expect("a client does not panic")?.len();
        ensure!(passed == 600, "{passed} of 600 passed");
    }
    let account = owner.account("shop/user=greedy")?;
    ensure!(account.is_some_and(|account| account["shares"].as_array().is_some_and(|all| all.len() == 2)));
    Ok(())
}

/// How many passed a second in this time.
fn rate(passed: &[Instant], from: Instant, time: Duration) -> f64 {
    passed.iter().filter(|at| (from..from + time).contains(*at)).count() as f64 / time.as_secs_f64()
}

#[test]
fn shares_of_two_envoys_at_two_gates_are_parts_of_one_limit() -> Result<()> {
    let store = Listening::memcached()?;
    let owner = Owner::start(LIMITS)?;
    let gates = [gate(&store, &owner, "one", Filter::Shares)?, gate(&store, &owner, "two", Filter::Shares)?];
    wait_until("both gates report", || Ok(owner.gates()? == 2))?;
    // Twice the limit at one Envoy, a fifth of it at the other; then the other way round.
    let mut passed = [Vec::new(), Vec::new()];
    let begun = Instant::now();
    let phase = 2 * REPORT + Duration::from_secs(4);
    for rates in [[2.0 * LIMIT, 0.2 * LIMIT], [0.2 * LIMIT, 2.0 * LIMIT]] {
        let asked = rates
            .into_iter()
            .zip(&gates)
            .map(|(per_sec, (_, envoy))| ask(envoy.address, "greedy", per_sec, phase));
        let asked: Vec<_> = asked.collect();
        for (asked, passed) in asked.into_iter().zip(&mut passed) {
            passed.extend(asked.join().expect("a client does not panic")?);
        }
    }
    // Two reports after the load has moved, and a second for a busy machine.
    let moved = 2 * REPORT + Duration::from_secs(1);
    let rates = [(begun, 0), (begun + phase, 1)]
        .map(|(from, greedy)| rate(&passed[greedy], from + moved, Duration::from_secs(3)));
    let mut all = passed.concat();
    all.sort_unstable();
    // Whatever comes before the first assignment passes.
    let windows = all.iter().filter(|at| **at > begun + Duration::from_secs(3));
    let rates_of_all = windows.map(|from| rate(&all, *from, Duration::from_secs(10)));
    let most = rates_of_all.fold(0.0, f64::max);
    println!(
        "{rates:.0?} a second at the Envoy that is asked for more, at most {most:.0} of {LIMIT} at both"
    );
    ensure!(most <= 1.05 * LIMIT, "{most}");
    ensure!(rates.iter().all(|rate| *rate >= 0.9 * 0.8 * LIMIT), "{rates:?}");
    Ok(())
}
