//! Races: several CPUs and the daemon change the same words at the same time.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gate_common::abi::{Cpu, Event, Exit, Protocol, Reason, TenantState};
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::Multiplier;
use gate_tests::daemon::PATIENCE;
use gate_tests::net::Net;
use gate_tests::packet::{Packet, tcp};
use gate_tests::privilege;
use gate_tests::wait::until;
use gate_tests::world::{PRICES, Plan, TCP, World, pin, service, tenant};
use gate_userspace::clock;
use gate_userspace::kernel::{self, Cpus, PinDir, Sizes};

/// A request of one byte, of the first tenant.
fn request() -> Vec<u8> {
    Packet::tcp("198.18.0.2", "198.18.0.1", 11211, tcp::ACK, b"x").bytes()
}

/// One service, one tenant.
fn plan(base_mru: u32, state: TenantState) -> Plan {
    let mut service = service(TCP, "198.18.0.1", 11211, Protocol::Opaque);
    service.3 = gate_common::abi::ServiceState { base_mru, kib_mru: 0, ..PRICES };
    Plan {
        services: vec![service],
        tenants: vec![state],
        sources: vec![("198.18.0.2".parse().unwrap(), 32, 1)],
        ..Plan::default()
    }
}

/// XDP on every CPU, and user space, take from one word: together no more than the bucket allows.
#[test]
fn one_word_is_one_quota_however_many_take_from_it() {
    if !privilege::root("racing::one_word_is_one_quota_however_many_take_from_it") {
        return;
    }
    const TAKES: u32 = 1_000_000;
    const PRICE_MRU: u32 = 1_000;
    let per_sec = 50_000_000;
    let burst_ns = 20_000_000;
    let limits = Limits::new(per_sec, burst_ns);
    let mut world = World::new(4, 2048).unwrap();
    world.install(&plan(PRICE_MRU, TenantState { quota: limits, ..tenant() }));
    let cpus = std::thread::available_parallelism().unwrap().get();
    let runners: Vec<_> = (0..cpus).map(|_| world.loaded.runner().unwrap()).collect();
    let packet = request();
    let over = AtomicBool::new(false);
    let word = world.loaded.maps.quota_tat(1);
    let start = Instant::now();
    let by_user = std::thread::scope(|scope| {
        let threads: Vec<_> = runners
            .iter()
            .enumerate()
            .map(|(cpu, runner)| {
                let packet = &packet;
                scope.spawn(move || {
                    pin(cpu);
                    let mut left = TAKES / cpus as u32;
                    while left > 0 {
                        let repeat = left.min(10_000);
                        runner.run(packet, repeat).unwrap();
                        left -= repeat;
                    }
                })
            })
            .collect();
        let user = scope.spawn(|| {
            let mut admitted = 0_u64;
            while !over.load(Ordering::Relaxed) {
                // It is faster, and would leave nothing to XDP.
                if admitted > world.loaded.maps.tenant_counters(1).segments {
                    std::hint::spin_loop();
                    continue;
                }
                let seen = word.load(Ordering::Relaxed);
                if let Take::Admit { tat } = take(seen, world.now().0, PRICE_MRU, &limits)
                    && word.compare_exchange(seen, tat, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    admitted += 1;
                }
            }
            admitted
        });
        for thread in threads {
            thread.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        user.join().unwrap()
    });
    let took = start.elapsed();
    let counted = world.counted();
    let passed = counted.tenants[1].segments;
    let refused = counted.tenants[1].refused_in_all();
    assert_eq!(passed + refused, u64::from(TAKES / cpus as u32) * cpus as u64);
    assert!(
        passed > 0 && by_user > 0 && refused > 0,
        "{passed} passed, {refused} refused, {by_user} by the user"
    );
    let tick_ns = world.loaded.maps.clock().tick_ns;
    let allowed = u128::from(per_sec) * (took.as_nanos() + u128::from(tick_ns + burst_ns)) / 1_000_000_000;
    let admitted = u128::from(passed + by_user) * u128::from(PRICE_MRU);
    assert!(admitted <= allowed, "{admitted} of {allowed} admitted in {took:?}");
    // How much more than the first burst depends on how often the threads were given a CPU.
    let burst = u128::from(per_sec) * u128::from(burst_ns) / 1_000_000_000;
    assert!(admitted >= burst, "{admitted} admitted in {took:?}, less than the burst of {burst}");
    assert_eq!(counted.cpu.exits[Exit::Passed.index()], passed);
}

/// A word that changes between a look and its swap at every attempt: refused, and counted as such.
///
/// With all 16 attempts that takes minutes to happen once, so the program has fewer here.
#[test]
fn whoever_runs_out_of_attempts_is_refused_and_counted() {
    if !privilege::root("racing::whoever_runs_out_of_attempts_is_refused_and_counted") {
        return;
    }
    const ATTEMPTS: NonZeroU32 = NonZeroU32::new(2).unwrap();
    let mut world = World::with_attempts(4, 2048, ATTEMPTS).unwrap();
    let limits = Limits::new(1_000_000_000, 1_000_000_000);
    world.install(&plan(1_000, TenantState { quota: limits, ..tenant() }));
    let maps = &world.loaded.maps;
    let runner = world.loaded.runner().unwrap();
    let packet = request();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let over = AtomicBool::new(false);
    let word = maps.quota_tat(1);
    let contended = || maps.cpu_counters().events[Event::Contended.index()];
    std::thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            pin(cpus - 1);
            // Always a full bucket's, so that nothing but the race can refuse.
            for tat in (0..1_u64 << 20).cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                word.store(tat, Ordering::Relaxed);
            }
        });
        pin(0);
        let started = Instant::now();
        while contended() < 10 && started.elapsed() < Duration::from_secs(60) {
            runner.run(&packet, 10_000).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        hammer.join().unwrap();
    });
    let counters = world.counted().tenants[1];
    let contended = contended();
    assert!(contended >= 10, "{contended} in {} requests", counters.segments);
    assert_eq!((counters.refused[Reason::Quota.index()], counters.refused_in_all()), (contended, contended));
    println!("{contended} of {} requests ran out of attempts", counters.segments + contended);
}

/// Every generation's price and multiplier make the same product; a mixture of two would not.
#[test]
fn no_packet_is_handled_by_half_a_plan() {
    if !privilege::root("racing::no_packet_is_handled_by_half_a_plan") {
        return;
    }
    const FLIPS: u64 = 100_000;
    const PRODUCT: u32 = 1 << 16;
    const HIGHEST_POWER: u32 = 7;
    let limits = Limits::new(1_000_000_000_000, 1_000_000_000_000);
    let mut world = World::new(4, 2048).unwrap();
    world.install(&plan(PRODUCT, TenantState { quota: limits, ..tenant() }));
    let runner = world.loaded.runner().unwrap();
    let packet = request();
    let over = AtomicBool::new(false);
    let maps = &world.loaded.maps;
    let first = world.generation();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            pin(0);
            while !over.load(Ordering::Relaxed) {
                runner.run(&packet, 10_000).unwrap();
            }
        });
        let cpus = std::thread::available_parallelism().unwrap().get();
        pin(cpus - 1);
        let now = Instant::now();
        for generation in first + 1.. {
            // At least so many, and as many as it takes for a packet to have met one.
            let enough = generation > first + FLIPS && generation % 1_000 == 0;
            if enough && world.counted().cpu.events[Event::Retried.index()] > 0 {
                break;
            }
            let power = generation as u32 % (HIGHEST_POWER + 1);
            let state = gate_common::abi::ServiceState {
                base_mru: PRODUCT >> power,
                kib_mru: 0,
                stamp: generation,
                ..PRICES
            };
            let multiplier = Multiplier::from_int(1 << power).0;
            let tenant = TenantState { quota: limits, multiplier, stamp: generation, ..tenant() };
            maps.write_service_state(1, generation, &state);
            maps.write_tenant_state(1, generation, &tenant);
            maps.write_view(generation, &maps.view());
            maps.publish(generation);
            assert!(now.elapsed().as_secs() < 60, "{generation} generations");
        }
        over.store(true, Ordering::Relaxed);
        runs.join().unwrap();
    });
    let counted = world.counted();
    let Cpu { exits, events, .. } = counted.cpu;
    let passed = exits[Exit::Passed.index()];
    assert!(passed > 0 && events[Event::Retried.index()] > 0, "{passed} passed, {events:?}");
    let torn = events[Event::Torn.index()];
    let charged = counted.tenants[1].charged_mru;
    // A packet that met a change at every attempt is handled all the same, and counted: such a one may be charged the
    // lowest price by the lowest multiplier, or the highest by the highest. Every other is charged the product.
    let whole = (passed - torn) * u64::from(PRODUCT);
    let least = whole + torn * u64::from(PRODUCT >> HIGHEST_POWER);
    let most = whole + torn * u64::from(PRODUCT << HIGHEST_POWER);
    println!("{passed} passed, {charged} charged, {torn} torn");
    assert!((least..=most).contains(&charged), "{charged} charged, not {least} to {most}; {torn} torn");
    // Half the mixtures of two plans are dearer than either, so that many of them would not be hidden by these few.
    assert!(torn * 1_000 <= passed, "{torn} of {passed} torn");
}

/// XDP's clock and the daemon's, which are compared when maps are made, however late a thread is then given a CPU.
#[test]
fn clocks_that_were_compared_on_a_busy_machine_agree() {
    if !privilege::root("racing::clocks_that_were_compared_on_a_busy_machine_agree") {
        return;
    }
    let cpus = Cpus::of_machine().unwrap();
    let cpu_rows = cpus.rows();
    let cpus = cpus.numbers();
    let sizes = Sizes { cpus, cpu_rows, thread_rows: 0, tenants: 4, services: 4, blocks: 16, samples: 4_096 };
    let net = Net::open().unwrap();
    let over = AtomicBool::new(false);
    let compared: Vec<_> = std::thread::scope(|scope| {
        for _ in 0..2 * sizes.cpus {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let compare = |_| {
            let pins = PinDir::make(net.pins()).unwrap();
            let clock = kernel::open(&pins, &sizes, false, None).unwrap().maps.clock();
            PinDir::remove(pins.path()).unwrap();
            (clock, Instant::now())
        };
        let compared = (0..3).map(compare).collect();
        over.store(true, Ordering::Relaxed);
        compared
    });
    for (clock, at) in compared {
        until("time passes", PATIENCE, || at.elapsed() > Duration::from_secs(1));
        // Jiffies may be late for a moment, but not for long.
        until(&format!("{clock:?} is right"), PATIENCE, || {
            let now = clock::monotonic();
            now.0.abs_diff(clock.at_jiffies(jiffies()).0) <= 2 * clock.tick_ns
        });
    }
}

/// As the kernel says them.
fn jiffies() -> u64 {
    let timers = std::fs::read_to_string("/proc/timer_list").unwrap();
    timers.lines().find_map(|line| line.strip_prefix("jiffies: ")).unwrap().parse().unwrap()
}
