//! How many requests are noted, and whose an answer is.

use super::*;

const TICK: Nanos = Nanos::from_millis(100);

/// Maps with two services: memcached over UDP in slot 1, and over TCP in slot 2.
fn maps() -> Maps {
    let maps = Maps::small();
    let service = |id, port, transport| Service {
        id,
        port,
        transport,
        protocol: Protocol::Memcached as u8,
        flags: service_flags::ANY_ADDRESS,
        ..Service::default()
    };
    maps.services.store(1, &service(0, 11211, UDP));
    maps.services.store(2, &service(1, 11212, 6));
    let view = gate_common::abi::View { first_service: 1, services: 2, ..Default::default() };
    for bank in 0..2 {
        maps.write_view(bank, &view);
    }
    maps
}

fn in_passing() -> InPassing {
    InPassing::new(Settings::default(), Nanos::ZERO).unwrap()
}

/// The only one.
fn of(services: &mut [Option<InPassing>; 1]) -> &mut InPassing {
    services[0].as_mut().unwrap()
}

fn answer(port: u16, took_ns: u64, failed: u8) -> Measured {
    Measured { took_ns, service: 1, port: port.to_be(), failed, bytes: 100, ..Measured::default() }
}

#[test]
fn as_many_are_noted_as_a_second_allows() {
    for (per_sec, most, rate) in [(100, 4_000, 0), (3_999, 4_000, 0), (4_000, 4_000, 1), (200_000, 4_000, 6)]
    {
        let mut pace = Pace::default();
        let mut now = Nanos::ZERO;
        let mut share = MeasuredShare::new(0, 0);
        for _ in 0..50 {
            now = now.saturating_add(TICK);
            let noted = (per_sec / 10) >> share.rate().unwrap();
            share = pace.next(noted, now, TICK, most);
        }
        assert_eq!(share.rate(), Some(rate), "{per_sec} a second");
    }
}

#[test]
fn a_jump_is_followed_at_once_and_silence_notes_all_again() {
    let mut pace = Pace::default();
    assert_eq!(pace.next(20_000, TICK, TICK, 4_000).rate(), Some(6));
    assert_eq!(pace.next(u64::MAX, TICK, TICK, 4_000).rate(), Some(MeasuredShare::MOST));
    let rates: Vec<_> = (0..20).map(|_| pace.next(0, TICK, TICK, 4_000).rate().unwrap()).collect();
    assert_eq!((rates[0], rates[15], rates[19]), (15, 0, 0));
    // The first tick has no length: nothing follows from it.
    assert_eq!(Pace::default().next(1_000_000, TICK, Nanos::ZERO, 4_000).rate(), Some(0));
}

#[test]
fn other_requests_are_noted_after_a_while() {
    let mut pace = Pace::default();
    let turns: Vec<_> = (0..800).map(|tick| pace.next(0, Nanos(tick * TICK.0), TICK, 1).turn()).collect();
    assert_eq!((turns[99], turns[100], turns[199], turns[200], turns[799]), (0, 1, 1, 2, 7));
}

#[test]
fn shares_are_written_to_the_slots_of_datagrams_alone() {
    let maps = maps();
    let mut both = [Some(in_passing()), Some(in_passing())];
    let shares = |maps: &Maps| [1, 2].map(|slot| maps.services.load(slot).measured);
    let all = |both: &mut [_; 2], is_on| pace(&maps, both, is_on, Nanos::from_secs(1), TICK);
    all(&mut both, true);
    assert_eq!(shares(&maps), [MeasuredShare::new(0, 0).0, 0]);
    let Service { id, protocol, flags, .. } = maps.services.load(1);
    assert_eq!((id, protocol, flags), (0, Protocol::Memcached as u8, service_flags::ANY_ADDRESS));
    all(&mut both, false);
    assert_eq!(shares(&maps), [0, 0]);
    let view = gate_common::abi::View { flags: view_flags::PASS_FRAGMENTS, ..maps.view() };
    (0..2).for_each(|bank| maps.write_view(bank, &view));
    all(&mut both, true);
    assert_eq!(shares(&maps), [0, 0], "fragments pass unseen");
}

#[test]
fn an_answer_counts_for_who_listens_at_its_port() {
    let maps = maps();
    let mut measured = [Some(in_passing())];
    let foreign = [Measured { service: 9, ..answer(11211, 1, 0) }, answer(11299, 1, 0)];
    let unread = Measured { class: 200, ..answer(11211, 1, 0) };
    let own = [answer(11211, 2_000_000, 0), answer(11211, 1, 1), unread];
    let all: Vec<_> = foreign.into_iter().chain(own).collect();
    record(&maps, &all, &mut measured);
    let counts = of(&mut measured).report().counts;
    assert_eq!(counts, Counts { noted: 0, answered: 3, failed: 1, bytes: 300 });
}

#[test]
fn of_few_answers_nothing_is_said() {
    let maps = maps();
    let mut measured = [Some(in_passing())];
    let mut answers = vec![answer(11211, 2_000_000, 0); 99];
    record(&maps, &answers, &mut measured);
    assert_eq!(of(&mut measured).tick(TICK, false), None);
    let report = of(&mut measured).report();
    assert_eq!((report.p50_us, report.latency_ratio), (None, None));
    answers.truncate(1);
    record(&maps, &answers, &mut measured);
    let ratio = of(&mut measured).tick(Nanos(2 * TICK.0), false);
    let report = of(&mut measured).report();
    assert!(ratio.is_some() && ratio == report.latency_ratio, "{report:?}");
    assert!(report.p50_us.unwrap().abs_diff(2_000) < 40, "{report:?}");
    assert!(report.classes[QueryClass::Get as usize].is_some() && report.classes[1].is_none());
    // A store that fails at once is not fast, and not measured.
    let errors = vec![answer(11211, 1, 1); 1_000];
    record(&maps, &errors, &mut measured);
    assert_eq!(of(&mut measured).tick(Nanos::from_secs(9), false), None);
}

#[test]
fn what_was_seen_is_a_share_of_all_requests() {
    let maps = maps();
    let mut measured = [Some(in_passing())];
    let mut now = Nanos::ZERO;
    for tick in 1..=20_u64 {
        now = Nanos(tick * TICK.0);
        // 20,000 requests a second, of which XDP notes what it is told, and one in ten is not answered.
        let rate = of(&mut measured).share.rate().unwrap_or(0);
        let noted = 2_000 >> rate;
        let before: Service = maps.services.load(1);
        maps.services.store(1, &Service { noted: before.noted + noted, ..before });
        let answers = vec![answer(11211, 1_000, 0); noted as usize * 9 / 10];
        record(&maps, &answers, &mut measured);
        pace(&maps, &mut measured, true, now, TICK);
        of(&mut measured).tick(now, false);
    }
    let report = of(&mut measured).report();
    assert_eq!(report.every, Some(8));
    let seen = report.seen.unwrap();
    assert!((seen - 0.9 / 8.0).abs() < 0.02, "{seen} until {now}");
}
