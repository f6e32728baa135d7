use super::*;

fn at(seconds: u64) -> Nanos {
    Nanos::from_secs(10_000 + seconds)
}

const fn comer(id: u64, takes_over: bool) -> Comer<'static> {
    Comer { name: "gate-1", id, interval: Nanos::from_millis(100), takes_over, drains: false }
}

#[test]
fn of_a_name_one_reports_and_its_successor_beside_it() {
    let gates = Gates::default();
    let first = gates.take(at(0), comer(1, false)).unwrap();
    assert_eq!(gates.take(at(0), comer(2, false)).unwrap_err(), Denied::Connected);
    let second = gates.take(at(0), comer(2, true)).unwrap();
    assert_ne!(first.gate, second.gate, "each has its own part");
    assert_eq!(gates.take(at(0), comer(3, true)).unwrap_err(), Denied::Connected);
    assert_eq!(gates.sharing(), 2);
    // The first drains: its stream breaks, and goes on.
    gates.put_back(at(1), "gate-1", first, false);
    let drains = Comer { drains: true, ..comer(1, false) };
    let first = gates.take(at(1), drains).unwrap();
    gates.put_back(at(2), "gate-1", second, false);
    let second = gates.take(at(3), comer(4, false));
    assert!(second.is_ok(), "who drains is in nobody's way");
    // It has left for good: its place is the next one's that takes over from the second.
    gates.put_back(at(4), "gate-1", first, false);
    let third = gates.take(at(20), comer(3, true)).unwrap();
    assert_eq!((third.gate, gates.sharing()), (0, 2));
}

#[test]
fn who_has_left_is_forgotten_in_time() {
    let gates = Gates::default();
    let leave = |id| {
        let mut session = gates.take(at(0), comer(id, false)).unwrap();
        session.charged = 7;
        gates.put_back(at(0), "gate-1", session, false);
    };
    leave(1);
    gates.release_left(at(9));
    assert_eq!(gates.take(at(9), comer(1, false)).unwrap().charged, 7);
    leave_again(&gates, 1);
    gates.release_left(at(20));
    let session = gates.take(at(20), comer(1, false)).unwrap();
    assert_eq!((session.charged, session.ended), (0, 7));
    gates.put_back(at(20), "gate-1", session, false);
    gates.release_left(at(700));
    assert!(gates.known().is_empty());
    let next = Comer { name: "gate-2", ..comer(1, false) };
    assert_eq!(gates.take(at(700), next).unwrap().gate, 0, "its number is another's");
}

#[test]
fn gates_are_counted_until_a_minute_after_they_left() {
    let gates = Gates::default();
    let named = |name, id| Comer { name, ..comer(id, false) };
    let sessions = ["gate-1", "gate-2"].map(|name| gates.take(at(0), named(name, 1)).unwrap());
    assert_eq!(gates.sharing(), 2);
    for (name, session) in ["gate-1", "gate-2"].into_iter().zip(sessions) {
        gates.put_back(at(1), name, session, false);
    }
    gates.release_left(at(61));
    assert_eq!(gates.sharing(), 2);
    // One comes back, and leaves again.
    let session = gates.take(at(61), named("gate-1", 1)).unwrap();
    gates.release_left(at(62));
    assert_eq!(gates.sharing(), 1);
    gates.put_back(at(100), "gate-1", session, false);
    gates.release_left(at(160));
    assert_eq!(gates.sharing(), 1);
    gates.release_left(at(700));
    assert_eq!((gates.sharing(), gates.known().len()), (0, 1));
    // Forgotten, it is a new one.
    gates.release_left(at(702));
    assert!(gates.known().is_empty() && gates.lock().left.is_empty());
    gates.take(at(702), named("gate-1", 1)).unwrap();
    assert_eq!(gates.sharing(), 1);
}

#[test]
fn the_gate_that_left_first_makes_room() {
    let gates = Gates::default();
    let name = |number: usize| format!("gate-{number}");
    let join = |now, number: usize| gates.take(now, Comer { name: &name(number), ..comer(1, false) });
    let mut sessions: Vec<_> = (0..MOST_GATES).map(|number| join(at(0), number).unwrap()).collect();
    assert_eq!(join(at(0), MOST_GATES).unwrap_err(), Denied::TooMany);
    for (seconds, number) in [(1, 7), (2, 5), (3, 9)] {
        let session = sessions.remove(number);
        let left = session.gate as usize;
        gates.put_back(at(seconds), &name(left), session, false);
    }
    assert_eq!(join(at(61), MOST_GATES).unwrap_err(), Denied::TooMany, "it may come back");
    // The first has come back.
    join(at(61), 7).unwrap();
    let next = join(at(64), MOST_GATES).unwrap();
    assert_eq!(next.gate, 5, "the place of the one that left first of those that are gone");
    assert_eq!(gates.sharing(), MOST_GATES);
}

fn leave_again(gates: &Gates, id: u64) {
    let mut session = Session::new(id, 0, Nanos::from_millis(100));
    session.charged = 7;
    gates.put_back(at(9), "gate-1", session, false);
}
