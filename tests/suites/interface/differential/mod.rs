//! The program against a plain model of it: a million packets under a thousand plans, no disagreement.
//!
//! Each batch of packets has a plan, a time and buckets of its own, all from one seed. The clock is the test's: it
//! stands still in the kernel until the test moves it, so that the model knows every word of every bucket. How a
//! packet leaves, what it is afterwards, and every counter are compared after each packet.
//!
//! A failure names its batch's seed: `GATE_SEED=<seed> cargo xtask test differential` runs that batch alone.
//! `GATE_LONG=1` runs ten times as many.

mod explained;
mod packets;
mod plans;

use std::fmt::Write as _;
use std::mem::offset_of;

use gate_common::abi::{Clock, Control, Cpu, Event, Exit, Reason, TenantCounters};
use gate_common::units::Nanos;
use gate_tests::fixture::in_frame_of;
use gate_tests::model::Model;
use gate_tests::privilege;
use gate_tests::rng::Rng;
use gate_tests::world::{Plan, World, pin};

/// Packets under one plan.
const BATCH: usize = 1_000;
/// The seed of the first batch; the others follow it.
const SEED: u64 = 20_261_120;
/// How much longer than its request a reply may be: the shortest command is two bytes, `SERVER_ERROR throttled` 24.
const MOST_GROWN: usize = 22;
const SECOND: u64 = 1_000_000_000;

#[test]
fn the_program_and_its_model_agree_on_every_packet() {
    if !privilege::root("differential::the_program_and_its_model_agree_on_every_packet") {
        return;
    }
    if let Some(seed) = std::env::var_os("GATE_SEED") {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok()).expect("GATE_SEED is a number");
        run([seed], 0).unwrap();
        return;
    }
    let batches = if std::env::var_os("GATE_LONG").is_some() { 10_000 } else { 1_000 };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut seen = Cpu::EMPTY;
    let mut tenants = TenantCounters::default();
    std::thread::scope(|scope| {
        let seeds = |cpu| (SEED..SEED + batches).skip(cpu).step_by(cpus);
        let threads: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || run(seeds(cpu), cpu))).collect();
        for thread in threads {
            let counted = thread.join().unwrap().unwrap_or_else(|fault| panic!("{fault}"));
            seen.add(&counted.0);
            tenants.add(&counted.1);
        }
    });
    assert_eq!(seen.exits.iter().sum::<u64>(), batches * BATCH as u64);
    every_case_was_met(&seen, &tenants, batches);
}

/// A model that is never asked proves nothing: each exit, reason and event came up often.
fn every_case_was_met(seen: &Cpu, tenants: &TenantCounters, batches: u64) {
    let mut report = String::new();
    let mut met = |name: &str, count: u64| {
        write!(report, "{name} {count}, ").unwrap();
        count >= batches / 4
    };
    let mut missing = Vec::new();
    // The model has no connections, and its plans name no address that has.
    for exit in Exit::ALL.into_iter().filter(|exit| *exit != Exit::NoConnection) {
        missing.extend((!met(exit.name(), seen.exits[exit.index()])).then_some(exit.name()));
    }
    for event in [Event::ReplyBudget, Event::UpperBound, Event::Stale] {
        missing.extend((!met(event.name(), seen.events[event.index()])).then_some(event.name()));
    }
    for reason in REASONS {
        for (kind, counts) in [("refused", &tenants.refused), ("shadowed", &tenants.shadowed)] {
            let name = format!("{kind} {}", reason.name());
            if !met(&name, counts[reason.index()]) {
                missing.push(reason.name());
            }
        }
    }
    if !met("candidate", tenants.candidate_refused) {
        missing.push("candidate");
    }
    println!("{} packets: {report}", seen.exits.iter().sum::<u64>());
    assert!(missing.is_empty(), "hardly ever met: {missing:?} in {report}");
}

/// The result of XDP.
const REASONS: [Reason; 8] = [
    Reason::Quota,
    Reason::RejectedUntil,
    Reason::RejectionRate,
    Reason::Penalty,
    Reason::Limit,
    Reason::UnknownSource,
    Reason::TooLarge,
    Reason::Malformed,
];

/// Runs batches on one CPU; what was counted in all of them, or what was wrong.
fn run(seeds: impl IntoIterator<Item = u64>, cpu: usize) -> Result<(Cpu, TenantCounters), String> {
    pin(cpu);
    let mut world = World::new(plans::TENANTS + 2, 2048).unwrap();
    let mut seen = (Cpu::EMPTY, TenantCounters::default());
    for seed in seeds {
        let model = batch(&mut world, seed, cpu).map_err(|fault| format!("GATE_SEED={seed}: {fault}"))?;
        seen.0.add(&model.cpu);
        model.tenants.iter().for_each(|tenant| seen.1.add(tenant));
    }
    Ok(seen)
}

/// Puts a plan in force, sends its packets, and compares after each; the model at the end.
fn batch(world: &mut World, seed: u64, cpu: usize) -> Result<Model, String> {
    let mut rng = Rng::new(seed);
    // Mostly some time after boot; else near the clock's beginning, and its end.
    let now_ns = rng.mostly(4, 100_000 * SECOND, &[0, SECOND, u64::MAX - 400 * SECOND, u64::MAX - SECOND]);
    let plan = plans::plan(&mut rng, now_ns);
    world.install(&plan);
    let ready = !rng.once_in(50);
    if !ready {
        world.loaded.maps.publish(0);
    }
    let mut model = model(world, &mut rng, plan, now_ns, cpu);
    model.ready = ready;
    let runner = world.loaded.runner().unwrap();
    for number in 0..BATCH {
        if rng.once_in(3) {
            let now_ns = model.now_ns.saturating_add(rng.pick(&[1, 1_000, 4_000_000, SECOND / 4]));
            set_time(world, &mut model, now_ns, rng.once_in(6));
        }
        let packet = packets::packet(&mut rng);
        // Some from drivers that do not put all of it into the linear part.
        let linear = 14 + rng.below(200) as usize;
        let is_split = linear < packet.len() && rng.once_in(4);
        let run = if is_split {
            runner.run_in_buffers(&packet, linear).unwrap()
        } else {
            runner.run(&packet, 1).unwrap()
        };
        let verdict = model.process(&packet);
        let out = match &verdict.reply {
            Some(reply) if is_split => reply.clone(),
            Some(reply) => in_frame_of(reply, &packet),
            None => packet.clone(),
        };
        let grown = out.len().saturating_sub(packet.len());
        if grown > MOST_GROWN {
            return Err(format!("packet {number}, {}, is answered by {grown} bytes more", hex(&packet)));
        }
        let same = run.action == verdict.action() && run.packet == out;
        if !same || !agree(world, &model, cpu, verdict.tenant) {
            let faults = [difference(world, &model, cpu), format!("action {}", run.action), hex(&run.packet)];
            return Err(format!(
                "packet {number}, {}\nmodel: {verdict:?}\n{}",
                hex(&packet),
                faults.join("\n")
            ));
        }
    }
    // Whatever a packet should not have touched.
    let maps = &world.loaded.maps;
    for tenant in 0..maps.tenants.len() {
        let words = world.buckets(tenant);
        if words != model.words[tenant] || maps.tenant_counters(tenant) != model.tenants[tenant] {
            let expected = model.words[tenant];
            let difference = difference(world, &model, cpu);
            return Err(format!("tenant {tenant}: {words:?}, not {expected:?}\n{difference}"));
        }
    }
    Ok(model)
}

/// A model of what the maps say, with buckets in any state.
fn model(world: &World, rng: &mut Rng, plan: Plan, now_ns: u64, cpu: usize) -> Model {
    let maps = &world.loaded.maps;
    let draw = rng.word();
    maps.cpus.store_at(cpu, offset_of!(Cpu, draw), &draw);
    let tats =
        [1, now_ns, now_ns.saturating_add(SECOND / 2), now_ns.saturating_add(3_600 * SECOND), u64::MAX];
    let words: Vec<[u64; 5]> =
        (0..maps.tenants.len()).map(|_| [(); 5].map(|()| rng.mostly(3, 0, &tats))).collect();
    for (tenant, words) in words.iter().enumerate() {
        world.set_buckets(tenant, *words);
    }
    let tenants = vec![TenantCounters::default(); words.len()];
    let cpu = maps.cpus.load(cpu);
    let lacking = None;
    let mut model = Model { plan, ready: true, now_ns, heartbeat_ns: now_ns, words, tenants, cpu, lacking };
    set_time(world, &mut model, now_ns, true);
    model
}

/// Sets the clock, and stamps the heartbeat with it.
fn set_time(world: &World, model: &mut Model, now_ns: u64, beat: bool) {
    model.now_ns = now_ns;
    let clock = Clock { tick_ns: 0, origin_jiffies: 0, origin_ns: now_ns };
    world.loaded.maps.control.store_at(0, offset_of!(Control, clock), &clock);
    if beat {
        model.heartbeat_ns = now_ns;
        world.loaded.maps.beat(Nanos(now_ns));
    }
}

/// True if the CPU's and a tenant's counters are equal.
fn agree(world: &World, model: &Model, cpu: usize, tenant: usize) -> bool {
    let maps = &world.loaded.maps;
    maps.cpus.load(cpu) == model.cpu && maps.tenant_counters(tenant) == model.tenants[tenant]
}

/// The counters found and expected, and the plan.
fn difference(world: &World, model: &Model, cpu: usize) -> String {
    let maps = &world.loaded.maps;
    let mut report =
        format!("at {} ns, heartbeat {}, ready {}", model.now_ns, model.heartbeat_ns, model.ready);
    let found = maps.cpus.load(cpu);
    if found != model.cpu {
        write!(report, "\ncounted {found:?}\n    not {:?}", model.cpu).unwrap();
    }
    for (tenant, expected) in model.tenants.iter().enumerate() {
        let found = maps.tenant_counters(tenant);
        if found != *expected {
            write!(report, "\ntenant {tenant} counted {found:?}\n    not {expected:?}").unwrap();
            write!(report, "\n{:?}", tenant.checked_sub(1).and_then(|place| model.plan.tenants.get(place)))
                .unwrap();
        }
    }
    report
}

fn hex(packet: &[u8]) -> String {
    packet.iter().fold(format!("{} bytes ", packet.len()), |mut report, byte| {
        write!(report, "{byte:02x}").unwrap();
        report
    })
}
