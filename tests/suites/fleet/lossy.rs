//! Gates whose connections to owners are cut all the time, over a network that loses every fifth packet: each request is charged once.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet_site::{GateSite, OwnerSite, PORT, named};
use gate_tests::privilege;
use gate_tests::switch::{Machine, Switch};
use gate_tests::tls::Authority;
use gate_tests::wait::within;
use gate_userspace::fleet::membership::{Member, View};

/// Requests of one batch, and the time in which one is due on each connection.
const BATCH: u64 = 250;
const BATCH_EVERY: Duration = Duration::from_millis(20);
const CUT_EVERY: Duration = Duration::from_millis(50);
/// The time for what is left to be reported: connections that an owner believes in, and longer pauses between attempts.
const PATIENCE: Duration = Duration::from_secs(15);
/// The time after which there is no more waiting for reports to be cut off.
const MOST_TIME: Duration = Duration::from_secs(30);
/// Many reports, so that some are cut off from their answers.
const TICK: &str = "tick = \"20ms\"\n";
/// Fifty of those.
const QUIET: Duration = Duration::from_secs(1);

/// Names of tenants: of each owner one, with a limit that holds gates back, and one without.
fn names(owners: &[OwnerSite]) -> Vec<String> {
    let members =
        owners.iter().map(|site| Member { address: site.owner.address.to_string(), since: 0, revision: 0 });
    let view = View { owners: members.collect(), ..View::default() };
    let of = |owner: &OwnerSite| {
        let is_its = |name: &String| {
            view.owner_of(name).is_some_and(|member| member.address == owner.owner.address.to_string())
        };
        ["tight", "wide"]
            .map(|kind| (0..).map(|number| format!("{kind}-{number}")).find(is_its).expect("one of many"))
    };
    owners.iter().flat_map(of).collect()
}

fn source(place: usize) -> String {
    format!("127.0.{}.1", place + 1)
}

/// Sends reads in batches, from this address, and takes all answers: so many, and more until it is `enough`. Returns how many.
fn send(
    site: &GateSite,
    place: usize,
    requests: u64,
    enough: &Arc<AtomicBool>,
) -> Result<JoinHandle<Result<u64>>> {
    let enough = Arc::clone(enough);
    let mut stream = site.machine.on(|| site.gate.connect_from(source(place).parse()?))?;
    Ok(std::thread::spawn(move || {
        let batch = b"get k\r\n".repeat(BATCH as usize);
        let begun = Instant::now();
        let mut batches = 0;
        while u64::from(batches) * BATCH < requests || !enough.load(Ordering::Relaxed) {
            std::thread::sleep((begun + BATCH_EVERY * batches).saturating_duration_since(Instant::now()));
            stream.write_all(&batch)?;
            read_lines(&mut stream, BATCH)?;
            batches += 1;
        }
        Ok(u64::from(batches) * BATCH)
    }))
}

fn read_lines(stream: &mut TcpStream, lines: u64) -> Result<()> {
    let mut piece = vec![0; 1 << 16];
    let mut read = 0;
    while read < lines {
        let len = stream.read(&mut piece)?;
        ensure!(len > 0, "the gate has closed");
        read += piece[..len].iter().filter(|&&byte| byte == b'\n').count() as u64;
    }
    Ok(())
}

/// The thousandths of a request unit that gates charged to each tenant, and that the owners charged to its limit.
fn charged(gates: &[GateSite], owners: &[OwnerSite], names: &[String]) -> Result<Vec<[u64; 2]>> {
    let in_mru = |ru: f64| (ru * 1e3).round() as u64;
    let mut all = vec![[0; 2]; names.len()];
    for (name, [by_gates, by_owners]) in names.iter().zip(&mut all) {
        for site in gates {
            let document = site.gate.json(&["tenants", name])?;
            *by_gates += in_mru(document["tenants"][0]["charged_ru"].as_f64().context("no amount")?);
        }
        for site in owners {
            *by_owners += in_mru(site.charged(name)?);
        }
    }
    Ok(all)
}

#[test]
fn over_broken_connections_every_request_is_charged_once() -> Result<()> {
    if !privilege::root("over_broken_connections_every_request_is_charged_once") {
        return Ok(());
    }
    let requests: u64 = if std::env::var_os("GATE_LONG").is_some() { 10_000_000 } else { 1_000_000 };
    let switch = Switch::open()?;
    let authority = Authority::new()?;
    // The limits' names depend on the owners' addresses, and owners start with limits.
    let wide = |number| format!("[[limit]]\nname = \"wide-{number}\"\nquota = \"1000000 RU/s\"\n");
    let tight = |number| format!("[[limit]]\nname = \"tight-{number}\"\nquota = \"20000 RU/s\"\n");
    let limits: String = (0..MOST_NAMES).map(|number| wide(number) + &tight(number)).collect();
    let owners =
        (0..2).map(|_| OwnerSite::start(&switch, &authority, &limits)).collect::<Result<Vec<_>>>()?;
    let names = names(&owners);
    let tenant = |(place, name): (usize, &String)| {
        format!("[[tenant]]\nname = {name:?}\nsources = [\"{}/32\"]\nquota = \"unlimited\"\n", source(place))
    };
    let tenants: String = names.iter().enumerate().map(tenant).collect();
    let line = named(&owners);
    let gate = |name| GateSite::start(&switch, &authority, name, TICK, &line, &tenants);
    let gates = [gate("gate-1")?, gate("gate-2")?];
    let owner_machines: Vec<&Machine> = owners.iter().map(|site| &site.machine).collect();
    let gate_machines: Vec<&Machine> = gates.iter().map(|site| &site.machine).collect();

    let each = requests / (gates.len() * names.len()) as u64;
    let enough = Arc::default();
    let mut clients = Vec::new();
    for site in &gates {
        for place in 0..names.len() {
            clients.push(send(site, place, each, &enough)?);
        }
    }
    switch.lose_a_fifth(&gate_machines, &owner_machines)?;
    let begun = Instant::now();
    let mut cuts = 0;
    while !clients.iter().all(JoinHandle::is_finished) {
        std::thread::sleep((begun + CUT_EVERY * cuts).saturating_duration_since(Instant::now()));
        gate_machines.iter().try_for_each(|machine| machine.reset_connections_to(PORT))?;
        cuts += 1;
        if cuts % 20 == 0 {
            let is_enough = charged_before(&owners)? >= LEAST_REPEATED || begun.elapsed() > MOST_TIME;
            enough.store(is_enough, Ordering::Relaxed);
        }
    }
    let mut sent = 0;
    for client in clients {
        sent += client.join().expect("a client does not panic")?;
    }
    let repeated = charged_before(&owners)?;
    println!("{sent} requests in {:?}, {cuts} cuts, {repeated} reports charged before", begun.elapsed());
    switch.heal()?;

    let mut last = Vec::new();
    let took = within("the owners have charged what the gates did", PATIENCE, || {
        last = charged(&gates, &owners, &names)?;
        Ok(last.iter().all(|[by_gates, by_owners]| by_gates == by_owners))
    });
    println!("{names:?}: {last:?}, {took:?} after the network healed");
    took?;
    std::thread::sleep(QUIET);
    ensure!(charged(&gates, &owners, &names)? == last, "more is charged, with nothing to be charged");
    ensure!(repeated >= LEAST_REPEATED, "too few reports were cut off from their answers");
    Ok(())
}

/// The reports that came to owners again, as their answers had been lost.
fn charged_before(owners: &[OwnerSite]) -> Result<u64> {
    owners.iter().map(|site| site.machine.on(|| site.owner.count("repeated"))).sum()
}

/// The fewest of them that say anything.
const LEAST_REPEATED: u64 = 3;
/// One of so many names is an owner's.
const MOST_NAMES: usize = 32;
